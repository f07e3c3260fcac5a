//! Scenarios with keyed limits, drawn from a seed: which kinds, how many messages, what fails.

use std::time::Duration;

use sluiced_core::rate::Rate;

use super::cells::KeyCost;
use super::dice::{Dice, mix};
use super::keyed::KeyedLimit;
use super::scenario::{Fault, Kept, Scenario, restless, step};

const SECOND: u64 = 1_000_000;

impl Scenario {
    /// What a message takes of the keyed limits.
    pub(super) fn charges(&self, message: u32) -> Box<[KeyCost]> {
        let charge = |(index, limit): (u64, &KeyedLimit)| {
            let chance = mix(u64::from(message) << 8 | index);
            KeyCost {
                key: ((chance >> 32) % u64::from(limit.keys)) as u32,
                cost: 1 + (chance % u64::from(limit.cost)) as u32,
            }
        };
        (0_u64..).zip(&self.keyed).map(charge).collect()
    }

    /// A fleet whose messages are counted by these limits, with work for about so many seconds.
    #[must_use]
    pub fn keyed(name: &str, seed: u64, limits: Vec<KeyedLimit>, seconds: u64) -> Self {
        let account: Result<Rate, _> = "60/1s".parse();
        let rate = account.expect("60 a second is a rate");
        let mut s = Self::calm(name, seed, rate, 3, seconds);
        let tightest = limits.iter().map(KeyedLimit::per_second);
        let tightest = tightest.fold(rate.per_second(), f64::min);
        s.messages = (tightest * seconds as f64) as u32 + 10;
        s.prefetch = 60;
        s.paced = false;
        // Well below a lease, however long the tail.
        s.around.call = Duration::from_millis(150);
        s.keyed = limits;
        s
    }

    /// The scenario with keyed limits of a seed.
    #[must_use]
    pub fn keyed_from_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0xC0FFEE);
        let count = dice.pick(&[1, 1, 1, 2, 2, 3]);
        let limits = (0..count).map(|_| KeyedLimit::from_dice(&mut dice));
        let limits: Vec<KeyedLimit> = limits.collect();
        let mut s = Self::keyed("keyed seed", seed, limits, 12);
        s.paced = dice.chance(400_000);
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
                strike(&mut dice, (at, kind), &mut s);
            }
        }
        s.faults.sort_by_key(|(at, _)| *at);
        let headrooms = s.keyed.iter().map(|limit| limit.headroom);
        let headroom = headrooms.fold(s.headroom, Duration::min);
        if dice.chance(300_000) {
            s.around.transit = headroom / 8;
        }
        if dice.chance(300_000) {
            s.around.lopsided = headroom / 6;
        }
        s
    }
}

fn strike(dice: &mut Dice, (at, kind): (u64, u64), s: &mut Scenario) {
    let fault = match kind {
        0 => Fault::Crash,
        1 => Fault::Leave,
        2 => Fault::Pause(Duration::from_millis(dice.pick(&[10, 50, 200, 1_000]))),
        3 => Fault::Flush,
        4 => Fault::Restart(Kept::Nothing),
        5 => Fault::Restart(Kept::Older),
        6 => Fault::Restart(Kept::All),
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
