//! The pipeline: how its parts are made, joined and started, and how they are stopped.
//!
//! For each pacer: its routes, a scheduler, a refunder, and the handle through which calls and routes reach it. For
//! each route: a task that receives, and one that measures the way to the downstream. For each limit, and for each
//! route: a task that keeps it at what the store says.
//!
//! It is stopped in the order in which messages pass: no new ones come, calls end, their verdicts become safe, and what
//! was not used is returned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::handle::{PacerEvent, PacerHandle};
use super::job::WaitingMessage;
use super::limit::CurrentPolicy;
use super::limit::rows::{PacedRows, SlotSource};
use super::meters::KeyedMeters;
use super::pacer::{Pacer, Parts};
use super::permit::refunder::Refunder;
use super::permit::tickets::Tickets;
use super::policies::adapting::Adapting;
use super::policies::owner::RegistrationState;
use super::policies::{FileWatch, KeyedPolicy, PolicyDeclarer, PolicyWatch};
use super::policies::{owner, pause};
use super::route::Route;
use super::route::RouteSpec;
use super::route::sharing;
use super::{handshakes, meters, receive};
use sluiced_core::jitter::Jitter;
use sluiced_core::leases::LeaseHolder;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::pacing::{Pacing, RowPaces};
use sluiced_core::rate::Span;
use sluiced_core::scheduler::{Questions, Scheduler};
use sluiced_ports::limits::{GrantedCharge, LimitStore, RuleInForce};
use sluiced_ports::policies::pause_of;
use sluiced_ports::queue::Leftover;
use sluiced_ports::store::{Family, PacedRow, Store};
use sluiced_telemetry::health::Health;
use sluiced_telemetry::waits::Waits;

/// How long the verdicts may take to become safe after the last call has ended.
const CLOSE_BOUND: Duration = Duration::from_secs(5);
/// How long refunds and releases may take at the end.
const REFUND_BOUND: Duration = Duration::from_secs(1);
/// How long the last questions and their refunds may take, and the report that this replica leaves.
const LEAVE_BOUND: Duration = Duration::from_secs(2);

/// A pacer and the routes that take its slots.
#[derive(Debug)]
pub struct PacerSpec {
    /// The name of the paced limit; of a route without one, a name of its own.
    pub name: Arc<str>,
    pub slots: SlotSource,
    /// `None`: the paced limit cannot be changed while it runs, or there is none.
    pub policy: Option<FileWatch<RowPaces>>,
    pub routes: Vec<RouteSpec>,
}

/// A pacer thread that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("no thread or timer for the pacer `{pacer}`: {source}")]
pub struct StartError {
    pacer: String,
    source: std::io::Error,
}

/// What was left when the pipeline was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineLeftover {
    /// Calls that were cut off, because they, or what follows from them, had not ended at the end of the grace. Their
    /// messages may be sent again.
    pub cut_off: u64,
    /// Messages that went back to the queue unsent.
    pub given_back: u64,
    /// Verdicts that could not be made safe in time: the broker delivers these again.
    pub unsettled: u64,
    /// A queue did not report its end: it is not known whether the verdicts that were given are safe.
    pub is_unknown: bool,
}

/// What a pipeline is made of.
#[derive(Debug)]
pub struct PipelineSpec {
    /// What the replicas share.
    pub store: Arc<dyn Store>,
    /// The name of this replica.
    pub replica: String,
    pub pacers: Vec<PacerSpec>,
    /// The keyed limits whose policies may change while they run.
    pub keyed_policies: Vec<KeyedPolicy>,
    /// Whether the names of its limits and routes belong to this fleet.
    pub ownership: watch::Receiver<RegistrationState>,
}

/// A running pipeline.
#[derive(Debug)]
pub struct Pipeline {
    store: Arc<dyn Store>,
    replica: String,
    pacers: Vec<Arc<PacerHandle>>,
    /// Each with its pacer.
    routes: Vec<(Arc<Route>, Arc<PacerHandle>)>,
    receivers: JoinSet<()>,
    refunders: JoinSet<()>,
    /// The tasks that keep limits and routes at what the store says, and those that measure the way to the downstreams;
    /// they end with the pipeline.
    watches: JoinSet<()>,
    tickets: Arc<Tickets>,
    /// The limits whose policies this replica declares.
    declarers: Vec<PolicyDeclarer>,
    ownership: watch::Receiver<RegistrationState>,
    jitter: Jitter,
}

impl Pipeline {
    /// Starts everything; taps open by themselves once the limits can be asked. Until the names of the limits belong
    /// to this fleet, no policy is declared and no message is decoded.
    ///
    /// # Errors
    /// When a pacer thread cannot be started.
    pub fn start(spec: PipelineSpec, jitter: Jitter, health: &Health) -> Result<Self, StartError> {
        let mut pipeline = Self {
            store: spec.store,
            replica: spec.replica,
            pacers: Vec::new(),
            routes: Vec::new(),
            receivers: JoinSet::new(),
            refunders: JoinSet::new(),
            watches: JoinSet::new(),
            tickets: Arc::new(Tickets::new(rand::random())),
            declarers: Vec::new(),
            ownership: spec.ownership,
            jitter,
        };
        for pacer in spec.pacers {
            pipeline.add(pacer, health)?;
        }
        sharing::introduce(pipeline.routes.iter().map(|(route, _)| route));
        for policy in spec.keyed_policies {
            pipeline.watch_keyed_limit(policy);
        }
        pipeline.watch_pauses(health.waits());
        Ok(pipeline)
    }

    fn declarer(&self, family: Family, limit: impl Into<Arc<str>>) -> PolicyDeclarer {
        PolicyDeclarer {
            store: Arc::clone(&self.store),
            family,
            limit: limit.into(),
            replica: self.replica.clone(),
        }
    }

    /// Keeps each route at what operators say about it.
    fn watch_pauses(&mut self, waits: &Waits) {
        for (route, pacer) in &self.routes {
            let declarer = self.declarer(Family::Paced, pause_of(&route.name));
            let (route, pacer) = (Arc::clone(route), Arc::clone(pacer));
            let watch = pause::watch(route, pacer, declarer, waits.clone(), self.jitter);
            let once_registered = owner::once_registered(&self.ownership, watch);
            self.watches.spawn(once_registered);
        }
    }

    /// Starts a pacer, the receivers of its routes, and what keeps it at its current policy.
    fn add(&mut self, spec: PacerSpec, health: &Health) -> Result<(), StartError> {
        let name = spec.name;
        let numbered = spec.routes.into_iter().zip(self.routes.len()..);
        let routes: Vec<_> = numbered
            .map(|(spec, number)| Route::open(spec, number, health))
            .collect();
        let scheduler = scheduler(spec.slots.rows(), &*self.store, &routes, self.jitter);
        let (sender, events) = mpsc::unbounded_channel();
        let outgoing = sender.clone();
        let freed = move |calls| drop(outgoing.send(PacerEvent::CallsEnded(calls)));
        let (refunder, limit_meters) = self.start_refunder(&routes, freed);
        let outdated = Arc::new(Notify::new());
        let declarer = self.declarer(Family::Paced, Arc::clone(&name));
        let may_change = spec.policy.is_some();
        let adapting = may_change.then(|| Adapting::new(declarer.clone()));
        let pacer = PacerHandle::new(
            Arc::clone(&name),
            spec.slots,
            Arc::clone(&self.store),
            refunder,
            sender,
        );
        let parts = Parts {
            scheduler,
            tickets: Arc::clone(&self.tickets),
            limit_meters,
            adapting,
            routes: routes.clone(),
            events,
            outdated: Arc::clone(&outdated),
        };
        Pacer::start(Arc::clone(&pacer), parts, health).map_err(|source| StartError {
            pacer: name.to_string(),
            source,
        })?;
        let with_pacer: Vec<_> = routes
            .into_iter()
            .map(|route| (route, Arc::clone(&pacer)))
            .collect();
        if let Some(file) = spec.policy {
            let handle = Arc::clone(&pacer);
            let adopt = move |policy, paces| handle.send(PacerEvent::PacedPolicy(policy, paces));
            self.spawn_watch(declarer, file, with_pacer.clone(), outdated, adopt);
        }
        self.start_receivers(&with_pacer);
        self.routes.extend(with_pacer);
        self.pacers.push(pacer);
        Ok(())
    }

    /// Starts the tasks that receive messages for these routes, and the tasks that measure the way to their
    /// downstreams.
    fn start_receivers(&mut self, routes: &[(Arc<Route>, Arc<PacerHandle>)]) {
        for (route, pacer) in routes {
            let receive = receive::run(Arc::clone(route), Arc::clone(pacer));
            let once_registered = owner::once_registered(&self.ownership, receive);
            self.receivers.spawn(once_registered);
            let measure = handshakes::measure(Arc::clone(route), Arc::clone(pacer));
            self.watches.spawn(measure);
        }
    }

    /// Keeps a keyed limit, and all pacers that ask it, at its current policy.
    fn watch_keyed_limit(&mut self, KeyedPolicy { limit, file }: KeyedPolicy) {
        let is_counted = |(route, _): &&(Arc<Route>, _)| route.counting.counts(&limit.name);
        let counted = self.routes.iter().filter(is_counted).cloned().collect();
        let declarer = self.declarer(Family::Keyed, Arc::clone(&limit.name));
        let outdated = Arc::clone(&limit.outdated);
        let pacers = self.pacers.clone();
        let adopt = move |policy: Arc<CurrentPolicy>, rule| {
            if let Some(per_second) = policy.facts.per_second {
                meters::rate_of_keys(&limit.name, per_second);
            }
            limit.adopt(RuleInForce {
                rule,
                version: policy.stored.version,
            });
            for pacer in &pacers {
                pacer.send(PacerEvent::KeyedPolicy {
                    limit: Arc::clone(&limit.name),
                    paused_until: policy.paused_until(),
                });
            }
        };
        self.spawn_watch(declarer, file, counted, outdated, adopt);
    }

    /// Starts the task that keeps a limit at its current policy. `routes` are those that the limit counts; `outdated`
    /// is notified when the current policy is not the one that is known.
    fn spawn_watch<T: Send + 'static>(
        &mut self,
        declarer: PolicyDeclarer,
        file: FileWatch<T>,
        routes: Vec<(Arc<Route>, Arc<PacerHandle>)>,
        outdated: Arc<Notify>,
        adopt: impl Fn(Arc<CurrentPolicy>, T) + Send + Sync + 'static,
    ) {
        self.declarers.push(declarer.clone());
        let watch = PolicyWatch::new(declarer, file, routes, outdated, self.jitter);
        let once_registered = owner::once_registered(&self.ownership, watch.run(adopt));
        self.watches.spawn(once_registered);
    }

    /// Starts the refunder of a pacer; with the meters of its keyed limits.
    fn start_refunder(
        &mut self,
        routes: &[Arc<Route>],
        freed: impl Fn(Vec<GrantedCharge>) + Send + 'static,
    ) -> (Refunder, Arc<BTreeMap<Arc<str>, KeyedMeters>>) {
        let limits = || routes.iter().flat_map(|route| route.counting.keyed());
        let meters: BTreeMap<_, _> = limits()
            .map(|limit| (Arc::clone(&limit.name), KeyedMeters::new(&limit.name)))
            .collect();
        let limit_meters = Arc::new(meters);
        let (refunder, work) = Refunder::new(
            Arc::clone(&self.store) as Arc<dyn LimitStore>,
            Arc::clone(&limit_meters),
            limits().cloned().collect(),
            freed,
        );
        self.refunders.spawn(work);
        (refunder, limit_meters)
    }

    /// Waits until a route can deliver nothing any more (an embedded queue is empty).
    pub async fn route_ended(&mut self) {
        self.receivers.join_next().await;
    }

    /// Stops consuming, lets calls that were started finish within `grace`, gives the rest back.
    pub async fn stop(mut self, grace: Duration) -> PipelineLeftover {
        let mut leftover = PipelineLeftover::default();
        let stops = self.pacers.iter().map(|pacer| pacer.stop(grace));
        for pacer_leftover in futures::future::join_all(stops).await {
            leftover.cut_off += pacer_leftover.cut_off;
            leftover.given_back += pacer_leftover.given_back;
        }
        let subscriptions = self.routes.iter().map(|(route, _)| &route.subscription);
        let closes = subscriptions.map(|subscription| subscription.close(CLOSE_BOUND));
        let leftovers = futures::future::join_all(closes).await;
        for ((route, _), left) in self.routes.iter().zip(leftovers) {
            let Leftover {
                given_back,
                unsettled,
                is_unknown,
            } = left;
            if is_unknown {
                tracing::warn!(route = %route.name,
                    "its queue did not report an end: the messages of the last verdicts may be delivered again");
            }
            leftover.given_back += given_back;
            leftover.unsettled += unsettled;
            leftover.is_unknown |= is_unknown;
        }
        self.receivers.shutdown().await;
        // The watches and the routes hold handles of the pacers, and these hold refunders. Once all have ended, the
        // refunders receive nothing more, and end when they have sent what they received.
        self.watches.shutdown().await;
        self.routes.clear();
        self.pacers.clear();
        let refunders = async { while self.refunders.join_next().await.is_some() {} };
        if tokio::time::timeout(REFUND_BOUND, refunders).await.is_err() {
            self.refunders.shutdown().await;
        }
        let leave = self.store.leave();
        let withdrawals =
            futures::future::join_all(self.declarers.iter().map(PolicyDeclarer::withdraw));
        // Until this replica is known to be gone, the next one that starts waits a second for its reports, and its
        // file counts among those of the others.
        drop(tokio::time::timeout(LEAVE_BOUND, futures::future::join(leave, withdrawals)).await);
        leftover
    }
}

/// A scheduler for these rows. It asks keyed limits if there are any, or if it has no other source
/// of the time.
fn scheduler(
    rows: Option<&PacedRows>,
    store: &dyn LimitStore,
    routes: &[Arc<Route>],
    jitter: Jitter,
) -> Scheduler<WaitingMessage> {
    let limits = || routes.iter().flat_map(|route| route.counting.keyed());
    let shortest = limits().map(|limit| limit.permit_validity()).min();
    let pacing = match rows {
        Some(rows) => {
            let holder = |limit: &PacedRow| LeaseHolder::new(limit.pace, jitter);
            Pacing::of_rows(holder(&rows.main), rows.reserve.as_ref().map(holder))
        }
        None => Pacing::unpaced(),
    };
    let waits = limits().any(|limit| limit.lost_wait != LostWait::For(Duration::ZERO));
    let startup_listen = if waits {
        store.startup_listen()
    } else {
        Duration::ZERO
    };
    if !startup_listen.is_zero() {
        tracing::info!(
            wait = %Span(startup_listen),
            "routes with keyed limits wait at first if other replicas run, to hear what these know of the store"
        );
    }
    let questions = (shortest.is_some() || rows.is_none()).then(|| {
        let permit_validity = shortest.unwrap_or_default();
        Questions::of(&pacing, permit_validity, jitter).with_startup_listen(startup_listen)
    });
    Scheduler::new(pacing, questions)
}
