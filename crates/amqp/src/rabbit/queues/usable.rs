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
//!   everything else goes on. The route is not ready meanwhile, and says why. The queue is tried again every ten
//!   seconds (`counts`).

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::RouteQueues;
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::topology::Target;
use crate::rabbit::topology::queue_check::QueueCheck;
use sluiced_ports::link::Link;
use sluiced_ports::lock;

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

impl RouteQueues {
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
            Ok(checked) => {
                match checked {
                    QueueCheck::Made => self.report_gone(target),
                    QueueCheck::Other(reason) => {
                        tracing::debug!(%route, queue, reason, "a queue has other settings, and is used as it is");
                    }
                    QueueCheck::Ours | QueueCheck::NotCompared => {}
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
