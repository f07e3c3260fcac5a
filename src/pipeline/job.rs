//! A message between decoding and its verdict, as a chain of types: its type shows what a message
//! has been through, and handing it on consumes it.
//!
//! ```text
//! Delivery ──decode──> Waiting ──its slot──> Job (the call is under way) ──verdict──> settled
//!                         ^                   │
//!                         └── another call ───┘
//! ```

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::rate::Cost;
use sluiced_core::scheduler::{HoldRules, KeyId, Queued, Share};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock::Moment;
use sluiced_ports::downstream::{Answer, Call, Rest, Undecodable};
use sluiced_ports::limits::{Charge, GrantedAt, Ticket, limit_key};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::types::OnDenied;

use super::decode::tenant_number;
use super::history::History;
use super::journal::Why;
use super::permit::Permit;
use super::refunder::Refunder;
use super::results::LastCall;
use super::route::{Held, Route};
use super::sharing::{Intake, Moved};
use super::verdict::leaves_in_parts;

/// A message that was decoded: its delivery, what it takes, and its history.
pub(super) struct Job {
    pub(super) route: Arc<Route>,
    pub(super) delivery: Delivery,
    pub(super) history: History,
    /// It must not be sent from then on.
    deadline: Option<Mono>,
    takes: Takes,
    /// Calls in a row that could not leave in time.
    pub(super) too_late: u32,
    /// The ticket under which its keyed limits were asked last, if they were.
    pub(super) ticket: Option<Ticket>,
    /// What is left to send, if its last call was taken in part.
    pub(super) rest: Option<Rest>,
    _held: Held,
}

/// What a message takes of its limits, and which tenant it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Takes {
    /// Slots of the paced limit.
    pub(super) slots: Cost,
    /// Of its keyed limits, each with the number of its key; empty if none counts it.
    pub(super) charges: Vec<Charge>,
    pub(super) keys: Vec<KeyId>,
    pub(super) share: Share,
}

/// A message with its request, which waits for a slot and for its limits.
pub(super) struct Waiting {
    pub(super) job: Job,
    call: Box<dyn Call>,
    /// The way back for what its keyed limits are asked for under its ticket, if they are.
    pub(super) asks: Option<Refunder>,
    /// What its keyed limits granted; dropped unsent, it is refunded.
    pub(super) permit: Permit,
    /// Not to be sent before this, whatever its limits allow: another attempt after a failure, for example.
    pub(super) not_before: Option<Mono>,
    /// Its number in the order in which messages came to this pacer, once it has.
    pub(super) arrival: Option<u64>,
}

impl Job {
    pub(super) fn new(
        route: Arc<Route>,
        delivery: Delivery,
        history: History,
        deadline: Option<Mono>,
        takes: Takes,
        held: Held,
    ) -> Self {
        Self {
            route,
            delivery,
            history,
            deadline,
            takes,
            too_late: 0,
            ticket: None,
            rest: None,
            _held: held,
        }
    }

    /// Its request is made: it waits for its slot.
    pub(super) fn waiting(self, call: Box<dyn Call>) -> Waiting {
        Waiting {
            job: self,
            call,
            asks: None,
            permit: Permit::none(),
            not_before: None,
            arrival: None,
        }
    }

    /// Makes the request again, for another call: of the rest, if it was taken in part, which takes a slot for each
    /// part. Its keyed limits count it with its whole cost again.
    ///
    /// # Errors
    /// When no request can be made from it any more; the message is returned.
    pub(super) fn prepare_again(mut self) -> Result<Waiting, Box<(Self, Undecodable)>> {
        let facts = self.route.facts(&self.history);
        let (downstream, message) = (&self.route.downstream, self.delivery.message());
        let call = match &self.rest {
            Some(rest) => {
                let left = u32::try_from(rest.left.len())
                    .ok()
                    .and_then(NonZeroU32::new);
                self.takes.slots = left.map_or(self.takes.slots, Cost::new);
                downstream.go_on(message, facts, rest.clone())
            }
            None => downstream.prepare(message, facts),
        };
        match call {
            Ok(call) => Ok(self.waiting(call)),
            Err(why) => Err(Box::new((self, why))),
        }
    }

    /// Moves it to another route of its queue.
    pub(super) fn move_to(self, to: &Intake) {
        self.route.meters.moved.increment(1);
        to.take(Moved {
            delivery: self.delivery,
            history: self.history.moved(),
            ticket: self.ticket,
        });
    }

    /// How many slots of its paced limit it takes.
    pub(super) const fn slots(&self) -> Cost {
        self.takes.slots
    }

    /// The tenant that it belongs to.
    pub(super) const fn tenant(&self) -> u64 {
        self.takes.share.tenant
    }

    /// What it takes of its keyed limits.
    pub(super) fn charges(&self) -> &[Charge] {
        &self.takes.charges
    }

    /// A number of its message, the same wherever it waited meanwhile.
    pub(super) fn number(&self) -> u64 {
        let id = self.delivery.message().id().unwrap_or_default();
        tenant_number(limit_key(&[id]))
    }

    /// Its keys that are not for all messages.
    pub(super) fn own_keys(&self) -> Vec<KeyId> {
        let keys = self.takes.keys.iter().copied();
        keys.filter(|key| !self.route.is_for_all(*key)).collect()
    }

    /// The route's priority and its own.
    fn priorities(&self) -> [u8; 2] {
        let message = self.delivery.message().properties.priority;
        [self.route.policy.settings.priority, message]
    }

    /// Settles it, and logs it if it dies.
    pub(super) fn settle(self, verdict: Verdict) {
        self.settle_because(verdict, None);
    }

    /// The same, with a reason for the journal that the verdict does not have.
    pub(super) fn settle_because(self, verdict: Verdict, why: Option<Why<'_>>) {
        let verdict = leaves_in_parts(&self.route, &self.history, &verdict).unwrap_or(verdict);
        self.journal_verdict(&verdict, why);
        let last_call = match why {
            Some(Why::Repeat) => LastCall::Repeat,
            _ => LastCall::Unanswered,
        };
        self.route
            .settle(self.delivery, &self.history, verdict, last_call);
    }

    /// The same after a call that is its last.
    pub(super) fn settle_with(self, verdict: Verdict, answer: Option<&Answer>) {
        self.journal_verdict(&verdict, None);
        self.route
            .settle(self.delivery, &self.history, verdict, LastCall::of(answer));
    }
}

impl Waiting {
    /// Its slot is due: the call is made, and the message waits for the answer.
    pub(super) fn send(self) -> (Job, Box<dyn Call>, Permit) {
        (self.job, self.call, self.permit)
    }
}

impl Queued for Waiting {
    fn cost(&self) -> Cost {
        self.job.takes.slots
    }

    fn priority(&self) -> u16 {
        u16::from_be_bytes(self.job.priorities())
    }

    fn is_urgent(&self) -> bool {
        let [route, message] = self.job.priorities();
        let urgent = self.job.route.policy.urgent_from;
        urgent.is_some_and(|from| route.max(message) >= from)
    }

    fn share(&self) -> Share {
        self.job.takes.share
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.job.takes.keys.iter().copied()
    }

    fn arrival(&self) -> u64 {
        // A pacer numbers all that it gives to its scheduler.
        self.arrival.unwrap_or_default()
    }

    fn route(&self) -> usize {
        self.job.route.number
    }

    fn is_for_all(&self, key: KeyId) -> bool {
        self.job.route.is_for_all(key)
    }

    fn counts_calls(&self, key: KeyId) -> bool {
        let mut charges = self.keys().zip(self.job.charges());
        charges.any(|(own, charge)| own == key && charge.limit.counts_calls())
    }

    fn prefetch(&self) -> usize {
        self.job.route.policy.prefetch.into()
    }

    fn deadline(&self) -> Option<Mono> {
        self.job.deadline
    }

    fn is_stale(&self) -> bool {
        self.job.delivery.is_stale()
    }

    fn usable(&self) -> Duration {
        let charges = self.job.charges().iter();
        charges
            .map(|charge| charge.limit.usable())
            .min()
            .unwrap_or_default()
    }

    fn granted(&mut self, at: StoreTime, ago: Duration) {
        let asked = Moment::ago(ago);
        let at = GrantedAt { at, asked };
        if let (Some(refunder), Some(ticket)) = (self.asks.take(), self.job.ticket) {
            self.permit = Permit::new(self.job.charges(), at, ticket, &refunder);
        }
    }

    fn waited(&self) -> bool {
        self.job.history.waited
    }

    fn sent_away(&mut self) {
        self.job.history.waited = true;
    }

    fn hold_rules(&self, at: StoreTime) -> HoldRules {
        let route = &self.job.route;
        HoldRules {
            may_move: route.sharing.is_shared(),
            holds: route.policy.settings.on_denied == OnDenied::Hold,
            max_hold: route.policy.settings.max_hold.get(),
            age: at.since(self.job.history.first_seen),
        }
    }

    fn opening(&self, at: StoreTime) -> StoreTime {
        self.job.route.opening(at)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("route", &self.route.name)
            .field("delivery", &self.delivery)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}
