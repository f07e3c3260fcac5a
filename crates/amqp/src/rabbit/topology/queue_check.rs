//! Whether a queue of ours is there and can be used, and what is done if not.
//!
//! `queues::usable` says which queues with other settings are used as they are, why, and what follows where a queue
//! cannot be used.

use super::Target;
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::options::RouteOptions;

/// What a queue of ours was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rabbit) enum QueueCheck {
    /// The queue was there, as it is declared.
    Ours,
    /// The queue was there, and the user may not declare it: it cannot be compared.
    NotCompared,
    /// The queue was there with other settings, which the broker names; it works with them.
    Other(String),
    /// The queue was missing, and is declared now.
    Made,
}

/// Whether a queue with other settings does its work all the same.
fn works_differently(target: Target, reason: &str) -> bool {
    // Another client has an exclusive queue for itself; and what is read from a stream stays there.
    let only_differs = reason.contains("inequivalent arg") && !reason.contains("'stream'");
    only_differs && !matches!(target, Target::Wait(_))
}

impl LiveConnection {
    /// Makes sure that a queue of ours can be used.
    ///
    /// # Errors
    /// When it is missing and cannot be declared, is a wait queue with other settings, is a parked queue that the user
    /// may not consume, or the broker is lost.
    pub(in crate::rabbit) async fn make_usable(
        &self,
        route: &RouteOptions,
        target: Target,
    ) -> Result<QueueCheck, RabbitError> {
        let queue = target.queue(route.queue());
        let is_there = match self.look_for(&queue).await {
            Ok(_) => true,
            Err(RabbitError::Missing { .. }) => false,
            // Some versions ask for a right. Whether it is there shows when it is used.
            Err(RabbitError::Refused { .. }) => true,
            Err(error) => return Err(error),
        };
        let checked = match self.declare_target(route, target).await {
            Ok(()) if is_there => QueueCheck::Ours,
            Ok(()) => QueueCheck::Made,
            Err(RabbitError::Refused { .. }) if is_there => QueueCheck::NotCompared,
            Err(RabbitError::Refused { reason }) => {
                return Err(RabbitError::Undeclarable { queue, reason });
            }
            Err(RabbitError::Mismatch { reason, .. })
                if is_there && works_differently(target, &reason) =>
            {
                QueueCheck::Other(reason)
            }
            Err(error) => return Err(error),
        };
        if matches!(target, Target::Parked(_)) {
            self.may_consume_ours(queue).await?;
        }
        Ok(checked)
    }

    /// Whether a parked queue may be consumed. A session that began to consume one which may not be would lose its
    /// channel, and repeat its calls.
    pub(in crate::rabbit) async fn may_consume_ours(
        &self,
        queue: String,
    ) -> Result<(), RabbitError> {
        match self.may_consume(&queue).await {
            Err(RabbitError::Refused { reason }) => {
                Err(RabbitError::NotConsumable { queue, reason })
            }
            answer => answer,
        }
    }

    /// Looks for the work queue, or makes sure of it if the route declares it.
    pub(in crate::rabbit) async fn make_sure_of_work_queue(
        &self,
        route: &RouteOptions,
    ) -> Result<QueueCheck, RabbitError> {
        if route.settings.declare {
            return self.make_usable(route, Target::Work).await;
        }
        match self.look_for(route.queue()).await {
            Ok(_) => Ok(QueueCheck::Ours),
            // Whether it is there shows when it is consumed.
            Err(RabbitError::Refused { .. }) => Ok(QueueCheck::NotCompared),
            Err(RabbitError::Missing { queue }) => Err(RabbitError::Undeclared { queue }),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::ladder::Ladder;
    use std::time::Duration;

    const TYPE: &str = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'sms.dead' in vhost '/': received 'quorum' but current is ";

    #[test]
    fn other_settings_matter_where_messages_would_not_come_back() {
        let wait = Target::Wait(Ladder::up_to(Duration::ZERO).rung(Duration::ZERO));
        let classic = format!("{TYPE}'classic'");
        assert!(works_differently(Target::Dead, &classic));
        assert!(works_differently(Target::Work, &classic));
        assert!(!works_differently(wait, &classic));
        assert!(!works_differently(Target::Dead, &format!("{TYPE}'stream'")));
        let locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue";
        assert!(!works_differently(Target::Dead, locked));
    }
}
