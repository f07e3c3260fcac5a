//! The path of one message, from the queue to its verdict.
//!
//! Problem: a message passes many decisions and several servers, each of which may fail at any moment, and it must neither
//! be lost nor called twice for nothing. So each stage is one file, a message is one value that moves through them, and the
//! decisions are those of `core`:
//!
//! ```text
//! receive -> decode -> (ready) -> admit -> pacer (slot) -> send -> after_call -> ends -> settled
//! ```
//!
//! `receive` takes deliveries from a queue, `decode` makes messages of them (`job`). The `pacer` is a thread
//! with a runtime of its own for each paced limit, and for each route without one: it waits for slots and
//! sends, so that neither AMQP traffic nor decoding can delay a slot. `admit` asks the keyed limits for the
//! messages that the next slots would take. `send` makes the call, `after_call` does what `core::after_call` decides
//! from the answer (its numbers are in `figures`). `verdict` has all verdicts, `ends` gives them.
//!
//! From decoding to the call one loop drives it all: `pacer::Pacer::run` asks `core::scheduler` what to do
//! and calls `admit` and `send`. Calls and routes report to the loop as a `ToPacer` (`handle` sends, `pacer::events`
//! receives); the loop itself waits for the answers and notices of the stores.
//!
//! A `route` is made of parts, and each stage takes the parts that it needs: `route_rules` (plain values of the
//! configuration), `route_gate` and `tap` (whether it sends and consumes), `calls`, `holding` (what is held), `fitness`
//! (whether messages can be sent at all), `sharing` (the other routes of its queue), `way` (how much the way to its
//! downstream varies). `rows` are the slots of its paced limit.
//!
//! Around the path: `history` is what the headers of a message say, `permit` and `refunder` return what was not used,
//! `claims` are those of `once` limits, `corrections` keeps what answers reported about keys, `results` publishes what
//! became of messages, `journal` logs a line about each call and each verdict. `overdue` settles messages that are
//! held for too long, `refused` those that have no turn before their end. `owner` claims the names of limits and
//! routes for the fleet, `policies` keeps the limits at the current policy (`limit_facts`), `pause` keeps routes at
//! what operators say, `follow` lets limits follow what is measured, `progress` watches that calls leave. `alarm` is
//! the timer of a pacer, `arrivals` knows when a queue was empty last.
//!
//! Messages travel through channels whose content is bounded by the prefetch.
//!
//! **Public API**: [`Pipeline`] is started from a [`PacerSpec`] for each paced limit and for each route without one,
//! with a [`RouteSpec`] for each route.
//!
//! **May know**: `core`, `template`, `telemetry`, and the traits of `ports`; no backend, and of the configuration plain
//! values only.

mod adapting;
mod admit;
mod after_call;
mod alarm;
mod arrivals;
mod calls;
mod claims;
mod corrections;
mod decode;
mod ends;
mod figures;
mod fitness;
mod follow;
mod handle;
mod history;
mod holding;
mod job;
mod journal;
mod limit_facts;
pub mod meters;
mod overdue;
mod owner;
mod pacer;
mod pause;
mod permit;
mod pipeline;
mod policies;
mod progress;
mod receive;
mod refunder;
mod refused;
mod results;
mod route;
mod route_gate;
mod route_rules;
mod rows;
mod send;
mod sharing;
mod tap;
mod tickets;
mod verdict;
mod way;

use std::sync::Arc;

pub use arrivals::publish_arrivals;
pub use journal::Journal;
pub use limit_facts::{Adapts, Change, Changed, FileLimit, InForce, LimitFacts};
pub use owner::{Owned, Owner, Ownership};
pub use pause::Pauses;
pub use pipeline::Pipeline;
pub use policies::{KeyedPolicy, PolicySpec};
pub use results::{ComesBack, ResultRules, Results};
pub use route::{Counted, Counting, FigureReaders, RouteSpec};
pub use route_rules::{AnswerRules, OnDenied, Priority, RouteRules, Tenants, WhenUnsendable};
pub use rows::{FreezeRow, PacedRows};

use sluiced_core::schedule::Pace;
use sluiced_ports::limits::LimitStore;

/// A pacer and the routes that take its slots.
#[derive(Debug)]
pub struct PacerSpec {
    /// The name of the paced limit; of a route without one, a name of its own.
    pub name: Arc<str>,
    /// `None`: slots are always due.
    pub rows: Option<PacedRows>,
    /// Where a freeze is kept if there are no rows.
    pub unpaced: Option<FreezeRow>,
    /// `None`: the paced limit cannot be changed while it runs, or there is none.
    pub policy: Option<PolicySpec<Vec<Pace>>>,
    /// Where the keyed limits are. A pacer without a paced limit gets the store's time from there, too.
    pub keyed: Arc<dyn LimitStore>,
    pub routes: Vec<RouteSpec>,
}

/// A pacer thread that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("no thread or timer for the limit `{limit}`: {source}")]
pub struct StartError {
    limit: String,
    source: std::io::Error,
}

/// What was left when the pipeline was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Calls that were still under way at the end of the grace: their messages go back to the
    /// queue and may be sent again.
    pub abandoned: u64,
    /// Messages that went back to the queue unsent.
    pub given_back: u64,
    /// Verdicts that could not be made safe in time: the broker delivers these again.
    pub unsettled: u64,
}
