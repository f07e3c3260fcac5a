//! The downstream of callers: a message is "called" by answering its request. The caller then makes the call itself.
//!
//! Where a limit is keyed, the call is in flight until its caller ends the permit, or until `ends_after`. So it counts
//! in limits of calls in flight, and units of a call that was not made can be given back. Slots of a paced limit
//! cannot: their time is over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tokio::time::timeout;

use super::meters::CallersMeters;
use super::permits::{PermitEnd, PermitId, Permits};
use sluiced_core::headroom::Spread;
use sluiced_core::judge::Outcome;
use sluiced_ports::clock;
use sluiced_ports::downstream::{
    Call, Downstream, Facts, Handshake, Judgement, LeaveBy, NotSent, Status, UnfitReason,
};
use sluiced_ports::message::Message;

/// Answers the requests of one listener.
pub(crate) struct CallersDownstream {
    pub(crate) permits: Arc<Permits>,
    /// How long a permit counts that its caller does not end. `None`: there is nothing that it could count in.
    pub(crate) counts: Option<Duration>,
    pub(crate) meters: Arc<CallersMeters>,
}

struct CallerCall {
    permits: Arc<Permits>,
    id: PermitId,
    counts: Option<Duration>,
    meters: Arc<CallersMeters>,
}

impl Downstream for CallersDownstream {
    fn prepare(&self, message: &Message, _: Facts<'_>) -> Result<Box<dyn Call>, UnfitReason> {
        let text = message.id().unwrap_or_default();
        let id = text.parse().map_err(|_| UnfitReason {
            what: "message_id".to_owned(),
            why: "is no id of a permit".to_owned(),
        })?;
        Ok(Box::new(CallerCall {
            permits: Arc::clone(&self.permits),
            id,
            counts: self.counts,
            meters: Arc::clone(&self.meters),
        }))
    }

    fn warm(&self, _: Duration) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }

    fn handshake(&self, _: Duration) -> BoxFuture<'_, Option<Handshake>> {
        ready(None).boxed()
    }

    fn known_way(&self) -> Option<Spread> {
        Some(self.permits.use_spread(clock::now()))
    }
}

impl Call for CallerCall {
    fn send(self: Box<Self>, leave_by: LeaveBy) -> BoxFuture<'static, Result<Judgement, NotSent>> {
        async move {
            let Self {
                permits,
                id,
                counts,
                meters,
            } = *self;
            let Some(counts) = counts else {
                return match permits.offer_turn(id, leave_by).await {
                    true => Ok(permit_ended(PermitEnd::Used)),
                    false => Err(NotSent::TooLate),
                };
            };
            // Its caller may end it before this task is run again.
            let ending = permits.open(id);
            if !permits.offer_turn(id, leave_by).await {
                permits.close(id);
                return Err(NotSent::TooLate);
            }
            let end = timeout(counts, ending).await;
            permits.close(id);
            if end.is_err() {
                meters.unended_permits.increment(1);
            }
            Ok(permit_ended(
                end.ok().and_then(Result::ok).unwrap_or(PermitEnd::Used),
            ))
        }
        .boxed()
    }
}

/// How a permit ended: its request was answered with 200 in any case. A call that was not made is one that cannot have
/// arrived, so what it took is returned.
fn permit_ended(end: PermitEnd) -> Judgement {
    Judgement {
        outcome: Outcome::Accepted,
        reply: Ok(Status::Http(200)),
        detail: "the caller has its permit".to_owned(),
        answer: None,
        maybe_delivered: end == PermitEnd::Used,
        cut_from: None,
        rest: None,
        renewed: false,
    }
}

impl fmt::Debug for CallersDownstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallersDownstream").finish_non_exhaustive()
    }
}
