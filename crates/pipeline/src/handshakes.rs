//! Measures the way to the downstream of each route, and warns where a limit allows too little for it.
//!
//! A task makes a handshake now and then (`ports::downstream`), several in a row at the start, and notes the results
//! (`route::way`, `core::headroom`). If the way varies by more than the headroom allows for, and that lasts, it warns.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use sluiced_core::headroom::{HeadroomTooShort, Spread};
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::limits::KeyedLimit;
use sluiced_telemetry::{LogLimit, Suppressed};

use super::handle::PacerHandle;
use super::route::Route;

/// This many handshakes are made in a row at the start, this far apart.
const FIRST: usize = 8;
const FIRST_APART: Duration = Duration::from_millis(20);
/// How far apart handshakes are after that.
const APART: Duration = Duration::from_secs(5);
/// How far apart they are where a headroom follows them.
const APART_FOLLOWED: Duration = Duration::from_secs(1);
/// A handshake that takes longer is given up.
const BOUND: Duration = Duration::from_secs(2);
/// A warning is logged when the way has varied by too much for this long, and again after the second.
const LASTS: Duration = Duration::from_secs(30);
const WARN_EVERY: Duration = Duration::from_secs(600);

/// Measures for as long as it is polled.
pub(super) async fn measure(route: Arc<Route>, pacer: Arc<PacerHandle>) {
    let mut warning = WayWarning::new();
    let (mut tried, mut made) = (0, 0);
    loop {
        if let Some(known_way) = route.downstream.known_way() {
            route.way.note_known(known_way);
            warning.look(&route, &pacer, Some(known_way));
            sleep(APART_FOLLOWED).await;
            continue;
        }
        let handshake = route.downstream.handshake(BOUND).await;
        tried += 1;
        if let Some(shake) = &handshake {
            made += 1;
            route.way.note_handshake(shake.took, clock::now());
        }
        let seen = route.way.spread(clock::now());
        warning.look(&route, &pacer, seen);
        let is_local = handshake.is_some_and(|shake| shake.is_local);
        if is_local || tried >= FIRST {
            route.way.note_first();
        }
        // Of a downstream that was away, too, the first ones follow each other.
        let in_a_row = made < FIRST && (handshake.is_some() || tried < FIRST);
        sleep(if in_a_row {
            FIRST_APART
        } else if route.way.is_needed() {
            APART_FOLLOWED
        } else {
            APART
        })
        .await;
    }
}

/// Decides when to warn that a limit allows too little.
struct WayWarning {
    since: Option<Mono>,
    said: LogLimit,
    is_on: bool,
}

impl WayWarning {
    const fn new() -> Self {
        Self {
            since: None,
            said: LogLimit::new(WARN_EVERY),
            is_on: false,
        }
    }

    fn look(&mut self, route: &Route, pacer: &PacerHandle, seen: Option<Spread>) {
        let Some((limit, kept)) = kept(route, pacer) else {
            return;
        };
        let meters = &route.meters;
        meters.way_kept.set(kept.as_secs_f64());
        let Some(seen) = seen else {
            return;
        };
        meters.way.set(seen.median.as_secs_f64());
        meters.way_spread.set(seen.spread.as_secs_f64());
        let is_too_short = seen.spread > kept;
        if let Some(more) = self.due(is_too_short, clock::now()) {
            let limit = &*limit;
            let too_short = HeadroomTooShort { limit, kept, seen };
            warn!(route = %route.name, "{too_short}{more}");
        } else if !is_too_short && std::mem::take(&mut self.is_on) {
            info!(route = %route.name, "the headroom keeps enough for the way to the downstream again");
        }
    }

    /// Whether to warn now, if the limit allows too little.
    fn due(&mut self, is_too_short: bool, now: Mono) -> Option<Suppressed> {
        let since = *self.since.get_or_insert(now);
        if !is_too_short {
            self.since = None;
            return None;
        }
        if now.since(since) < LASTS {
            return None;
        }
        let suppressed = self.said.event(now);
        self.is_on |= suppressed.is_some();
        suppressed
    }
}

/// The limit of the route that allows the least for the way, and how much that is. Calls in flight are
/// counted for as long as they last, so their limit does not count here.
fn kept(route: &Route, pacer: &PacerHandle) -> Option<(Arc<str>, Duration)> {
    let paced = pacer.rows().map(|rows| {
        let main = rows.main;
        (Arc::clone(&main.of), main.pace.kept_for_the_way())
    });
    let all = route.counting.keyed();
    let keyed = all.filter(|limit| !limit.counts_calls());
    let way =
        |limit: &Arc<KeyedLimit>| (Arc::clone(&limit.name), limit.policy().rule.headroom().way);
    paced
        .into_iter()
        .chain(keyed.map(way))
        .min_by_key(|(_, way)| *way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_the_way_varies_is_said_once_it_lasts_and_seldom_after_that() {
        let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
        let mut warning = WayWarning::new();
        let mut said = |too_short, seconds| warning.due(too_short, at(seconds)).is_some();
        assert!(!said(true, 100) && !said(true, 129) && said(true, 130));
        assert!(!said(true, 135) && !said(true, 729) && said(true, 730));
        // It was over in between.
        assert!(!said(false, 2_000) && !said(true, 2_005) && !said(true, 2_034));
        assert!(said(true, 2_035));
    }
}
