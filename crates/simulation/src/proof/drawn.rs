//! Scenarios drawn from a seed: the fleet, its surroundings, and what fails. Those with keyed limits are in `keyed`.

mod keyed;

use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::micros;

use super::scenario::{Load, Scenario, WAY_PART};
use crate::dice::Dice;
use crate::surroundings::{Fault, StateLeft, Way};

const SECOND: u64 = 1_000_000;
/// A smaller step is within the jitter that every replica allows for.
const MIN_STEP: u64 = 1_000;

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let (rate, seconds) = rate(&mut dice);
        let mut s = Self::calm("seed", seed, rate, fleet(&mut dice, rate), seconds);
        s.headroom = Duration::from_millis(if micros(rate.window()) > 2 * SECOND {
            dice.pick(&[5, 20, 50])
        } else {
            dice.pick(&[5, 5, 10, 20])
        });
        s.horizon = Duration::from_millis(dice.pick(&[150, 150, 150, 60, 250, 500]));
        s.stagger = Duration::from_millis(dice.pick(&[0, 5, 100, 1_000]));
        s.around.to_store = Duration::from_micros(dice.pick(&[50, 100, 200, 500]));
        s.call = Duration::from_millis(dice.pick(&[3, 20, 100]));
        s.messages -= s.prefetch * s.replicas;
        s.prefetch = s.ample_prefetch();
        s.messages += s.prefetch * s.replicas;
        if dice.chance(150_000) {
            s.prefetch = (s.prefetch / 8).max(1);
        }
        if dice.chance(200_000) {
            s.load = Load::Arrivals(dice.pick(&[50, 300, 700, 900]));
            s.messages = (s.messages / 3).max(20);
        }
        if dice.chance(750_000) {
            roughen(&mut dice, &mut s);
        }
        s.travels(s.headroom / WAY_PART);
        s
    }

    /// Draws the way to the downstream. It varies by no more than `kept`, and never becomes shorter: calls
    /// that left earlier on a longer way would arrive among those that left later.
    fn travels(&mut self, kept: Duration) {
        // From dice of its own, so that everything else of a seed stays the same.
        let mut dice = Dice::new(self.seed ^ 0xFA7);
        let least = Duration::from_micros(dice.pick(&[50, 500, 1_000, 5_000, 20_000, 60_000]));
        let mut way = Way::from(least, kept * dice.pick(&[0, 1, 2, 4, 4]) / 4);
        self.around.way = way;
        if dice.chance(300_000) {
            for _ in 0..=dice.below(3) {
                let longer = Duration::from_micros(dice.pick(&[0, 0, 2_000, 25_000]));
                way = Way::from(way.least() + longer, kept * dice.pick(&[0, 2, 4]) / 4);
                let at = dice.below(self.length());
                self.faults.push((at, Fault::Way(way)));
            }
            // The ways are in order of length, whenever each begins.
            let mut times: Vec<u64> = self.changes_of_way().map(|(at, _)| *at).collect();
            times.sort_unstable();
            for ((at, _), time) in self.changes_of_way().zip(times) {
                *at = time;
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    fn changes_of_way(&mut self) -> impl Iterator<Item = &mut (u64, Fault)> {
        let faults = self.faults.iter_mut();
        faults.filter(|(_, fault)| matches!(fault, Fault::Way(_)))
    }

    /// From a quarter of the rate to twice as much, in the same window.
    fn other_rate(&self, dice: &mut Dice) -> Rate {
        let quarters = u32::try_from(dice.between(1, 8)).unwrap_or(4);
        let count = (self.rate.units().get() / 4).saturating_mul(quarters);
        let units = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        Rate::new(units, self.rate.window()).unwrap_or(self.rate)
    }
}

fn rate(dice: &mut Dice) -> (Rate, u64) {
    // Seconds of virtual time for each, so that a run stays within a few thousand messages.
    let (units, window, seconds) = dice.pick(&[
        (5, SECOND, 60),
        (50, SECOND, 30),
        (400, SECOND, 6),
        (400, SECOND, 6),
        (400, SECOND, 6),
        (300, 5 * SECOND, 60),
        (60, 60 * SECOND, 300),
        (1_000, SECOND, 4),
        (5_000, SECOND, 2),
    ]);
    let (units, window, seconds) = if dice.chance(10_000) {
        (20_000, SECOND, 2)
    } else {
        (units, window, seconds)
    };
    let units = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
    let rate = Rate::new(units, Duration::from_micros(window));
    (rate.expect("all rates in the list are in range"), seconds)
}

fn fleet(dice: &mut Dice, rate: Rate) -> u32 {
    let most = if rate.per_second() < 100.0 { 40 } else { 1_000 };
    dice.pick(&[
        1, 2, 2, 3, 4, 4, 4, 4, 6, 10, 10, 10, 20, 30, 100, 1_000_u32,
    ])
    .min(most)
}

/// Worsens the surroundings and adds faults.
fn roughen(dice: &mut Dice, s: &mut Scenario) {
    if dice.chance(300_000) {
        s.around.slow_ways = dice.pick(&[300, 3_000, 20_000]);
    }
    if dice.chance(300_000) {
        // Together with the usual way a round trip stays within half of the headroom.
        s.around.lopsided = s.headroom / 6;
    }
    if dice.chance(300_000) {
        s.around.lost_asks = dice.pick(&[300, 3_000, 50_000]);
    }
    if dice.chance(300_000) {
        s.around.late_wakes = 10_000;
        s.around.late_most = s.headroom * 2;
    }
    let kinds = 1 + dice.below(3);
    let mut faults = Vec::new();
    for _ in 0..kinds {
        let kind = dice.below(10);
        for _ in 0..=dice.below(4) {
            let at = dice.below(s.length());
            faults.push((at, fault(dice, kind, s)));
            match faults.last().map(|(_, fault)| *fault) {
                Some(Fault::Crash) => faults.push((at + dice.below(SECOND), Fault::Join)),
                Some(Fault::Step(by)) => restless(dice, at, by, &mut faults),
                _ => {}
            }
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    s.faults = faults;
    if dice.chance(300_000) {
        s.around.long_calls = 20_000;
    }
}

/// A clock that stepped may step again within moments: back, or by another length.
fn restless(dice: &mut Dice, at: u64, by: i64, faults: &mut Vec<(u64, Fault)>) {
    let (mut at, mut undo) = (at, -by);
    while dice.chance(500_000) {
        at += dice.pick(&[1_000, 10_000, 100_000, 300_000, SECOND]);
        at += dice.below(100_000);
        let other = i64::try_from(step(dice)).unwrap_or_default();
        let next = if dice.chance(500_000) { undo } else { other };
        faults.push((at, Fault::Step(next)));
        undo = -next;
    }
}

/// By how much a clock steps.
fn step(dice: &mut Dice) -> u64 {
    let large = [150_000, 2 * SECOND, 60 * SECOND, 86_400 * SECOND];
    if dice.chance(600_000) {
        dice.between(MIN_STEP, 120_000)
    } else {
        dice.pick(&large)
    }
}

fn fault(dice: &mut Dice, kind: u64, s: &Scenario) -> Fault {
    match kind {
        0 => Fault::Crash,
        1 => Fault::Leave,
        2 => Fault::Join,
        3 => Fault::Pause(Duration::from_millis(
            dice.pick(&[10, 50, 100, 200, 1_000, 3_000]),
        )),
        4 => Fault::Flush,
        5 if dice.chance(500_000) => Fault::Restart(StateLeft::Older),
        5 => Fault::Restart(StateLeft::Nothing),
        6 => Fault::Down(Duration::from_millis(dice.pick(&[20, 300, 2_000]))),
        7 => {
            let by = i64::try_from(step(dice)).unwrap_or_default();
            Fault::Step(if dice.chance(500_000) { by } else { -by })
        }
        8 => Fault::Rate(s.other_rate(dice)),
        _ => Fault::Throttle {
            wait: Duration::from_micros(dice.below(micros(s.rate.window()).min(2 * SECOND))),
            heard: dice.chance(700_000),
        },
    }
}
