//! The connections of a downstream: opened, bound, kept and bound again.
//!
//! Each bind has a task on the runtime that sends. It connects, binds (`centre`), and then reads (`reading`).
//! When the connection ends for any reason, the calls without an answer end at once, and the task tries again
//! with backoff: soon if the centre could not be reached, more slowly if it refused the bind, because centres
//! lock accounts that try too often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::centre::{BoxStream, Centre, FIRST, OpenError};
use super::reading::{Reading, UNBINDING};
use super::session::{Session, Written};
use crate::core::backoff::Backoff;
use crate::core::smpp::Command;
use crate::ports::downstream::{Gate, ReceiptArrival};
use crate::ports::lock;

/// Waits after a centre could not be reached, or ended a session.
const UNREACHED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Waits after it refused a bind.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The settings of a bound connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    pub(super) binds: usize,
    pub(super) window: usize,
    /// A centre that sends nothing for so long is asked whether it is there.
    pub(super) enquire_link: Duration,
    /// How long its answer may take.
    pub(super) timeout: Duration,
}
/// All connections of a downstream.
pub(super) struct Links {
    centre: Centre,
    keeping: Keeping,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Why the last connection could not be opened, or was lost.
    failure: Mutex<String>,
    pub(super) room: Arc<Notify>,
    /// How many binds succeeded or failed.
    tried: watch::Sender<usize>,
    is_started: AtomicBool,
    /// Where receipts go; `None`: they stay with the centre.
    receipts: Option<mpsc::Sender<ReceiptArrival>>,
    /// The tasks of the binds.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Links {
    pub(super) fn new(
        centre: Centre,
        keeping: Keeping,
        receipts: Option<mpsc::Sender<ReceiptArrival>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            centre,
            keeping,
            sessions: Mutex::default(),
            failure: Mutex::new("not connected yet".to_owned()),
            room: Arc::default(),
            tried: watch::Sender::default(),
            is_started: AtomicBool::new(false),
            receipts,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Begins to connect, on this runtime; once.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        for number in 0..self.keeping.binds {
            let stop = self.stop.clone();
            let this = Arc::clone(self);
            self.tasks
                .spawn(async move { this.keep(number, stop).await });
        }
    }

    /// Waits until each bind has succeeded or failed once.
    pub(super) async fn opened(&self, bound: Duration) -> Result<(), String> {
        let binds = self.keeping.binds;
        let mut tried = self.tried.subscribe();
        let all = timeout(bound, tried.wait_for(|tried| *tried >= binds)).await;
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

    /// Writes a message on the connection with the fewest calls under way. An error says why there is none.
    pub(super) fn write(&self, pdus: &mut [Vec<u8>], gate: Gate) -> Result<Written, String> {
        let sessions = lock(&self.sessions);
        let open = sessions
            .iter()
            .filter_map(|session| Some((session.load()?, session)));
        let mut open: Vec<_> = open.collect();
        open.sort_by_key(|(load, _)| *load);
        if open.is_empty() {
            return Err(lock(&self.failure).clone());
        }
        for (_, session) in open {
            match session.write(pdus, gate) {
                Written::Full => {}
                other => return Ok(other),
            }
        }
        Ok(Written::Full)
    }

    /// Ends all sessions. An unbind is sent if the runtime still runs, or if the system takes it at once.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        for session in lock(&self.sessions).drain(..) {
            session.shut();
            session.ask(Command::UNBIND);
        }
    }

    /// The same, and waits until the centre has answered.
    pub(super) async fn close(&self) {
        self.stop();
        self.tasks.close();
        // For a centre that does not answer, the end of the connection is enough.
        drop(timeout(UNBINDING, self.tasks.wait()).await);
    }

    /// The life of one bind.
    async fn keep(&self, number: usize, stop: CancellationToken) {
        let (mut unreached, mut refused) = (0, 0);
        // The same failure is logged once.
        let mut logged = None;
        while let Some(opened) = stop.run_until_cancelled(self.centre.open()).await {
            let fraction = rand::rng().random_range(0.0..1.0);
            let (why, wait) = match opened {
                Ok(stream) => {
                    (unreached, refused, logged) = (1, 0, None);
                    info!(bind = number, centre = %self.name(), "bound");
                    let why = self.hold(stream, &stop).await;
                    (why, UNREACHED.full_jitter(1, fraction))
                }
                Err(error @ OpenError::Unreached(_)) => {
                    unreached += 1;
                    (
                        error.to_string(),
                        UNREACHED.half_jitter(unreached, fraction),
                    )
                }
                Err(error) => {
                    refused += 1;
                    (error.to_string(), REFUSED.half_jitter(refused, fraction))
                }
            };
            if stop.is_cancelled() {
                return;
            }
            if logged.as_ref() != Some(&why) {
                warn!(bind = number, centre = %self.name(), why, "not bound");
            }
            lock(&self.failure).clone_from(&why);
            logged = Some(why);
            self.tried.send_modify(|tried| *tried += 1);
            if stop.run_until_cancelled(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.centre.host, self.centre.port)
    }

    /// Uses a connection until it ends; returns why it did.
    async fn hold(&self, stream: BoxStream, stop: &CancellationToken) -> String {
        let (input, output) = tokio::io::split(stream);
        let room = Arc::clone(&self.room);
        let session = Session::new(Box::new(output), self.keeping.window, room, FIRST);
        let session = Arc::new(session);
        lock(&self.sessions).push(Arc::clone(&session));
        self.tried.send_modify(|tried| *tried += 1);
        self.room.notify_waiters();
        let reading = Reading::new(&session, self.keeping, self.receipts.as_ref(), input);
        let why = reading.run(stop).await;
        lock(&self.sessions).retain(|other| !Arc::ptr_eq(other, &session));
        session.end();
        why
    }
}
