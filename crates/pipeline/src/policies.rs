//! Keeps this replica at the current policies of its limits.
//!
//! One task for each limit declares this replica's file to the store and receives the current policy
//! (`core::policy`): at the start, when the file was read again, when a notice of a change comes, when an
//! answer has a version that this replica does not know, and every few seconds. The policy is parsed as
//! the configuration is and sent to the pacers. If it cannot be parsed, nothing is sent under the limit,
//! and the reason is logged.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tracing::{debug, error, info, warn};

use sluiced_core::leases::Phase;
use sluiced_core::limits::Rule;
use sluiced_core::policy::{
    Declaration, LimitPolicy, Origin, PolicyUpdate, PolicyVersion, as_written, keeping_end,
};
use sluiced_core::time::StoreTime;
use sluiced_ports::clock::Clock;
use sluiced_ports::limits::KeyedLimit;
use sluiced_ports::policies::{PolicyOf, pause_of};
use sluiced_ports::store::{Family, Notice, PRESENCE, Store};
use sluiced_telemetry::meters::PolicyMeters;
use sluiced_telemetry::note_change;

use super::follow::{Following, LOOK, Update};
use super::limit_facts::{Change, FileLimit, InForce, LimitFacts};
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
#[derive(Clone, Debug)]
pub(super) struct Declares {
    pub(super) store: Arc<dyn Store>,
    family: Family,
    pub(super) limit: Arc<str>,
    pub(super) replica: String,
}

impl Declares {
    /// An operator's pause of a route (`pause_of`), which is kept like that of a limit.
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
    pub(super) phase: Phase,
    /// Notified when an answer came under another version.
    pub(super) outdated: Arc<Notify>,
    pub(super) following: Following,
    pub(super) clock: Clock,
}

impl<T: Send> Watch<T> {
    /// Runs for as long as it is polled, and calls `adopt` with each new policy.
    pub(super) async fn run(self, adopt: impl Fn(Arc<CurrentPolicy>, T) + Send) {
        let (mut spec, mut following) = (self.spec, self.following);
        let (phase, clock, outdated) = (self.phase, self.clock, self.outdated);
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
                            let received = received.take().into_iter();
                            received.for_each(|(current, read)| adopt(current, read));
                            PRESENCE - SPREAD + phase.of(SPREAD)
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
                        tokio::time::sleep(phase.of(SPREAD)).await;
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

/// The policy that this replica knows, and what it logged.
struct Follower {
    limit: Arc<str>,
    known: Option<Arc<LimitPolicy>>,
    /// The difference that was logged: our policy and the current one.
    differs: Option<(String, String)>,
    meters: PolicyMeters,
}

impl Follower {
    /// Waits until the headroom should change.
    async fn wanted(&self, following: &mut Following, clock: Clock) -> Update {
        if self.known.is_none() || !following.is_on() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(update) = following.wanted(clock.now()) {
                return update;
            }
        }
    }

    /// Updates the policy. Returns whether the store has answered.
    async fn follow<T>(&self, update: &Update, spec: &PolicySpec<T>) -> bool {
        let Some(over) = &self.known else {
            return false;
        };
        let (limit, why) = (&self.limit, &update.why);
        let by = format!("{}: {why}", spec.replica);
        let policy = PolicyUpdate {
            over: over.version,
            text: &update.text,
            file: &over.file,
            by: &by,
        };
        // Each replica logs the change once it receives it, with the reason; `None`: another replica
        // was first, or an operator.
        let current = PolicyOf::new(&*spec.store, spec.family, limit);
        let done = current.set(&policy).await;
        if let Err(error) = &done {
            debug!(%limit, %error, "the headroom could not follow what is measured");
        }
        done.is_ok()
    }

    fn is_new(&self, policy: &LimitPolicy) -> bool {
        let known = self.known.as_ref();
        known.is_none_or(|known| known.version != policy.version)
    }

    /// Parses a new policy; `None` if it cannot be used here.
    fn receive<T>(
        &mut self,
        policy: LimitPolicy,
        file: &dyn FileLimit<T>,
    ) -> Option<(Arc<CurrentPolicy>, T)> {
        self.explain(&policy);
        let stored = Arc::new(policy);
        self.known = Some(Arc::clone(&stored));
        match file.under(&stored.text) {
            Ok(InForce { used, facts }) => Some((Arc::new(CurrentPolicy { stored, facts }), used)),
            Err(why) => {
                error!(limit = %self.limit, policy = stored.text, why,
                    "the current policy cannot be read here; nothing is sent under this limit");
                None
            }
        }
    }

    /// One line per change.
    fn explain(&self, now: &LimitPolicy) {
        let limit = &self.limit;
        let (text, version, by) = (&now.text, now.updates, &now.by);
        let Some(before) = &self.known else {
            return match now.origin {
                Origin::Live if as_written(text) != as_written(&now.file) => {
                    info!(%limit, policy = text, version, by, "the current policy, as an operator set it")
                }
                // Or what replicas made of it.
                Origin::File | Origin::Live => {
                    debug!(%limit, policy = text, version, "the current policy")
                }
            };
        };
        if before.text != now.text {
            info!(%limit, from = before.text, to = text, version, by, origin = now.origin.name(),
                "the limit has changed");
            if as_written(&before.text) != as_written(text) {
                let from = &before.text;
                note_change(&format!(
                    "limit {limit}: {from} -> {text}, by {by} (version {version})"
                ));
            }
        }
        match (&before.pause, &now.pause) {
            (before, Some(pause)) if before.as_ref() != Some(pause) => {
                info!(%limit, version, by = pause.by, "the limit is paused");
                let by = &pause.by;
                note_change(&format!(
                    "limit {limit} is paused by {by} (version {version})"
                ));
            }
            (Some(_), None) => {
                // `by` made the policy, which a pause and its end leave as it is.
                let by = &now.resumed_by;
                info!(%limit, version, by, "the limit is resumed");
                note_change(&format!(
                    "limit {limit} is resumed by {by} (version {version})"
                ));
            }
            _ => {}
        }
    }

    /// Logs when this replica's file begins or ceases to differ from the current policy.
    fn compare(&mut self, policy: &LimitPolicy, file: &str) {
        self.meters.version.set(policy.updates as f64);
        let same = as_written(&policy.text) == as_written(file);
        let differs = (!same).then(|| (file.to_owned(), policy.text.clone()));
        self.meters
            .differs
            .set(f64::from(u8::from(differs.is_some())));
        if differs != self.differs {
            if let Some((file, in_force)) = &differs {
                let waits = as_written(file) != as_written(&policy.file);
                let what = if waits {
                    "this replica's file differs from the current policy: it counts once more than half of the replicas have it, or with `sluiced limits adopt`"
                } else {
                    "this replica's file differs from the current policy"
                };
                warn!(limit = %self.limit, file, in_force, version = policy.updates,
                    by = policy.by, origin = policy.origin.name(), "{what}");
            } else {
                info!(limit = %self.limit, "this replica's file agrees with the current policy");
            }
            self.differs = differs;
        }
    }
}

impl<T> fmt::Debug for PolicySpec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySpec")
            .field("family", &self.family)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::headroom::Headroom;
    use sluiced_core::policy::Pause;
    use sluiced_ports::clock::Clock;
    use sluiced_store::memory::MemoryStore;
    use sluiced_telemetry::recent;

    /// A file of a paced limit with this rate.
    struct Rate(&'static str);

    impl FileLimit<String> for Rate {
        fn policy(&self) -> String {
            format!("kind=paced rate={}", self.0)
        }

        fn under(&self, policy: &str) -> Result<InForce<String>, String> {
            Ok(InForce {
                used: policy.to_owned(),
                facts: LimitFacts {
                    is_paced: true,
                    window: Duration::from_secs(1),
                    headroom: Headroom::of(Duration::from_millis(5)),
                    follows: None,
                    adapts: None,
                    per_second: None,
                    changed: Box::new(|_| None),
                },
            })
        }
    }

    #[test]
    fn the_end_of_a_pause_is_not_ascribed_to_what_made_the_policy() {
        let pause = Pause {
            until: StoreTime::from_micros(u64::MAX),
            length: Duration::from_secs(60),
            by: "anna@ops".to_owned(),
        };
        let policy = |updates, pause| LimitPolicy {
            version: PolicyVersion::new(updates),
            changed: PolicyVersion::new(1),
            updates,
            origin: Origin::Live,
            text: "rate=1/1s".to_owned(),
            file: "rate=1/1s".to_owned(),
            by: "vm:1: nearly all calls leave within 7.7 ms".to_owned(),
            pause,
            resumed_by: "bob@ops".to_owned(),
            remade_at: StoreTime::from_micros(0),
        };
        let name = "ascribed";
        let follower = Follower {
            limit: Arc::from(name),
            known: Some(Arc::new(policy(2, Some(pause.clone())))),
            differs: None,
            meters: PolicyMeters::new(name),
        };
        follower.explain(&policy(3, None));
        let said = recent().into_iter().map(|line| line.text);
        let said: Vec<_> = said.filter(|text| text.contains(name)).collect();
        assert_eq!(said, ["limit ascribed is resumed by bob@ops (version 3)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_read_while_something_else_wakes_us_is_an_update() {
        let first: Arc<dyn FileLimit<String>> = Arc::new(Rate("30/1s"));
        let (file, reader) = watch::channel(first);
        let outdated = Arc::new(Notify::new());
        let watch = Watch {
            limit: Arc::from("account"),
            spec: PolicySpec {
                store: Arc::new(MemoryStore::new(Clock::start())),
                family: Family::Paced,
                replica: "a".to_owned(),
                file: reader,
            },
            meters: PolicyMeters::new("account"),
            phase: Phase::new(0),
            outdated: Arc::clone(&outdated),
            following: Following::new(Arc::from("account"), Vec::new()),
            clock: Clock::start(),
        };
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let run = tokio::spawn(watch.run(move |_, line| sender.send(line).unwrap_or_default()));
        let first = received.recv().await.expect("a policy");
        assert!(first.contains("rate=30/1s"), "{first}");
        // It wakes, and waits for a moment before it asks.
        outdated.notify_one();
        tokio::time::sleep(GAP / 2).await;
        file.send_replace(Arc::new(Rate("10/1s")));
        let next = tokio::time::timeout(2 * PRESENCE, received.recv()).await;
        let next = next.expect("in time").expect("a policy");
        assert!(next.contains("rate=10/1s"), "{next}");
        run.abort();
    }
}
