//! The path of one message, from the queue to its verdict.
//!
//! Problem: a message passes many decisions and several servers, each of which may fail at any moment, and it must
//! neither be lost nor called twice for nothing. So each stage is one file, a message is one value that moves through
//! them, and the decisions are those of `core`:
//!
//! ```text
//! receive -> decode -> (ready) -> admit -> pacer (slot) -> send -> after_call -> ends -> settled
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `receive` | takes deliveries from a queue |
//! | `decode` | makes messages of them; `history` is what their headers say, `job` has the types of a message |
//! | `handle` | the channel to a pacer: calls and routes report to its loop as a `PacerEvent` |
//! | `pacer` | the loop, which asks `core::scheduler` what to do; `alarm` is its timer |
//! | `admit` | asks the keyed limits for the messages that the next slots would take |
//! | `send` | makes the call |
//! | `after_call` | does what `core::after_call` decides from the answer, whose numbers `figures` reads |
//! | `again` | makes the request once more, for another call |
//! | `uncalled` | messages that leave without a call |
//! | `unsettled` | a message without a verdict yet: dropped, it goes back with its history |
//! | `bounds` | the largest size and cost of a message |
//! | `verdict` | makes the verdicts that end a message or park it |
//! | `ends` | hands the verdicts to the queue; beside it the journal and results |
//! | `route` | the parts of a route: whether it sends and consumes, what it holds, what it knows of other routes |
//! | `permit` | what a message took of its keyed limits, and how that is returned |
//! | `limit` | what is known of a limit: its current policy, its rows, what was measured |
//! | `policies` | keeps limits and routes at what the fleet has agreed on |
//! | `handshakes` | measures the network to the downstream |
//! | `progress` | watches that calls leave |
//! | `pipeline` | makes all of it, starts it and stops it |
//! | `meters` | what is counted |
//!
//! Modules import in one direction, downwards in this list of layers or to the right in a line, without cycles:
//!
//! ```text
//! pipeline
//! pacer    receive    handshakes    policies    progress    alarm
//! send     admit      uncalled      decode
//! after_call          again         figures
//! handle
//! job
//! verdict             permit        limit
//! route
//! ends
//! unsettled
//! history             meters        bounds
//! ```
//!
//! The `pacer` is a thread with a runtime of its own for each paced limit, and for each route without one: it waits for
//! slots and sends, so that neither AMQP traffic nor decoding can delay a slot.
//!
//! Messages travel through channels whose content is bounded by the prefetch.
//!
//! **Public API**: [`Pipeline`] is started from a [`PacerSpec`] for each paced limit and for each route without one,
//! with a [`RouteSpec`] for each route.
//!
//! **May know**: `core`, `template`, `telemetry`, and the traits of `ports`; no backend, and of the configuration plain
//! values only.

mod admit;
mod after_call;
mod again;
mod alarm;
mod bounds;
mod decode;
mod ends;
mod figures;
mod handle;
mod handshakes;
mod history;
mod job;
mod limit;
pub mod meters;
mod pacer;
mod permit;
mod pipeline;
mod policies;
mod progress;
mod receive;
mod route;
mod send;
mod uncalled;
mod unsettled;
mod verdict;

pub use bounds::{check_cost, check_size};
pub use ends::arrivals::publish_arrivals;
pub use ends::journal::Journal;
pub use ends::results::{ComesBack, ResultRules, Results};
pub use limit::facts::{Change, Changed, CurrentLimit, FileLimit, LimitFacts, RateBounds};
pub use limit::rows::{PacedRows, SlotSource};
pub use pipeline::{PacerSpec, Pipeline, PipelineLeftover, PipelineSpec, StartError};
pub use policies::owner::{RegistrationHandle, RegistrationSpec, RegistrationState};
pub use policies::{FileWatch, KeyedPolicy};
pub use route::rules::{AnswerRules, Priority, RouteRules, Tenants, WhenUnsendable};
pub use route::{RouteLimit, RouteLimits, RouteSpec};
