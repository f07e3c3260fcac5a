//! The state of the fleet, at a glance: for the status page, `sluiced status` and `sluiced top`.
//!
//! Problem: an operator sees one replica's metrics and log, or needs a dashboard first. So each replica sums
//! up its own state and reports it to the others through the store of the limits: at once when a tap closes,
//! for example, otherwise every five seconds. A replica that stops reports that, and one that is silent is
//! shown as such. Any of them can be asked about all, and reads their reports only then. The numbers are
//! those of `/metrics` (`sample` reads the same meters), so that the page and the dashboard cannot differ. The use
//! of the limits in the last minutes is kept by the store, not by replicas, which come and go. Delay and
//! backlog of the last minutes are what the asked replica saw (`history`).
//!
//! ```text
//! /metrics, health, last warnings ──sample──> Replica ──board──> store <──board── the other replicas
//!                                                                  └──board──> /status.json, /, status, top
//! ```
//!
//! `state` is what one replica reports. `fleet` puts the reports together: sums over the fleet, the last events;
//! `explained` says why taps are closed, and `limit_status` whether a limit grants anything. [`admin`] is the listener
//! that serves them, with `/metrics` and the probes.
//!
//! **Public API**: [`Board`] makes and reads reports, [`Fleet`] is all of them together, [`admin`] serves them.
//!
//! **May know**: `core`, `ports`, `telemetry`.

pub mod admin;
mod board;
mod explained;
mod fleet;
mod history;
mod limit_status;
mod sample;
mod state;

use std::fmt;

use futures::future::BoxFuture;

pub use self::board::Board;
pub use self::fleet::{Fleet, RouteFacts, Routes};
pub use self::history::Curve;
pub use self::limit_status::{LimitState, LimitStatus, PresentFile};
pub use self::state::{
    CLOSED_HOURS, LimitUse, LimitWait, MOVING, Missing, PROBES_ONLY, Replica, RouteState,
};
pub use sluiced_ports::store::BARS;

/// The policies of all limits, as the store has them.
pub trait LimitInspector: Send + Sync + fmt::Debug {
    /// One entry for each limit, as `sluiced limits list --json` prints it. Empty if the store does not
    /// answer.
    fn inspect(&self) -> BoxFuture<'_, Vec<LimitStatus>>;
}
