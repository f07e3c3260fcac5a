//! When the store of budgets is asked, and for how many messages.
//!
//! Asked too early, permissions run out before their slots come; asked too late, slots pass while
//! the answer is on its way; asked one by one, the store is asked all the time. So a batch is asked
//! for when the first slot that nothing is admitted for comes within the *lead* (two round trips
//! and a little), and then for all slots within half of the permissions' headroom. Where many are
//! denied, more are asked for than there are slots.
//!
//! One batch is under way at a time. No I/O and no clock: `now` goes in.

use std::time::Duration;

use super::clock::ClockMap;
use super::leases::Phase;
use super::time::{Mono, StoreTime, micros};

/// Added to two round trips: what this process needs to act on an answer.
const MARGIN: Duration = Duration::from_millis(2);
/// The most messages in one batch for slots that lie ahead. Where no limit binds, the lane sends what is
/// granted and then waits for the next answer, and slots pass meanwhile: with twice as many the
/// throughput was no better, with three times as many it fell to a half (`benches/keyed.rs`).
const BATCH: usize = 32;
/// The most messages in one batch (`ports::budget::MAX_BATCH`).
pub const BATCH_MAX: usize = 256;
/// The most candidates for one slot.
const CANDIDATES_MAX: usize = 16;
/// If the store is far away, so that there is time for a few questions only, up to so many times as
/// many are asked for as the slots within their headroom can take. If then all are granted although
/// most were denied before, some permissions run out.
const SURPLUS: usize = 2;
/// The first wait after a failure; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A mapping of the store's clock that is wrong by no more is good enough.
const FINE: Duration = Duration::from_millis(1);
/// Shares are counted in parts of this.
const WHOLE: u64 = 1024;

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Slots that lack a message.
    pub slots: usize,
    /// No more messages than this.
    pub most: usize,
}

impl Room {
    /// For as many as there are.
    pub const ALL: Self = Self {
        slots: BATCH_MAX,
        most: BATCH_MAX,
    };
    /// For nobody: only to hear what time it is.
    pub const NONE: Self = Self { slots: 0, most: 0 };

    /// What is left once a slot or more went to a message that must not be asked for.
    #[must_use]
    pub const fn without(self, slots: usize) -> Self {
        Self {
            slots: self.slots.saturating_sub(slots),
            ..self
        }
    }
}

/// The asking of one lane.
#[derive(Clone, Debug)]
pub struct Petitions {
    /// The shortest time for which a permission of this lane is good.
    headroom: Duration,
    heartbeat: Duration,
    phase: Phase,
    clock: ClockMap,
    under_way: Option<Mono>,
    /// When the last answer came.
    heard: Option<Mono>,
    failing: Option<Failing>,
    /// Smoothed round trip.
    trip: Duration,
    /// Smoothed share of messages that were not granted, of [`WHOLE`].
    denied: u64,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Mono,
    retry: Mono,
    wait: Duration,
}

impl Petitions {
    /// For permissions that are good for `headroom` or longer; the store is asked at least every
    /// `heartbeat`, if only what time it is.
    #[must_use]
    pub fn new(headroom: Duration, heartbeat: Duration, phase: Phase) -> Self {
        Self {
            headroom,
            heartbeat,
            phase,
            clock: ClockMap::default(),
            under_way: None,
            heard: None,
            failing: None,
            trip: Duration::ZERO,
            denied: 0,
        }
    }

    /// The mapping to the store's clock.
    #[must_use]
    pub const fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// Whether a batch is under way.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Since when the store has not answered, if it does not.
    #[must_use]
    pub fn failing_since(&self) -> Option<Mono> {
        self.failing.map(|failing| failing.since)
    }

    /// From when on the store may be asked. `None` while a batch is under way.
    #[must_use]
    pub fn open_from(&self) -> Option<Mono> {
        if self.under_way.is_some() {
            return None;
        }
        Some(
            self.failing
                .map_or(Mono::default(), |failing| failing.retry),
        )
    }

    /// When the store must be asked although no message needs it.
    #[must_use]
    pub fn next_heartbeat(&self) -> Option<Mono> {
        let open = self.open_from()?;
        let due = self.heard.map_or(Mono::default(), |at| at + self.heartbeat);
        Some(due.max(open))
    }

    /// How long before a slot its candidate should be asked for, at the latest.
    #[must_use]
    pub fn lead(&self) -> Duration {
        (self.trip * 2 + MARGIN).min(self.reach())
    }

    /// How far ahead of their slots candidates may be asked for.
    #[must_use]
    pub fn reach(&self) -> Duration {
        self.headroom / 2
    }

    /// How many slots to ask for candidates for, given the slots that nothing is admitted for.
    ///
    /// # Errors
    /// When to look again, if it is too early.
    pub fn slots_to_fill(&self, open: &[Mono], now: Mono) -> Result<Room, Option<Mono>> {
        let Some(&first) = open.first() else {
            return Err(None);
        };
        let from = first - self.lead();
        if from > now {
            return Err(Some(from));
        }
        let within = |reach| open.iter().take_while(|slot| **slot <= now + reach).count();
        let slots = within(self.reach().max(self.lead())).max(1);
        Ok(Room {
            slots,
            most: slots.max(within(self.headroom * 3 / 4) * self.surplus()),
        })
    }

    /// A permission that runs out costs its key a place, and whoever stands behind it. So no more
    /// are asked for than can be used, and there is time left for a thread that runs late, unless
    /// the store is too far away to ask it again for what was denied.
    fn surplus(&self) -> usize {
        if self.lead() * 4 <= self.reach() {
            0
        } else {
            SURPLUS
        }
    }

    /// The most slots that are worth looking at.
    #[must_use]
    pub const fn most_slots() -> usize {
        BATCH
    }

    /// How many messages to ask for so that about as many are granted as there are slots.
    #[must_use]
    pub fn candidates(&self, room: Room) -> usize {
        let slots = room.slots;
        let granted = usize::try_from(WHOLE - self.denied.min(WHOLE)).unwrap_or(1);
        let whole = usize::try_from(WHOLE).unwrap_or(usize::MAX);
        let wanted = (slots * whole).div_ceil(granted.max(1));
        wanted
            .min(slots * CANDIDATES_MAX)
            .min(room.most)
            .min(BATCH_MAX)
    }

    /// A batch was sent.
    pub fn sent(&mut self, now: Mono) {
        self.under_way = Some(now);
    }

    /// The batch was answered: `granted` of `asked` were. Answers since when the permissions count, at the
    /// earliest.
    pub fn answered(
        &mut self,
        decided: StoreTime,
        asked: usize,
        granted: usize,
        now: Mono,
    ) -> Mono {
        let Some(sent) = self.under_way.take() else {
            return now;
        };
        self.heard = Some(now);
        self.failing = None;
        self.smooth(now.since(sent));
        if asked > 0 {
            let denied = (asked - granted.min(asked)) as u64 * WHOLE / asked as u64;
            self.denied = (self.denied * 3 + denied) / 4;
        }
        self.clock
            .learn(sent, decided, now, FINE.min(self.headroom / 4));
        // It was decided after the batch was sent, and not before the mapping says so.
        let error = self.clock.error(now).unwrap_or_default();
        let mapped = self.clock.to_mono(decided).map(|at| at - error);
        mapped.unwrap_or(sent).clamp(sent, now)
    }

    /// The batch was not answered. It may have been decided.
    pub fn failed(&mut self, now: Mono) {
        self.under_way = None;
        let (since, wait) = self.failing.map_or((now, BACKOFF_MIN), |failing| {
            (failing.since, (failing.wait * 2).min(BACKOFF_MAX))
        });
        let retry = now + wait / 2 + self.phase.of(wait / 2);
        self.failing = Some(Failing { since, retry, wait });
    }

    /// What kept the store from ruling is over, as far as anybody knows: it may be asked at once.
    pub fn hopeful(&mut self, now: Mono) {
        if let Some(failing) = &mut self.failing {
            failing.retry = failing.retry.min(now);
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
mod tests {
    use super::*;

    const EPOCH: u64 = 1_700_000_000_000_000;

    fn petitions(headroom_ms: u64) -> Petitions {
        let mut petitions = Petitions::new(
            Duration::from_millis(headroom_ms),
            Duration::from_secs(1),
            Phase::new(0),
        );
        answer(&mut petitions, 1_000_000, 10, 10);
        petitions
    }

    /// One round trip of a millisecond.
    fn answer(petitions: &mut Petitions, at: u64, asked: usize, granted: usize) -> Mono {
        petitions.sent(Mono::from_micros(at));
        let decided = StoreTime::from_micros(EPOCH + at + 500);
        petitions.answered(decided, asked, granted, Mono::from_micros(at + 1_000))
    }

    fn slots(first: u64, count: u64) -> Vec<Mono> {
        (0..count)
            .map(|i| Mono::from_micros(first + i * 2_500))
            .collect()
    }

    #[test]
    fn a_batch_is_asked_when_the_first_open_slot_is_near_and_covers_the_reach() {
        let petitions = petitions(100);
        let now = Mono::from_micros(2_000_000);
        assert_eq!(petitions.lead(), Duration::from_millis(4));
        let far = petitions.slots_to_fill(&slots(2_010_000, 64), now);
        assert_eq!(far, Err(Some(Mono::from_micros(2_006_000))));
        let near = petitions.slots_to_fill(&slots(2_002_500, 64), now);
        let room = Room {
            slots: 20,
            most: 20,
        };
        assert_eq!(near, Ok(room), "all within 50 ms");
        assert_eq!(petitions.slots_to_fill(&[], now), Err(None));
    }

    #[test]
    fn where_most_are_denied_more_are_asked_for() {
        let mut petitions = petitions(100);
        let room = |slots| Room { slots, most: 300 };
        assert_eq!(petitions.candidates(room(4)), 4);
        for round in 2..20 {
            answer(&mut petitions, round * 1_000_000, 10, 5);
        }
        assert!((7..=9).contains(&petitions.candidates(room(4))));
        for round in 20..60 {
            answer(&mut petitions, round * 1_000_000, 10, 0);
        }
        assert_eq!(petitions.candidates(room(4)), 64);
        assert_eq!(petitions.candidates(room(64)), BATCH_MAX);
        assert_eq!(petitions.candidates(Room { slots: 4, most: 8 }), 8);
    }

    #[test]
    fn a_permission_counts_from_no_later_than_it_was_decided() {
        let mut petitions = petitions(100);
        for round in 2..50 {
            let at = round * 1_000_000;
            let since = answer(&mut petitions, at, 1, 1);
            assert!(since >= Mono::from_micros(at) && since <= Mono::from_micros(at + 500));
        }
    }

    #[test]
    fn failures_are_followed_by_growing_pauses_and_the_heartbeat_by_the_next() {
        let mut petitions = petitions(100);
        let heard = Mono::from_micros(1_001_000);
        assert_eq!(
            petitions.next_heartbeat(),
            Some(heard + Duration::from_secs(1))
        );
        let mut now = Mono::from_micros(5_000_000);
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            petitions.sent(now);
            assert_eq!(petitions.next_heartbeat(), None);
            petitions.failed(now);
            let open = petitions.open_from().expect("nothing is under way");
            assert!(open.since(now) >= last);
            last = open.since(now);
            now = open;
        }
        assert!(last >= BACKOFF_MAX / 2 && last <= BACKOFF_MAX);
        assert_eq!(
            petitions.failing_since(),
            Some(Mono::from_micros(5_000_000))
        );
    }
}
