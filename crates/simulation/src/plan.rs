//! What one route does with expected messages: for `sluiced plan`.
//!
//! Problem: otherwise production is the first test of whether limits, costs, keys, hours and arrivals fit
//! together. So the route runs in the [`crate::fleet`] first, without faults, and the result is when each
//! message is sent.
//!
//! What is **not** in it: calls that fail or are throttled, replicas that come or go, other routes of the
//! same limit, and parked queues (tenants share what the replicas hold). The limits begin unused.

#[cfg(test)]
mod tests;

use std::time::Duration;

use sluiced_core::time::{StoreTime, micros};

use super::fleet;
pub use super::setting::{KeyCost, KeyedRule, Message, SimulatedRoute};
use super::setting::{Refuses, Setting};
use super::surroundings::{Fault, Surroundings};
use super::watch::{EndWithoutCall, FleetEvent, FleetWatch, WaitQueueCause};

/// Before the first message the guard of the schedule passes, and this time, in which replicas get the
/// store's time and the reports of others.
const WARM: Duration = Duration::from_secs(3);

/// A fleet, its route, and the messages that come.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// How long it is looked at.
    pub length: Duration,
    /// What the store's clock shows at the beginning.
    pub start: StoreTime,
    pub replicas: u32,
    pub route: SimulatedRoute,
    /// By the time at which they come.
    pub messages: Vec<Message>,
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFate {
    pub end: PlannedEnd,
    /// How often the keyed limits looked at it.
    pub looks: u16,
    /// How often a keyed limit denied it.
    pub denials: u16,
    /// The keyed limit that denied it last.
    pub by: Option<u8>,
    /// How often it went through a wait queue, and how often it was sent there by a limit.
    pub trips: u16,
    pub sent_away: u16,
    /// The replica that made its call.
    pub replica: Option<u32>,
}

/// How a message ended; times are microseconds from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlannedEnd {
    /// The message still waits.
    #[default]
    Waiting,
    Called(u64),
    /// The message was older than `max_age`.
    TooOld(u64),
    /// The message had to wait for longer than `max_hold`, and the route makes such messages dead letters.
    Denied(u64),
    /// The message costs more than this keyed limit ever holds.
    Never(u64, u8),
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct PlanOutcome {
    /// The fate of each message.
    pub fates: Vec<MessageFate>,
    /// How often each keyed limit denied a message.
    pub denials: Vec<u64>,
    /// How often the store was asked, and how many of these questions were to keyed limits.
    pub asks: u64,
    pub questions: u64,
    /// Permits that ran out unused.
    pub ran_out: u64,
    /// The time before the first message.
    lead: u64,
    /// Messages that have not ended.
    left: usize,
}

/// Runs a plan to its end, or until no message waits and none will come.
#[must_use]
pub fn run(plan: &Plan) -> PlanOutcome {
    run_in(plan, Surroundings::calm(), &[])
}

/// Runs a plan in other surroundings and with faults, to its end, or until no message waits and none will come.
#[must_use]
pub fn run_in(plan: &Plan, around: Surroundings, faults: &[(u64, Fault)]) -> PlanOutcome {
    let guard = plan.route.rows.iter().map(|pace| pace.guard()).max();
    let lead = guard.unwrap_or_default() + WARM;
    let setting = Setting {
        seed: plan.seed,
        replicas: plan.replicas,
        stagger: Duration::ZERO,
        route: &plan.route,
        messages: &plan.messages,
        lead,
        start: plan.start,
        end: lead + plan.length,
        around,
        faults,
        policies: &[],
        auto_headroom: None,
        forgets: false,
        refuses: Refuses::None,
    };
    let outcome = PlanOutcome {
        fates: vec![MessageFate::default(); plan.messages.len()],
        denials: vec![0; plan.route.keyed.len()],
        asks: 0,
        questions: 0,
        ran_out: 0,
        lead: micros(lead),
        left: plan.messages.len(),
    };
    fleet::run(&setting, outcome).0
}

impl FleetWatch for PlanOutcome {
    fn see(&mut self, at: u64, replica: u32, what: &FleetEvent) {
        let at = at.saturating_sub(self.lead);
        match *what {
            FleetEvent::Asked { .. } => self.asks += 1,
            FleetEvent::Question { messages } => {
                self.asks += 1;
                self.questions += u64::from(messages > 0);
            }
            FleetEvent::RanOut { .. } => self.ran_out += 1,
            FleetEvent::Decided { message, denied } => {
                let fate = &mut self.fates[message as usize];
                fate.looks = fate.looks.saturating_add(1);
                self.denied(message, denied);
            }
            FleetEvent::Away { message, why } => {
                let fate = &mut self.fates[message as usize];
                fate.trips = fate.trips.saturating_add(1);
                fate.sent_away += u16::from(why != WaitQueueCause::Again);
                if let WaitQueueCause::Full(by) = why {
                    self.denied(message, Some(by));
                }
            }
            FleetEvent::Called { message } => {
                self.fates[message as usize].replica = Some(replica);
                self.ended(message, PlannedEnd::Called(at));
            }
            FleetEvent::Ended { message, how } => {
                let end = match how {
                    EndWithoutCall::TooOld => PlannedEnd::TooOld(at),
                    EndWithoutCall::Denied => PlannedEnd::Denied(at),
                    EndWithoutCall::Never(by) => PlannedEnd::Never(at, by),
                };
                self.ended(message, end);
            }
            _ => {}
        }
    }

    fn is_over(&mut self, _: u64) -> bool {
        self.left == 0
    }
}

impl PlanOutcome {
    fn denied(&mut self, message: u32, by: Option<u8>) {
        let Some(by) = by else {
            return;
        };
        let fate = &mut self.fates[message as usize];
        fate.denials = fate.denials.saturating_add(1);
        fate.by = Some(by);
        self.denials[usize::from(by)] += 1;
    }

    fn ended(&mut self, message: u32, end: PlannedEnd) {
        let fate = &mut self.fates[message as usize];
        self.left -= usize::from(fate.end == PlannedEnd::Waiting);
        fate.end = end;
    }
}
