//! The fleet of a scenario: its route, its messages, the policies of operators, with numbers drawn from a seed.

use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::gate::OnDenied;
use sluiced_core::message::TenantShare;
use sluiced_core::rate::{Cost, Rate};
use sluiced_core::time::StoreTime;

use super::scenario::{Fault, Load, Scenario};
use crate::dice::{Dice, mix};
use crate::fleet;
use crate::limits::{Broken, KeyedLimit};
use crate::setting::{
    AutoHeadroomLimit, FleetPolicy, HeadroomOf, KeyCost, KeyedRule, Message, Refuses, Setting,
    SimulatedRoute,
};
use crate::watch::FleetWatch;

/// The store's clock at the start of the simulation.
pub(super) const EPOCH: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

/// From one to `largest`, by chance.
fn cost(chance: u64, largest: u32) -> Cost {
    let units = 1 + chance % u64::from(largest);
    Cost::new(NonZeroU32::new(units as u32).unwrap_or(NonZeroU32::MIN))
}

impl Scenario {
    /// The cost of a message for the paced limit.
    pub(crate) fn slots(&self, message: u32) -> Cost {
        let chance = mix(u64::from(message) << 8 | 0xFF);
        cost(chance, self.cost)
    }

    /// The message's charges on the keyed limits.
    pub(super) fn charges(&self, message: u32) -> Box<[KeyCost]> {
        let charge = |(index, limit): (u64, &KeyedLimit)| {
            let chance = mix(u64::from(message) << 8 | index);
            KeyCost {
                limit: (),
                key: ((chance >> 32) % u64::from(limit.keys)) as u32,
                cost: cost(chance, limit.cost),
            }
        };
        (0_u64..).zip(&self.keyed).map(charge).collect()
    }

    /// The rows and rules at another rate.
    fn policy_at(&self, rate: Rate) -> FleetPolicy {
        let rule = |limit: &KeyedLimit| limit.rule(limit.units_at(rate, self.rate), self.broken);
        FleetPolicy {
            rows: self.paced.then(|| self.pace_at(rate)).into_iter().collect(),
            rules: self.keyed.iter().map(rule).collect(),
        }
    }

    /// The scenario's route.
    fn route(&self) -> SimulatedRoute {
        let policy = self.policy_at(self.rate);
        let rules = policy.rules.into_iter().zip(&self.keyed);
        let keyed = rules.map(|(rule, limit)| KeyedRule {
            rule,
            for_all: limit.for_all,
        });
        SimulatedRoute {
            rows: policy.rows,
            keyed: keyed.collect(),
            prefetch: u16::try_from(self.prefetch).unwrap_or(u16::MAX),
            max_hold: self.max_hold,
            on_denied: OnDenied::Hold,
            max_age: None,
            hours: None,
            call: self.call,
        }
    }

    /// The scenario's messages, as they come.
    fn messages(&self) -> Vec<Message> {
        let mut dice = Dice::new(self.seed ^ 0xA551);
        let length = self.length();
        let mut times: Vec<u64> = (0..self.messages)
            .map(|_| match self.load {
                Load::Backlog => 0,
                Load::Arrivals(_) => dice.below(length),
            })
            .collect();
        times.sort_unstable();
        let message = |(id, at): (u32, u64)| Message {
            at,
            slots: self.slots(id),
            // Some are more urgent than others.
            priority: u16::from(id.is_multiple_of(16)),
            urgent: false,
            share: TenantShare::default(),
            charges: self.charges(id),
        };
        (0..).zip(times).map(message).collect()
    }

    /// Runs it to its end, or to the first failure.
    pub(crate) fn run<W: FleetWatch>(&self, watch: W) -> (W, u64) {
        let rates = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::Rate(rate) => Some(*rate),
            _ => None,
        });
        let policies: Vec<_> = rates.map(|rate| (rate, self.policy_at(rate))).collect();
        let (route, messages) = (self.route(), self.messages());
        let setting = Setting {
            seed: self.seed,
            replicas: self.replicas,
            stagger: self.stagger,
            route: &route,
            messages: &messages,
            lead: Duration::ZERO,
            start: EPOCH,
            end: Duration::MAX,
            around: self.around,
            faults: &self.faults,
            policies: &policies,
            auto_headroom: self.auto_bounds.map(|bounds| AutoHeadroomLimit {
                of: match self.keyed.first() {
                    Some(limit) => HeadroomOf::Keyed(*limit),
                    None => HeadroomOf::Paced(self.rate),
                },
                bounds,
            }),
            forgets: self.broken == Broken::Forgets,
            refuses: Refuses::None,
        };
        fleet::run(&setting, watch)
    }
}
