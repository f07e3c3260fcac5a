//! The slots that a replica holds: leases of them, mapped to its own clock, in the order in which they fall due.

use std::collections::VecDeque;
use std::time::Duration;

use crate::schedule::{Grant, Pace};
use crate::time::{ClockMap, Mono, StoreTime};

/// A replica that dropped a slot counts as overloaded for this many times as long as a call may be late.
const OVERLOADED: u32 = 4;

/// A slot that may be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When it fell due.
    pub at: Mono,
    /// When it fell due on the store's clock, exactly.
    pub due: StoreTime,
    /// Until when the call may leave.
    pub leave_by: Mono,
    /// How far apart it and the others of the same message may lie.
    pub slot_span: Duration,
}

/// A lease: slots in a row, at the interval of the pace that they were granted at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) grant: Grant,
    /// The pace that it was granted at.
    pub(super) pace: Pace,
    /// The local time of the grant's first slot, plus the possible error of the mapping. Each answer maps it again,
    /// because clocks drift apart and a slow limit has slots minutes ahead. An answer that shows a step of the store's
    /// clock does not.
    pub(super) first: Mono,
    /// The possible error of the mapping. The true time of the slot lies up to twice this before `first`.
    pub(super) doubt: Duration,
    pub(super) used: u32,
    /// Whether an answer since the grant was fast enough to show that the mapping still holds.
    pub(super) is_confirmed: bool,
    /// Whether it was granted before the current generation, whose clock is another one: it keeps its times.
    pub(super) is_earlier: bool,
}

impl Lease {
    fn slot(&self, index: u32) -> Mono {
        let slot = self.grant.slot(&self.pace, u64::from(index));
        self.first + slot.since(self.grant.first)
    }

    fn next(&self) -> Option<Mono> {
        (self.is_confirmed && self.used < self.grant.count.get()).then(|| self.slot(self.used))
    }

    const fn left(&self) -> u64 {
        (self.grant.count.get() - self.used) as u64
    }
}

/// All slots that are held.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldSlots {
    leases: VecDeque<Lease>,
    /// When it last dropped a slot that came up too late.
    last_miss: Option<Mono>,
    /// Slots that were dropped lately, in their order: too late for a call, but nothing else uses them.
    missed: Vec<Slot>,
}

impl HeldSlots {
    pub(super) fn push(&mut self, lease: Lease) {
        self.leases.push_back(lease);
    }

    /// How many there are that were not used.
    pub(super) fn count(&self) -> u64 {
        self.leases.iter().map(Lease::left).sum()
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Mono> {
        self.leases.front().and_then(Lease::next)
    }

    /// When each of them is due, in order.
    pub(super) fn times(&self) -> impl Iterator<Item = Mono> + '_ {
        let leases = self.leases.iter();
        leases
            .flat_map(|lease| (lease.used..lease.grant.count.get()).map(|index| lease.slot(index)))
    }

    /// The pace that the next one was granted at.
    pub(super) fn pace(&self) -> Option<&Pace> {
        self.leases.front().map(|lease| &lease.pace)
    }

    /// How late the call of the next one may leave, where the current pace allows `own`: less the possible error of its
    /// mapping in either direction. For slots left over from another pace, the shorter of the two counts.
    pub(super) fn late_limit(&self, own: Duration) -> Option<Duration> {
        let lease = self.leases.front()?;
        let late = own.min(lease.pace.late());
        Some(late.saturating_sub(lease.doubt * 2))
    }

    /// The slot that is due at `now`, where the current pace allows that a call leaves `own` late, dropping those that
    /// were missed.
    ///
    /// A call still needs some time before it is written, and a call that is stopped there costs
    /// its connection. So a part of the late limit is kept for that. A replica that misses slots
    /// again and again holds more of them than it can use, so it continues with a fresh one. A
    /// replica that was late only once takes any slot that is still in time.
    pub(super) fn due(&mut self, now: Mono, own: Duration) -> Option<Slot> {
        let (last, mut has_missed) = (self.last_miss, false);
        loop {
            let at = self.next()?;
            if at > now {
                return None;
            }
            // Each lease has its own: of the next one less may be known.
            let late = self.late_limit(own)?;
            let overloaded = last.is_some_and(|at| now.since(at) <= late * OVERLOADED);
            let limit = match (overloaded, has_missed) {
                (false, _) => in_time(late),
                (true, false) => late * 3 / 4,
                (true, true) => late * 3 / 8,
            };
            if now.since(at) <= limit {
                return self.front(at, at + late);
            }
            has_missed = true;
            self.last_miss = Some(now);
            self.missed.extend(self.front(at, at + late));
            self.use_next();
        }
    }

    fn front(&self, at: Mono, leave_by: Mono) -> Option<Slot> {
        let lease = self.leases.front()?;
        Some(Slot {
            at,
            due: lease.grant.slot(&lease.pace, u64::from(lease.used)),
            leave_by,
            slot_span: lease.pace.slot_span(),
        })
    }

    /// Takes the next one.
    pub(super) fn use_next(&mut self) {
        if let Some(lease) = self.leases.front_mut() {
            lease.used += 1;
            if lease.left() == 0 {
                self.leases.pop_front();
            }
        }
    }

    /// How many of those that were missed were not fetched yet.
    pub(super) fn missed(&self) -> usize {
        self.missed.len()
    }

    /// The slots that were missed since this was called last.
    pub(super) fn take_missed(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.missed)
    }

    /// Drops those that are due before `end`. Returns how many there were.
    pub(super) fn drop_until(&mut self, end: Mono) -> u64 {
        let before = self.count();
        for lease in &mut self.leases {
            while lease.left() > 0 && lease.slot(lease.used) < end {
                lease.used += 1;
            }
        }
        self.leases.retain(|lease| lease.left() > 0);
        before - self.count()
    }

    /// Whether the mapping is known to have held for all of them.
    pub(super) fn is_sure(&self) -> bool {
        self.leases.back().is_none_or(|lease| lease.is_confirmed)
    }

    /// Confirms all of them: the mapping has held.
    pub(super) fn confirm(&mut self) {
        self.leases
            .iter_mut()
            .for_each(|lease| lease.is_confirmed = true);
    }

    /// Maps them again: the clocks may have drifted apart since they were granted.
    pub(super) fn map_again(&mut self, clock: &ClockMap, doubt: Duration) {
        for lease in self.leases.iter_mut().filter(|lease| !lease.is_earlier) {
            if let Some(first) = clock.to_mono(lease.grant.first) {
                lease.first = first + doubt;
                lease.doubt = doubt;
            }
        }
    }

    /// A new generation begins, with another clock: what is held keeps its times.
    pub(super) fn keep_times(&mut self) {
        let leases = self.leases.iter_mut();
        leases.for_each(|lease| lease.is_earlier = true);
    }

    /// Drops those that came with an answer too slow to show a step. Returns how many there were.
    pub(super) fn drop_unsure(&mut self) -> u64 {
        let before = self.count();
        self.leases.retain(|lease| lease.is_confirmed);
        before - self.count()
    }

    /// Drops all of them.
    pub(super) fn drop_leases(&mut self) {
        self.leases.clear();
    }
}

/// How late a slot may be taken: the rest of the allowed lateness is for the way to the connection.
pub(super) fn in_time(late: Duration) -> Duration {
    late * 7 / 8
}
