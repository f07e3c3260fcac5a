//! The path of one message, from the queue to its verdict.
//!
//! ```text
//! receive -> decode -> ready -> pace (slot) -> send -> judge the answer -> settle
//! `intake`                      `pacer`        `call`  `policy`
//! ```
//!
//! Each route has an intake task on the shared runtime. Each limit has a pacer: a thread with a
//! runtime of its own that waits for slots and sends the calls, so that neither AMQP traffic nor
//! decoding can delay a slot. Messages and verdicts travel through channels whose content is
//! bounded by the prefetch. The pipeline knows the traits of `ports`, never a backend.

mod alarm;
mod call;
mod desk;
mod door;
mod intake;
mod job;
mod pacer;
mod policy;
mod route;
mod standing;
mod tap;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

pub use policy::Policy;
pub use route::{Route, RouteSpec};
pub use standing::{Read, StandingSpec, Written};

use crate::core::keeper::Phase;
use crate::ports::clock::Clock;
use crate::ports::pace::{PaceStore, PacedLimit};
use crate::ports::queue::Leftover;
use crate::telemetry::health::Health;
use crate::telemetry::meters::{LimitMeters, StandingMeters};
use pacer::{Pacer, PacerHandle};
use standing::Watch;

/// One limit and the routes that send under it.
#[derive(Debug)]
pub struct LaneSpec {
    pub limit: PacedLimit,
    pub store: Arc<dyn PaceStore>,
    /// `None`: nobody can change the limit while it runs.
    pub standing: Option<StandingSpec>,
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

/// How long the verdicts may take to become safe after the last call has ended.
const CLOSE_BOUND: Duration = Duration::from_secs(5);

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    pacers: Vec<PacerHandle>,
    routes: Vec<Arc<Route>>,
    intakes: JoinSet<()>,
    /// They end with the pipeline.
    _watches: Vec<AbortOnDropHandle<()>>,
}

impl Pipeline {
    /// Starts everything; taps open by themselves once the limits can be asked.
    ///
    /// # Errors
    /// When a pacer thread cannot be started.
    pub fn start(
        lanes: Vec<LaneSpec>,
        clock: Clock,
        phase: Phase,
        health: &Health,
    ) -> Result<Self, StartError> {
        let mut pipeline = Self {
            pacers: Vec::new(),
            routes: Vec::new(),
            intakes: JoinSet::new(),
            _watches: Vec::new(),
        };
        for LaneSpec {
            limit,
            store,
            standing,
            routes,
        } in lanes
        {
            let name = limit.name.clone();
            let meters = Arc::new(LimitMeters::new(&name));
            let routes: Vec<_> = routes
                .into_iter()
                .map(|spec| Arc::new(Route::new(spec)))
                .collect();
            let outdated = Arc::new(Notify::new());
            let pacer = Pacer::start(
                limit,
                Arc::clone(&outdated),
                store,
                meters,
                routes.clone(),
                clock,
                phase,
                health,
            )
            .map_err(|source| StartError {
                limit: name.to_string(),
                source,
            })?;
            if let Some(spec) = standing {
                let watch = Watch {
                    meters: StandingMeters::new(&name),
                    limit: name,
                    spec,
                    phase,
                    outdated,
                };
                let task = tokio::spawn(watch.run(pacer.adopter()));
                pipeline._watches.push(AbortOnDropHandle::new(task));
            }
            for route in routes {
                pipeline
                    .intakes
                    .spawn(intake::run(Arc::clone(&route), pacer.intake(), clock));
                pipeline.routes.push(route);
            }
            pipeline.pacers.push(pacer);
        }
        Ok(pipeline)
    }

    /// Waits until no route can deliver anything any more (an embedded queue is empty).
    pub async fn ended(&mut self) {
        while self.intakes.join_next().await.is_some() {}
    }

    /// Stops consuming, lets calls that were started finish within `grace`, gives the rest back.
    pub async fn stop(mut self, grace: Duration) -> Remains {
        let mut remains = Remains::default();
        let stops: Vec<_> = self
            .pacers
            .drain(..)
            .map(|pacer| pacer.stop(grace))
            .collect();
        for stopped in futures::future::join_all(stops).await {
            remains.abandoned += stopped.abandoned;
            remains.given_back += stopped.given_back;
        }
        let closes = self
            .routes
            .iter()
            .map(|route| route.subscription.close(CLOSE_BOUND));
        for Leftover {
            given_back,
            unsettled,
        } in futures::future::join_all(closes).await
        {
            remains.given_back += given_back;
            remains.unsettled += unsettled;
        }
        self.intakes.shutdown().await;
        remains
    }
}
