//! The setting of a fleet: a route with its limits, the messages, the distances between the parts, and the
//! faults with their times; and the only source of chance in a simulation: everything follows from one
//! number.
//!
//! The generator is SplitMix64, with its published constants. It is not that of a crate, so that a seed
//! that failed once fails in the same way after any update.

use std::time::Duration;

use sluiced_core::headroom::{Bounds, Headroom};
use sluiced_core::hours::OpeningHours;
use sluiced_core::limits::Rule;
use sluiced_core::limits::admission::Charge;
use sluiced_core::rate::{Cost, Rate};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::scheduler::{Needs, Share};
use sluiced_core::time::{StoreTime, micros};

use super::made::{Broken, KeyedLimit};

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub seed: u64,
    pub replicas: u32,
    /// They start one after the other within this time.
    pub stagger: Duration,
    pub route: &'a SimulatedRoute,
    /// By the time at which they come.
    pub messages: &'a [Message],
    /// Before the first message the replicas run for so long.
    pub lead: Duration,
    /// What the store's clock shows at that time.
    pub start: StoreTime,
    /// When the run ends, even if messages still wait.
    pub end: Duration,
    pub around: Surroundings,
    /// The faults with their times, in microseconds from the beginning, and in order.
    pub faults: &'a [(u64, Fault)],
    /// The policy after [`Fault::Rate`].
    pub policies: &'a [(Rate, SetPolicy)],
    pub follows: Option<Following>,
    /// Replicas do not remember the answers of the store of keyed limits: a deliberate fault.
    pub forgets: bool,
    pub refuses: Refuses,
}

/// A headroom that follows what the replicas measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    pub of: Followed,
    pub bounds: Bounds,
}

/// The limit whose headroom follows. It is the only one of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    Paced(Rate),
    Keyed(KeyedLimit),
}

impl Following {
    /// The policy at a headroom.
    #[must_use]
    pub fn terms(&self, headroom: Headroom) -> SetPolicy {
        let (mut rows, mut rules) = (Vec::new(), Vec::new());
        match self.of {
            Followed::Paced(rate) => {
                let horizon = DEFAULT_HORIZON.max(headroom.all() * 4);
                rows.push(Pace::new(rate, headroom, horizon));
            }
            Followed::Keyed(limit) => {
                rules.push(limit.rule_with(limit.units, headroom, Broken::Nothing));
            }
        }
        SetPolicy { rows, rules }
    }
}

/// A route, in terms of the core.
#[derive(Clone, Debug)]
pub struct SimulatedRoute {
    /// The row of its paced limit and that of the reserve, if there are any.
    pub rows: Vec<Pace>,
    /// Its other limits.
    pub keyed: Vec<Keyed>,
    pub prefetch: u16,
    pub max_hold: Duration,
    pub far: Far,
    pub max_age: Option<Duration>,
    pub hours: Option<OpeningHours>,
    /// How long a call takes in the mean.
    pub call: Duration,
}

impl SimulatedRoute {
    /// The shortest time for which a permit of its keyed limits is valid; `None`: it has none.
    #[must_use]
    pub fn usable(&self) -> Option<Duration> {
        self.keyed.iter().map(|keyed| keyed.rule.usable()).min()
    }

    /// What its messages need.
    #[must_use]
    pub const fn needs(&self) -> Needs {
        if self.keyed.is_empty() {
            Needs::Slot
        } else {
            Needs::SlotAndPermit
        }
    }
}

/// A limit that is not paced.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub rule: Rule,
    /// It counts all messages together.
    pub for_all: bool,
}

/// What happens to a message that must wait for longer than `max_hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// It stays where it is, and so do those behind it if the limit is for all.
    Hold,
    /// It goes through wait queues.
    Away,
    /// It is dead.
    Dead,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// When it comes, in microseconds after the lead.
    pub at: u64,
    /// Its cost for the paced limit.
    pub slots: Cost,
    pub priority: u16,
    /// It may use the reserve.
    pub urgent: bool,
    pub share: Share,
    /// Its charges on the keyed limits, in their order.
    pub charges: Box<[KeyCost]>,
}

/// The charge of a message on a keyed limit, with the number of its key.
pub type KeyCost = Charge<(), u32>;

/// A policy: the paces of the paced limit and the rules of the others. It is one policy for all of them:
/// they change together.
#[derive(Clone, Debug)]
pub struct SetPolicy {
    pub rows: Vec<Pace>,
    pub rules: Vec<Rule>,
}

impl SetPolicy {
    /// The headroom of its main row, or of its first rule.
    #[must_use]
    pub fn headroom(&self) -> Option<Headroom> {
        let paced = self.rows.first().map(|pace| Headroom {
            late: pace.late(),
            way: pace.kept_for_the_way(),
        });
        paced.or_else(|| self.rules.first().map(Rule::headroom))
    }

    /// The shortest time for which a permit of its rules is valid.
    #[must_use]
    pub fn usable(&self) -> Option<Duration> {
        self.rules.iter().map(Rule::usable).min()
    }
}

/// The way of a call to the downstream: how long it takes, and by how much that varies in all. Each length in
/// between is as likely as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub median: Duration,
    pub spread: Duration,
}

impl Way {
    /// Near, and always the same.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            median: Duration::from_millis(1),
            spread: Duration::ZERO,
        }
    }

    /// From `least` on.
    #[must_use]
    pub fn from(least: Duration, spread: Duration) -> Self {
        Self {
            median: least + spread / 2,
            spread,
        }
    }

    /// The shortest.
    #[must_use]
    pub fn least(self) -> Duration {
        self.median.saturating_sub(self.spread / 2)
    }

    /// The longest.
    #[must_use]
    pub fn most(self) -> Duration {
        self.least() + self.spread
    }
}

/// The distances between the parts and the accuracy of the machines' timers and clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// One way to the store: the minimum, and the median of the additional time.
    pub distance: Duration,
    pub to_store: Duration,
    /// Some replicas are further away from it: up to this, each way.
    pub apart: Duration,
    /// By how much the ways of a replica to the store and back may differ, each drawn once: up to this.
    pub lopsided: Duration,
    /// Ways to the store that take up to 300 ms, per million.
    pub slow_ways: u64,
    /// Requests that fail, per million: half of them after they were executed.
    pub lost_asks: u64,
    /// Notices between replicas that are lost, per million.
    pub lost_notices: u64,
    /// Median lateness of a timer.
    pub lateness: Duration,
    /// Timers that are late by up to [`Surroundings::late_most`], per million.
    pub late_wakes: u64,
    pub late_most: Duration,
    /// Drift of each replica's clock: up to this many millionths, either way.
    pub drift: i64,
    /// The way to the downstream, until a [`Fault::Way`] changes it.
    pub way: Way,
    /// Calls that take four times as long as others, per million.
    pub long_calls: u64,
}

impl Surroundings {
    /// A quiet data centre.
    #[must_use]
    pub const fn calm() -> Self {
        Self {
            distance: Duration::ZERO,
            to_store: Duration::from_micros(150),
            apart: Duration::ZERO,
            lopsided: Duration::ZERO,
            slow_ways: 0,
            lost_asks: 0,
            lost_notices: 0,
            lateness: Duration::from_micros(100),
            late_wakes: 1_000,
            late_most: Duration::from_millis(3),
            drift: 50,
            way: Way::calm(),
            long_calls: 0,
        }
    }
}

/// The messages that the downstream refuses ("not now") beside others that it accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refuses {
    #[default]
    None,
    /// So many of a thousand messages, always the same ones.
    Share(u64),
    /// All messages with this key of the first keyed limit.
    Key(u32),
}

impl Refuses {
    /// Whether it refuses this message.
    #[must_use]
    pub fn refuses(self, number: u32, message: &Message) -> bool {
        match self {
            Self::None => false,
            Self::Share(share) => mix(u64::from(number)) % 1_000 < share,
            Self::Key(key) => message
                .charges
                .first()
                .is_some_and(|charge| charge.key == key),
        }
    }
}

/// A fault, or another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A replica dies: its messages go back to the queue, its slots are lost.
    Crash,
    /// A replica stops in order.
    Leave,
    /// A new replica starts.
    Join,
    /// A replica stands still for so long, then does everything that was due at once.
    Pause(Duration),
    /// All of them do, as on one machine that stalls.
    PauseAll(Duration),
    /// The store forgets everything.
    Flush,
    /// The store's process is replaced by another one.
    Restart(Kept),
    /// The store does not answer for so long.
    Down(Duration),
    /// The store's clock jumps by so many microseconds.
    Step(i64),
    /// An operator sets another rate; some replicas get a notice at once.
    Rate(Rate),
    /// The way to the downstream is another one from now on.
    Way(Way),
    /// The downstream refuses all calls for so long; some replicas get a notice of the freeze at once.
    Throttle { wait: Duration, heard: bool },
    /// From now on requests arrive and timers are on time, as in a quiet data centre.
    Heal,
    /// A replica is broken for good, but never the last one.
    Break(Break),
}

/// How a replica is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// It dies, and none follows it.
    Dead,
    /// It stands still, and keeps what it has.
    Stuck,
    /// It does not reach the store, and gets no notices.
    Deaf,
}

/// What a new process of the store has of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// A copy that lags behind.
    Older,
    All,
}

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x5EED_0F5A_1CED_0001)
    }

    /// Any number.
    pub const fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number from zero to `end`, without `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.any()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or_default()
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `per_million` of a million cases.
    pub fn chance(&mut self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap_or_default()]
    }

    /// A waiting time as machines show it: never below 0.6 of `median`, half of the time above it,
    /// with a tail that halves with every further 0.4 of it.
    pub fn spread(&mut self, median: Duration) -> Duration {
        let median = micros(median);
        let bits = self.any();
        let halvings = u64::from(bits.trailing_ones().min(12));
        let fine = (bits >> 32) % 1024;
        Duration::from_micros(median * 6 / 10 + median * 4 * (halvings * 1024 + fine) / 10_240)
    }
}

/// Mixes a number so that every bit of it affects every bit of the result.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
