//! What one route does with messages that come as they are foreseen: for `sluiced plan`.
//!
//! Problem: whether limits, costs, keys, hours and arrivals go together shows in production otherwise.
//! So a fleet runs on a virtual clock: the schedulers, the schedule and the keyed limits are those of
//! production, only the servers are made up.
//!
//! `world` proves what must hold while things go wrong, and knows only paced limits. Here nothing goes
//! wrong, and the question is another one: when is which message sent? So this is a loop of its own, with
//! every kind of limit, costs, opening hours, priorities, tenants and the wait ladder. The two share the
//! queue (`broker`), the dice and the surroundings.
//!
//! What is **not** in it: calls that fail or are throttled, replicas that come or go, other routes of the same
//! limit, and parked queues (tenants share what the replicas hold). The limits begin as if nothing
//! had been used of them.
//!
//! By file: `fleet` is the loop, `replica` what one replica does, `asks` its questions and their answers,
//! `store` the limits.

mod asks;
mod fleet;
mod replica;
mod store;

#[cfg(test)]
mod tests;

use std::time::Duration;

use sluiced_core::hours::OpeningHours;
use sluiced_core::limits::Rule;
use sluiced_core::rate::Cost;
use sluiced_core::schedule::Pace;
use sluiced_core::scheduler::Share;
use sluiced_core::time::StoreTime;

pub use super::cells::KeyCost;

/// A fleet, its route, and the messages that come.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// How long it is looked at.
    pub length: Duration,
    /// What the store's clock shows at the beginning.
    pub start: StoreTime,
    pub replicas: u32,
    pub route: Route,
    /// By the time at which they come.
    pub messages: Vec<Message>,
}

/// A route, in the words of the core.
#[derive(Clone, Debug)]
pub struct Route {
    /// The row of its paced limit and that of the reserve, where there are such.
    pub rows: Vec<Pace>,
    /// Its other limits.
    pub keyed: Vec<Keyed>,
    pub prefetch: u16,
    pub max_hold: Duration,
    pub far: Far,
    pub max_age: Option<Duration>,
    pub hours: Option<OpeningHours>,
    /// How long a call takes, at the median.
    pub call: Duration,
}

/// A limit that is not paced.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub rule: Rule,
    /// It counts all messages together.
    pub for_all: bool,
}

/// What becomes of a message that must wait for longer than `max_hold`.
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
    /// When it comes, in microseconds from the beginning.
    pub at: u64,
    /// What it takes of the paced limit.
    pub slots: Cost,
    pub priority: u16,
    /// It may use the reserve.
    pub urgent: bool,
    pub share: Share,
    /// What it takes of each keyed limit, in their order.
    pub charges: Box<[KeyCost]>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFate {
    pub end: End,
    /// How often a keyed limit said "not now".
    pub denials: u16,
    /// The keyed limit that said so last.
    pub by: Option<u8>,
    /// How often it went through a wait queue.
    pub trips: u16,
}

/// How a message ended; times are microseconds from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It still waits.
    #[default]
    Waiting,
    Called(u64),
    /// It was older than `max_age`.
    TooOld(u64),
    /// It had to wait for longer than `max_hold`, and the route makes such messages dead letters.
    Denied(u64),
    /// It costs more than this keyed limit ever holds.
    Never(u64, u8),
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct PlanOutcome {
    /// Of each message.
    pub fates: Vec<MessageFate>,
    /// How often each keyed limit said "not now".
    pub denials: Vec<u64>,
    /// How often the store was asked.
    pub asks: u64,
}

/// Runs a plan to its end, or until no message waits and none will come.
#[must_use]
pub fn run(plan: &Plan) -> PlanOutcome {
    fleet::Fleet::new(plan).run()
}
