//! The setting of a fleet: a route with its limits, the messages, the distances between the parts, and the
//! faults with their times.

use std::time::Duration;

use sluiced_core::gate::OnDenied;
use sluiced_core::headroom::{Bounds, Headroom};
use sluiced_core::hours::OpeningHours;
use sluiced_core::limits::Rule;
use sluiced_core::limits::admission::Charge;
use sluiced_core::message::TenantShare;
use sluiced_core::rate::{Cost, Rate};
use sluiced_core::schedule::{DEFAULT_HORIZON, Pace};
use sluiced_core::scheduler::Needs;
use sluiced_core::time::StoreTime;

use super::dice::mix;
use super::limits::{Broken, KeyedLimit};
use super::surroundings::{Fault, Surroundings};

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub seed: u64,
    pub replicas: u32,
    /// The replicas start one after the other within this time.
    pub stagger: Duration,
    pub route: &'a SimulatedRoute,
    /// By the time at which they come.
    pub messages: &'a [Message],
    /// Before the first message the replicas run for this long.
    pub lead: Duration,
    /// What the store's clock shows at that time.
    pub start: StoreTime,
    /// When the run ends, even if messages still wait.
    pub end: Duration,
    pub around: Surroundings,
    /// The faults with their times, in microseconds from the beginning, and in order.
    pub faults: &'a [(u64, Fault)],
    /// The policy after [`Fault::Rate`].
    pub policies: &'a [(Rate, FleetPolicy)],
    pub auto_headroom: Option<AutoHeadroomLimit>,
    /// Replicas do not remember the answers of the store of keyed limits: a deliberate fault.
    pub forgets: bool,
    pub refuses: Refuses,
}

/// A headroom that follows what the replicas measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoHeadroomLimit {
    pub of: HeadroomOf,
    pub bounds: Bounds,
}

/// The limit whose headroom follows. It is the only one of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadroomOf {
    Paced(Rate),
    Keyed(KeyedLimit),
}

impl AutoHeadroomLimit {
    /// The policy at a headroom.
    #[must_use]
    pub fn policy_at(&self, headroom: Headroom) -> FleetPolicy {
        let (mut rows, mut rules) = (Vec::new(), Vec::new());
        match self.of {
            HeadroomOf::Paced(rate) => {
                let horizon = DEFAULT_HORIZON.max(headroom.all() * 4);
                rows.push(Pace::new(rate, headroom, horizon));
            }
            HeadroomOf::Keyed(limit) => {
                rules.push(limit.rule_with(limit.units, headroom, Broken::Nothing));
            }
        }
        FleetPolicy { rows, rules }
    }
}

/// A route, in terms of the core.
#[derive(Clone, Debug)]
pub struct SimulatedRoute {
    /// The row of its paced limit and that of the reserve, if there are any.
    pub rows: Vec<Pace>,
    /// The route's other limits.
    pub keyed: Vec<KeyedRule>,
    pub prefetch: u16,
    pub max_hold: Duration,
    /// What happens to a message that must wait for longer than `max_hold`.
    pub on_denied: OnDenied,
    pub max_age: Option<Duration>,
    pub hours: Option<OpeningHours>,
    /// How long a call takes in the mean.
    pub call: Duration,
}

impl SimulatedRoute {
    /// The shortest time for which a permit of its keyed limits is valid; `None`: it has none.
    #[must_use]
    pub fn permit_validity(&self) -> Option<Duration> {
        self.keyed
            .iter()
            .map(|keyed| keyed.rule.permit_validity())
            .min()
    }

    /// The first moment from `at` on at which its hours let messages pass.
    #[must_use]
    pub fn opening(&self, at: StoreTime) -> StoreTime {
        let hours = self.hours.as_ref();
        hours.map_or(at, |hours| hours.opens(at))
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
pub struct KeyedRule {
    pub rule: Rule,
    /// The limit counts all messages together.
    pub for_all: bool,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    /// When it comes, in microseconds after the lead.
    pub at: u64,
    /// The message's cost for the paced limit.
    pub slots: Cost,
    pub priority: u16,
    /// The message may use the reserve.
    pub urgent: bool,
    pub share: TenantShare,
    /// The message's charges on the keyed limits, in their order.
    pub charges: Box<[KeyCost]>,
}

/// The charge of a message on a keyed limit, with the number of its key.
pub type KeyCost = Charge<(), u32>;

/// A policy: the paces of the paced limit and the rules of the others. It is one policy for all of them:
/// they change together.
#[derive(Clone, Debug)]
pub struct FleetPolicy {
    pub rows: Vec<Pace>,
    pub rules: Vec<Rule>,
}

impl FleetPolicy {
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
    pub fn permit_validity(&self) -> Option<Duration> {
        self.rules.iter().map(Rule::permit_validity).min()
    }
}

/// The messages that the downstream refuses ("not now") beside others that it accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refuses {
    #[default]
    None,
    /// This many of a thousand messages, always the same ones.
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
