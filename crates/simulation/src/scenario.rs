//! A scenario: a fleet, its surroundings, and its faults with their times. All of it follows from
//! one seed, and a few scenarios have names.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::headroom::Bounds;
use sluiced_core::rate::{Cost, Rate, Span};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::time::micros;

use super::made::{Broken, KeyedLimit};
use super::setting::Dice;
pub use super::setting::{Break, Fault, Kept, Surroundings, Way};

const SECOND: u64 = 1_000_000;
/// A smaller step is within the jitter that every replica allows for.
const MIN_STEP: u64 = 1_000;

/// This part of the headroom is for the variation of the way to the downstream.
pub(super) const WAY_PART: u32 = 4;

/// How messages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All of them wait from the start.
    Backlog,
    /// One after the other, so many per thousand of what the limit allows.
    Arrivals(u64),
}

/// The input of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub name: String,
    pub seed: u64,
    pub rate: Rate,
    pub headroom: Duration,
    pub horizon: Duration,
    pub replicas: u32,
    /// They start one after the other within this time.
    pub stagger: Duration,
    pub prefetch: u32,
    /// A denied message waits in memory if its time is no further away.
    pub max_hold: Duration,
    pub messages: u32,
    /// A message takes so many slots of the paced limit at most.
    pub cost: u32,
    pub load: Load,
    /// How long a call takes in the mean.
    pub call: Duration,
    pub around: Surroundings,
    /// The faults with their times, in order.
    pub faults: Vec<(u64, Fault)>,
    /// Limits that count each message besides.
    pub keyed: Vec<KeyedLimit>,
    /// Whether there is a paced limit; without one a slot is always due.
    pub paced: bool,
    pub broken: Broken,
    /// The headroom of its only limit follows what the replicas measure, and begins at `headroom`. The first five
    /// seconds after a change of the way are not judged.
    pub follows: Option<Bounds>,
    /// By then everything has recovered except what is broken for good, and the rest must make progress.
    pub heals: Option<Duration>,
}

impl Scenario {
    /// A fleet with a backlog of `seconds` in calm surroundings, without faults.
    #[must_use]
    pub fn calm(name: &str, seed: u64, rate: Rate, replicas: u32, seconds: u64) -> Self {
        let expected = rate.per_second() * seconds as f64;
        let mut scenario = Self {
            name: name.to_owned(),
            seed,
            rate,
            headroom: Duration::from_millis(5),
            horizon: DEFAULT_HORIZON,
            replicas,
            stagger: Duration::from_millis(20),
            prefetch: 0,
            max_hold: Duration::from_secs(1),
            messages: (expected as u32).max(1),
            cost: 1,
            load: Load::Backlog,
            call: Duration::from_millis(20),
            around: Surroundings::calm(),
            faults: Vec::new(),
            keyed: Vec::new(),
            paced: true,
            broken: Broken::Nothing,
            follows: None,
            heals: None,
        };
        scenario.prefetch = scenario.ample_prefetch();
        scenario.messages += scenario.prefetch * replicas;
        scenario
    }

    /// The pace of the limit.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace_at(self.rate)
    }

    /// The pace of the limit at another rate.
    #[must_use]
    pub fn pace_at(&self, rate: Rate) -> Pace {
        let most = NonZeroU32::new(self.cost).unwrap_or(NonZeroU32::MIN);
        Pace::new(rate, self.headroom, self.horizon).with_costs_up_to(Cost::new(most))
    }

    /// A prefetch that never delays a replica: a round of the line at its share, its calls in
    /// flight, and two leases.
    #[must_use]
    pub fn ample_prefetch(&self) -> u32 {
        let share = self.rate.per_second() / f64::from(self.replicas.max(1));
        let call = self.call.as_secs_f64() * 4.0;
        let lease = (self.pace().batch() * 2) as f64;
        (share * (1.2 + call) + lease.min(share * 2.0)) as u32 + 4
    }

    /// Whether messages can be called more than once.
    #[must_use]
    pub fn crashes(&self) -> bool {
        let dies = |fault: &Fault| matches!(fault, Fault::Crash | Fault::Break(_));
        self.faults.iter().any(|(_, fault)| dies(fault))
    }

    /// Whether there are no faults and no replica comes or goes.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty() && self.around.slow_ways == 0 && self.around.lost_asks == 0
    }

    /// The longest way of a call to the downstream.
    #[must_use]
    pub fn longest_way(&self) -> Duration {
        let ways = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::Way(way) => Some(way.most()),
            _ => None,
        });
        ways.fold(self.around.way.most(), Duration::max)
    }

    /// Draws the way to the downstream. It varies by no more than `kept`, and never becomes shorter: calls
    /// that left earlier on a longer way would arrive among those that left later.
    pub(super) fn travels(&mut self, kept: Duration) {
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

    /// How long the messages take at the full rate, in microseconds.
    #[must_use]
    pub fn length(&self) -> u64 {
        let pace = self.pace();
        let full = u64::from(self.messages) * pace.period() / pace.units();
        match self.load {
            Load::Backlog => full,
            Load::Arrivals(per_mille) => full * 1000 / per_mille.max(1),
        }
    }

    /// From a quarter of the rate to twice as much, in the same window.
    pub(super) fn other_rate(&self, dice: &mut Dice) -> Rate {
        let quarters = u32::try_from(dice.between(1, 8)).unwrap_or(4);
        let units = (self.rate.units().get() / 4).saturating_mul(quarters);
        let units = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
        Rate::new(units, self.rate.window()).unwrap_or(self.rate)
    }

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
pub(super) fn restless(dice: &mut Dice, at: u64, by: i64, faults: &mut Vec<(u64, Fault)>) {
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
pub(super) fn step(dice: &mut Dice) -> u64 {
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
        5 if dice.chance(500_000) => Fault::Restart(Kept::Older),
        5 => Fault::Restart(Kept::Nothing),
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

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} (seed {}): {} with headroom {} and horizon {}, {} replicas of prefetch {}, {} messages, {:?}",
            self.name,
            self.seed,
            self.rate,
            Span(self.headroom),
            Span(self.horizon),
            self.replicas,
            self.prefetch,
            self.messages,
            self.load,
        )?;
        writeln!(f, "  {:?}", self.around)?;
        for limit in &self.keyed {
            writeln!(f, "  {limit:?}")?;
        }
        if !self.paced {
            writeln!(f, "  without a paced limit")?;
        } else if self.cost > 1 {
            writeln!(f, "  a message takes up to {} slots", self.cost)?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "  {:>10.3} s  {fault:?}", *at as f64 / 1e6)?;
        }
        Ok(())
    }
}
