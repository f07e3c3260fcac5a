//! When the store of keyed limits is asked, and how many grants are wanted.
//!
//! Asked too early, permissions run out before their slots come; asked too late, slots pass while
//! the answer is on its way; asked message by message, the store is asked all the time. So a request
//! goes out when the first slot without a message comes within the *lead* (two round trips and a
//! little, but never more than half of the time for which a permission is good), and wants grants
//! for all slots within half of that time. It names more candidates than grants are wanted: those
//! that are denied then cost no slot, and the surplus takes nothing.
//!
//! However many slots are near, no more grants are wanted at a time than this replica lately used: more
//! while all of them are used, half as many after a request some of whose permissions ran out. A machine
//! that is slower than its slots would refund most of what it asks for otherwise. A route without a paced
//! limit has no slots, and wants just as many, beginning with a few.
//!
//! One request is under way at a time. No I/O and no clock: `now` goes in.

use std::time::Duration;

use crate::backoff::{Backoff, Failures};
use crate::clock::{ClockMap, Reading, smoothed};
use crate::leases::Phase;
use crate::time::{Mono, StoreTime};

/// Added to two round trips: what this process needs to act on an answer.
const MARGIN: Duration = Duration::from_millis(2);
/// How often a store that keeps keyed limits is asked at least, so that every replica remembers the
/// generation and a loss is noticed while a replica still knows what was there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// The most candidates in one request: a script must not hold the store for long.
pub const BATCH_MAX: usize = 256;
/// Candidates beyond those that lately were needed for one grant.
const SURPLUS: usize = 4;
/// The most candidates for one wanted grant.
const CANDIDATES_MAX: usize = 16;
/// The most grants that are wanted at a time.
const MOST_WANTED: u64 = BATCH_MAX as u64;
/// Grants that a replica wants first, where nothing paces it.
const FIRST_WANTED: u64 = 8;
/// Pauses after a store that did not answer.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// A mapping of the store's clock that is wrong by no more is good enough.
const FINE: Duration = Duration::from_millis(1);
/// Shares are counted in parts of this.
const WHOLE: u64 = 1024;

/// The asking of one scheduler.
#[derive(Clone, Debug)]
pub struct Requests {
    /// The shortest time for which a permission is good.
    usable: Duration,
    /// For how long the store is heard before messages are asked for.
    hears_first: Duration,
    phase: Phase,
    clock: ClockMap,
    under_way: Option<Mono>,
    /// When the first answer came, and the last one.
    first_answered: Option<Mono>,
    answered: Option<Mono>,
    failures: Failures,
    /// Smoothed round trip.
    trip: Duration,
    /// Smoothed share of the candidates looked at that were granted, of [`WHOLE`].
    granted: u64,
    /// Grants wanted at a time, at most.
    at_once: u64,
    /// Permissions ran out since the last request.
    ran_out: bool,
    /// Grants that the request under way wants.
    wanted: u64,
}

impl Requests {
    /// For permissions that are good for `usable` or longer.
    #[must_use]
    pub fn new(usable: Duration, phase: Phase, is_paced: bool) -> Self {
        Self {
            usable,
            hears_first: Duration::ZERO,
            phase,
            clock: ClockMap::default(),
            under_way: None,
            first_answered: None,
            answered: None,
            failures: Failures::new(BACKOFF),
            trip: Duration::ZERO,
            granted: WHOLE,
            at_once: if is_paced { MOST_WANTED } else { FIRST_WANTED },
            ran_out: false,
            wanted: 0,
        }
    }

    /// The same, but the store is heard for so long first.
    #[must_use]
    pub fn hearing_first(self, length: Duration) -> Self {
        Self {
            hears_first: length,
            ..self
        }
    }

    /// Whether the store was heard for long enough to take messages.
    #[must_use]
    pub fn may_begin(&self, now: Mono) -> bool {
        let first = self.first_answered;
        first.is_some_and(|first| now.since(first) >= self.hears_first)
    }

    /// The mapping to the store's clock.
    #[must_use]
    pub const fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// Since when the store has not answered, if it does not.
    #[must_use]
    pub const fn failing_since(&self) -> Option<Mono> {
        self.failures.since()
    }

    /// From when on the store may be asked. `None` while a request is under way.
    #[must_use]
    pub fn open_from(&self) -> Option<Mono> {
        self.under_way.is_none().then(|| self.failures.retry_at())
    }

    /// When the store must be asked although no message needs it, if only what time it is.
    #[must_use]
    pub fn next_heartbeat(&self) -> Option<Mono> {
        let open = self.open_from()?;
        let due = self.answered.map_or(Mono::default(), |at| at + HEARTBEAT);
        Some(due.max(open))
    }

    /// How long before its slot a message should be asked for, at the latest.
    #[must_use]
    pub fn lead(&self) -> Duration {
        (self.trip * 2 + MARGIN).min(self.usable / 2)
    }

    /// How far ahead of their slots messages may be asked for.
    #[must_use]
    pub fn reach(&self) -> Duration {
        self.lead().max(self.usable / 2)
    }

    /// Grants that are wanted at a time, at most.
    #[must_use]
    pub const fn at_once(&self) -> u64 {
        self.at_once
    }

    /// How many candidates to name so that as many are granted as are wanted.
    #[must_use]
    pub fn candidates(&self, wanted: u64) -> usize {
        let wanted = usize::try_from(wanted).unwrap_or(BATCH_MAX);
        let whole = usize::try_from(WHOLE).unwrap_or(usize::MAX);
        let granted = usize::try_from(self.granted).unwrap_or(1).max(1);
        let for_all = (wanted * whole).div_ceil(granted);
        // Where hardly any is denied, more would only be carried to and fro.
        let surplus = if granted >= whole - whole / 32 {
            for_all / 8
        } else {
            for_all
        };
        (for_all + surplus + SURPLUS)
            .min(wanted * CANDIDATES_MAX + SURPLUS)
            .min(BATCH_MAX)
    }

    /// A request for so many grants was sent.
    pub fn sent(&mut self, wanted: u64, now: Mono) {
        if std::mem::take(&mut self.ran_out) {
            self.at_once = (self.at_once / 2).max(1);
        }
        self.under_way = Some(now);
        self.wanted = wanted;
    }

    /// The request was answered: of `looked_at` candidates `granted` were granted. Answers since
    /// when the permissions count, at the earliest.
    pub fn decided(
        &mut self,
        decided: StoreTime,
        looked_at: usize,
        granted: usize,
        now: Mono,
    ) -> Mono {
        let Some(sent) = self.under_way.take() else {
            return now;
        };
        self.answered = Some(now);
        self.first_answered.get_or_insert(now);
        self.failures.succeeded();
        self.trip = smoothed(self.trip, now.since(sent));
        if looked_at > 0 {
            let share = granted.min(looked_at) as u64 * WHOLE / looked_at as u64;
            self.granted = (self.granted * 3 + share) / 4;
        }
        if self.wanted > 0 && granted as u64 >= self.wanted {
            self.at_once = (self.at_once + self.at_once / 16 + 1).min(MOST_WANTED);
        }
        self.learn(sent, decided, now);
        // It was decided after the request was sent, and not before the mapping says so.
        let error = self.clock.error(now).unwrap_or_default();
        let mapped = self.clock.to_mono(decided).map(|at| at - error);
        mapped.unwrap_or(sent).clamp(sent, now)
    }

    /// A mapping of before a step of the store's clock says nothing any more: times that the store told
    /// would be wrong by the step, and messages would wait for so much longer.
    fn learn(&mut self, sent: Mono, decided: StoreTime, now: Mono) {
        let fine = FINE.min(self.usable / 4);
        if self.clock.learn(sent, decided, now, fine) == Reading::Stepped {
            self.clock = ClockMap::default();
            self.clock.learn(sent, decided, now, fine);
        }
    }

    /// Permissions ran out before they were used.
    pub const fn ran_out(&mut self) {
        self.ran_out = true;
    }

    /// The request was not answered. It may have been decided.
    pub fn failed(&mut self, now: Mono) {
        self.under_way = None;
        self.failures.failed(now, self.phase.fraction());
    }

    /// What kept the store from deciding may be over: it may be asked at once.
    pub fn retry_now(&mut self, now: Mono) {
        self.failures.retry_at_latest(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by the simulation: the mapping of before was kept, and after a step forward by a day each
    /// message that was denied waited for a day.
    #[test]
    fn after_a_step_of_the_stores_clock_its_times_are_mapped_anew() {
        const EPOCH: u64 = 1_795_228_193_000_012;
        const DAY: u64 = 86_400_000_000;
        let usable = Duration::from_millis(8);
        let mut requests = Requests::new(usable, Phase::new(1), false);
        let mut since = Mono::default();
        for (second, ahead) in [(1, 0), (2, 0), (3, DAY)] {
            let at = second * 1_000_000;
            requests.sent(0, Mono::from_micros(at));
            let decided = StoreTime::from_micros(EPOCH + at + 100 + ahead);
            since = requests.decided(decided, 0, 0, Mono::from_micros(at + 200));
        }
        // A permission is no younger than its decision.
        assert!(since <= Mono::from_micros(3_000_100), "{since:?}");
        let later = StoreTime::from_micros(EPOCH + DAY + 5_000_000);
        let mapped = requests.clock().to_mono(later).unwrap();
        assert!(mapped.as_micros().abs_diff(5_000_000) <= 100, "{mapped:?}");
    }
}
