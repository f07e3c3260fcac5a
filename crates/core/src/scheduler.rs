//! The messages of one replica that wait for the same slots, and which of them goes next.
//!
//! All routes that name a paced limit share its scheduler, so one lease serves them all and the best
//! message takes each slot, from any of these routes. A route without a paced limit has a scheduler
//! of its own, whose slots are always due. The pacer (`pipeline::pacer`: a thread with a timer and connections to the
//! stores) asks [`Scheduler::poll`] what to do, does it, and reports back.
//!
//! A message that keyed limits count passes through these states here (`pipeline::pacer` draws those around them):
//!
//! ```text
//!             asked for, in batches          its slot is due
//!   Ready ──────────────────────> Asked ──> Permitted ──> sent
//!     ^ its key opens               │           │ its permit ran out before its slot came
//!     │                             v           v
//!   WaitsForKey <───────────────── denied     refunded, Ready again
//! ```
//!
//! A message that no keyed limit counts goes from `Ready` to its slot, or, where it goes before others that are asked
//! for, through `Permitted`, with a permit that never runs out. Nothing is sent without a slot and, where keyed limits
//! count it, a permit that is still valid when the call leaves.
//!
//! Events go in through the methods, actions come out of [`Scheduler::poll`]. The daemon, the simulation and
//! the tests use the same methods, so what an answer means is decided in one place.
//!
//! What it must know of a message is in `message`. By file: `ready` is the order of those that wait for a slot,
//! `key_queues` has those that wait for a key, `asked` knows those that are asked for, `permitted` has those that were
//! granted, and `delayed` those with a time of their own. `questions` decides when to ask and for how many, `batch` for
//! which, `answers` what follows, `denials` where a denied message waits, `events` what else is reported; `serving`
//! gives a slot its message, takes messages out or delays them; `waits` says what a route waits for.

mod answers;
mod asked;
mod batch;
mod delayed;
mod denials;
mod events;
mod key_queues;
mod permitted;
mod questions;
mod ready;
mod serving;
mod waits;

use std::collections::VecDeque;
use std::time::Duration;

pub use batch::{AskedMessage, Question};
pub use denials::SentAway;
pub use questions::{BATCH_MAX, HEARTBEAT, Questions};
pub use waits::Needs;

use super::message::{KeyId, Queued};

use self::asked::AskedMessages;
use self::batch::Wanted;
use self::delayed::DelayedMessages;
use self::key_queues::KeyQueues;
use self::permitted::PermittedMessages;
use self::ready::Ready;
use super::leases::{LeaseHint, LeaseHolder, Slot};
use super::limits::once::NotCalled;
use super::message::MessageTotals;
use super::pacing::{Pacing, Row};
use super::rate::Cost;
use super::schedule::Ask;
use super::time::{ClockMap, Mono};

/// A keyed limit that grants nothing to a route is asked again after this, however long its answer said:
/// units that were granted and not used are returned, here or on another replica, so the wait may end sooner.
pub const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub enum Action<T> {
    /// Send this message now: its slot is due.
    Send(T, Slot),
    /// The deadline of the message has passed, or comes before its limits can grant it. No slot was taken for it.
    Expired(T),
    /// The session of the message is gone. No slot was taken for it.
    Stale(T),
    /// Ask the store for slots, and report with [`Pacing::note_answer`] or [`Pacing::note_failure`].
    Lease(Row, Ask),
    /// Ask the keyed limits (without messages: only for the time), and report with
    /// [`Scheduler::note_decisions`] or [`Scheduler::note_no_answer`].
    Admit(Question<T>),
    /// The permits of these messages ran out before their slots came: refund what they took, then hand them back
    /// with [`Scheduler::put_back_first`].
    RanOut(Vec<T>),
    /// These messages were permitted, and their route may not send any more: refund and hand them back, too.
    Deferred(Vec<T>),
    /// A keyed limit denied it, and it cannot wait in memory: it is sent away, to come back later.
    SendAway(T, SentAway),
    /// The message costs more than the `most` that its limit number `by` can ever let pass.
    TooCostly {
        /// The message.
        item: T,
        /// The place of the limit in [`Queued::keys`], counted from 0.
        by: usize,
        /// The largest cost that the limit can hold, in units.
        most: u64,
    },
    /// The message is not called, because of its `once` limit number `by`.
    NotCalled {
        /// The message.
        item: T,
        /// The place of the limit in [`Queued::keys`], counted from 0.
        by: usize,
        /// Whether a message of the key was accepted, or that is unknown.
        how: NotCalled,
    },
    /// A keyed limit that is for all messages grants no more to this route before `until`.
    UsedUp {
        /// The number of the route ([`Queued::route`]).
        route: usize,
        /// On the local clock, later than the store's time by what the mapping may be wrong.
        until: Mono,
    },
    /// Nothing to do before this time (`None`: before something is reported).
    Wait(Option<Mono>),
}

/// The store receives the costs of at most this many messages: a lease is rarely for more.
const COSTS_MAX: usize = 64;

/// The messages of one replica that wait for the same slots, by stage: see the module.
#[derive(Debug)]
pub struct Scheduler<T> {
    pacing: Pacing,
    questions: Option<Questions>,
    ready: Ready<T>,
    key_queues: KeyQueues<T>,
    asked: AskedMessages,
    permitted: PermittedMessages<T>,
    delayed: DelayedMessages<T>,
    /// When the last message was sent.
    last_call: Option<Mono>,
    /// How late each slot was that was missed although a message could have used it.
    missed_by: Vec<Duration>,
    /// Actions that follow from answers and batches.
    next_actions: VecDeque<Action<T>>,
}

impl<T: Queued> Scheduler<T> {
    /// Without `questions` no message may need a permit, and there must be a row: the scheduler
    /// has the store's time from one of the two.
    #[must_use]
    pub fn new(pacing: Pacing, questions: Option<Questions>) -> Self {
        Self {
            pacing,
            questions,
            ready: Ready::default(),
            key_queues: KeyQueues::default(),
            asked: AskedMessages::default(),
            permitted: PermittedMessages::default(),
            delayed: DelayedMessages::default(),
            last_call: None,
            missed_by: Vec::new(),
            next_actions: VecDeque::new(),
        }
    }

    /// The mapping to the store's clock: that of the main row, or of the keyed limits where there is
    /// none.
    #[must_use]
    pub fn clock(&self) -> Option<&ClockMap> {
        let questions = self.questions.as_ref().map(Questions::clock);
        self.pacing.clock().or(questions)
    }

    /// Where its slots come from, and what is known of them.
    #[must_use]
    pub const fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// Used to enter answers of the store, and freezes.
    pub const fn pacing_mut(&mut self) -> &mut Pacing {
        &mut self.pacing
    }

    /// Adds a message that may be sent at once.
    pub fn push(&mut self, item: T, now: Mono) {
        match self.waits_for(&item, now) {
            Some(key) => self.key_queues.join(key, item),
            None => self.ready.push(item),
        }
    }

    /// Puts back a message that was taken out and not sent (its slot passed, its permit ran out, or its limits did not
    /// decide): before the others of its priority, so that it keeps its place.
    pub fn put_back_first(&mut self, item: T, now: Mono) {
        match self.waits_for(&item, now) {
            Some(key) => self.join(key, item),
            None => self.ready.push_front(item),
        }
    }

    /// A message that was taken in its turn waits for a key.
    fn join(&mut self, key: KeyId, item: T) {
        self.restore_start_tag(&item);
        self.key_queues.join(key, item);
    }

    /// A message that was taken was not sent, and is gone or waits for a key.
    fn restore_start_tag(&mut self, item: &T) {
        self.ready
            .restore_start_tag(item, self.key_queues.open_keys());
    }

    /// The key that a message has to wait for in memory, if any.
    fn waits_for(&self, item: &T, now: Mono) -> Option<KeyId> {
        let key = self.key_queues.blocking_key(item, now)?;
        self.key_queues.has_room(item, key).then_some(key)
    }

    /// Adds a message that may not be sent before `at`.
    pub fn delay(&mut self, item: T, at: Mono) {
        self.delayed.add(item, at);
    }

    /// How late each slot was that was missed although a message could have used it, since this method was last used.
    pub fn take_missed_by(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.missed_by)
    }

    /// Returns what to do at `now`. Call it again after doing it.
    pub fn poll(&mut self, now: Mono) -> Action<T> {
        self.wake(now);
        self.delay_keyed_while_unanswered(now);
        self.pacing.expire(now);
        if let Some(step) = self.next_actions.pop_front() {
            return step;
        }
        if let Some(step) = self.take_run_out(now) {
            return step;
        }
        if let Some(step) = self
            .serve(Row::Reserve, now)
            .or_else(|| self.serve(Row::Main, now))
        {
            return step;
        }
        let demand = self.demand(now);
        let lease = self.pacing.next_ask(demand);
        if lease.is_some_and(|at| at <= now)
            && let Some((row, ask)) = self.pacing.ask(now, demand, self.slots_ahead(now))
        {
            return Action::Lease(row, ask);
        }
        let next_question = match self.next_question(now) {
            Wanted::Now(question) => return Action::Admit(question),
            Wanted::LookAgain(next) => next,
        };
        if let Some(step) = self.next_actions.pop_front() {
            return step;
        }
        let slot = self.pacing.next_slot(self.sendable(now));
        let delayed = self.delayed.next_time();
        let end = self.permitted.next_end();
        let opening = self.key_queues.next_opening();
        let coming = self.next_coming(now);
        // When a slot is dropped, a message that waits for its permit lacks one: more slots must be leased.
        let miss = self.pacing.next_miss(now).filter(|_| demand.keyed > 0);
        let times = [
            slot,
            delayed,
            end,
            lease,
            next_question,
            opening,
            coming,
            miss,
        ];
        Action::Wait(times.into_iter().flatten().min())
    }

    /// What all messages take that could be sent if slots came, now or as far ahead as they come.
    fn demand(&self, now: Mono) -> MessageTotals {
        let waiting = self.ready.sum().with(self.asked.totals());
        let mut demand = waiting.with(self.permitted.totals());
        // Whether the other messages of a key fit is not known. Slots that come before a key opens would
        // be taken from others for nothing.
        for item in self.coming(now).take(BATCH_MAX) {
            demand.add(item);
        }
        demand
    }

    /// The first message of each key that is open, or opens soon enough to be asked for before the last of the
    /// slots that it would get now.
    fn coming(&self, now: Mono) -> impl Iterator<Item = &T> {
        let horizon = now + self.pacing.horizon();
        let in_horizon = self
            .key_queues
            .closed_heads(now)
            .take_while(move |(opens, _)| *opens <= horizon);
        let soon = in_horizon.filter(move |(opens, item)| *opens <= now + self.ahead(item));
        self.key_queues
            .open_heads()
            .chain(soon.map(|(_, item)| item))
    }

    /// When the first message of another key counts as coming.
    fn next_coming(&self, now: Mono) -> Option<Mono> {
        let mut closed = self.key_queues.closed_heads(now);
        let later = closed.find(|(opens, item)| *opens > now + self.ahead(item));
        later
            .filter(|_| self.pacing.is_paced())
            .map(|(opens, item)| opens - self.ahead(item))
    }

    /// How long before its key opens slots may be leased for a message: the last of them comes when its limits
    /// have answered.
    fn ahead(&self, item: &T) -> Duration {
        let lead = self
            .questions
            .as_ref()
            .map_or(Duration::ZERO, Questions::lead);
        let reach_after_lead = self.pacing.reach().saturating_sub(lead);
        reach_after_lead.max(self.pacing.span(item.cost()))
    }

    /// What the next message needs of its slots. A slot that comes before the answer of its keyed limits
    /// would be of no use to it.
    fn slots_ahead(&self, now: Mono) -> LeaseHint {
        let head = self
            .next_to_ask()
            .or_else(|| self.ready.peek())
            .or_else(|| self.coming(now).next());
        let questions = self.questions.as_ref();
        head.map_or(LeaseHint::PLAIN, |item| LeaseHint {
            slots: item.cost().units(),
            ahead: questions
                .filter(|_| item.is_keyed())
                .map_or(Duration::ZERO, Questions::lead),
            costs: self.costs_ahead(now),
        })
    }

    /// The costs of the next messages, in the order in which they get slots: messages that were granted, messages that
    /// are asked for, and the others. Keyed limits may grant other messages. So where no call was made for a while, the
    /// order counts as not known, and a lease is for any message.
    fn costs_ahead(&self, now: Mono) -> Vec<u64> {
        let pace = self.pacing.holder(Row::Main).map(LeaseHolder::pace);
        let Some(pace) = pace.filter(|pace| pace.max_cost() > 1) else {
            return Vec::new();
        };
        let is_new = |sent: Mono| now.since(sent) <= pace.horizon() * 2;
        if self.questions.is_some() && !self.last_call.is_some_and(is_new) {
            return Vec::new();
        }
        let permitted = self.permitted.items().map(Queued::cost);
        let asked = self.asked.costs();
        let coming = self.coming(now).map(Queued::cost);
        let known_costs = permitted.chain(asked).chain(coming).map(Cost::units);
        let ready = self.ready.costs(COSTS_MAX);
        known_costs.chain(ready).take(COSTS_MAX).collect()
    }

    /// The messages that could be sent if a slot came: permitted messages, and messages that need no permit.
    fn sendable(&self, now: Mono) -> MessageTotals {
        let needs_no_permit = |item: Option<&T>| item.is_some_and(|item| !item.is_keyed());
        let collects = usize::from(self.collects(now));
        let permitted = self.permitted.totals();
        MessageTotals {
            messages: permitted.messages
                + usize::from(needs_no_permit(self.ready.peek()))
                + collects,
            urgent: permitted.urgent + u64::from(needs_no_permit(self.ready.peek_urgent())),
            ..permitted
        }
    }

    /// While the store of keyed limits does not answer, messages that need a permit wait aside. A slot goes to a
    /// message without keyed limits only if that message is the first, so it would wait behind them until the store
    /// answers.
    fn delay_keyed_while_unanswered(&mut self, now: Mono) {
        let MessageTotals {
            messages, keyed, ..
        } = self.ready.sum();
        let questions = self.questions.as_ref();
        if (1..messages).contains(&keyed)
            && let Some(until) = questions.and_then(|questions| questions.unanswered_until(now))
        {
            for item in self.ready.extract(Queued::is_keyed) {
                self.delay(item, until);
            }
        }
    }

    /// Makes messages ready whose time has come, and opens keys.
    fn wake(&mut self, now: Mono) {
        while let Some(item) = self.delayed.take_due(now) {
            self.push(item, now);
        }
        self.key_queues.open_until(now);
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;
