//! Which queues of ours can be used.
//!
//! Problem: brokers are set up by others. A virtual host has as many queues as it may have before the dead-letter
//! queue exists; or all queues were made beforehand, and the user may declare none. A route that cannot declare one
//! queue must not stand still for it. So
//!
//! - **what exists is used**: a queue is looked for before it is declared. Where the user may not declare it, or it
//!   was made with other settings, it is used as it is. A wait queue with other settings is not: its messages might
//!   never come back;
//! - **what is missing stops only what needs it**: copies for that queue wait (`publisher`), nothing is parked, and
//!   everything else goes on. The route is not ready meanwhile, and says why. The queue is tried again every few
//!   seconds (`counts`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::topology::Target;
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::options::RouteOptions;
use crate::rabbit::supervisor::Context;
use sluiced_ports::connect::Link;
use sluiced_ports::lock;

/// What a queue of ours was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rabbit) enum Standing {
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
    /// When it is missing and cannot be declared, is a wait queue with other settings, or the broker is lost.
    pub(in crate::rabbit) async fn make_usable(
        &self,
        route: &RouteOptions,
        target: Target,
    ) -> Result<Standing, RabbitError> {
        let queue = target.queue(route.queue());
        let is_there = match self.look_for(&queue).await {
            Ok(_) => true,
            Err(RabbitError::Missing { .. }) => false,
            // Some versions ask for a right. Whether it is there shows when it is used.
            Err(RabbitError::Refused { .. }) => true,
            Err(error) => return Err(error),
        };
        match self.declare_target(route, target).await {
            Ok(()) if is_there => Ok(Standing::Ours),
            Ok(()) => Ok(Standing::Made),
            Err(RabbitError::Refused { .. }) if is_there => Ok(Standing::NotCompared),
            Err(RabbitError::Refused { reason }) => {
                Err(RabbitError::Undeclarable { queue, reason })
            }
            Err(RabbitError::Mismatch { reason, .. })
                if is_there && works_differently(target, &reason) =>
            {
                Ok(Standing::Other(reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Looks for the work queue, or makes sure of it if the route declares it.
    pub(in crate::rabbit) async fn make_sure_of_work_queue(
        &self,
        route: &RouteOptions,
    ) -> Result<Standing, RabbitError> {
        if route.settings.declare {
            return self.make_usable(route, Target::Work).await;
        }
        match self.look_for(route.queue()).await {
            Ok(_) => Ok(Standing::Ours),
            // Whether it is there shows when it is consumed.
            Err(RabbitError::Refused { .. }) => Ok(Standing::NotCompared),
            Err(RabbitError::Missing { queue }) => Err(RabbitError::Undeclared { queue }),
            Err(error) => Err(error),
        }
    }
}

/// The queues of a route that cannot be used now, and why. Outlives the sessions.
#[derive(Debug, Default)]
pub(in crate::rabbit) struct Unusable(Mutex<BTreeMap<Target, String>>);

impl Unusable {
    pub(super) fn targets(&self) -> Vec<Target> {
        lock(&self.0).keys().copied().collect()
    }

    /// Whether the route is ready, as far as its queues are concerned.
    pub(in crate::rabbit) fn link(&self) -> Link {
        match lock(&self.0).values().next() {
            None => Link::Up,
            Some(why) => {
                Link::Down(format!("{why}; messages that need it wait, all others go on").into())
            }
        }
    }

    /// Remembers why a queue cannot be used; `None`: it can. Returns whether that is new.
    fn set(&self, target: Target, why: Option<String>) -> bool {
        let mut unusable = lock(&self.0);
        match why {
            Some(why) => unusable.insert(target, why.clone()).as_ref() != Some(&why),
            None => unusable.remove(&target).is_some(),
        }
    }
}

impl Context {
    /// Makes sure that a queue of ours can be used, and remembers if it cannot. One that had been there and was
    /// missing is reported.
    ///
    /// # Errors
    /// As for [`LiveConnection::make_usable`].
    pub(in crate::rabbit) async fn make_sure(
        &self,
        live: &LiveConnection,
        target: Target,
    ) -> Result<(), RabbitError> {
        let route = &self.route.name;
        let queue = target.queue(self.route.queue());
        match live.make_usable(&self.route, target).await {
            Ok(standing) => {
                match standing {
                    Standing::Made => self.report_gone(target),
                    Standing::Other(reason) => {
                        tracing::debug!(%route, queue, reason, "a queue has other settings, and is used as it is");
                    }
                    Standing::Ours | Standing::NotCompared => {}
                }
                if self.unusable.set(target, None) {
                    tracing::info!(%route, queue, "a queue can be used again");
                }
                Ok(())
            }
            Err(error) => {
                if error.is_of_one_queue() && self.unusable.set(target, Some(error.to_string())) {
                    tracing::warn!(%route, queue, %error, "a queue cannot be used: messages that need it wait, all others go on");
                }
                Err(error)
            }
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

    #[test]
    fn a_route_is_ready_once_each_queue_can_be_used() {
        let unusable = Unusable::default();
        assert!(unusable.link().is_up());
        assert!(unusable.set(Target::Dead, Some("full".to_owned())));
        assert!(!unusable.set(Target::Dead, Some("full".to_owned())));
        assert!(matches!(unusable.link(), Link::Down(why) if why.starts_with("full; ")));
        assert_eq!(unusable.targets(), [Target::Dead]);
        assert!(unusable.set(Target::Dead, None) && !unusable.set(Target::Dead, None));
        assert!(unusable.link().is_up());
    }
}
