//! A scenario: a fleet, its surroundings, and its faults with their times. All of it follows from
//! one seed (`drawn`), and a few scenarios have names.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::headroom::Bounds;
use sluiced_core::rate::{Cost, Rate, Span};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};

use crate::limits::{Broken, KeyedLimit};
pub use crate::surroundings::{Break, Fault, StateLeft, Surroundings, Way};

/// This part of the headroom is for the variation of the way to the downstream.
pub(super) const WAY_PART: u32 = 4;

/// How messages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All of them wait from the start.
    Backlog,
    /// Messages come one after the other, this many per thousand of what the limit allows.
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
    /// The replicas start one after the other within this time.
    pub stagger: Duration,
    pub prefetch: u32,
    /// A denied message waits in memory if its time is no further away.
    pub max_hold: Duration,
    pub messages: u32,
    /// A message takes this many slots of the paced limit at most.
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
    pub auto_bounds: Option<Bounds>,
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
            auto_bounds: None,
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
