//! Keeps one replica's leases of one paced limit: when to ask the store, for how much, which slot
//! is next, and which are lost.
//!
//! It has no I/O and no clock: `now` goes in; asks, due slots and the next time to look come out.
//! The daemon and the simulation drive the same keeper.
//!
//! What it guarantees to the outside:
//! - it asks only for messages that are ready, never twice at once, and never before its turn;
//! - a slot is handed out at most once, not before its time, and not later than the headroom
//!   (less what the clock mapping may be wrong by);
//! - a lease whose answer shows that the store's clock stepped is burnt, and the store is told. One
//!   whose answer took too long to show a step waits for another answer;
//! - in a new epoch it learns the clock anew, and asks for nothing until it may be trusted again.
//!   What it still holds falls due as it was mapped before, or never;
//! - slots that lie before the end of a freeze are dropped as soon as the freeze is heard of;
//! - once it hears that other terms are in force than it knows, it asks for nothing until it is told
//!   them. What it holds falls due at the pace that it was granted at.

mod phase;
mod run;
mod tally;

use std::collections::VecDeque;
use std::time::Duration;

pub use phase::Phase;
use run::Run;
pub use run::Slot;
pub use tally::Tally;

use super::clock::{ClockMap, Reading};
use super::schedule::{Answer, Ask, Freeze, Grant, Pace, Sight, Turn};
use super::standing::Revision;
use super::time::{Mono, StoreTime, micros};

/// Two asks are at least this far apart, so that a stream of single messages shares round trips.
const ASK_GAP: Duration = Duration::from_millis(2);
/// After a turn has come by our clock, wait at least this much longer, so that it has come by the
/// store's.
const TURN_MARGIN: Duration = Duration::from_micros(200);
/// Without other asks the clock mapping is checked this often, so that drift stays negligible.
const CHECK_CLOCK: Duration = Duration::from_secs(10);
/// Who waits for longer than this asks so often whether it still has to: an operator may have ended
/// the wait, and the notice may be lost.
const CHECK_WAIT: Duration = Duration::from_millis(800);
/// Where many replicas take turns at a fast limit, each of them waits less than this.
const LONG_WAIT: Duration = Duration::from_secs(4);
/// A mapping that is too rough to keep the headroom by is improved by so many asks, so far apart;
/// a store that is no nearer than that is then taken as it is.
const PROBES: u32 = 8;
const PROBE_GAP: Duration = Duration::from_millis(10);
/// A notice that took longer than this to come, or that the mapping is wrong by more than this for,
/// is not believed but asked after.
const NOTICE_TOLERANCE: Duration = Duration::from_secs(1);
/// Replicas that ask after the same notice spread over this.
const NOTICE_SPREAD: Duration = Duration::from_millis(100);
/// Who missed slots twice within so many times of what they may be late is strained.
const STRAINED: u32 = 4;
/// The first wait after a failed ask; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What the limit holds for messages that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Slots are leased or can be asked for at once.
    Open,
    /// No slot before this time.
    Until(Mono, Wait),
    /// The store did not answer since this time (`None`: it never did).
    OutOfReach(Option<Mono>),
}

/// Why there is no slot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Others have their turn first.
    Turn,
    /// The downstream asked for a pause.
    Frozen,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Mono,
    retry: Mono,
    wait: Duration,
}

/// An ask that is under way.
#[derive(Clone, Copy, Debug)]
struct Asking {
    sent: Mono,
    want: u64,
    /// The terms that it was asked under: what it grants is theirs, whatever is learnt meanwhile.
    pace: Pace,
    known: Revision,
}

/// The leases of one replica.
#[derive(Clone, Debug)]
pub struct Keeper {
    pace: Pace,
    /// The standing that the pace was taken from.
    known: Revision,
    /// Since when another one is in force.
    outdated: Option<Mono>,
    phase: Phase,
    clock: ClockMap,
    runs: VecDeque<Run>,
    leased: u64,
    asking: Option<Asking>,
    last_ask: Option<Mono>,
    /// The epoch that the mapping, the turn and the freeze belong to.
    epoch: Option<u64>,
    turn: Option<Turn>,
    frozen_until: Option<StoreTime>,
    failing: Option<Failing>,
    /// The store's clock stepped within this epoch, and the store has not heard of it from us.
    stepped: bool,
    /// A notice came that the mapping does not fit: ask at this time.
    look: Option<Mono>,
    /// When it last dropped a slot that came up too late.
    last_miss: Option<Mono>,
    /// Smoothed round trip.
    trip: Duration,
    tally: Tally,
}

impl Keeper {
    /// A keeper that has yet to hear from the store.
    #[must_use]
    pub fn new(pace: Pace, phase: Phase) -> Self {
        Self {
            pace,
            known: Revision::NONE,
            outdated: None,
            phase,
            clock: ClockMap::default(),
            runs: VecDeque::new(),
            leased: 0,
            asking: None,
            last_ask: None,
            epoch: None,
            turn: None,
            frozen_until: None,
            failing: None,
            stepped: false,
            look: None,
            last_miss: None,
            trip: Duration::ZERO,
            tally: Tally::default(),
        }
    }

    /// The pace it keeps.
    #[must_use]
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The standing that the pace was taken from.
    #[must_use]
    pub const fn known(&self) -> Revision {
        self.known
    }

    /// Whether other terms are in force than those that it knows.
    #[must_use]
    pub const fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// These terms are in force: it asks at once. What it holds keeps its slots, and the turn, which
    /// was given at the old pace, is given up.
    pub fn retime(&mut self, pace: Pace, known: Revision, now: Mono) {
        if pace != self.pace {
            self.turn = None;
        }
        self.pace = pace;
        self.known = known;
        self.outdated = None;
        self.look = Some(now);
    }

    /// The mapping to the store's clock.
    #[must_use]
    pub const fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// What happened so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Slots that are leased and not used yet.
    #[must_use]
    pub const fn leased(&self) -> u64 {
        self.leased
    }

    /// Slots that the ask under way wants.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asking.map_or(0, |asking| asking.want)
    }

    /// The slot that is due at `now`, dropping those that were missed.
    ///
    /// From here to the write there is still a way to go, and a call that is stopped at its end
    /// costs its connection, so a part of the time is left for that. Who misses slots again and
    /// again has more of them than he can use: the way is long then, and he goes on with one that is
    /// fresh. Who was only held up once takes what is still in time.
    pub fn due(&mut self, now: Mono) -> Option<Slot> {
        let late = self.late_limit(now);
        let strained = self
            .last_miss
            .is_some_and(|at| now.since(at) <= late * STRAINED);
        let limit = if strained { late * 3 / 4 } else { late * 7 / 8 };
        let mut fresh = limit;
        loop {
            let at = self.next_slot()?;
            if at > now {
                return None;
            }
            if now.since(at) <= fresh {
                return self.front_slot(at, at + late);
            }
            if strained {
                fresh = limit / 2;
            }
            self.last_miss = Some(now);
            self.pass_front();
            self.tally.missed += 1;
        }
    }

    /// Uses the slot that [`Keeper::due`] just answered.
    pub fn spend(&mut self) {
        self.pass_front();
        self.tally.used += 1;
    }

    /// When the next leased slot is due.
    #[must_use]
    pub fn next_slot(&self) -> Option<Mono> {
        self.runs.front().and_then(Run::next)
    }

    fn front_slot(&self, at: Mono, leave_by: Mono) -> Option<Slot> {
        let run = self.runs.front()?;
        let due = run.grant.slot(&run.pace, u64::from(run.used));
        let spread = run.pace.spread();
        Some(Slot {
            at,
            due,
            leave_by,
            spread,
        })
    }

    /// When the leased slots are due, in order.
    pub fn slots(&self) -> impl Iterator<Item = Mono> + '_ {
        self.runs
            .iter()
            .flat_map(|run| (run.used..run.grant.count.get()).map(|index| run.slot(index)))
    }

    /// How late a call may leave: the headroom, less what the mapping may be wrong by in either
    /// direction, less an eighth for the way to the downstream (of which only counts by how much
    /// it varies).
    ///
    /// Slots fall due later by what the mapping may be wrong by. So a call leaves within the
    /// headroom after the slot's true time, whatever other replicas know of the clock.
    #[must_use]
    pub fn late_limit(&self, now: Mono) -> Duration {
        self.pace.headroom() * 7 / 8 - self.doubt(now) * 2
    }

    /// What the mapping may be wrong by. Half of the headroom is left for being late even if that
    /// is more: a store so far away is hardly wrong by all that its round trip could hide.
    fn doubt(&self, now: Mono) -> Duration {
        let error = self.clock.error(now).unwrap_or_default();
        error.min(self.rough())
    }

    /// A mapping that may be wrong by more does not leave half of the headroom.
    fn rough(&self) -> Duration {
        self.pace.headroom() / 4
    }

    /// Whether a few more round trips may make the mapping fit for use.
    fn is_rough(&self, now: Mono) -> bool {
        self.clock.readings() < PROBES
            && self
                .clock
                .error(now)
                .is_some_and(|error| error > self.rough())
    }

    /// The question to send now, if it is time for one. `demand` is what the ready messages take.
    pub fn ask(&mut self, now: Mono, demand: u64) -> Option<Ask> {
        if self.next_ask(demand).is_none_or(|at| at > now) {
            return None;
        }
        let sight = self.sight(now);
        // What is asked before the turn, or before the clock is trusted, only looks at the clock.
        let want = match sight {
            Sight::Steady { .. } if now >= self.next_turn() && self.outdated.is_none() => {
                demand.saturating_sub(self.leased)
            }
            _ => 0,
        };
        let ask = Ask {
            want,
            turn: self.turn,
            sight,
            lead: self.trip,
        };
        self.asking = Some(Asking {
            sent: now,
            want,
            pace: self.pace,
            known: self.known,
        });
        self.last_ask = Some(now);
        self.tally.asks += 1;
        Some(ask)
    }

    fn sight(&self, now: Mono) -> Sight {
        let trusted = self.clock.held_for(self.pace.distrust(), now) && !self.is_rough(now);
        match (self.epoch, self.clock.to_store(now)) {
            (Some(epoch), Some(predicted)) if self.stepped => Sight::Stepped { epoch, predicted },
            (Some(epoch), Some(predicted)) if trusted => Sight::Steady { epoch, predicted },
            _ => Sight::Young,
        }
    }

    /// When [`Keeper::ask`] should be called next. `None` while an ask is under way.
    #[must_use]
    pub fn next_ask(&self, demand: u64) -> Option<Mono> {
        if self.asking.is_some() {
            return None;
        }
        let Some(checked) = self.clock.checked_at() else {
            return Some(
                self.failing
                    .map_or(Mono::default(), |failing| failing.retry),
            );
        };
        let routine = checked + CHECK_CLOCK;
        let routine = self.look.map_or(routine, |look| look.min(routine));
        let at = match self.failing {
            Some(failing) => failing.retry,
            None if self.stepped || !self.is_sure() => Mono::default(),
            None if self.is_rough(checked) => checked + PROBE_GAP,
            None if self.outdated.is_some() => self.next_check().min(routine),
            None if demand > self.leased => self.next_turn().min(routine).min(self.next_check()),
            None if self.frozen_until.is_some() => self.next_check().min(routine),
            None => routine,
        };
        Some(self.last_ask.map_or(at, |last| at.max(last + ASK_GAP)))
    }

    /// When to ask whether a long wait is still right.
    fn next_check(&self) -> Mono {
        let last = self.last_ask.unwrap_or_default();
        let long = self.outdated.is_some() || self.next_turn().since(last) > LONG_WAIT;
        last + if long { CHECK_WAIT } else { LONG_WAIT }
    }

    /// Whether the mapping is known to have held for all that is leased.
    fn is_sure(&self) -> bool {
        self.runs.back().is_none_or(|run| run.sure)
    }

    /// When slots may be asked for: at our turn, at the end of a freeze, once the clock is trusted.
    fn next_turn(&self) -> Mono {
        let horizon = self.pace.horizon();
        let turn = self.turn.and_then(|turn| self.clock.to_mono(turn.at));
        let thaw = self
            .frozen_until
            .and_then(|until| self.clock.to_mono(until));
        let at = match (turn, thaw) {
            (Some(turn), _) => turn + self.turn_margin(),
            // Without a turn: shortly before the end, each replica at a moment of its own.
            (None, Some(thaw)) => thaw - self.phase.of(horizon / 2),
            (None, None) => Mono::default(),
        };
        at.max(self.clock.trusted_from(self.pace.distrust()))
    }

    /// A mapping that is wrong must not make us come before our turn.
    fn turn_margin(&self) -> Duration {
        let error = self
            .clock
            .checked_at()
            .and_then(|checked| self.clock.error(checked));
        error
            .unwrap_or_default()
            .clamp(TURN_MARGIN, self.pace.horizon().max(TURN_MARGIN * 2) / 2)
    }

    /// The store answered the ask that is under way.
    pub fn answered(&mut self, answer: &Answer, now: Mono) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        let Asking { sent, want, .. } = asking;
        self.failing = None;
        self.look = None;
        self.tally.guarded += u64::from(answer.guarded);
        let trip = now.since(sent);
        let close = trip <= (self.rough() * 2).max(self.trip * 2);
        self.smooth(trip);
        if answer.revision == self.known {
            self.outdated = None;
        } else if answer.revision != asking.known {
            self.outdated = self.outdated.or(Some(now));
        }
        if self.epoch != Some(answer.epoch) {
            self.begin(answer, sent, now);
            self.turn = self.turn.filter(|_| asking.pace == self.pace);
            self.tally.denied += u64::from(want > 0);
            return;
        }
        if self.clock.learn(sent, answer.now, now, self.rough()) == Reading::Stepped {
            // The grant was made on a clock that others may not have seen step yet.
            self.tally.burnt += answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            self.burn_unsure();
            self.turn = None;
            self.stepped = true;
            return;
        }
        match answer.frozen_until {
            Some(until) => self.freeze_until(until, true),
            None => self.thaw(answer.now),
        }
        if want > 0 {
            self.turn = answer.turn.filter(|_| asking.pace == self.pace);
        }
        if close {
            self.runs.iter_mut().for_each(|run| run.sure = true);
        }
        let first = answer
            .grant
            .and_then(|grant| Some((grant, self.clock.to_mono(grant.first)?)));
        match first {
            Some((grant, first)) => {
                self.leased += u64::from(grant.count.get());
                self.tally.leased += u64::from(grant.count.get());
                self.runs.push_back(Run {
                    grant,
                    pace: asking.pace,
                    first: first + self.doubt(now),
                    used: 0,
                    sure: close,
                });
            }
            None => self.tally.denied += u64::from(want > 0),
        }
    }

    /// The first answer, or the row was started anew: our mapping, turn and freeze are of no use
    /// any more. What we hold was granted before and falls due as it was mapped; all of it passes
    /// before anybody trusts the new mapping.
    fn begin(&mut self, answer: &Answer, sent: Mono, now: Mono) {
        self.epoch = Some(answer.epoch);
        self.stepped = false;
        self.clock = ClockMap::default();
        self.clock.learn(sent, answer.now, now, self.rough());
        self.burn_unsure();
        self.turn = answer.turn;
        self.frozen_until = None;
        if let Some(until) = answer.frozen_until {
            self.freeze_until(until, true);
        }
    }

    /// Drops leases that came with an answer too slow to show a step.
    fn burn_unsure(&mut self) {
        let unsure = self.runs.iter().filter(|run| !run.sure);
        let slots: u64 = unsure.map(Run::left).sum();
        self.leased -= slots;
        self.tally.burnt += slots;
        self.runs.retain(|run| run.sure);
    }

    /// The ask that is under way failed. It may have run: what it granted is never used.
    pub fn failed(&mut self, now: Mono) {
        self.asking = None;
        self.tally.failed += 1;
        let (since, wait) = self.failing.map_or((now, BACKOFF_MIN), |failing| {
            (failing.since, (failing.wait * 2).min(BACKOFF_MAX))
        });
        let retry = now + wait / 2 + self.phase.of(wait / 2);
        self.failing = Some(Failing { since, retry, wait });
    }

    /// The limit is frozen: heard from the store, or from another replica through it.
    pub fn frozen(&mut self, freeze: &Freeze, now: Mono) {
        let Some(here) = self.clock.to_store(now) else {
            return;
        };
        let off = here.since(freeze.now).max(freeze.now.since(here));
        if self.epoch == Some(freeze.epoch) && off <= NOTICE_TOLERANCE {
            self.freeze_until(freeze.until, false);
        } else {
            // Its times are on another clock than ours.
            self.look = self.look.or(Some(now + self.phase.of(NOTICE_SPREAD)));
        }
    }

    /// The limit is frozen for `length` from now: our own call was told so.
    pub fn frozen_for(&mut self, length: Duration, now: Mono) {
        if let Some(here) = self.clock.to_store(now) {
            self.freeze_until(here + length, false);
        }
    }

    /// Nothing before `until`. Only the store itself can say that it is `sure`, and end an earlier
    /// freeze sooner: a notice may be older than what we know.
    fn freeze_until(&mut self, until: StoreTime, sure: bool) {
        match self.frozen_until {
            Some(known) if known == until || known > until && !sure => return,
            Some(known) if known > until => self.turn = None,
            _ => {}
        }
        self.frozen_until = Some(until);
        let reach = until - self.pace.horizon();
        self.turn = self.turn.filter(|turn| turn.at >= reach);
        let Some(thaw) = self.clock.to_mono(until) else {
            return;
        };
        for run in &mut self.runs {
            while run.used < run.grant.count.get() && run.slot(run.used) < thaw {
                run.used += 1;
                self.leased -= 1;
                self.tally.frozen += 1;
            }
        }
        self.runs.retain(|run| run.left() > 0);
    }

    /// Nothing is frozen any more. A turn that was given for the end of the freeze comes too late.
    fn thaw(&mut self, now: StoreTime) {
        if self.frozen_until.take().is_some_and(|until| until > now) {
            self.turn = None;
        }
    }

    /// What the limit holds for messages that are ready.
    #[must_use]
    pub fn outlook(&self, now: Mono) -> Outlook {
        // Also when an ask has failed already: without a mapping no message can be looked at.
        if !self.clock.is_known() {
            return Outlook::OutOfReach(None);
        }
        if let Some(thaw) = self
            .frozen_until
            .and_then(|until| self.clock.to_mono(until))
            && thaw > now
        {
            return Outlook::Until(thaw, Wait::Frozen);
        }
        if self.leased > 0 {
            return Outlook::Open;
        }
        if let Some(since) = self.failing.map(|failing| failing.since).or(self.outdated) {
            return Outlook::OutOfReach(Some(since));
        }
        match self.turn.and_then(|turn| self.clock.to_mono(turn.at)) {
            Some(turn) if turn > now => Outlook::Until(turn, Wait::Turn),
            _ => Outlook::Open,
        }
    }

    /// Drops all leases; answers the one that the store may still take back: the last.
    pub fn surrender(&mut self) -> Option<Grant> {
        let last = self.runs.pop_back();
        self.runs.clear();
        self.leased = 0;
        last.and_then(|run| run.grant.tail(&run.pace, run.used))
    }

    fn pass_front(&mut self) {
        let Some(run) = self.runs.front_mut() else {
            return;
        };
        run.used += 1;
        self.leased -= 1;
        if run.left() == 0 {
            self.runs.pop_front();
        }
    }

    /// Follows the round trip by an eighth at a time; one outlier counts for at most four.
    fn smooth(&mut self, trip: Duration) {
        let (old, new) = (micros(self.trip), micros(trip));
        let smoothed = if old == 0 {
            new
        } else {
            (old * 7 + new.min(old * 4)) / 8
        };
        self.trip = Duration::from_micros(smoothed);
    }
}

#[cfg(test)]
mod tests;
