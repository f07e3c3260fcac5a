//! The connections of a downstream: opened, bound, kept and bound again.
//!
//! Each bind has a task on the runtime that sends. It connects, binds (`centre`), and then reads (`reading`).
//! When the connection ends for any reason, the calls without an answer end at once, and the task tries again
//! with backoff: soon if the centre could not be reached, more slowly if it refused the bind, because centres
//! lock accounts that try too often.
//!
//! Some centres accept a bind and end the session at once, with or without an `unbind`: the account has too many binds,
//! or the machine behind a balancer is down. So a session is good only once it lived for some seconds
//! ([`LIVED_LONG_ENOUGH`]). A shorter one counts as a failure, and the waits double until a session is good.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::centre::{BindSettings, Centre, FIRST_SEQUENCE, OpenError};
use super::reading::{SessionReader, UNBINDING};
use super::session::{Session, WriteOutcome};
use sluiced_core::backoff::Backoff;
use sluiced_net::connect::ServerStream;
use sluiced_pdu::Command;
use sluiced_ports::clock;
use sluiced_ports::downstream::{InboundEvent, LeaveBy};
use sluiced_ports::lock;
use sluiced_telemetry::LogLimit;

/// A session that lived for this long after its bind was good.
const LIVED_LONG_ENOUGH: Duration = Duration::from_secs(5);
/// Waits after a centre could not be reached, or ended a good session.
const UNREACHED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Waits after sessions that were not good.
const SHORT: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Waits after it refused a bind.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How often a failure that lasts is logged, for each bind.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// How an attempt to keep a bind ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BindEnd {
    Unreached,
    Refused,
    /// The link was bound for this long.
    Bound(Duration),
}

/// What failed in a row, each kind by itself: a centre that is back after an outage may refuse the first binds, and
/// they must not wait for as long as if it had refused all the time.
#[derive(Debug, Default)]
struct BindTries {
    unreached: u32,
    refused: u32,
    short: u32,
}

impl BindTries {
    /// How long to wait before the next attempt. `fraction` is random, from 0 to 1.
    fn wait(&mut self, end: BindEnd, fraction: f64) -> Duration {
        match end {
            BindEnd::Unreached => {
                self.unreached += 1;
                UNREACHED.half_jitter(self.unreached, fraction)
            }
            BindEnd::Refused => {
                self.refused += 1;
                REFUSED.half_jitter(self.refused, fraction)
            }
            BindEnd::Bound(lived) if lived < LIVED_LONG_ENOUGH => {
                let short = self.short + 1;
                *self = Self {
                    short,
                    ..Self::default()
                };
                SHORT.half_jitter(short, fraction)
            }
            BindEnd::Bound(_) => {
                *self = Self::default();
                UNREACHED.full_jitter(1, fraction)
            }
        }
    }
}

/// All connections of a downstream.
pub(super) struct Links {
    centre: Centre,
    settings: BindSettings,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Why the last connection could not be opened, or was lost.
    failure: Mutex<String>,
    pub(super) room: Arc<Notify>,
    /// The binds that succeeded or failed.
    tried: watch::Sender<BTreeSet<usize>>,
    is_started: AtomicBool,
    /// Takes what the centre delivers; `None`: the centre keeps it.
    arrivals: Option<mpsc::Sender<InboundEvent>>,
    /// The tasks of the binds.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Links {
    pub(super) fn new(
        centre: Centre,
        settings: BindSettings,
        arrivals: Option<mpsc::Sender<InboundEvent>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            centre,
            settings,
            sessions: Mutex::default(),
            failure: Mutex::new("not connected yet".to_owned()),
            room: Arc::default(),
            tried: watch::Sender::default(),
            is_started: AtomicBool::new(false),
            arrivals,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Begins to connect, on this runtime; once.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        for number in 0..self.settings.binds {
            let stop = self.stop.clone();
            let this = Arc::clone(self);
            self.tasks
                .spawn(async move { this.keep(number, stop).await });
        }
    }

    /// Waits until each bind has succeeded or failed once.
    pub(super) async fn wait_for_binds(&self, bound: Duration) -> Result<(), String> {
        let binds = self.settings.binds;
        let mut tried = self.tried.subscribe();
        let all = timeout(bound, tried.wait_for(|tried| tried.len() >= binds)).await;
        let standing = lock(&self.sessions).len();
        if standing >= binds {
            return Ok(());
        }
        let why = match all {
            Ok(_) => lock(&self.failure).clone(),
            Err(_) => format!("not done within {bound:?}"),
        };
        Err(format!("{standing} of {binds} binds: {why}"))
    }

    /// Writes a message on the connection with the fewest `submit_sm` without an answer. The error says why no
    /// connection is open.
    pub(super) fn write(
        &self,
        pdus: &mut [Vec<u8>],
        leave_by: LeaveBy,
    ) -> Result<WriteOutcome, String> {
        let sessions = lock(&self.sessions);
        let mut open: Vec<_> = sessions
            .iter()
            .filter_map(|session| Some((session.load()?, session)))
            .collect();
        open.sort_by_key(|(load, _)| *load);
        if open.is_empty() {
            return Err(lock(&self.failure).clone());
        }
        for (_, session) in open {
            match session.write(pdus, leave_by) {
                WriteOutcome::Full => {}
                other => return Ok(other),
            }
        }
        Ok(WriteOutcome::Full)
    }

    /// Ends all sessions. An unbind is sent if the runtime still runs, or if the system takes it at once.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        for session in lock(&self.sessions).drain(..) {
            session.shut();
            session.ask(Command::UNBIND);
        }
    }

    /// Ends all sessions, and waits until the centre has answered.
    pub(super) async fn close(&self) {
        self.stop();
        self.tasks.close();
        // For a centre that does not answer, the end of the connection is enough.
        drop(timeout(UNBINDING, self.tasks.wait()).await);
    }

    /// The life of one bind.
    async fn keep(&self, number: usize, stop: CancellationToken) {
        let mut tries = BindTries::default();
        let (bound, failed) = (LogLimit::new(LOG_EVERY), LogLimit::new(LOG_EVERY));
        while let Some(opened) = stop.run_until_cancelled(self.centre.open()).await {
            let (end, why) = match opened {
                Ok(stream) => {
                    let since = clock::now();
                    if let Some(more) = bound.event(since) {
                        info!(bind = number, centre = %self.name(), "bound{more}");
                    }
                    let why = self.hold(number, stream, &stop).await;
                    let lived = clock::now().since(since);
                    if lived >= LIVED_LONG_ENOUGH {
                        bound.end_fault();
                        failed.end_fault();
                    }
                    (BindEnd::Bound(lived), why)
                }
                Err(error @ OpenError::Unreached(_)) => (BindEnd::Unreached, error.to_string()),
                Err(error) => (BindEnd::Refused, error.to_string()),
            };
            if stop.is_cancelled() {
                return;
            }
            if let Some(more) = failed.fault(&why, clock::now()) {
                warn!(bind = number, centre = %self.name(), why, "not bound{more}");
            }
            *lock(&self.failure) = why;
            self.note_tried(number);
            let wait = tries.wait(end, rand::rng().random_range(0.0..1.0));
            if stop.run_until_cancelled(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// A bind has succeeded or failed.
    fn note_tried(&self, number: usize) {
        self.tried.send_if_modified(|tried| tried.insert(number));
    }

    fn name(&self) -> String {
        format!("{}:{}", self.centre.host, self.centre.port)
    }

    /// Uses a connection until it ends; returns why it did.
    async fn hold(&self, number: usize, stream: ServerStream, stop: &CancellationToken) -> String {
        let (input, output) = tokio::io::split(stream);
        let session = Arc::new(Session::new(
            Box::new(output),
            self.settings.window,
            Arc::clone(&self.room),
            FIRST_SEQUENCE,
        ));
        lock(&self.sessions).push(Arc::clone(&session));
        self.note_tried(number);
        self.room.notify_waiters();
        let reader = SessionReader::new(&session, self.settings, self.arrivals.as_ref(), input);
        let why = reader.run(stop).await;
        lock(&self.sessions).retain(|other| !Arc::ptr_eq(other, &session));
        session.end();
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::SecretString;
    use sluiced_net::connect::{Resolver, Secret};
    use sluiced_pdu::BindAs;

    const SHORTLY: BindEnd = BindEnd::Bound(Duration::from_millis(3));

    /// The longest waits after these ends.
    fn waits(ends: impl IntoIterator<Item = BindEnd>) -> Vec<u64> {
        let mut tries = BindTries::default();
        let waits = ends.into_iter().map(|end| tries.wait(end, 1.0));
        waits.map(|wait| wait.as_millis() as u64).collect()
    }

    /// A session that ends at once is noted when it begins and when it ends.
    #[tokio::test(start_paused = true)]
    async fn one_bind_that_is_noted_twice_is_not_two() {
        let centre = Centre {
            resolver: Resolver::new(),
            host: "smsc.example".to_owned(),
            port: 2775,
            tls: None,
            connect_timeout: Duration::from_secs(1),
            bind_as: BindAs::Transceiver,
            system_id: "id".to_owned(),
            password: Secret::from(SecretString::from("secret")),
            system_type: String::new(),
        };
        let settings = BindSettings {
            binds: 2,
            window: 1,
            enquire_link: Duration::from_secs(30),
            timeout: Duration::from_secs(1),
        };
        let links = Links::new(centre, settings, None);
        let (bound, began) = (Duration::from_secs(9), tokio::time::Instant::now());
        for (number, waited) in [(0, bound), (0, 2 * bound), (1, 2 * bound)] {
            links.note_tried(number);
            links.wait_for_binds(bound).await.unwrap_err();
            assert_eq!(began.elapsed(), waited, "{number}");
        }
    }

    #[test]
    fn sessions_that_end_at_once_are_bound_less_and_less_often() {
        let waits = waits([SHORTLY; 10]);
        let first = [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600];
        assert_eq!(waits[..8], first);
        assert_eq!(waits[8..], [30_000; 2]);
    }

    #[test]
    fn only_a_session_that_lived_makes_up_for_those_before_it() {
        let ends = [
            SHORTLY,
            BindEnd::Refused,
            SHORTLY,
            BindEnd::Bound(LIVED_LONG_ENOUGH),
            SHORTLY,
        ];
        assert_eq!(waits(ends), [200, 1_000, 400, 200, 200]);
        let ends = [
            BindEnd::Unreached,
            BindEnd::Unreached,
            BindEnd::Refused,
            SHORTLY,
        ];
        assert_eq!(waits(ends), [200, 400, 1_000, 200]);
    }
}
