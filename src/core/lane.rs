//! One lane inside one replica: the messages that wait for the same slots.
//!
//! All routes that name a paced limit share its lane, so one lease serves them all and the best
//! message takes each slot whichever route it came by; a route without a paced limit has a lane of its
//! own, whose slots are always due. The shell around it (a thread with a timer and connections to
//! the stores) asks [`Lane::poll`] what to do, does it, and reports back.
//!
//! A message that other limits count passes through stages:
//!
//! ```text
//!             asked for late, in batches          at its slot
//!   ready ──────────────────────────> asked ──> admitted ──> sent
//!     ^                                 │           │ its permission ran out before its slot came
//!     │  at its time                    v           v
//!   parked <──────────────────────── denied      taken back, ready again, at the front
//! ```
//!
//! Who is late for his place while there are more messages than slots stands in line for his budget
//! (`behind`): asked ──> behind ──> ready, when his budget has room.
//!
//! A message that nothing else counts goes from ready to its slot. Nothing is sent without a slot
//! and, where budgets count it, a permission that is still good when the call leaves.

mod asking;
mod behind;
mod leaving;
mod serving;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::behind::Behind;
use super::budget::admit::{IfLate, SOON};
use super::clock::ClockMap;
use super::leases::{LeaseHolder, Outlook, Slot, Tally};
use super::pacing::{Pacing, Row};
use super::petitions::Petitions;
use super::policy::PolicyVersion;
use super::ready::{Candidate, Ready, Sum};
use super::schedule::{Answer, Ask, Freeze, Grant, Pace};
use super::time::Mono;

/// What to do next.
#[derive(Debug)]
pub enum Step<T> {
    /// Send this message now: its slot is due.
    Send(T, Slot),
    /// Its deadline has passed. No slot was spent on it.
    Expired(T),
    /// It is not ours any more. No slot was spent on it.
    Stale(T),
    /// Ask the store for slots, and report with [`Lane::answered`] or [`Lane::failed`].
    Ask(Row, Ask),
    /// Ask the budgets of these messages (none: only for the time), and report with
    /// [`Lane::petition_answered`] or [`Lane::petition_failed`]; then hand each one back with
    /// [`Lane::admit`], [`Lane::put_back`], [`Lane::wait`] or [`Lane::denied`].
    Petition(Vec<T>),
    /// Its permission ran out before its slot came: take back what it took, and hand it back with
    /// [`Lane::push_front`].
    Lapsed(T),
    /// Nothing to do before this time (`None`: before something is reported).
    Wait(Option<Mono>),
}

/// A lane is crowded if it has more than so many messages that are due for each slot that it leased. (With one,
/// lanes whose keys bind, and not the account, look crowded and ask twice as often; with four, 1.5 % fewer slots
/// are used in `lane::late`.)
const CROWDED: u64 = 2;

/// No permission ends then.
const NEVER: Mono = Mono::from_micros(u64::MAX);

/// The order of admitted messages: by priority, then whose permission ends first, then as admitted.
type Place = (Reverse<u16>, Mono, u64);

/// A message that may be sent as soon as a slot comes.
#[derive(Debug)]
struct Admitted<T> {
    item: T,
    /// Until when its permission is good.
    until: Mono,
}

/// The lane.
#[derive(Debug)]
pub struct Lane<T> {
    pacing: Pacing,
    petitions: Option<Petitions>,
    ready: Ready<T>,
    /// What the batch under way comes to; the shell has the messages.
    asked: Sum,
    admitted: BTreeMap<Place, Admitted<T>>,
    admitted_sum: Sum,
    /// When permissions run out.
    ends: BTreeSet<(Mono, Place)>,
    admissions: u64,
    /// Messages that may not be sent before a time, by that time and by arrival.
    parked: BTreeMap<(Mono, u64), T>,
    parked_count: u64,
    /// Messages that wait for others of their budgets.
    behind: Behind<T>,
    /// Messages found expired or stale while a batch was made.
    found: VecDeque<Step<T>>,
}

impl<T: Candidate> Lane<T> {
    /// An empty lane of one row, whose messages nothing else counts.
    #[must_use]
    pub fn new(holder: LeaseHolder) -> Self {
        Self::with(Pacing::paced(holder), None)
    }

    /// An empty lane. Without `petitions` no message may need a permission, and there must be
    /// a row: the lane has the store's time from one of the two.
    #[must_use]
    pub fn with(pacing: Pacing, petitions: Option<Petitions>) -> Self {
        Self {
            pacing,
            petitions,
            ready: Ready::default(),
            asked: Sum::default(),
            admitted: BTreeMap::new(),
            admitted_sum: Sum::default(),
            ends: BTreeSet::new(),
            admissions: 0,
            parked: BTreeMap::new(),
            parked_count: 0,
            behind: Behind::default(),
            found: VecDeque::new(),
        }
    }

    /// The mapping to the store's clock: that of the main row, or of the budgets where there is none.
    #[must_use]
    pub fn clock(&self) -> Option<&ClockMap> {
        let petitions = self.petitions.as_ref().map(Petitions::clock);
        self.pacing.clock().or(petitions)
    }

    /// The leases of a row.
    #[must_use]
    pub fn holder(&self, row: Row) -> Option<&LeaseHolder> {
        self.pacing.holder(row)
    }

    /// What happened to slots so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.pacing.tally()
    }

    /// Whether the store of budgets has ever ruled.
    #[must_use]
    pub fn has_petitioned(&self) -> bool {
        let petitions = self.petitions.as_ref();
        petitions.is_some_and(|petitions| petitions.clock().is_known())
    }

    /// Messages held here: ready, in line, admitted and parked; not those that are asked for.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ready.len() + self.behind.len() + self.admitted.len() + self.parked.len()
    }

    /// The messages that wait for a time, or in line.
    pub fn waiting(&self) -> impl Iterator<Item = &T> {
        self.parked.values().chain(self.behind.iter())
    }

    /// Adds a message that may be sent at once: one with a permission is admitted.
    pub fn push(&mut self, item: T) {
        if let Some(until) = item.good_until() {
            self.enter(item, until);
        } else if item.is_booked() {
            self.ready.push_early(item);
        } else {
            self.ready.push(item);
        }
    }

    /// Puts a message back that was sent for and did not leave: before those of its priority, so
    /// that a missed slot does not cost it its place.
    pub fn push_front(&mut self, item: T) {
        self.ready.push_front(item);
    }

    /// Adds a message that may not be sent before `at`.
    pub fn park(&mut self, item: T, at: Mono) {
        self.parked_count += 1;
        self.parked.insert((at, self.parked_count), item);
    }

    /// Says what to do at `now`. Call it again after doing it.
    pub fn poll(&mut self, now: Mono) -> Step<T> {
        self.unpark(now);
        if let Some(step) = self.found.pop_front() {
            return step;
        }
        if let Some(item) = self.lapsed(now) {
            return Step::Lapsed(item);
        }
        if let Some(step) = self
            .serve(Row::Reserve, now)
            .or_else(|| self.serve(Row::Main, now))
        {
            return step;
        }
        let demand = self.demand();
        if let Some((row, ask)) = self.pacing.ask(now, demand) {
            return Step::Ask(row, ask);
        }
        let next_petition = match self.petition(now) {
            Ok(batch) => return Step::Petition(batch),
            Err(next) => next,
        };
        if let Some(step) = self.found.pop_front() {
            return step;
        }
        let sendable = self.sendable();
        let slot = self.pacing.next_slot(sendable);
        let parked = self.parked.first_key_value().map(|((at, _), _)| *at);
        let end = self.ends.first().map(|(end, _)| *end);
        let ask = self.pacing.next_ask(demand);
        let times = [slot, parked, end, ask, next_petition, self.behind.next()];
        Step::Wait(times.into_iter().flatten().min())
    }

    /// The store answered what a row asked.
    pub fn answered(&mut self, row: Row, answer: &Answer, now: Mono) {
        self.pacing.answered(row, answer, now);
    }

    /// Other terms are in force: a pace for each row ([`LeaseHolder::retime`]).
    pub fn retime(&mut self, paces: &[Pace], known: PolicyVersion, now: Mono) {
        self.pacing.retime(paces, known, now);
    }

    /// Whether other terms are in force than those that it knows.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.pacing.is_outdated()
    }

    /// The store did not answer what a row asked.
    pub fn failed(&mut self, row: Row, now: Mono) {
        self.pacing.failed(row, now);
    }

    /// A row of the limit is frozen: heard from the store.
    pub fn frozen(&mut self, row: Row, freeze: &Freeze, now: Mono) {
        self.pacing.frozen(row, freeze, now);
    }

    /// The limit is frozen for `length` from now: our own call was told so.
    pub fn frozen_for(&mut self, length: Duration, now: Mono) {
        self.pacing.frozen_for(length, now);
    }

    /// A message of the batch is granted, until then.
    pub fn admit(&mut self, item: T, until: Mono) {
        self.asked.remove(&item);
        self.behind.answered(&item);
        self.enter(item, until);
    }

    /// What shall become of a message of a batch if it comes late for its places. Where more messages are due
    /// than there are slots, it shall be granted a moment no further ahead than slots are filled: it might not
    /// have one then, and others would do without that moment.
    #[must_use]
    pub fn if_late(&self, item: &T) -> IfLate {
        if self.behind.len() >= item.line_room() {
            return IfLate::Grant;
        }
        let due = (self.ready.len() + self.behind.len()) as u64;
        let leased = self.pacing.leased();
        let reach = self.petitions.as_ref().map(Petitions::reach);
        let ahead = reach.filter(|_| leased.is_some_and(|leased| due > leased * CROWDED));
        IfLate::Wait {
            ahead: ahead.unwrap_or(SOON),
        }
    }

    /// A message of the batch comes late for its places, and has to wait until this budget has room. It is asked
    /// for so long before that the answer is there then.
    pub fn wait(&mut self, item: T, budget: u64, until: Mono) {
        let lead = self.petitions.as_ref().map(Petitions::lead);
        self.asked.remove(&item);
        self.behind.answered(&item);
        let until = until - lead.unwrap_or_default();
        self.behind.wait(item, budget, until);
    }

    /// Messages of the batch that nothing was ruled on, in their order: before those of their priority.
    pub fn put_back(&mut self, items: Vec<T>) {
        for item in items.into_iter().rev() {
            self.asked.remove(&item);
            self.behind.answered(&item);
            self.ready.push_front(item);
        }
    }

    /// A message of the batch is denied: the lane has nothing to do with it any more.
    pub fn denied(&mut self, item: &T) {
        self.asked.remove(item);
        self.behind.answered(item);
        self.ready.forgive(item);
    }

    /// What the limits hold for messages that are ready, as far as a route is concerned whose messages
    /// are counted in budgets (`claims`) or are not.
    #[must_use]
    pub fn outlook(&self, now: Mono, claims: bool) -> Outlook {
        if !self.clock().is_some_and(ClockMap::is_known) {
            return Outlook::OutOfReach(None);
        }
        let petitions = self.petitions.as_ref().filter(|_| claims);
        if petitions.is_some_and(|petitions| !petitions.clock().is_known()) {
            return Outlook::OutOfReach(None);
        }
        match petitions.and_then(Petitions::failing_since) {
            Some(since) => Outlook::OutOfReach(Some(since)),
            None => self.pacing.outlook(now),
        }
    }

    /// Drops the leases; answers what the store may take back.
    pub fn surrender(&mut self) -> Vec<(Row, Grant)> {
        self.pacing.surrender()
    }

    /// What all messages take that wait for slots. Of those that stand in line no more can be sent about now
    /// than the first of each: slots for all would be leased in vain.
    fn demand(&self) -> Sum {
        let each = [self.asked, self.admitted_sum, self.behind.heads()];
        each.into_iter().fold(self.ready.sum(), Sum::with)
    }

    /// What could be sent if a slot came: what is admitted, and what nobody must be asked for.
    fn sendable(&self) -> Sum {
        let one = |item: Option<&T>| item.is_some_and(|item| item.headroom().is_none());
        let admitted = self.admitted_sum;
        Sum {
            messages: admitted.messages + usize::from(one(self.ready.peek())),
            urgent: admitted.urgent + u64::from(one(self.ready.peek_urgent())),
            ..admitted
        }
    }

    fn enter(&mut self, item: T, until: Mono) {
        self.admissions += 1;
        let place = (Reverse(item.priority()), until, self.admissions);
        self.admitted_sum.add(&item);
        self.ends.insert((until, place));
        self.admitted.insert(place, Admitted { item, until });
    }

    fn leave(&mut self, place: Place) -> Option<Admitted<T>> {
        let admitted = self.admitted.remove(&place)?;
        self.admitted_sum.remove(&admitted.item);
        self.ends.remove(&(admitted.until, place));
        Some(admitted)
    }

    /// A message whose permission has run out.
    fn lapsed(&mut self, now: Mono) -> Option<T> {
        let (_, place) = *self.ends.first().filter(|(end, _)| *end <= now)?;
        self.leave(place).map(|admitted| admitted.item)
    }

    fn unpark(&mut self, now: Mono) {
        while let Some(entry) = self
            .parked
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
        {
            let item = entry.remove();
            self.push(item);
        }
        while let Some(item) = self.behind.called(now) {
            self.push_front(item);
        }
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod late;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod tests;
