//! Values that follow from the keys of a limit: its largest cost, its window, its headroom, when its windows
//! begin.

use std::num::NonZeroU32;
use std::time::Duration;

use super::limit::{FixedWindow, KeyedCounting, Limit, MAX_HORIZON, Once, Paced};
use crate::fixed_or_template::Costing;
use crate::text::{HeadroomText, Length, RateText, TemplateText, WindowRate};
use sluiced_core::headroom::{Bounds, Headroom};
use sluiced_core::limits::generation::LostWait;
use sluiced_core::rate::{Cost, Rate};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::time::micros;
use sluiced_core::zone::Zone;

/// The first headroom of a keyed limit that follows what is measured: its window divided by this.
const HEADROOM_PART: u32 = 100;
/// The smallest first headroom: Redis 10 ms away needs it (three quarters are for a round trip and a little).
const HEADROOM_MIN: Duration = Duration::from_millis(35);
/// The largest first headroom.
const HEADROOM_MAX: Duration = Duration::from_secs(5);
/// The first headroom of a paced limit that follows what is measured.
const PACED_HEADROOM: Duration = Duration::from_millis(5);
/// The smallest parts of such a headroom: below them, the slots that even a quiet machine misses cost more than is saved.
const LEAST_PACED: Headroom = Headroom {
    late: Duration::from_micros(1_500),
    way: Duration::from_micros(500),
};
/// The smallest parts of the headroom of a keyed limit: a permit must be valid for some milliseconds longer than its
/// round trip.
const LEAST_KEYED: Headroom = Headroom {
    late: Duration::from_micros(7_500),
    way: Duration::from_micros(500),
};
/// How many headrooms long the horizon is.
const HEADROOMS_AHEAD: u32 = 4;
/// The most that a message with a computed cost may take of a paced limit without `max_cost`.
const MAX_COST: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");

/// The cost of a message for a limit without costs.
static ONE: Costing = Costing::Fixed(Cost::ONE);

/// A limit by how it counts messages.
enum LimitGroup<'a> {
    Paced(&'a Paced),
    Once(&'a Once),
    Counted(&'a KeyedCounting),
}

impl Limit {
    /// The paced limit; `None`: it is of another kind.
    #[must_use]
    pub const fn as_paced(&self) -> Option<&Paced> {
        match self {
            Self::Paced(paced) => Some(paced),
            _ => None,
        }
    }

    /// It, by how messages are counted.
    const fn grouped(&self) -> LimitGroup<'_> {
        match self {
            Self::Paced(limit) => LimitGroup::Paced(limit),
            Self::Once(limit) => LimitGroup::Once(limit),
            Self::Gcra(limit) => LimitGroup::Counted(&limit.counting),
            Self::TokenBucket(limit) => LimitGroup::Counted(&limit.counting),
            Self::FixedWindow(limit) => LimitGroup::Counted(&limit.counting),
            Self::SlidingLog(limit) => LimitGroup::Counted(&limit.counting),
            Self::Concurrency(limit) => LimitGroup::Counted(&limit.counting),
        }
    }

    /// How messages are counted; `None` if it is paced or calls each once.
    #[must_use]
    pub const fn counting(&self) -> Option<&KeyedCounting> {
        match self.grouped() {
            LimitGroup::Paced(_) | LimitGroup::Once(_) => None,
            LimitGroup::Counted(counting) => Some(counting),
        }
    }

    /// The template of its key; `None`: it counts all messages together.
    #[must_use]
    pub const fn key(&self) -> Option<&TemplateText> {
        match self.grouped() {
            LimitGroup::Paced(_) => None,
            LimitGroup::Once(limit) => Some(&limit.key),
            LimitGroup::Counted(counting) => counting.key.as_ref(),
        }
    }

    /// The template that reads from answers what a call really used.
    #[must_use]
    pub fn actual(&self) -> Option<&TemplateText> {
        self.counting()?.actual.as_ref()
    }

    /// The most that `actual` is believed, if that is written.
    #[must_use]
    pub fn max_actual(&self) -> Option<NonZeroU32> {
        self.counting()?.max_actual
    }

    /// The cost of one message.
    #[must_use]
    pub const fn cost(&self) -> &Costing {
        match self.grouped() {
            LimitGroup::Paced(limit) => &limit.cost,
            LimitGroup::Once(_) => &ONE,
            LimitGroup::Counted(counting) => &counting.cost,
        }
    }

    /// The most that one message may cost: more would never fit. At least 1.
    #[must_use]
    pub fn largest_cost(&self) -> Cost {
        Cost::new(match self {
            Self::Paced(limit) => return limit.largest_cost(),
            Self::Gcra(limit) => NonZeroU32::MIN.saturating_add(limit.own.burst),
            Self::TokenBucket(limit) => limit.own.capacity.saturating_add(limit.own.borrow),
            Self::FixedWindow(limit) => limit.own.rate.units(),
            Self::SlidingLog(limit) => limit.own.rate.0.units(),
            Self::Concurrency(limit) => limit.own.limit,
            Self::Once(_) => NonZeroU32::MIN,
        })
    }

    /// The time of which its headroom is a part: the window of a rate (for a calendar usually the
    /// longest), the interval of a bucket, the lease of a call in flight.
    #[must_use]
    pub fn window(&self) -> Duration {
        match self {
            Self::Paced(limit) => limit.rate.0.window(),
            Self::Gcra(limit) => limit.own.rate.0.window(),
            Self::TokenBucket(limit) => limit.own.interval.get(),
            Self::FixedWindow(limit) => limit.own.rate.longest(),
            Self::SlidingLog(limit) => limit.own.rate.0.window(),
            Self::Concurrency(limit) => limit.own.lease.get(),
            Self::Once(limit) => limit.lease.get(),
        }
    }

    /// How late a call may arrive at the downstream after it was allowed, without breaking the limit, and the
    /// part of that for the way. One that follows what is measured begins at 5 ms where the limit is paced, otherwise at
    /// 1 % of [`Limit::window`], at least 35 ms and at most 5 s.
    #[must_use]
    pub fn headroom(&self) -> Headroom {
        if let Self::Paced(paced) = self {
            return paced.parts();
        }
        match self.written_headroom() {
            HeadroomText::Fixed(length) => Headroom::of(length.get()),
            HeadroomText::Auto(Some(measured)) => measured,
            HeadroomText::Auto(None) => {
                Headroom::of((self.window() / HEADROOM_PART).clamp(HEADROOM_MIN, HEADROOM_MAX))
            }
        }
    }

    /// The headroom as it is written, or by default.
    const fn written_headroom(&self) -> HeadroomText {
        match self.grouped() {
            LimitGroup::Paced(limit) => limit.headroom,
            LimitGroup::Once(limit) => limit.headroom,
            LimitGroup::Counted(counting) => counting.headroom,
        }
    }

    /// The bounds within which its headroom follows what is measured; `None`: it is fixed.
    #[must_use]
    pub fn auto_bounds(&self) -> Option<Bounds> {
        let HeadroomText::Auto(_) = self.written_headroom() else {
            return None;
        };
        let window = self.window();
        let quarter = (window / 4).min(HEADROOM_MAX);
        let most = self
            .as_paced()
            .map_or(quarter, |paced| quarter.min(paced.most_headroom()));
        let least = match self {
            Self::Paced(_) => LEAST_PACED,
            _ => LEAST_KEYED,
        };
        let late = least.late.min(most / 2);
        let way = least.way.min(most / 2);
        Some(Bounds::new(Headroom { late, way }, most, window))
    }

    /// This limit with the headroom that the replicas have measured.
    #[must_use]
    pub fn with_measured(mut self, headroom: Headroom) -> Self {
        let measured = HeadroomText::Auto(Some(headroom));
        *match &mut self {
            Self::Paced(limit) => &mut limit.headroom,
            Self::Once(limit) => &mut limit.headroom,
            Self::Gcra(limit) => &mut limit.counting.headroom,
            Self::TokenBucket(limit) => &mut limit.counting.headroom,
            Self::FixedWindow(limit) => &mut limit.counting.headroom,
            Self::SlidingLog(limit) => &mut limit.counting.headroom,
            Self::Concurrency(limit) => &mut limit.counting.headroom,
        } = measured;
        self
    }

    /// Whether it belongs to no single fleet.
    #[must_use]
    pub const fn shared(&self) -> bool {
        match self.grouped() {
            LimitGroup::Paced(limit) => limit.shared,
            LimitGroup::Once(limit) => limit.shared,
            LimitGroup::Counted(counting) => counting.shared,
        }
    }

    /// The longest time that a unit counts.
    #[must_use]
    pub fn memory(&self) -> Duration {
        match self {
            Self::Gcra(limit) => {
                let (rate, units) = (limit.own.rate.0, u64::from(limit.own.burst) + 1);
                let all = micros(rate.window()).saturating_mul(units);
                Duration::from_micros(all / u64::from(rate.units().get()))
            }
            Self::TokenBucket(limit) => {
                let bucket = &limit.own;
                let units = u64::from(bucket.capacity.get()) + u64::from(bucket.borrow);
                let rounds = units.div_ceil(u64::from(bucket.refill.get()));
                Duration::from_micros(micros(bucket.interval.get()).saturating_mul(rounds))
            }
            limit => limit.window(),
        }
    }

    /// The rule that calls each message once; `None`: it is of another kind.
    #[must_use]
    pub const fn as_once(&self) -> Option<&Once> {
        match self {
            Self::Once(limit) => Some(limit),
            _ => None,
        }
    }

    /// Whether each queue has its own keys of this limit.
    #[must_use]
    pub const fn is_of_queue(&self) -> bool {
        matches!(self, Self::Once(limit) if !limit.shared)
    }

    /// Whether it counts a call for as long as the call lasts, and not for a time of its own.
    #[must_use]
    pub const fn counts_calls(&self) -> bool {
        matches!(self, Self::Concurrency(_) | Self::Once(_))
    }

    /// How long it stays closed after the store lost its state. Paced limits always wait for the full time.
    #[must_use]
    pub const fn lost_wait(&self) -> LostWait {
        match self.grouped() {
            LimitGroup::Paced(_) => LostWait::Forever,
            LimitGroup::Once(limit) => limit.lost_wait.0,
            LimitGroup::Counted(counting) => counting.lost_wait.0,
        }
    }
}

impl Paced {
    /// How far ahead slots are leased: as written, otherwise as far as the headroom needs, and no less than
    /// the default of the schedule.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        let follows = || self.least_horizon().clamp(DEFAULT_HORIZON, MAX_HORIZON);
        self.horizon.map_or_else(follows, Length::get)
    }

    /// The shortest horizon that its headroom allows.
    pub(crate) fn least_horizon(&self) -> Duration {
        self.parts().all().saturating_mul(HEADROOMS_AHEAD)
    }

    /// The longest headroom that any horizon allows.
    pub(crate) fn longest_headroom() -> Duration {
        MAX_HORIZON / HEADROOMS_AHEAD
    }

    /// The longest headroom that its horizon allows.
    fn most_headroom(&self) -> Duration {
        self.horizon.map_or(MAX_HORIZON, Length::get) / HEADROOMS_AHEAD
    }

    /// Its headroom: see [`Limit::headroom`].
    #[must_use]
    pub fn parts(&self) -> Headroom {
        match self.headroom {
            HeadroomText::Fixed(length) => Headroom::of(length.get()),
            HeadroomText::Auto(Some(measured)) => measured,
            HeadroomText::Auto(None) => Headroom::of(PACED_HEADROOM.min(self.rate.0.window() / 4)),
        }
    }

    /// The rate that slots are made for: as configured, or less if `adaptive` has lowered it.
    #[must_use]
    pub fn rate_in_force(&self) -> Rate {
        let adapted = self.adapted.filter(|_| self.adaptive).map(|rate| rate.0);
        let lowered = adapted.filter(|rate| {
            rate.window() == self.rate.0.window() && rate.units() <= self.rate.0.units()
        });
        lowered.unwrap_or(self.rate.0)
    }

    /// The lowest rate that `adaptive` sets, in units of its window: a tenth, but at least what
    /// the largest message needs, and a lease that holds all of its slots.
    #[must_use]
    pub fn floor(&self) -> u32 {
        let units = self.rate.0.units().get();
        let largest = self.largest_cost().get();
        let (mut low, mut high) = (
            (units / 10).max(largest.saturating_mul(2)).min(units),
            units,
        );
        while low < high {
            let middle = low.midpoint(high);
            match self.leases_whole(middle, largest) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        high
    }

    /// Whether one lease holds all slots of a message of this cost, at so many units of the window. Otherwise replicas
    /// take the slots of each other's messages, and none is complete.
    pub(crate) fn leases_whole(&self, units: u32, cost: u32) -> bool {
        let rate = NonZeroU32::new(units)
            .and_then(|units| Rate::new(units, self.rate.0.window()).ok())
            .unwrap_or(self.rate.0);
        let paced = Self {
            rate: RateText(rate),
            adapted: None,
            max_cost: NonZeroU32::new(cost),
            ..self.clone()
        };
        paced.paces().main.max_cost() >= u64::from(cost)
    }

    /// A route counts segments with it, and sends up to `window` of them together.
    pub(super) fn counts_segments(&mut self, window: NonZeroU32) {
        if self.max_cost.is_some() || matches!(self.cost, Costing::Template(_)) {
            return;
        }
        let half = NonZeroU32::new(self.open_rate().units().get() / 2).unwrap_or(NonZeroU32::MIN);
        let most = MAX_COST.min(half).min(window).get();
        let units = self.rate.0.units().get();
        let whole = (1..=most)
            .rev()
            .find(|cost| self.leases_whole(units, *cost));
        self.max_cost = whole.and_then(NonZeroU32::new).or(Some(NonZeroU32::MIN));
    }

    /// From which priority on messages may take from the reserve; `None`: there is none.
    #[must_use]
    pub fn urgent_from(&self) -> Option<u8> {
        self.reserve.map(|_| self.reserve_priority)
    }

    /// The most slots that one message may take: `max_cost`, otherwise the plain cost, otherwise 10.
    #[must_use]
    pub fn largest_cost(&self) -> Cost {
        match (self.max_cost, &self.cost) {
            (Some(most), _) => Cost::new(most),
            (None, Costing::Fixed(cost)) => *cost,
            (None, Costing::Template(_)) => Cost::new(MAX_COST),
        }
    }

    /// The rate without the reserve: what messages of any priority may take.
    pub(crate) fn open_rate(&self) -> Rate {
        let units = self.rate.0.units().get();
        let kept = self.reserve.map_or(0, |share| share.of(units));
        let open = NonZeroU32::new(units.saturating_sub(kept)).unwrap_or(NonZeroU32::MIN);
        Rate::new(open, self.rate.0.window()).unwrap_or(self.rate.0)
    }

    /// The headroom that the schedule needs, which grows with the largest cost; `None` if such a
    /// message never fits. See [`Pace::with_costs_up_to`].
    #[must_use]
    pub fn headroom_in_all(&self) -> Option<Duration> {
        let (rate, largest) = (self.open_rate(), self.largest_cost());
        let pace = Pace::new(rate, self.parts(), self.horizon());
        let fits = largest.get() <= rate.units().get();
        fits.then(|| pace.with_costs_up_to(largest).headroom_in_all())
    }
}

impl FixedWindow {
    /// Whether its windows begin by the clock, and not at a first call.
    #[must_use]
    pub const fn follows_clock(&self) -> bool {
        self.aligned || matches!(self.rate, WindowRate::Calendar { .. })
    }

    /// The zone whose calendar counts.
    pub(crate) fn zone(&self) -> Zone {
        self.timezone.clone().unwrap_or_else(Zone::utc)
    }
}
