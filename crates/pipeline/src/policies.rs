//! Keeps this replica at the current policies of its limits.
//!
//! One task for each limit declares this replica's file to the store and receives the current policy
//! (`core::policy`): at the start, when the file was read again, when a notice of a change comes, when an
//! answer has a version that this replica does not know, and every few seconds. The policy is parsed as
//! the configuration is and sent to the pacers. If it cannot be parsed, nothing is sent under the limit,
//! and the reason is logged.
//!
//! | module | what it is |
//! |---|---|
//! | `known_policy` | the policy that this replica knows, and what it logs about a change |
//! | `auto_headroom` | lets the headroom follow what is measured |
//! | `adapting` | lets the rate follow what the downstream accepts |
//! | `pause` | keeps a route at what operators say, which the store keeps as a policy |
//! | `owner` | registers the names of limits and routes for the fleet; until then no policy is declared |

pub(crate) mod adapting;
pub(crate) mod auto_headroom;
mod known_policy;
pub(crate) mod owner;
pub(crate) mod pause;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tracing::debug;

use sluiced_core::backoff::{Backoff, Failures};
use sluiced_core::jitter::Jitter;
use sluiced_core::limits::Rule;
use sluiced_core::policy::{Declaration, LimitPolicy, PolicyUpdate};
use sluiced_core::version::PolicyVersion;
use sluiced_ports::clock;
use sluiced_ports::limits::KeyedLimit;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{CompletedUpdate, Family, Notice, PRESENCE, Store, StoreError};

use self::known_policy::KnownPolicy;
use super::handle::PacerHandle;
use super::limit::CurrentPolicy;
use super::limit::facts::FileLimit;
use super::route::Route;
use auto_headroom::LimitHeadroom;

/// After a notice of a change a replica waits for a random time up to this, so that not all of them ask at once.
pub(super) const NOTICE_DELAY_MAX: Duration = Duration::from_millis(100);
/// Two declarations are at least this far apart.
const GAP: Duration = Duration::from_millis(20);
/// The waits after declarations that failed.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), PRESENCE);

/// A limit in this replica's file, while the policy of the limit may change. A new value is declared as an update. The
/// pipeline uses it as a `T`: the paces of its rows (the main one's, and that of the second row if there is one), or
/// the rule of a keyed limit.
pub type FileWatch<T> = watch::Receiver<Arc<dyn FileLimit<T>>>;

/// A limit whose policy a replica declares; or an operator's pause of a route, which is kept like that of a limit.
#[derive(Clone, Debug)]
pub(super) struct PolicyDeclarer {
    pub(super) store: Arc<dyn Store>,
    pub(super) family: Family,
    pub(super) limit: Arc<str>,
    /// The name of this replica.
    pub(super) replica: String,
}

impl PolicyDeclarer {
    pub(super) fn policy(&self) -> PolicyOf<'_> {
        PolicyOf::new(&*self.store, self.family, &self.limit)
    }

    /// Replaces the policy that this replica knows by another one. `None`: there was another update since.
    pub(super) async fn replace(
        &self,
        known: &LimitPolicy,
        text: &str,
        by: &str,
    ) -> Result<Option<CompletedUpdate>, StoreError> {
        let update = PolicyUpdate {
            replaces: known.version,
            text,
            file: &known.file,
            by,
        };
        self.policy().set(&update, Some(known)).await
    }

    /// The replica stops: its file counts no more.
    pub(super) async fn withdraw(&self) {
        let withdrawal = self
            .store
            .withdraw_file(self.family, &self.limit, &self.replica);
        if let Err(error) = withdrawal.await {
            debug!(limit = %self.limit, %error, "the store was not told that this replica leaves");
        }
    }
}

/// A keyed limit whose policy may change.
#[derive(Debug)]
pub struct KeyedPolicy {
    pub limit: Arc<KeyedLimit>,
    pub file: FileWatch<Rule>,
}

/// One limit's task.
pub(super) struct PolicyWatch<T> {
    declarer: PolicyDeclarer,
    file: FileWatch<T>,
    known_policy: KnownPolicy,
    headroom: LimitHeadroom,
    /// Notified when an answer came under another version.
    outdated: Arc<Notify>,
    notices: broadcast::Receiver<Notice>,
    /// Received, and not in use yet.
    received: Option<(Arc<CurrentPolicy>, T)>,
    /// Declarations in a row that failed.
    failures: Failures,
    jitter: Jitter,
}

impl<T: Send> PolicyWatch<T> {
    /// `routes` are those that the limit counts, each with its pacer.
    pub(super) fn new(
        declarer: PolicyDeclarer,
        file: FileWatch<T>,
        routes: Vec<(Arc<Route>, Arc<PacerHandle>)>,
        outdated: Arc<Notify>,
        jitter: Jitter,
    ) -> Self {
        let limit = &declarer.limit;
        let notices = declarer.store.notices();
        Self {
            headroom: LimitHeadroom::new(Arc::clone(limit), routes),
            known_policy: KnownPolicy::new(Arc::clone(limit)),
            declarer,
            file,
            outdated,
            notices,
            received: None,
            failures: Failures::new(BACKOFF),
            jitter,
        }
    }

    /// Runs for as long as it is polled, and calls `adopt` with each new policy.
    pub(super) async fn run(mut self, adopt: impl Fn(Arc<CurrentPolicy>, T) + Send + Sync) {
        loop {
            let wait = self.round(&adopt).await;
            self.wait(wait).await;
        }
    }

    /// Declares this replica's file, and calls `adopt` if the current policy is a new one. Returns how long to wait
    /// before the next round.
    async fn round(&mut self, adopt: &(impl Fn(Arc<CurrentPolicy>, T) + Sync)) -> Duration {
        let file = self.file.borrow_and_update().clone();
        let (declarer, limit) = (&self.declarer, &self.known_policy.limit);
        let declaration = Declaration {
            replica: declarer.replica.clone(),
            file: file.policy(),
            known: self.known_policy.known.as_deref().cloned(),
        };
        let policy = match declarer.policy().declare(&declaration).await {
            Ok(policy) => policy,
            Err(error) => {
                debug!(%limit, %error, "the current policy was not received");
                return self.back_off();
            }
        };
        self.known_policy.compare(&policy, &declaration.file);
        if self.known_policy.is_new(&policy) {
            self.received = self.known_policy.receive(policy, &*file);
            let current = self.received.as_ref().map(|(current, _)| current);
            self.headroom.adopt_policy(current, clock::now());
        }
        match self.headroom.first().await {
            // Until it is made, no call leaves.
            Some(update) if self.received.is_some() => {
                if self
                    .known_policy
                    .update_headroom(&update, &self.declarer)
                    .await
                {
                    GAP
                } else {
                    self.back_off()
                }
            }
            _ => {
                self.failures.succeeded();
                if let Some((current, read)) = self.received.take() {
                    adopt(current, read);
                }
                PRESENCE - NOTICE_DELAY_MAX + self.jitter.of(NOTICE_DELAY_MAX)
            }
        }
    }

    /// The wait after a declaration that failed.
    fn back_off(&mut self) -> Duration {
        self.failures.failed(clock::now(), rand::random())
    }

    /// Waits for this long, or until there is a reason for another round before that.
    async fn wait(&mut self, wait: Duration) {
        let limit = &self.known_policy.limit;
        let known_version = self
            .known_policy
            .known
            .as_ref()
            .map(|policy| policy.version);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // What is begun is done, whatever else comes.
            update = self.known_policy.wanted(&mut self.headroom) => {
                self.known_policy.update_headroom(&update, &self.declarer).await;
            }
            () = self.outdated.notified() => tokio::time::sleep(GAP).await,
            news = news(&mut self.notices, limit, known_version) => {
                // The store must get the policy back from us before a replica that does not know it uses its first
                // slot.
                if !news.shows_a_loss(known_version) {
                    tokio::time::sleep(self.jitter.of(NOTICE_DELAY_MAX)).await;
                }
            }
            // Its sender lives as long as the daemon; without one there is nothing to receive.
            Ok(()) = self.file.changed() => {}
        }
    }
}

/// Why the policy of a limit is asked for before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyNews {
    /// This version is current.
    Changed(PolicyVersion),
    /// Notices were missed, and one of them may have been about the limit.
    Missed,
}

impl PolicyNews {
    /// Whether an earlier version than ours is current: the store has lost the policy.
    pub(super) fn shows_a_loss(self, known: Option<PolicyVersion>) -> bool {
        match self {
            Self::Changed(to) => Some(to) < known,
            Self::Missed => false,
        }
    }
}

/// Waits for a notice of another version than `known`. The store keeps the sender, so notices do not end.
pub(super) async fn news(
    notices: &mut broadcast::Receiver<Notice>,
    limit: &Arc<str>,
    known: Option<PolicyVersion>,
) -> PolicyNews {
    loop {
        match notices.recv().await {
            Ok(Notice::Changed { limit: of, to }) if of == *limit && Some(to) != known => {
                return PolicyNews::Changed(to);
            }
            Ok(_) => {}
            Err(_) => return PolicyNews::Missed,
        }
    }
}

#[cfg(test)]
mod tests;
