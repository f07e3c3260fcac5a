//! Questions whose answer comes late: it is waited for.
//!
//! Problem: Redis stands still for longer than the response timeout, and the messages go on without an answer.
//! Redis answers all the same once it goes on, and what it grants then is spent: with `1/1d` for a day, although
//! no call was made. So a question runs as a task of its own. Its caller waits for the response timeout, the task
//! for as long as the connection lives; what a late answer granted is taken back.
//!
//! No other question is asked meanwhile. The answers of a connection come in order: a question behind one that
//! was given up on is not answered before it, and would be denied what that one took. So there are never more
//! late questions than were under way. Once there is another connection they have one response timeout left:
//! a connection that fell silent must not hold up the next. What they took is unknown then, and stays spent.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::Limits;
use crate::core::time::StoreTime;
use crate::limiter::redis::batch::KeyBatch;
use crate::limiter::redis::fault::{STORE, unreachable};
use crate::ports::connect::Link;
use crate::ports::limits::{BATCH_MAX, Candidate, Decision, Decisions, Granted};
use crate::ports::store::StoreError;

type Answer = Result<Decisions, StoreError>;

/// What one call asks: for candidates from one on, as many as it takes.
pub(super) struct Part {
    pub(super) candidates: Arc<[Candidate]>,
    pub(super) from: usize,
    pub(super) around: StoreTime,
    pub(super) wanted: u64,
}

impl Part {
    fn candidates(&self) -> &[Candidate] {
        &self.candidates[self.from..]
    }
}

/// No questions.
pub(super) fn none() -> TaskTracker {
    let late = TaskTracker::new();
    late.close();
    late
}

impl Limits {
    /// Asks, and waits for the response timeout.
    pub(super) async fn ask_part(self: &Arc<Self>, part: Part) -> Answer {
        let (tell, told) = oneshot::channel();
        let question = Arc::clone(self).hear_out(part, tell);
        self.asked.spawn_on(question, &self.runtime);
        let told = told.await;
        told.unwrap_or_else(|_| Err(unreachable("the store of the limits was closed")))
    }

    /// Waits for late answers, for a response timeout. An error: not asked.
    pub(super) async fn heard_all(&self) -> Result<(), StoreError> {
        if self.late.is_empty() {
            return Ok(());
        }
        if let Link::Down(reason) = &*self.connection.link().borrow() {
            return Err(unreachable(reason));
        }
        let heard = timeout(self.response_timeout(), self.late.wait()).await;
        heard.map_err(|_| self.timed_out())
    }

    /// Waits until each question has its answer, and what was granted to a caller that is gone was taken back: two
    /// response timeouts at most, for the answer and for the refund.
    pub(super) async fn finish(&self) {
        timeout(2 * self.response_timeout(), self.asked.wait())
            .await
            .ok();
    }

    async fn hear_out(self: Arc<Self>, part: Part, tell: oneshot::Sender<Answer>) {
        // Before it is asked: the connection may be lost and replaced until its time is over.
        let link = self.connection.link();
        let mut asked = pin!(self.ask_once(&part));
        if let Ok(answer) = timeout(self.response_timeout(), &mut asked).await {
            // Its caller may be gone.
            if let Err(Ok(unused)) = tell.send(answer) {
                self.take_back_granted(&part, &unused).await;
            }
            return;
        }
        let _late = self.late.token();
        tell.send(Err(self.timed_out())).ok();
        let heard = async {
            // Without an answer the connection broke, and nothing is known.
            if let Ok(unused) = asked.await {
                self.take_back_granted(&part, &unused).await;
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.replaced(link) => {}
        }
    }

    async fn ask_once(&self, part: &Part) -> Answer {
        let mut batch = KeyBatch::around(part.around);
        let candidates = part.candidates().iter().take(BATCH_MAX);
        let asking = candidates.map_while(|candidate| {
            let states = candidate.charges.iter().map(|c| (&*c.limit, c.key));
            Some((candidate, batch.add(states)?))
        });
        let asking: Vec<_> = asking.collect();
        self.ask(batch, &asking, part.wanted, true).await
    }

    /// Ends a response timeout after the connection was lost and there is another. What changed since `link` was
    /// subscribed to counts.
    async fn replaced(&self, mut link: watch::Receiver<Link>) {
        // Its sender lives as long as we.
        drop(link.changed().await);
        drop(link.wait_for(Link::is_up).await);
        sleep(self.response_timeout()).await;
    }

    /// Takes back what was granted and is not used.
    async fn take_back_granted(&self, part: &Part, unused: &Decisions) {
        let each = part.candidates().iter().zip(&unused.decisions);
        let granted = each.filter(|(_, decision)| matches!(decision, Decision::Granted { .. }));
        let granted = granted.flat_map(|(candidate, _)| {
            let charges = candidate.charges.iter();
            charges.map(|charge| Granted::new(charge, unused.now, candidate.ticket))
        });
        let granted: Vec<Granted> = granted.collect();
        let mut link = self.connection.link();
        drop(link.wait_for(Link::is_up).await);
        if let Err(error) = self.release(&granted).await {
            warn!(%error, "what a late answer granted counts as if it were sent");
        }
    }

    fn timed_out(&self) -> StoreError {
        StoreError::Timeout {
            store: STORE,
            waited: self.response_timeout(),
        }
    }

    fn response_timeout(&self) -> Duration {
        self.connection.access().response_timeout
    }
}
