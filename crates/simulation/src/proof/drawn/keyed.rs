//! Scenarios with keyed limits, drawn from a seed: which kinds, how many messages, what fails; and those in which
//! progress is judged.

use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::micros;

use super::{SECOND, restless, step};
use crate::dice::Dice;
use crate::limits::{KeyedLimit, LimitKind};
use crate::proof::scenario::{Scenario, WAY_PART};
use crate::surroundings::{Break, Fault, StateLeft, Way};

impl Scenario {
    /// A fleet whose messages are counted by these limits, with work for about this many seconds.
    #[must_use]
    pub fn keyed(name: &str, seed: u64, limits: Vec<KeyedLimit>, seconds: u64) -> Self {
        let account: Result<Rate, _> = "60/1s".parse();
        let rate = account.expect("60 a second is a rate");
        let mut s = Self::calm(name, seed, rate, 3, seconds);
        let rates = limits.iter().map(KeyedLimit::per_second);
        let tightest = rates.fold(rate.per_second(), f64::min);
        s.messages = (tightest * seconds as f64) as u32 + 10;
        s.prefetch = 60;
        s.paced = false;
        // Well below a lease, even with a long tail.
        s.call = Duration::from_millis(150);
        s.keyed = limits;
        s
    }

    /// The scenario with keyed limits of a seed.
    #[must_use]
    pub fn keyed_from_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0xC0FFEE);
        let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
        let drawn = (0..count).map(|_| KeyedLimit::from_dice(&mut dice));
        let limits: Vec<KeyedLimit> = drawn.collect();
        let mut s = Self::keyed("keyed seed", seed, limits, 12);
        s.paced = dice.chance(400_000);
        s.cost = dice.pick(&[1, 1, 1, 2, 10]);
        s.max_hold = Duration::from_millis(dice.pick(&[100, 1_000, 1_000, 5_000]));
        s.replicas = dice.pick(&[1, 2, 3, 3, 5, 8]);
        s.prefetch = dice.pick(&[8, 40, 100]);
        s.stagger = Duration::from_millis(dice.pick(&[0, 5, 100, 1_000]));
        s.around.to_store = Duration::from_micros(dice.pick(&[50, 100, 200, 500]));
        if dice.chance(300_000) {
            s.around.slow_ways = dice.pick(&[300, 3_000, 20_000]);
        }
        if dice.chance(400_000) {
            s.around.lost_asks = dice.pick(&[3_000, 50_000]);
        }
        if dice.chance(300_000) {
            s.around.late_wakes = 10_000;
            s.around.late_most = Duration::from_millis(20);
        }
        for _ in 0..dice.below(4) {
            let kind = dice.below(10);
            for _ in 0..=dice.below(3) {
                let at = SECOND + dice.below(14 * SECOND);
                strike(&mut dice, at, kind, &mut s);
            }
        }
        s.faults.sort_by_key(|(at, _)| *at);
        let headrooms = s.keyed.iter().map(|limit| limit.headroom);
        let headroom = headrooms.fold(s.headroom, Duration::min);
        if dice.chance(700_000) {
            s.travels_by_kind(headroom / WAY_PART);
        }
        if dice.chance(300_000) {
            s.around.lopsided = headroom / 6;
        }
        s
    }
}

fn strike(dice: &mut Dice, at: u64, kind: u64, s: &mut Scenario) {
    let fault = match kind {
        0 => Fault::Crash,
        1 => Fault::Leave,
        2 => Fault::Pause(Duration::from_millis(dice.pick(&[10, 50, 200, 1_000]))),
        3 => Fault::Flush,
        4 => Fault::Restart(StateLeft::Nothing),
        5 => Fault::Restart(StateLeft::Older),
        6 => Fault::Restart(StateLeft::All),
        7 => Fault::Down(Duration::from_millis(dice.pick(&[20, 300, 2_000]))),
        8 => {
            let by = i64::try_from(step(dice)).unwrap_or_default();
            Fault::Step(if dice.chance(500_000) { by } else { -by })
        }
        _ => Fault::Rate(s.other_rate(dice)),
    };
    s.faults.push((at, fault));
    match fault {
        Fault::Crash | Fault::Leave => s.faults.push((at + dice.below(SECOND), Fault::Join)),
        Fault::Step(by) => restless(dice, at, by, &mut s.faults),
        _ => {}
    }
}

/// Until then faults come and go in a scenario in which progress is judged; then everything recovers.
const STORM: u64 = 8 * SECOND;
/// By then a loss is known and its wait is over, and some replicas break for good.
const HEALED: Duration = Duration::from_secs(20);

impl Scenario {
    /// The scenario of a seed in which progress is judged.
    #[must_use]
    pub fn progress_from_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x1DEA);
        let paced = dice.chance(500_000);
        let count = dice.pick(&[usize::from(!paced), 1, 1, 2, 2]);
        let drawn = (0..count).map(|_| KeyedLimit::from_dice(&mut dice));
        let mut limits: Vec<KeyedLimit> = drawn.collect();
        for limit in limits.iter_mut().filter(|limit| !limit.for_all) {
            limit.keys = dice.pick(&[1, 1, 2, 3, 5, 8, 8, 40, 200]);
        }
        let account: Result<Rate, _> = dice.pick(&["60/1s", "200/1s", "400/1s"]).parse();
        let mut s = Self::calm("progress", seed, account.expect("a rate"), 3, 1);
        s.paced = paced;
        s.cost = dice.pick(&[1, 1, 2, 5, 10]);
        s.replicas = dice.pick(&[1, 1, 2, 3, 5, 8]);
        s.max_hold = Duration::from_millis(dice.pick(&[100, 1_000, 5_000]));
        s.call = Duration::from_millis(dice.pick(&[5, 100, 500]));
        s.around.distance =
            Duration::from_micros(dice.pick(&[0, 500, 1_000, 3_000, 6_000, 12_000]));
        s.around.to_store = Duration::from_micros(dice.pick(&[50, 150, 500]));
        if dice.chance(300_000) {
            s.around.apart = s.around.distance / 4;
        }
        s.keyed = limits;
        s.reaches_the_store();
        s.storms(&mut dice);
        let headrooms = s.keyed.iter().map(|limit| limit.headroom);
        let headroom = headrooms.fold(s.headroom, Duration::min);
        s.travels_by_kind(headroom / WAY_PART);
        s.heals = Some(HEALED);
        // Work for half a minute after that.
        let seconds = HEALED.as_secs_f64() + 30.0;
        s.messages = (s.per_second() * seconds).min(6_000.0) as u32 + 50;
        // Calls in flight, and as many that wait; and some more, if keys deny them.
        let busy = s.per_second() * (s.call.as_secs_f64() + 0.5);
        let least = (busy * 2.0 / f64::from(s.replicas)) as u32 + 20;
        s.prefetch = (least * dice.pick(&[1, 2, 10])).min(10_000);
        s
    }

    /// Draws the way. Windows of a clock are counted by the downstream's own: there the whole way counts, not
    /// only its variation, so it is a short one.
    fn travels_by_kind(&mut self, kept: Duration) {
        let by_a_clock =
            |limit: &KeyedLimit| matches!(limit.kind, LimitKind::Aligned | LimitKind::Calendar);
        if self.keyed.iter().any(by_a_clock) {
            self.around.way = Way::from(Duration::from_micros(50), kept / 2);
        } else {
            self.travels(kept);
        }
    }

    /// Permits are valid for as long as a slow round trip needs: otherwise nothing could be sent.
    fn reaches_the_store(&mut self) {
        let around = &self.around;
        let trip = (around.distance + around.apart + around.to_store * 3) * 2;
        let least = (trip + Duration::from_millis(6)) * 4 / 3;
        for limit in &mut self.keyed {
            limit.headroom = limit.headroom.max(least);
        }
    }

    /// Faults that come and go, then some that stay.
    fn storms(&mut self, dice: &mut Dice) {
        if dice.chance(400_000) {
            self.around.lost_asks = dice.pick(&[3_000, 50_000]);
        }
        if dice.chance(300_000) {
            self.around.late_wakes = 10_000;
            self.around.late_most = Duration::from_millis(20);
        }
        for _ in 0..dice.below(3) {
            let at = SECOND + dice.below(STORM);
            let kind = dice.pick(&[0, 1, 2, 3, 5, 6, 7, 8]);
            strike(dice, at, kind, self);
        }
        // There is no promise that a step within a round trip is seen (`lib.rs`).
        let around = &self.around;
        let trip = micros(around.distance + around.apart + around.to_store * 3) * 2;
        let hides = |fault: &Fault| matches!(fault, Fault::Step(by) if by.unsigned_abs() <= trip);
        self.faults
            .retain(|(at, fault)| *at < 2 * STORM && !hides(fault));
        self.faults.push((2 * STORM, Fault::Heal));
        for _ in 0..dice.below(3) {
            let how = dice.pick(&[Break::Dead, Break::Stuck, Break::Deaf]);
            self.faults
                .push((micros(HEALED) - SECOND, Fault::Break(how)));
        }
        if dice.chance(300_000) {
            for second in 0..40 {
                let at = micros(HEALED) + second * SECOND;
                self.faults
                    .push((at, Fault::PauseAll(Duration::from_millis(60))));
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// How many messages a second pass, roughly.
    fn per_second(&self) -> f64 {
        let slots = f64::from(1 + self.cost) / 2.0;
        let row = match self.paced {
            true => self.rate.per_second() / slots,
            false => f64::MAX,
        };
        let way = self.longest_way().as_secs_f64();
        let calls = self.call.as_secs_f64() + way + 2.0 * self.around.distance.as_secs_f64();
        let keyed = self.keyed.iter().map(|limit| match limit.kind {
            LimitKind::Concurrency => limit.per_second() * 0.25 / calls,
            _ => limit.per_second(),
        });
        keyed.fold(row, f64::min)
    }
}
