//! Send: one call from its slot to its answer. Runs on the pacer's own runtime.
//!
//! The downstream makes the call and judges the answer (`http::answers::judge`, `smpp::judge`); `after_call` does what
//! follows. A call that could not be written before its slot had passed did not happen: its message waits for another
//! slot.
//!
//! A call whose task ends before it (the task panics, or the grace of a stop is over) may have arrived: its message is
//! settled as one whose call had no answer ([`JobInCall`]).

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use sluiced_core::backoff::Backoff;
use sluiced_core::leases::Slot;
use sluiced_core::time::StoreTime;
use sluiced_ports::clock;
use sluiced_ports::downstream::{LeaveBy, NotSent};
use sluiced_telemetry::LogLimits;

use super::after_call::AnsweredCall;
use super::again::{prepare_or_give_back, send_back_to_pacer};
use super::handle::{PacerEvent, PacerHandle};
use super::job::{Job, WaitingMessage};
use super::permit::Permit;
use super::route::calls::CallInFlight;

/// This many calls of one message in a row may miss their slots before others go before it.
const MISSES_BEFORE_BEHIND: u32 = 3;
/// How long others go before such a message.
const BEHIND: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
static LATE: LogLimits = LogLimits::new(Duration::from_secs(10));

/// Sends a message whose slot is due and sees it through.
///
/// `in_flight` is dropped after the verdict is given, or the message is on its way back: a pacer that stops waits for
/// that.
pub(super) async fn perform(
    waiting: WaitingMessage,
    mut slot: Slot,
    in_flight: CallInFlight,
    pacer: Arc<PacerHandle>,
) {
    let started = clock::now();
    slot.leave_by = waiting.job.leave_by(slot.leave_by);
    // Between the pacer's decision and this task's turn the machine may have stood still. A slot that is
    // too late now is lost, never used late. The clock is read once more when the request is written.
    if started > slot.leave_by {
        count_missed_slot(slot, NotSent::TooLate, &pacer);
        pacer.send(PacerEvent::WaitAgain(Box::new(waiting)));
        return end_unsent_call(in_flight, &pacer);
    }
    let (job, call, mut permit) = waiting.begin_call();
    let leave_by = LeaveBy::new(slot.leave_by);
    if let Some(journal) = job.route.ends.journal() {
        journal.calling(job.called());
    }
    let job_in_call = JobInCall::new(job, pacer.store_time(started));
    let sent = permit.during(call.send(leave_by)).await;
    let mut job = job_in_call.into_job();
    match sent {
        Ok(judgement) => {
            job.misses_in_a_row = 0;
            let taken = match judgement.maybe_delivered {
                true => permit.consume(),
                false => Vec::new(),
            };
            let (claims, unspent) = permit.end_call();
            let answered = AnsweredCall {
                job,
                judgement,
                taken,
                claims,
                unspent,
                slot,
                started,
                is_probe: in_flight.is_probe(),
            };
            answered.finish(&pacer).await;
            drop(in_flight);
        }
        Err(why) => {
            count_missed_slot(slot, why, &pacer);
            // This future is rare and large: in a box it does not enlarge the future of every call.
            Box::pin(return_unsent_to_pacer(job, permit, why, &pacer)).await;
            end_unsent_call(in_flight, &pacer);
        }
    }
}

/// The job of a call that is in flight. Dropped, the call was cut off.
struct JobInCall {
    /// `None` once the call has ended.
    job: Option<Box<Job>>,
    began: StoreTime,
}

impl JobInCall {
    const fn new(job: Box<Job>, began: StoreTime) -> Self {
        Self {
            job: Some(job),
            began,
        }
    }

    /// The call has ended.
    fn into_job(mut self) -> Box<Job> {
        let job = self.job.take();
        job.expect("only this method takes the job out, and it consumes the guard")
    }
}

impl Drop for JobInCall {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            job.settle_cut_off(self.began);
        }
    }
}

/// The call was not written: its message waits for another slot.
async fn return_unsent_to_pacer(job: Box<Job>, permit: Permit, why: NotSent, pacer: &PacerHandle) {
    if let Some(journal) = job.route.ends.journal() {
        journal.uncalled(job.called());
    }
    match why {
        NotSent::TooLate => put_back_late(job, permit, pacer).await,
        NotSent::NotReady => send_back_to_pacer(job, permit, pacer, None).await,
    }
}

/// The slot passed without a call. If this program or this machine was too slow, the lateness is measured too; a
/// missing connection says nothing about it.
fn count_missed_slot(slot: Slot, why: NotSent, pacer: &PacerHandle) {
    pacer.meters.slots_missed.increment(1);
    if pacer.is_paced() && why == NotSent::TooLate {
        let now = clock::now();
        pacer.measures.note_lateness(now.since(slot.at), now);
    }
}

/// The call was not made.
fn end_unsent_call(in_flight: CallInFlight, pacer: &PacerHandle) {
    if in_flight.unsent() {
        pacer.send(PacerEvent::GateChanged);
    }
}

/// The call was not written before its slot had passed. If a message misses its slot again and again, the message
/// itself is probably the cause (it is large): others go first.
async fn put_back_late(mut job: Box<Job>, permit: Permit, pacer: &PacerHandle) {
    job.misses_in_a_row += 1;
    let (count, route) = (job.misses_in_a_row, Arc::clone(&job.route));
    let Some(mut waiting) = prepare_or_give_back(job, pacer).await else {
        return;
    };
    waiting.permit = permit;
    if count >= MISSES_BEFORE_BEHIND {
        let now = clock::now();
        let wait = BEHIND.ceiling(count - MISSES_BEFORE_BEHIND + 1);
        waiting.not_before = Some(now + wait);
        if let Some(more) = LATE.event(&route.name, now) {
            let bytes = waiting.job.message().body.len();
            info!(route = %route.name, count, bytes, ?wait,
                "a call could not be written before its slot had passed, again and again: others go before its message{more}");
        }
    }
    pacer.send(PacerEvent::WaitAgain(Box::new(waiting)));
}
