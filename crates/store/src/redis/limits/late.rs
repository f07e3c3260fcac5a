//! Questions whose answers come late, which are still waited for.
//!
//! Problem: Redis stands still for longer than the response timeout, and the messages go on without an
//! answer. Redis still answers once it goes on, and units that it grants then are spent: with `1/1d` for a
//! day, although no call was made. So a question runs as a task of its own. Its caller waits for the response
//! timeout, the task for as long as the connection lives; grants of a late answer are taken back.
//!
//! No other question is asked meanwhile. The answers of a connection come in order: a question behind an
//! abandoned one is not answered before it, and would be denied the units that the abandoned one took. So
//! there are never more late questions than were under way. Once there is another connection they have one
//! response timeout left: a silent connection must not delay the next one. It is unknown then what they
//! took, and it stays spent.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::KeyedScripts;
use crate::redis::batch::KeyBatch;
use crate::redis::{timed_out, unreachable};
use sluiced_core::limits::admission::Decision;
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock;
use sluiced_ports::limits::{Candidate, Decisions, GrantedAt, GrantedCharge};
use sluiced_ports::link::Link;
use sluiced_ports::store::StoreError;

type BatchAnswer = Result<Decisions, StoreError>;

/// The question of one call: the candidates from index `from` on, as many as fit into one call.
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

impl KeyedScripts {
    /// Asks, and waits for the response timeout.
    pub(super) async fn ask_part(self: &Arc<Self>, part: Part) -> BatchAnswer {
        let (sender, answer) = oneshot::channel();
        let question = Arc::clone(self).ask_and_refund_late(part, sender);
        self.questions_in_flight.spawn_on(question, &self.runtime);
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(unreachable("the store of the limits was closed")))
    }

    /// Waits for late answers, for a response timeout. After an error no question may be sent.
    pub(super) async fn wait_for_late_answers(&self) -> Result<(), StoreError> {
        if self.late.is_empty() {
            return Ok(());
        }
        if let Link::Down(reason) = &*self.connection.link().borrow() {
            return Err(unreachable(reason));
        }
        let heard = timeout(self.response_timeout(), self.late.wait()).await;
        heard.map_err(|_| timed_out(self.response_timeout()))
    }

    /// Waits until each question has its answer, and grants to callers that are gone were taken back: two
    /// response timeouts at most, for the answer and for the refund.
    pub(super) async fn finish(&self) {
        timeout(2 * self.response_timeout(), self.questions_in_flight.wait())
            .await
            .ok();
    }

    async fn ask_and_refund_late(
        self: Arc<Self>,
        part: Part,
        sender: oneshot::Sender<BatchAnswer>,
    ) {
        // Subscribed before the question: the connection may be lost and replaced within its time.
        let link = self.connection.link();
        let began = clock::now();
        let mut asked = pin!(self.ask_once(&part));
        if let Ok(answer) = timeout(self.response_timeout(), &mut asked).await {
            // Its caller may be gone.
            if let Err(Ok(unused)) = sender.send(answer) {
                self.refund_granted(&part, began, &unused).await;
            }
            return;
        }
        let _late = self.late.token();
        sender.send(Err(timed_out(self.response_timeout()))).ok();
        let heard = async {
            // If there is no answer, the connection broke, and nothing is known.
            if let Ok(unused) = asked.await {
                self.refund_granted(&part, began, &unused).await;
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.replaced(link) => {}
        }
    }

    async fn ask_once(&self, part: &Part) -> BatchAnswer {
        let mut batch = KeyBatch::around(part.around);
        let candidates = part.candidates().iter().take(BATCH_MAX);
        let that_fit = candidates.map_while(|candidate| {
            let states = candidate.charges.iter().map(|c| (&*c.limit, c.key));
            Some((candidate, batch.add(states)?))
        });
        let asking: Vec<_> = that_fit.collect();
        self.ask(batch, &asking, part.wanted, true).await
    }

    /// Ends a response timeout after the connection was lost and replaced. Changes since `link` was
    /// subscribed count.
    async fn replaced(&self, mut link: watch::Receiver<Link>) {
        // Its sender lives as long as this.
        drop(link.changed().await);
        drop(link.wait_for(Link::is_up).await);
        sleep(self.response_timeout()).await;
    }

    /// Takes back what was granted and is not used.
    async fn refund_granted(&self, part: &Part, asked: Mono, unused: &Decisions) {
        let decided = part.candidates().iter().zip(&unused.decisions);
        let granted = decided.filter(|(_, decision)| matches!(decision, Decision::Granted { .. }));
        let at = GrantedAt {
            at: unused.now,
            asked,
        };
        let with_times = granted.flat_map(|(candidate, _)| {
            let charges = candidate.charges.iter();
            charges.map(|charge| GrantedCharge::new(charge, at, candidate.ticket))
        });
        let charges: Vec<GrantedCharge> = with_times.collect();
        let mut link = self.connection.link();
        drop(link.wait_for(Link::is_up).await);
        if let Err(error) = self.release(&charges).await {
            warn!(%error, "what a late answer granted counts as if it were sent");
        }
    }

    fn response_timeout(&self) -> Duration {
        self.connection.access().response_timeout()
    }
}
