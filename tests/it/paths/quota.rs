//! A provider that counts in its own fixed windows, is called by others too, and reports what is left: it
//! refuses no call of ours.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::{numbered, queue};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::eventually;

/// The provider's window, and the units in it.
const WINDOW: Duration = Duration::from_secs(10);
const UNITS: u64 = 150;
/// Others call so often, all the time. Together with 12 calls of ours, that is more than the window holds.
const OTHERS_PER_SECOND: f64 = 5.0;
/// The limit is frozen when so many units are left. All callers together need 3.5 s for them: so long may an
/// answer and the freeze take on a slow machine.
const SPARE: u64 = 60;
/// Calls in flight are not yet in the provider's count: a limit is frozen earlier by so many at most.
const IN_FLIGHT: u64 = 9;
/// Messages of ours: about 64 leave in a window before the limit is frozen.
const OURS: u64 = 150;

/// What it counted.
#[derive(Default)]
struct Count {
    window: u64,
    /// Our calls in it.
    ours: u64,
    /// Calls that found no more than [`SPARE`] and [`IN_FLIGHT`] left, and calls that were refused.
    spent: u64,
    refused: u64,
}

impl Count {
    /// Counts a call. Returns whether it is taken, what is left, and how long until the next window.
    fn call(&mut self, at: Duration) -> (bool, u64, Duration) {
        let window = (at.as_micros() / WINDOW.as_micros()) as u64;
        if window != self.window {
            (self.window, self.ours) = (window, 0);
        }
        let since = at - WINDOW * u32::try_from(window).unwrap();
        let others = (since.as_secs_f64() * OTHERS_PER_SECOND) as u64;
        let is_taken = self.ours + others < UNITS;
        self.ours += u64::from(is_taken);
        self.refused += u64::from(!is_taken);
        let left = UNITS.saturating_sub(self.ours + others);
        self.spent += u64::from(left <= SPARE + IN_FLIGHT);
        (is_taken, left, WINDOW - since)
    }
}

/// The headers of an answer, from what is left and how long until the next window.
type Says = fn(u64, Duration) -> Vec<(&'static str, String)>;

async fn refuses_none(name: &'static str, limit: &'static str, tables: &str, says: Says) {
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, OURS)).await;
    let began = Instant::now();
    let count = Arc::new(Mutex::new(Count::default()));
    let counted = Arc::clone(&count);
    let downstream = Recorder::start(move |call: &Call| {
        let (is_taken, left, reset) = counted.lock().unwrap().call(call.at - began);
        Reply {
            latency: Duration::from_millis(60),
            headers: says(left, reset),
            ..Reply::status(if is_taken { 202 } else { 429 })
        }
    })
    .await;
    let route = Route {
        limits: vec![limit],
        keys: "prefetch = 40\n".to_owned(),
        tables: format!("[routes.{name}.downstream.quota.{limit}]\nspare = {SPARE}\n{tables}"),
        ..Route::new(name, downstream.address)
    };
    let config = Config::shared(name, "12/1s", vec![route]);
    let daemons = ["one", "two"].map(|_| Daemon::start(&config));
    eventually(LONG, "all came", || downstream.count() as u64 >= OURS).await;
    for daemon in daemons {
        daemon
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
    let count = count.lock().unwrap();
    assert_eq!(count.refused, 0, "none is refused");
    assert!(count.spent > 0, "the count was nearly used up");
    assert_eq!(downstream.count() as u64, OURS, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paced_limit_heeds_the_headers_of_the_ietf_draft() {
    let says: Says = |left, reset| {
        let policy = format!("\"window\";q={UNITS};w={}", WINDOW.as_secs());
        // Rounded down, as providers do.
        let limit = format!("\"window\";r={left};t={}", reset.as_secs());
        vec![("ratelimit-policy", policy), ("ratelimit", limit)]
    };
    refuses_none("quota-paced", "provider", "format = \"ietf\"\n", says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyed_limit_heeds_what_templates_find() {
    let says: Says = |left, reset| {
        vec![
            ("x-left", left.to_string()),
            ("x-again", format!("{}ms", reset.as_millis())),
        ]
    };
    let tables = r#"remaining = "{{ answer.headers['x-left'] }}"
reset = "{{ answer.headers['x-again'] }}"
[limits.each]
kind = "gcra"
rate = "12/1s"
burst = 3
"#;
    refuses_none("quota-keyed", "each", tables, says).await;
}

/// A time in the field for seconds: the longest wait that counts is that of the route, and it is counted. While
/// it lasts, it is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_that_is_too_far_away_is_cut_and_counted() {
    let name = "quota-far";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 2)).await;
    let downstream = Recorder::start(|call: &Call| Reply {
        headers: match call.number {
            1 => vec![("ratelimit", "\"window\";r=0;t=1764170000".to_owned())],
            _ => Vec::new(),
        },
        ..Reply::status(202)
    })
    .await;
    let route = Route {
        downstream: "max_throttle_wait = \"8s\"\n".to_owned(),
        tables: format!("[routes.{name}.downstream.quota.provider]\nformat = \"ietf\"\n"),
        ..Route::new(name, downstream.address)
    };
    let config = Config::shared(name, "100/1s", vec![route]);
    let mut daemon = Daemon::start(&config);
    let address = daemon.admin().await;
    let frozen = "frozen, as the downstream asked";
    eventually(LONG, "the freeze is named", || {
        get(address, "/readyz").1.contains(frozen)
    })
    .await;
    eventually(LONG, "both came", || downstream.count() == 2).await;
    let claims = format!("sluiced_implausible_answers_total{{route=\"{name}\",what=\"quota\"}}");
    assert_eq!(daemon.metric(&claims).await, 1.0);
    let said = "for longer than max_throttle_wait";
    daemon.says(said).await;
    let unread = "does not say what is left";
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk", said, unread])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_in_flight_freeze_a_limit_once() {
    let name = "quota-once";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 60)).await;
    // Some forty calls leave before the first answer.
    let downstream = Recorder::start(|_: &Call| Reply {
        latency: Duration::from_millis(400),
        headers: vec![("ratelimit", "\"window\";r=0;t=1".to_owned())],
        ..Reply::status(202)
    })
    .await;
    let route = Route {
        tables: format!("[routes.{name}.downstream.quota.provider]\nformat = \"ietf\"\n"),
        ..Route::new(name, downstream.address)
    };
    let config = Config::shared(name, "100/1s", vec![route]);
    let mut daemons = ["one", "two"].map(|_| Daemon::start(&config));
    eventually(LONG, "all came", || downstream.count() >= 60).await;
    let mut freezes = 0.0;
    for daemon in &mut daemons {
        freezes += daemon
            .metric("sluiced_freezes_total{limit=\"provider\"}")
            .await;
    }
    assert!((1.0..=8.0).contains(&freezes), "{freezes} freezes");
    for daemon in daemons {
        daemon
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
}
