//! Keeps this replica at what is in force for its limits.
//!
//! One task for each limit declares to the store what this replica's file says and receives the policy
//! in force (`core::policy`): at the start, when the file was read again, when a notice of a change
//! comes, when an answer came under another version than this replica knows, and every few seconds. The
//! policy is read as the configuration is and handed to the pacers. One that cannot be read is not
//! guessed at: the limit stays shut, and the log says why.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tracing::{debug, error, info, warn};

use crate::core::leases::Phase;
use crate::core::limits::Rule;
use crate::core::policy::{Declaration, LimitPolicy, Origin, PolicyUpdate, PolicyVersion};
use crate::core::rate::Rate;
use crate::core::schedule::Pace;
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::limits::KeyedLimit;
use crate::ports::notice::Notice;
use crate::ports::policy::{PRESENCE, PolicyStore};
use crate::settings::policy::as_written;
use crate::settings::types::Limit;
use crate::telemetry::meters::PolicyMeters;
use crate::telemetry::note_change;

use super::follow::{Following, LOOK};

/// Replicas that receive notice of the same change ask after it spread over this.
const SPREAD: Duration = Duration::from_millis(100);
/// Two questions are at least this far apart.
const GAP: Duration = Duration::from_millis(20);
/// The first wait after a question that failed; it doubles up to [`PRESENCE`].
const RETRY: Duration = Duration::from_millis(100);

/// From the text of a policy to what it means, as the configuration would read it. The error says what
/// is wrong.
pub type Read<T> = dyn Fn(&str) -> Result<T, String> + Send + Sync;

/// What a replica's file says of a limit, now and after each reload.
pub struct Written<T> {
    pub limit: Limit,
    /// The policy, as `rate=400/1s headroom=5ms`.
    pub text: String,
    pub read: Arc<Read<T>>,
}

/// A limit whose policy may change while it runs. It is read as a `T`: the paces of its rows (the
/// main one's, and that of the second row if there is one), or the rule of a keyed limit.
#[derive(Debug)]
pub struct PolicySpec<T> {
    pub store: Arc<dyn PolicyStore>,
    /// The name of this replica.
    pub replica: String,
    /// A new value is declared as an update.
    pub written: watch::Receiver<Written<T>>,
}

/// A keyed limit whose policy may change.
#[derive(Debug)]
pub struct KeyedPolicy {
    pub limit: Arc<KeyedLimit>,
    pub spec: PolicySpec<Rule>,
}

impl<T> Clone for Written<T> {
    fn clone(&self) -> Self {
        Self {
            limit: self.limit.clone(),
            text: self.text.clone(),
            read: Arc::clone(&self.read),
        }
    }
}

impl<T> fmt::Debug for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written")
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}

/// What is in force for a limit, as its pacers receive it.
#[derive(Clone, Debug)]
pub(super) struct InForce<T> {
    pub(super) version: PolicyVersion,
    pub(super) policy: T,
    /// As the store keeps it.
    pub(super) text: String,
    /// An operator said that nothing passes before. May be over.
    pub(super) paused_until: Option<StoreTime>,
}

impl<T> InForce<T> {
    /// The rate, for the kinds that have one.
    pub(super) fn rate(&self) -> Option<Rate> {
        let mut words = self.text.split_ascii_whitespace();
        words
            .find_map(|word| word.strip_prefix("rate="))?
            .parse()
            .ok()
    }
}

/// What is in force for a paced limit: the pace of each row.
pub(super) type Paces = InForce<Vec<Pace>>;

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
    /// Runs for as long as it is polled, and hands what is in force to `tell`.
    pub(super) async fn run(self, tell: impl Fn(InForce<T>) + Send) {
        let Self {
            limit,
            mut spec,
            meters,
            phase,
            outdated,
            mut following,
            clock,
        } = self;
        let mut notices = Some(spec.store.notices());
        let mut follower = Follower {
            limit,
            known: None,
            differs: None,
            meters,
        };
        let mut was_read = true;
        let mut retry = RETRY;
        loop {
            let written = {
                let now = spec.written.borrow_and_update();
                // It may have been read again while something else woke us.
                was_read |= now.has_changed();
                now.clone()
            };
            let declaration = Declaration {
                replica: spec.replica.clone(),
                file: written.text.clone(),
                was_read,
                known: follower.known.clone(),
            };
            let wait = match spec.store.declare(&follower.limit, &declaration).await {
                Ok(policy) => {
                    (was_read, retry) = (false, RETRY);
                    following.in_force(&written.limit, &policy.text, clock.now());
                    follower.receive(policy, &written, &tell);
                    PRESENCE - SPREAD + phase.of(SPREAD)
                }
                Err(error) => {
                    debug!(limit = %follower.limit, %error, "what is in force was not received");
                    retry = (retry * 2).min(PRESENCE);
                    retry
                }
            };
            let known = follower.known.as_ref().map(|known| known.version);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = follower.follow(&mut following, (&*spec.store, &spec.replica), clock) => {}
                () = outdated.notified() => tokio::time::sleep(GAP).await,
                to = changed(&mut notices, &follower.limit, known) => {
                    // An earlier version than ours: the store has lost what we know, and a replica
                    // that does not know it must receive it before it uses its first slot.
                    if to >= known {
                        tokio::time::sleep(phase.of(SPREAD)).await;
                    }
                }
                // Its sender lives as long as the daemon; without one there is nothing to receive.
                Ok(()) = spec.written.changed() => was_read = true,
            }
        }
    }
}

/// Waits for a notice of another version than `known`, and answers it (`None`: it was missed).
/// Never ends once no notice can come.
async fn changed(
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
            // What was lost may have been about us.
            Err(broadcast::error::RecvError::Lagged(_)) => return None,
            Err(broadcast::error::RecvError::Closed) => *notices = None,
        }
    }
    std::future::pending().await
}

/// What this replica knows of the limit so far, and what it logged.
struct Follower {
    limit: Arc<str>,
    known: Option<LimitPolicy>,
    /// The difference that was logged: our policy and the one in force.
    differs: Option<(String, String)>,
    meters: PolicyMeters,
}

impl Follower {
    /// Waits until another headroom should be in force, and updates the policy.
    async fn follow(
        &self,
        following: &mut Following,
        (store, replica): (&dyn PolicyStore, &str),
        clock: Clock,
    ) {
        let Some(over) = self.known.as_ref().filter(|_| following.is_on()) else {
            return std::future::pending().await;
        };
        let update = loop {
            tokio::time::sleep(LOOK).await;
            if let Some(update) = following.wanted(clock.now()) {
                break update;
            }
        };
        let (limit, why) = (&self.limit, &update.why);
        let by = format!("{replica}: {why}");
        let policy = PolicyUpdate {
            over: over.version,
            text: &update.text,
            file: &over.file,
            by: &by,
        };
        // Each replica logs the change once it receives it, with the reason; `None`: another replica
        // was first, or an operator.
        if let Err(error) = store.set(limit, policy).await {
            debug!(%limit, %error, "the headroom could not follow what is measured");
        }
    }

    fn receive<T>(
        &mut self,
        policy: LimitPolicy,
        written: &Written<T>,
        tell: &impl Fn(InForce<T>),
    ) {
        self.compare(&policy, &written.text);
        self.meters.version.set(policy.updates as f64);
        let before = self.known.as_ref();
        if before.is_some_and(|known| known.version == policy.version) {
            return;
        }
        self.explain(&policy);
        match (written.read)(&policy.text) {
            Ok(read) => tell(InForce {
                version: policy.version,
                policy: read,
                text: policy.text.clone(),
                paused_until: policy.pause.as_ref().map(|pause| pause.until),
            }),
            Err(why) => {
                error!(limit = %self.limit, policy = policy.text, why,
                    "what is in force cannot be read here; nothing is sent under this limit");
            }
        }
        self.known = Some(policy);
    }

    /// One line per change.
    fn explain(&self, now: &LimitPolicy) {
        let limit = &self.limit;
        let (text, version, by) = (&now.text, now.updates, &now.by);
        let Some(before) = &self.known else {
            return match now.origin {
                Origin::Live if as_written(text) != as_written(&now.file) => {
                    info!(%limit, policy = text, version, by, "in force, as an operator set it")
                }
                // Or what replicas made of it.
                Origin::File | Origin::Live => debug!(%limit, policy = text, version, "in force"),
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
                info!(%limit, version, "the limit is resumed");
                note_change(&format!(
                    "limit {limit} is resumed by {by} (version {version})"
                ));
            }
            _ => {}
        }
    }

    /// Says so when this replica's file says something else than what is in force.
    fn compare(&mut self, policy: &LimitPolicy, file: &str) {
        let same = as_written(&policy.text) == as_written(file);
        let differs = (!same).then(|| (file.to_owned(), policy.text.clone()));
        self.meters
            .differs
            .set(f64::from(u8::from(differs.is_some())));
        if differs != self.differs {
            if let Some((file, in_force)) = &differs {
                warn!(limit = %self.limit, file, in_force, version = policy.updates,
                    by = policy.by, origin = policy.origin.name(),
                    "this replica's file differs from what is in force");
            } else {
                info!(limit = %self.limit, "this replica's file agrees with what is in force");
            }
            self.differs = differs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::memory::MemoryStore;
    use crate::ports::clock::Clock;

    fn written(text: &str) -> Written<String> {
        let limit = "rate = \"30/1s\"\nheadroom = \"5ms\"\nadaptive = false\ncost = 1\nreserve_priority = 5";
        Written {
            limit: Limit::Paced(toml::from_str(limit).unwrap()),
            text: text.to_owned(),
            read: Arc::new(|text| Ok(text.to_owned())),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_read_while_something_else_wakes_us_is_an_update() {
        let (file, reader) = watch::channel(written("rate=30/1s"));
        let outdated = Arc::new(Notify::new());
        let watch = Watch {
            limit: Arc::from("account"),
            spec: PolicySpec {
                store: Arc::new(MemoryStore::new(Clock::start())),
                replica: "a".to_owned(),
                written: reader,
            },
            meters: PolicyMeters::new("account"),
            phase: Phase::new(0),
            outdated: Arc::clone(&outdated),
            following: Following::new(Vec::new()),
            clock: Clock::start(),
        };
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let run = tokio::spawn(watch.run(move |now| told.send(now.policy).unwrap_or_default()));
        assert_eq!(heard.recv().await.as_deref(), Some("rate=30/1s"));
        // It wakes, and looks around for a moment before it asks.
        outdated.notify_one();
        tokio::time::sleep(GAP / 2).await;
        file.send_replace(written("rate=10/1s"));
        let next = tokio::time::timeout(2 * PRESENCE, heard.recv()).await;
        assert_eq!(next.expect("it is received").as_deref(), Some("rate=10/1s"));
        run.abort();
    }
}
