//! Whether an operator paused a route (`sluiced routes pause`).
//!
//! Problem: one route must stop on every replica, also on one that starts or comes back meanwhile, while other routes
//! of its limits go on. The store keeps the pause as that of a limit without a policy (`core::policy`), so it arrives
//! in the same ways: by a notice, and every 20 s; and a replica that knows it gives it back to a store that lost it. If
//! nothing paces the route, the store is also asked whether the route is frozen.
//! The gate of the route does the rest: as in closed hours the tap closes, and messages wait in their queue. Until the
//! store answered for the first time, the gate is shut.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use sluiced_core::backoff::Failures;
use sluiced_core::gate::RoutePause;
use sluiced_core::jitter::Jitter;
use sluiced_core::policy::{Declaration, LimitPolicy};
use sluiced_ports::clock;
use sluiced_telemetry::note_change;
use sluiced_telemetry::waits::{ROUTE, Waits, WaitsFor};

use super::{BACKOFF, NOTICE_DELAY_MAX, PolicyDeclarer, news};
use crate::handle::{PacerEvent, PacerHandle};
use crate::route::Route;

/// How often the store is asked beside the notices: one may be lost, and a store that lost its state is to get the
/// pause back.
const ASK_INTERVAL: Duration = Duration::from_secs(20);

/// Keeps the gate of a route at what operators say, for as long as it is polled. No file has a policy for a pause, so a
/// replica that stops need not report that it leaves.
pub(crate) async fn watch(
    route: Arc<Route>,
    pacer: Arc<PacerHandle>,
    declarer: PolicyDeclarer,
    waits: Waits,
    jitter: Jitter,
) {
    let mut notices = declarer.store.notices();
    let mut known_policy: Option<LimitPolicy> = None;
    let mut failures = Failures::new(BACKOFF);
    loop {
        let declaration = Declaration {
            replica: declarer.replica.clone(),
            file: String::new(),
            known: known_policy.clone(),
        };
        // A command that resumes a route ends its freeze, too.
        pacer.ask_for_freeze().await;
        let wait = match declarer.policy().declare(&declaration).await {
            Ok(policy) => {
                failures.succeeded();
                let version = |policy: &LimitPolicy| policy.version;
                if known_policy.as_ref().map(version) != Some(policy.version) {
                    tell(&route.name, known_policy.as_ref(), &policy);
                    let pause = policy.pause.as_ref();
                    let pause = pause.map_or(RoutePause::None, |on| RoutePause::Until(on.until));
                    route.gate.with(|gate| gate.pause(pause));
                    pacer.send(PacerEvent::GateChanged);
                }
                let lasts = show(&route, &pacer, &policy, &waits);
                known_policy = Some(policy);
                lasts.min(ASK_INTERVAL - NOTICE_DELAY_MAX + jitter.of(NOTICE_DELAY_MAX))
            }
            Err(error) => {
                debug!(route = %route.name, %error, "it is not known whether the route is paused");
                failures.failed(clock::now(), rand::random())
            }
        };
        let version = known_policy.as_ref().map(|policy| policy.version);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            news = news(&mut notices, &declarer.limit, version) => {
                // The store must get the pause back at once.
                if !news.shows_a_loss(version) {
                    tokio::time::sleep(jitter.of(NOTICE_DELAY_MAX)).await;
                }
            }
        }
    }
}

/// Shows whether the pause lasts. Returns for how long that is true.
fn show(route: &Route, pacer: &PacerHandle, policy: &LimitPolicy, waits: &Waits) -> Duration {
    let now = clock::now();
    let pause_left = match (&policy.pause, pacer.known_store_time(now)) {
        (None, _) => Duration::ZERO,
        (Some(_), None) => return BACKOFF.base,
        (Some(pause), Some(here)) => pause.until.since(here),
    };
    let until = (!pause_left.is_zero()).then(|| now + pause_left);
    route
        .meters
        .paused
        .set(f64::from(u8::from(until.is_some())));
    let name = format!("{ROUTE}{}", route.name);
    waits.set_whole(&name, WaitsFor::Pause, until);
    match until {
        Some(_) => pause_left,
        None => ASK_INTERVAL,
    }
}

/// One line for a pause, and one for its end.
fn tell(route: &str, before: Option<&LimitPolicy>, now: &LimitPolicy) {
    let pause_before = before.and_then(|before| before.pause.as_ref());
    let version = now.updates;
    let change_text = match &now.pause {
        Some(pause) if pause_before != Some(pause) => {
            info!(route, version, by = pause.by, "the route is paused");
            format!("is paused by {}", pause.by)
        }
        None if pause_before.is_some() => {
            info!(route, version, by = now.resumed_by, "the route is resumed");
            format!("is resumed by {}", now.resumed_by)
        }
        Some(_) | None => return,
    };
    // A replica that starts tells of no change.
    if before.is_some() {
        note_change(&format!("route {route} {change_text} (version {version})"));
    }
}
