//! The path of one message, from the queue to its verdict.
//!
//! ```text
//! receive -> decode -> ready -> admit -> pace (slot) -> send -> judge the answer -> settle
//! `intake`                    `admission`   `pacer`    `call`  `route_policy`
//! ```
//!
//! Each route has an intake task on the shared runtime. Each paced limit, and each route without
//! one, has a pacer: a thread with a
//! runtime of its own that waits for slots and sends the calls, so that neither AMQP traffic nor
//! decoding can delay a slot. Messages and verdicts travel through channels whose content is
//! bounded by the prefetch. The pipeline knows the traits of `ports`, never a backend.

mod admission;
mod alarm;
mod booking;
mod call;
mod desk;
mod door;
mod intake;
mod job;
mod pacer;
mod permit;
mod policies;
mod route;
mod route_policy;
mod tap;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

pub use policies::{BudgetPolicy, PolicySpec, Read, Written};
pub use route::{Counted, Counting, Route, RouteSpec};
pub use route_policy::RoutePolicy;

use crate::core::budget::Rule;
use crate::core::lane::Lane;
use crate::core::leases::{LeaseHolder, Phase};
use crate::core::pacing::{Pacing, Row};
use crate::core::petitions::Petitions;
use crate::core::schedule::Pace;
use crate::ports::budget::{BudgetStore, HEARTBEAT, Terms};
use crate::ports::clock::Clock;
use crate::ports::pace::{PaceStore, PacedLimit};
use crate::ports::queue::Leftover;
use crate::telemetry::health::Health;
use crate::telemetry::meters::{BudgetMeters, LaneMeters, PolicyMeters};
use admission::Counters;
use job::Job;
use pacer::{Pacer, PacerHandle};
use permit::{Clerk, Tickets};
use policies::{InForce, Paces, Watch};

/// Routes that take the same slots.
#[derive(Debug)]
pub struct LaneSpec {
    /// The paced limit's name, or another one for a route without one.
    pub name: Arc<str>,
    /// `None`: slots are always due.
    pub rows: Option<PacedRows>,
    /// `None`: nobody can change the paced limit while it runs, or there is none.
    pub policy: Option<PolicySpec<Vec<Pace>>>,
    pub budgets: Budgets,
    pub routes: Vec<RouteSpec>,
}

/// The rows of slots of a paced limit.
#[derive(Clone, Debug)]
pub struct PacedRows {
    pub main: PacedLimit,
    /// Slots that only urgent messages may take.
    pub reserve: Option<PacedLimit>,
    pub store: Arc<dyn PaceStore>,
}

impl PacedRows {
    fn limit(&self, row: Row) -> Option<&PacedLimit> {
        match row {
            Row::Main => Some(&self.main),
            Row::Reserve => self.reserve.as_ref(),
        }
    }

    /// Other terms are in force.
    fn adopt(&mut self, terms: &Paces) {
        let rows = std::iter::once(&mut self.main).chain(&mut self.reserve);
        for (row, pace) in rows.zip(&terms.policy) {
            row.pace = *pace;
            row.known = terms.version;
        }
    }

    fn per_second(&self) -> f64 {
        let reserve = self.reserve.as_ref().map_or(0.0, |r| r.pace.per_second());
        self.main.pace.per_second() + reserve
    }
}

/// What asking budgets takes. A lane without a paced limit has the store's time from there too.
#[derive(Clone, Debug)]
pub struct Budgets {
    pub store: Arc<dyn BudgetStore>,
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
/// How long refunds and releases may take at the end.
const CLERKS_BOUND: Duration = Duration::from_secs(1);

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    pacers: Vec<PacerHandle>,
    routes: Vec<Arc<Route>>,
    intakes: JoinSet<()>,
    clerks: JoinSet<()>,
    /// Those that keep us at what is in force; they end with the pipeline.
    watches: JoinSet<()>,
    tickets: Arc<Tickets>,
}

impl Pipeline {
    /// Starts everything; taps open by themselves once the limits can be asked.
    ///
    /// # Errors
    /// When a pacer thread cannot be started.
    pub fn start(
        lanes: Vec<LaneSpec>,
        policies: Vec<BudgetPolicy>,
        clock: Clock,
        phase: Phase,
        health: &Health,
    ) -> Result<Self, StartError> {
        let mut pipeline = Self {
            pacers: Vec::new(),
            routes: Vec::new(),
            intakes: JoinSet::new(),
            clerks: JoinSet::new(),
            watches: JoinSet::new(),
            tickets: Arc::new(Tickets::new(rand::random())),
        };
        let outdated = policies.iter().map(|s| Arc::clone(&s.limit.name));
        let outdated: BTreeMap<_, _> = outdated.map(|n| (n, Arc::new(Notify::new()))).collect();
        let outdated = Arc::new(outdated);
        for spec in lanes {
            pipeline.add(spec, &outdated, clock, phase, health)?;
        }
        for policy in policies {
            if let Some(outdated) = outdated.get(&policy.limit.name) {
                pipeline.watch(policy, Arc::clone(outdated), phase);
            }
        }
        Ok(pipeline)
    }

    /// Starts the pacer of a lane, the intakes of its routes, and what keeps it at what is in force.
    fn add(
        &mut self,
        spec: LaneSpec,
        outdated: &Arc<BTreeMap<Arc<str>, Arc<Notify>>>,
        clock: Clock,
        phase: Phase,
        health: &Health,
    ) -> Result<(), StartError> {
        let name = spec.name;
        let routes: Vec<_> = spec
            .routes
            .into_iter()
            .map(|spec| Arc::new(Route::new(spec)))
            .collect();
        let lane = lane(spec.rows.as_ref(), &routes, phase);
        let counters = self.counters(&name, spec.budgets, &routes, outdated, clock);
        let named = (Arc::clone(&name), spec.rows);
        let retimed = Arc::new(Notify::new());
        let pacer = Pacer::start(
            lane,
            named,
            counters,
            Arc::clone(&retimed),
            routes.clone(),
            clock,
            health,
        )
        .map_err(|source| StartError {
            limit: name.to_string(),
            source,
        })?;
        if let Some(spec) = spec.policy {
            let watch = Watch {
                meters: PolicyMeters::new(&name),
                limit: name,
                spec,
                phase,
                outdated: retimed,
            };
            self.watches.spawn(watch.run(pacer.adopter()));
        }
        for route in routes {
            self.intakes
                .spawn(intake::run(Arc::clone(&route), pacer.intake(), clock));
            self.routes.push(route);
        }
        self.pacers.push(pacer);
        Ok(())
    }

    /// Keeps a budget, and all pacers that ask it, at what is in force.
    fn watch(&mut self, policy: BudgetPolicy, outdated: Arc<Notify>, phase: Phase) {
        let BudgetPolicy { limit, spec } = policy;
        let watch = Watch {
            meters: PolicyMeters::new(&limit.name),
            limit: Arc::clone(&limit.name),
            spec,
            phase,
            outdated,
        };
        let updaters: Vec<_> = self.pacers.iter().map(PacerHandle::updater).collect();
        let adopt = move |terms: InForce<Rule>| {
            let (rule, version) = (terms.policy, terms.version);
            limit.adopt(Terms { rule, version });
            for update in &updaters {
                update(Arc::clone(&limit.name), terms.paused_until);
            }
        };
        self.watches.spawn(watch.run(adopt));
    }

    /// What asking a lane's budgets takes; its clerk starts to work.
    fn counters(
        &mut self,
        lane: &str,
        budgets: Budgets,
        routes: &[Arc<Route>],
        outdated: &Arc<BTreeMap<Arc<str>, Arc<Notify>>>,
        clock: Clock,
    ) -> Counters {
        let limits = || routes.iter().flat_map(|route| route.counting.budgets());
        let meters: BTreeMap<_, _> = limits()
            .map(|limit| (Arc::clone(&limit.name), BudgetMeters::new(&limit.name)))
            .collect();
        let meters = Arc::new(meters);
        let store = budgets.store;
        let (free, freed) = mpsc::unbounded_channel();
        let (clerk, work) = Clerk::new(
            Arc::clone(&store),
            Arc::clone(&meters),
            limits().cloned().collect(),
            clock,
            free,
        );
        self.clerks.spawn(work);
        Counters {
            store,
            tickets: Arc::clone(&self.tickets),
            clerk,
            freed,
            outdated: Arc::clone(outdated),
            lane_meters: LaneMeters::new(lane),
            meters,
        }
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
        // Nobody can tell them anything any more; what they were told they still pass on.
        let clerks = async { while self.clerks.join_next().await.is_some() {} };
        if tokio::time::timeout(CLERKS_BOUND, clerks).await.is_err() {
            self.clerks.shutdown().await;
        }
        remains
    }
}

/// A lane for these rows that asks budgets if a route's messages are counted in some, or if it
/// has no other way to know the time.
fn lane(rows: Option<&PacedRows>, routes: &[Arc<Route>], phase: Phase) -> Lane<Job> {
    let headrooms = routes.iter().flat_map(|route| route.counting.budgets());
    let headroom = headrooms.map(|limit| limit.headroom()).min();
    let pacing = match rows {
        Some(rows) => {
            let holder = |limit: &PacedLimit| LeaseHolder::new(limit.pace, phase);
            Pacing::with_reserve(holder(&rows.main), rows.reserve.as_ref().map(holder))
        }
        None => Pacing::free(),
    };
    let petitions = (headroom.is_some() || rows.is_none())
        .then(|| Petitions::new(headroom.unwrap_or_default(), HEARTBEAT, phase));
    Lane::with(pacing, petitions)
}
