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
//! A message that nothing else counts goes from ready to its slot. Nothing is sent without a slot
//! and, where budgets count it, a permission that is still good when the call leaves.

mod asking;
mod serving;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::clock::ClockMap;
use super::keeper::{Keeper, Outlook, Slot, Tally};
use super::pacing::{Pacing, Row};
use super::petitions::Petitions;
use super::ready::{Candidate, Ready, Sum};
use super::schedule::{Answer, Ask, Freeze, Grant, Pace};
use super::standing::Revision;
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
    /// [`Lane::admit`], [`Lane::put_back`] or [`Lane::denied`].
    Petition(Vec<T>),
    /// Its permission ran out before its slot came: take back what it took, and hand it back with
    /// [`Lane::push_front`].
    Lapsed(T),
    /// Nothing to do before this time (`None`: before something is reported).
    Wait(Option<Mono>),
}

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
    /// Messages found expired or stale while a batch was made.
    found: VecDeque<Step<T>>,
}

impl<T: Candidate> Lane<T> {
    /// An empty lane of one row, whose messages nothing else counts.
    #[must_use]
    pub fn new(keeper: Keeper) -> Self {
        Self::with(Pacing::paced(keeper), None)
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
    pub fn keeper(&self, row: Row) -> Option<&Keeper> {
        self.pacing.keeper(row)
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

    /// Messages held here: ready, admitted and parked; not those that are asked for.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ready.len() + self.admitted.len() + self.parked.len()
    }

    /// The messages that wait for a time.
    pub fn parked(&self) -> impl Iterator<Item = &T> {
        self.parked.values()
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

    /// Makes the parked message ready that `whose` says yes to first: what it waits for is there.
    pub fn wake(&mut self, mut whose: impl FnMut(&T) -> bool) {
        let found = self.parked.iter().find(|(_, item)| whose(item));
        if let Some(key) = found.map(|(key, _)| *key)
            && let Some(item) = self.parked.remove(&key)
        {
            self.push(item);
        }
    }

    /// Takes out the parked messages that `whose` says yes to, in the order of their times.
    pub fn take_parked(&mut self, mut whose: impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.parked.iter().filter(|(_, item)| whose(item));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        let taken = keys.iter().filter_map(|key| self.parked.remove(key));
        taken.collect()
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
        let times = [slot, parked, end, ask, next_petition];
        Step::Wait(times.into_iter().flatten().min())
    }

    /// The store answered what a row asked.
    pub fn answered(&mut self, row: Row, answer: &Answer, now: Mono) {
        self.pacing.answered(row, answer, now);
    }

    /// Other terms are in force: a pace for each row ([`Keeper::retime`]).
    pub fn retime(&mut self, paces: &[Pace], known: Revision, now: Mono) {
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
        self.enter(item, until);
    }

    /// Messages of the batch that nothing was ruled on, in their order: before those of their priority.
    pub fn put_back(&mut self, items: Vec<T>) {
        for item in items.into_iter().rev() {
            self.asked.remove(&item);
            self.ready.push_front(item);
        }
    }

    /// A message of the batch is denied: the lane has nothing to do with it any more.
    pub fn denied(&mut self, item: &T) {
        self.asked.remove(item);
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

    /// Takes out all messages, ready, admitted or parked, that `unwanted` says yes to.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let places: Vec<_> = self
            .admitted
            .iter()
            .filter(|(_, admitted)| unwanted(&admitted.item))
            .map(|(place, _)| *place)
            .collect();
        let mut out: Vec<_> = places
            .into_iter()
            .filter_map(|place| self.leave(place))
            .map(|admitted| admitted.item)
            .collect();
        out.extend(self.ready.extract(&mut unwanted));
        let keys: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, item)| unwanted(item))
            .map(|(key, _)| *key)
            .collect();
        out.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        out
    }

    /// Makes the messages of `whose`, ready or parked, wait until `until` at least. Those that are
    /// admitted lapse.
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let keys: Vec<_> = self
            .parked
            .range(..(until, 0))
            .filter(|(_, item)| whose(item))
            .map(|(key, _)| *key)
            .collect();
        let places: Vec<_> = self
            .admitted
            .iter()
            .filter(|(_, admitted)| whose(&admitted.item))
            .map(|(place, _)| *place)
            .collect();
        for place in places {
            let lapsed = self.leave(place);
            self.found
                .extend(lapsed.map(|admitted| Step::Lapsed(admitted.item)));
        }
        let mut deferred = self.ready.extract(&mut whose);
        deferred.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        for item in deferred {
            if item.good_until().is_some_and(|end| end <= until) {
                self.found.push_back(Step::Lapsed(item));
            } else {
                self.park(item, until);
            }
        }
    }

    /// A message of the batch has a permission that is not used: it lapses.
    pub fn lapse(&mut self, item: T) {
        self.found.push_back(Step::Lapsed(item));
    }

    /// Takes the permissions of messages back that `whose` says yes to, and that wait for a later moment
    /// with them: they lapse at once.
    pub fn revoke(&mut self, mut whose: impl FnMut(&T) -> bool) {
        let waits = |item: &T| item.good_until().is_some() && whose(item);
        let revoked = self.take_parked(waits);
        self.found.extend(revoked.into_iter().map(Step::Lapsed));
    }

    /// Drops the leases; answers what the store may take back.
    pub fn surrender(&mut self) -> Vec<(Row, Grant)> {
        self.pacing.surrender()
    }

    /// What all messages take that wait for slots.
    fn demand(&self) -> Sum {
        let (ready, asked, admitted) = (self.ready.sum(), self.asked, self.admitted_sum);
        Sum {
            messages: ready.messages + asked.messages + admitted.messages,
            units: ready.units + asked.units + admitted.units,
            urgent: ready.urgent + asked.urgent + admitted.urgent,
            claims: ready.claims + asked.claims + admitted.claims,
        }
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
    }
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod tests;
