//! A message between decoding and its verdict. A delivery, a waiting message and a job are types, and handing one on
//! consumes it. What a waiting message has been through since (asked, permitted) is in its `asked` and its permit.
//! A [`WaitingMessage`] has the [`Job`] and its request; [`WaitingMessage::begin_call`] takes them apart.
//!
//! ```text
//! Delivery ──decode──> WaitingMessage ──begin_call──> Job (the call is in flight) ──settle──> settled
//!                            ^                         │
//!                            └──── prepare_again ──────┘
//! ```

mod charges;
mod waiting;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::after_call::AnswerScope;
use sluiced_core::hours::OpeningHours;
use sluiced_core::judge::DeadReason;
use sluiced_core::limits::Ticket;
use sluiced_core::message::{KeyId, TenantShare};
use sluiced_core::rate::Cost;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::downstream::{Answer, Call, Rest, UnfitReason};
use sluiced_ports::limits::Charge;
use sluiced_ports::message::Message;
use sluiced_ports::queue::{Delivery, Verdict};

pub(super) use charges::KeyedCharges;

use super::ends::LeavingMessage;
use super::ends::journal::{CalledMessage, Why};
use super::history::History;
use super::permit::Permit;
use super::permit::refunder::Refunder;
use super::route::Route;
use super::route::holding::HeldToken;
use super::route::sharing::{Intake, MovedMessage};
use super::unsettled::UnsettledMessage;
use super::verdict::{dead, expired, leaves_in_parts, only_its_rest_is_left};

/// A message that was decoded: its delivery with its history, and what it takes.
pub(super) struct Job {
    pub(super) route: Arc<Route>,
    pub(super) unsettled: UnsettledMessage,
    /// When it may be sent at all.
    times: Times,
    demand: Demand,
    /// Calls in a row that could not leave in time.
    pub(super) misses_in_a_row: u32,
    /// The ticket under which its keyed limits were asked last, if they were.
    pub(super) ticket: Option<Ticket>,
    /// The number of the message in the order in which messages came to this pacer, once it has one: its place among
    /// the messages of a key, also after a call that was not written.
    pub(super) arrival: Option<u64>,
    /// What is left to send, if its last call was taken in part.
    pub(super) rest: Option<Rest>,
    held: HeldToken,
}

/// What a message takes of its limits, and which tenant it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Slots of the paced limit.
    pub(super) slots: Cost,
    pub(super) keyed: KeyedCharges,
    pub(super) share: TenantShare,
    /// The priority of the route, or the message's own in place of that.
    pub(super) priority: u8,
}

/// The priorities of a message.
#[derive(Clone, Copy)]
struct MessagePriority {
    /// That of its route, or its own in place of that.
    route: u8,
    /// That of its AMQP properties.
    amqp: u8,
}

impl MessagePriority {
    /// Higher goes first: by the route's, and among equals by that of AMQP.
    const fn rank(self) -> u16 {
        u16::from_be_bytes([self.route, self.amqp])
    }

    fn highest(self) -> u8 {
        self.route.max(self.amqp)
    }
}

/// When a message may be sent at all.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// The message is too old from then on.
    pub(super) too_old: Option<Mono>,
    /// The hours of its own time zone.
    pub(super) hours: Option<OpeningHours>,
    /// The next end of these hours.
    pub(super) closes: Option<(Mono, StoreTime)>,
}

/// A message with its request, which waits for a slot and for its limits. It is moved often: what is large is
/// elsewhere.
pub(super) struct WaitingMessage {
    pub(super) job: Box<Job>,
    call: Box<dyn Call>,
    /// Where to refund what its keyed limits may grant, from the question until the grant.
    pub(super) asked: Option<Refunder>,
    /// What its keyed limits granted; dropped unsent, it is refunded.
    pub(super) permit: Permit,
    /// Not to be sent before this, whatever its limits allow: another attempt after a failure, for example.
    pub(super) not_before: Option<Mono>,
}

const _: () = assert!(size_of::<WaitingMessage>() <= 160);

impl Job {
    pub(super) fn new(
        route: Arc<Route>,
        unsettled: UnsettledMessage,
        times: Times,
        demand: Demand,
        held: HeldToken,
    ) -> Box<Self> {
        Box::new(Self {
            route,
            unsettled,
            times,
            demand,
            misses_in_a_row: 0,
            ticket: None,
            arrival: None,
            rest: None,
            held,
        })
    }

    /// Its message.
    pub(super) fn message(&self) -> &Message {
        self.delivery().message()
    }

    /// The delivery of its message.
    pub(super) fn delivery(&self) -> &Delivery {
        self.unsettled.delivery()
    }

    /// What its message has been through.
    pub(super) const fn history(&self) -> &History {
        &self.unsettled.history
    }

    /// The request of the message is made: the message waits for its slot.
    pub(super) fn into_waiting(mut self: Box<Self>, call: Box<dyn Call>) -> WaitingMessage {
        self.held.waits_again();
        WaitingMessage {
            job: self,
            call,
            asked: None,
            permit: Permit::none(),
            not_before: None,
        }
    }

    /// Makes the request again, for another call: of the rest, if it was taken in part, which takes a slot for each
    /// part. Its keyed limits count it with its whole cost again.
    ///
    /// # Errors
    /// When no request can be made from it any more; the message is returned.
    pub(super) fn prepare_again(
        mut self: Box<Self>,
    ) -> Result<WaitingMessage, (Box<Self>, UnfitReason)> {
        let facts = self.route.facts(&self.unsettled.history);
        let (downstream, message) = (&self.route.downstream, self.unsettled.delivery().message());
        let call = match &self.rest {
            Some(rest) => {
                let parts_left = u32::try_from(rest.left.len())
                    .ok()
                    .and_then(NonZeroU32::new);
                self.demand.slots = parts_left.map_or(self.demand.slots, Cost::new);
                downstream.go_on(message, facts, rest.clone())
            }
            None => downstream.prepare(message, facts),
        };
        match call {
            Ok(call) => Ok(self.into_waiting(call)),
            Err(why) => Err((self, why)),
        }
    }

    /// Moves it to another route of its queue, which sends it as a whole. If that would be one attempt too many, it
    /// becomes a dead letter.
    pub(super) fn move_to(mut self, to: &Intake, now: StoreTime) {
        if let Some(dead) = leaves_in_parts(&self.route, self.history(), now) {
            return self.leave(dead, None, None);
        }
        self.route.meters.moved.increment(1);
        // Taken in part, it is not the call that its `once` limits know.
        let ticket = self.ticket.filter(|_| self.rest.is_none());
        self.unsettled.history = self.history().moved();
        to.take(MovedMessage {
            unsettled: self.unsettled,
            ticket,
        });
    }

    /// Whether another route could send it: not if it was taken in part, and no attempt is left to send it as a whole.
    pub(super) fn may_move(&self) -> bool {
        !only_its_rest_is_left(&self.route, self.history())
    }

    /// How many slots of its paced limit it takes.
    pub(super) const fn slots(&self) -> Cost {
        self.demand.slots
    }

    /// The tenant that it belongs to.
    pub(super) const fn tenant(&self) -> u64 {
        self.demand.share.tenant
    }

    /// What it takes of its keyed limits.
    pub(super) fn charges(&self) -> &[Charge] {
        self.demand.keyed.charges()
    }

    /// A number of its message, the same in this process wherever the message waited meanwhile.
    pub(super) fn id_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.message().id().hash(&mut hasher);
        hasher.finish()
    }

    /// The keys of the message that are not for all messages.
    pub(super) fn own_keys(&self) -> Vec<KeyId> {
        let keys = self.demand.keyed.keys().iter().copied();
        keys.filter(|key| !self.route.counting.is_for_all(*key))
            .collect()
    }

    fn priority(&self) -> MessagePriority {
        MessagePriority {
            route: self.demand.priority,
            amqp: self.message().properties.priority,
        }
    }

    /// The last moment at which its call may leave, of a slot that is good until `leave_by`.
    pub(super) fn leave_by(&self, leave_by: Mono) -> Mono {
        let closes = self.times.closes.map(|(at, _)| at);
        closes.map_or(leave_by, |at| leave_by.min(at - Duration::from_micros(1)))
    }

    /// The first moment from `at` on at which its hours and those of its route let it pass.
    pub(super) fn opening(&self, at: StoreTime) -> StoreTime {
        let at = self.route.sharing.opening(at);
        let hours = self.times.hours.as_ref();
        hours.map_or(at, |hours| hours.opens(at))
    }

    /// The verdict after its deadline: it is too old, or waits for its next opening.
    pub(super) fn verdict_past_deadline(&self, now: StoreTime) -> Verdict {
        let Times {
            too_old,
            hours,
            closes,
        } = &self.times;
        match (hours, closes) {
            (Some(hours), Some((at, closes))) if too_old.is_none_or(|old| *at < old) => {
                let opening = hours.opens(now.max(*closes));
                self.history().later(opening.since(now), now)
            }
            _ => expired(&self.route, self.history(), now),
        }
    }

    /// What the journal shows of it when it is called.
    pub(super) fn called(&self) -> CalledMessage<'_> {
        CalledMessage {
            message: self.message(),
            history: self.history(),
            facts: self.route.facts(self.history()),
            charges: self.charges(),
        }
    }

    /// Settles it, at a time of the store.
    pub(super) fn settle(self, verdict: Verdict, now: StoreTime) {
        self.settle_because(verdict, None, now);
    }

    /// Settles it for a reason that the verdict does not have.
    pub(super) fn settle_because(self, verdict: Verdict, why: Option<Why<'_>>, now: StoreTime) {
        let instead = match &verdict {
            Verdict::Later { .. } => leaves_in_parts(&self.route, self.history(), now),
            _ => None,
        };
        let verdict = instead.unwrap_or(verdict);
        self.leave(verdict, why, None);
    }

    /// Settles it after its last call, with the answer to that.
    pub(super) fn settle_answered(self, verdict: Verdict, answer: Option<&Answer>) {
        self.leave(verdict, None, answer);
    }

    /// Settles it because its call was cut off. The call may have arrived, so it spends an attempt. What a caller was
    /// granted is not called from here.
    pub(super) fn settle_cut_off(mut self, now: StoreTime) {
        let rules = self.route.rules.calls;
        if rules.shows == AnswerScope::Nothing {
            return;
        }
        let history = &mut self.unsettled.history;
        history.tries = history.tries.cut_off();
        let verdict = if history.tries.attempts < rules.max_attempts {
            history.later(Duration::ZERO, now)
        } else {
            let detail = "this replica ended before the answer came; it may have been taken";
            dead(
                history,
                DeadReason::AttemptsExhausted,
                detail.to_owned(),
                now,
            )
        };
        self.settle_because(verdict, Some(Why::CallFailed), now);
    }

    fn leave(self, verdict: Verdict, why: Option<Why<'_>>, answer: Option<&Answer>) {
        let (delivery, history) = self.unsettled.into_parts();
        let leaving = LeavingMessage {
            history: &history,
            charges: self.demand.keyed.charges(),
            verdict,
            why,
            answer,
        };
        self.route.ends.settle(delivery, leaving);
    }
}

impl WaitingMessage {
    /// The slot of the message is due: takes it apart for its call, which `send::perform` makes.
    pub(super) fn begin_call(mut self) -> (Box<Job>, Box<dyn Call>, Permit) {
        self.job.held.call_begins();
        (self.job, self.call, self.permit)
    }
}
