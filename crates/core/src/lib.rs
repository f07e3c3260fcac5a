//! Every decision of when a message may be sent, and what follows from its answer.
//!
//! Problem: many replicas share one limit, and processes crash, stand still, lose their store and read clocks that
//! step. Whether "never over, never idle" holds then cannot be seen on a test machine. So what decides is here, apart
//! from what acts: a decision takes what is known and `now`, and returns what is to be done. The daemon, the simulation
//! of a fleet and the property tests drive the same schedules, schedulers, limits and gates, and the scripts in Redis
//! are compared with them.
//!
//! **Public API**, from the limit inwards:
//!
//! | question | module |
//! |---|---|
//! | how many, how often | [`rate`] (units, costs, windows), [`calendar`], [`zone`], [`hours`] |
//! | a paced limit: which slot is whose | [`schedule`] (the shared row), [`leases`] (a replica's slots of it), [`jitter`] (not all at once), [`pacing`], [`headroom`] (how late is too late), [`adaptive`] (a rate that follows refusals) |
//! | every other limit: may this message go | [`limits`], one file a kind; [`limits::admission`] decides about many messages at once; [`distance`]: whether the store is near enough |
//! | which message goes next | [`scheduler::Scheduler`], [`message`] (what is known of each), [`parking`] (fair between tenants), [`sharing`] (routes of one queue), [`byte_budget`] |
//! | what an answer means, and what follows | [`judge`], [`after_call`], [`refusals`], [`breaker`], [`gate`], [`backoff`], [`unfit_run`] (messages that die in a row) |
//! | whether a route makes progress | [`stall`] (it stands still), [`ages`] (of its messages) |
//! | what the fleet agrees on | [`policy`] (the current limits), [`version`] (which of them), [`owner`] (whose they are), [`time`] (the store's clock and ours) |
//! | what the queue is told | [`acks`], [`ladder`] (in which wait queue a message waits) |
//! | an enum with a text for each value | [`labelled!`] |
//!
//! Begin with [`schedule`]: it decides the slots of a paced limit, and needs only values: [`rate`], [`time`],
//! [`headroom`], [`version`].
//!
//! **May know**: nothing of ours. No async, no I/O, no clock, no randomness: `now` is an argument, and so is a random
//! number.

#![warn(missing_docs)]

pub mod acks;
pub mod adaptive;
pub mod after_call;
pub mod ages;
pub mod backoff;
pub mod breaker;
pub mod byte_budget;
pub mod calendar;
pub mod distance;
pub mod gate;
pub mod headroom;
pub mod hours;
pub mod jitter;
pub mod judge;
mod labelled;
pub mod ladder;
pub mod leases;
pub mod limits;
pub mod message;
pub mod owner;
pub mod pacing;
pub mod parking;
pub mod policy;
pub mod rate;
pub mod refusals;
pub mod schedule;
pub mod scheduler;
pub mod sharing;
pub mod stall;
pub mod time;
pub mod unfit_run;
pub mod version;
pub mod zone;
