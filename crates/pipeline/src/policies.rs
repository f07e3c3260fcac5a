//! Keeps this replica at the current policies of its limits.
//!
//! One task for each limit declares this replica's file to the store and receives the current policy
//! (`core::policy`): at the start, when the file was read again, when a notice of a change comes, when an
//! answer has a version that this replica does not know, and every few seconds. The policy is parsed as
//! the configuration is and sent to the pacers. If it cannot be parsed, nothing is sent under the limit,
//! and the reason is logged.

mod follower;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tracing::debug;

use sluiced_core::jitter::Jitter;
use sluiced_core::limits::Rule;
use sluiced_core::policy::{Declaration, LimitPolicy, PolicyVersion, keeping_end};
use sluiced_core::time::StoreTime;
use sluiced_ports::clock::Clock;
use sluiced_ports::limits::KeyedLimit;
use sluiced_ports::policies::{PolicyOf, pause_of};
use sluiced_ports::store::{Family, Notice, PRESENCE, Store};

use self::follower::Follower;
use super::follow::Following;
use super::limit_facts::{Change, FileLimit, LimitFacts};
use super::meters::PolicyMeters;
use super::pause::Pauses;

/// Replicas that receive a notice of the same change ask for the policy at random times within this.
pub(super) const SPREAD: Duration = Duration::from_millis(100);
/// Two questions are at least this far apart.
const GAP: Duration = Duration::from_millis(20);
/// The first wait after a question that failed; it doubles up to [`PRESENCE`].
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// A limit whose policy may change while it runs. The pipeline uses it as a `T`: the paces of its rows (the
/// main one's, and that of the second row if there is one), or the rule of a keyed limit.
pub struct PolicySpec<T> {
    pub store: Arc<dyn Store>,
    pub family: Family,
    /// The name of this replica.
    pub replica: String,
    /// The limit in this replica's file. A new value is declared as an update.
    pub file: watch::Receiver<Arc<dyn FileLimit<T>>>,
}

impl<T> PolicySpec<T> {
    pub(super) fn declares(&self, limit: &Arc<str>) -> Declares {
        Declares {
            store: Arc::clone(&self.store),
            family: self.family,
            limit: Arc::clone(limit),
            replica: self.replica.clone(),
        }
    }
}

/// A limit whose policy a replica declares.
#[derive(Debug)]
pub(super) struct Declares {
    pub(super) store: Arc<dyn Store>,
    family: Family,
    pub(super) limit: Arc<str>,
    pub(super) replica: String,
}

impl Declares {
    /// An operator's pause of a route (`pause_of`), which is kept like that of a limit. No file says anything of it, so
    /// there is no goodbye when a replica stops.
    pub(super) fn pause(pauses: &Pauses, route: &str) -> Self {
        Self {
            store: Arc::clone(&pauses.store),
            family: Family::Paced,
            limit: pause_of(route).into(),
            replica: pauses.replica.clone(),
        }
    }

    pub(super) fn policy(&self) -> PolicyOf<'_> {
        PolicyOf::new(&*self.store, self.family, &self.limit)
    }

    /// The replica stops: its file counts no more.
    pub(super) async fn end(&self) {
        let absent = self.store.absent(self.family, &self.limit, &self.replica);
        if let Err(error) = absent.await {
            debug!(limit = %self.limit, %error, "the store was not told that this replica leaves");
        }
    }
}

/// A keyed limit whose policy may change.
#[derive(Debug)]
pub struct KeyedPolicy {
    pub limit: Arc<KeyedLimit>,
    pub spec: PolicySpec<Rule>,
}

/// The current policy of a limit: parsed once, when it was received.
#[derive(Debug)]
pub(super) struct CurrentPolicy {
    /// As the store keeps it.
    pub(super) stored: Arc<LimitPolicy>,
    /// What follows from it.
    pub(super) facts: LimitFacts,
}

impl CurrentPolicy {
    /// The text of this policy with another value, and with its end.
    pub(super) fn with(&self, change: Change) -> Option<String> {
        let text = (self.facts.changed)(change)?;
        Some(keeping_end(text, &self.stored.text))
    }

    /// An operator paused the limit until then. May be over.
    pub(super) fn paused_until(&self) -> Option<StoreTime> {
        self.stored.pause.as_ref().map(|pause| pause.until)
    }
}

/// One limit's task.
pub(super) struct Watch<T> {
    pub(super) limit: Arc<str>,
    pub(super) spec: PolicySpec<T>,
    pub(super) meters: PolicyMeters,
    pub(super) jitter: Jitter,
    /// Notified when an answer came under another version.
    pub(super) outdated: Arc<Notify>,
    pub(super) following: Following,
    pub(super) clock: Clock,
}

impl<T: Send> Watch<T> {
    /// Runs for as long as it is polled, and calls `adopt` with each new policy.
    pub(super) async fn run(self, adopt: impl Fn(Arc<CurrentPolicy>, T) + Send) {
        let (mut spec, mut following) = (self.spec, self.following);
        let (jitter, clock, outdated) = (self.jitter, self.clock, self.outdated);
        let mut notices = Some(spec.store.notices());
        let mut follower = Follower {
            limit: self.limit,
            known: None,
            differs: None,
            meters: self.meters,
        };
        let mut retry = RETRY;
        // Received, and not in use yet.
        let mut received = None;
        loop {
            let file = spec.file.borrow_and_update().clone();
            let declaration = Declaration {
                replica: spec.replica.clone(),
                file: file.policy(),
                known: follower.known.as_deref().cloned(),
            };
            let policy = PolicyOf::new(&*spec.store, spec.family, &follower.limit);
            let wait = match policy.declare(&declaration).await {
                Ok(policy) => {
                    follower.compare(&policy, &declaration.file);
                    if follower.is_new(&policy) {
                        received = follower.receive(policy, &*file);
                        let current = received.as_ref().map(|(current, _)| current);
                        following.adopt(current, clock.now());
                    }
                    match following.first(clock).await {
                        // Until it is made, no call leaves.
                        Some(update) if received.is_some() => {
                            if follower.follow(&update, &spec).await {
                                GAP
                            } else {
                                retry = (retry * 2).min(PRESENCE);
                                retry
                            }
                        }
                        _ => {
                            retry = RETRY;
                            if let Some((current, read)) = received.take() {
                                adopt(current, read);
                            }
                            PRESENCE - SPREAD + jitter.of(SPREAD)
                        }
                    }
                }
                Err(error) => {
                    debug!(limit = %follower.limit, %error, "the current policy was not received");
                    retry = (retry * 2).min(PRESENCE);
                    retry
                }
            };
            let known = follower.known.as_ref().map(|known| known.version);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // What is begun is done, whatever else comes.
                update = follower.wanted(&mut following, clock) => {
                    follower.follow(&update, &spec).await;
                }
                () = outdated.notified() => tokio::time::sleep(GAP).await,
                to = changed(&mut notices, &follower.limit, known) => {
                    // An earlier version than ours: the store has lost the policy, and must get it back from
                    // us before a replica that does not know it uses its first slot.
                    if to >= known {
                        tokio::time::sleep(jitter.of(SPREAD)).await;
                    }
                }
                // Its sender lives as long as the daemon; without one there is nothing to receive.
                Ok(()) = spec.file.changed() => {}
            }
        }
    }
}

/// Waits for a notice of another version than `known`, and returns it (`None`: it was missed).
/// Never ends once no notice can come.
pub(super) async fn changed(
    notices: &mut Option<broadcast::Receiver<Notice>>,
    limit: &Arc<str>,
    known: Option<PolicyVersion>,
) -> Option<PolicyVersion> {
    while let Some(receiver) = notices {
        match receiver.recv().await {
            Ok(Notice::Changed { limit: of, to }) if of == *limit && Some(to) != known => {
                return Some(to);
            }
            Ok(_) => {}
            // A lost notice may have been about this limit.
            Err(broadcast::error::RecvError::Lagged(_)) => return None,
            Err(broadcast::error::RecvError::Closed) => *notices = None,
        }
    }
    std::future::pending().await
}

impl<T> fmt::Debug for PolicySpec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySpec")
            .field("family", &self.family)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
