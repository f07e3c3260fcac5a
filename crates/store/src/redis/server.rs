//! One server of Redis and a connection to it that is rebuilt in the background.
//!
//! The crate's own managers reconnect neither after timeouts nor after a failover (`READONLY`), and its
//! clients for Sentinel and Cluster repeat a script that may have run, and hide which server ran it. So
//! this wraps the plain multiplexed connection. It is replaced on any I/O error, on `READONLY` and on
//! several timeouts in a row; meanwhile calls fail at once. Each connection asks for the server's
//! run_id, by which the scripts notice another process of Redis; a connection never outlives its process,
//! so a script always gets the run_id of the process that runs it. Where a proxy keeps the connection and leads it to
//! another server, that is noticed within a second: the run_id is asked for again and again.

mod opening;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{FromRedisValue, RedisError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

use super::access::Access;
use super::address::Address;
use super::hash_slots::HashSlot;
use super::info::ServerRun;
use super::scripts::ScriptCall;
use super::sentinels::Sentinels;
use super::stream::DrivenConnection;
use super::{ErrorClass, fault, timed_out, unreachable};
use sluiced_core::backoff::{Backoff, Failures};
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::lock;
use sluiced_ports::store::StoreError;

/// Timeouts in a row after which a connection is replaced.
const TIMEOUTS: u32 = 3;
/// How often a connection is checked, so that an idle replica notices a loss too.
const CHECK: Duration = Duration::from_secs(1);
/// Between attempts to connect. However long it was away, everything works again within three seconds.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Where the server is.
pub(super) enum Locator {
    At(Address),
    /// At the address that the Sentinels name.
    Elected(Sentinels),
}

/// A connection in use.
#[derive(Clone)]
struct RedisConnection {
    id: u64,
    at: Address,
    connection: DrivenConnection,
    run: Arc<ServerRun>,
    /// Timeouts since the last answer.
    timeouts: Arc<AtomicU32>,
    /// A call was answered: the server works, and the backoff may start over.
    proven: Arc<AtomicBool>,
}

enum ConnectionState {
    /// The first attempt is under way: calls wait for it.
    Connecting,
    Up(RedisConnection),
    Down(StoreError),
}

/// How a call failed.
pub(super) struct CallFailure {
    pub(super) error: StoreError,
    /// The node that serves the slot instead, if the server named one.
    pub(super) moved: Option<(HashSlot, Address)>,
    /// Whether the nodes of a cluster may have changed their roles.
    pub(super) stale: bool,
}

/// The supervised connection.
pub(super) struct Server {
    place: Locator,
    access: Arc<Access>,
    state: Mutex<ConnectionState>,
    lost: Notify,
    link: watch::Sender<Link>,
    /// Is notified when the link changes.
    changed: Arc<Notify>,
    /// The warnings were logged.
    warned: AtomicBool,
}

impl Server {
    /// Does not connect yet.
    pub(super) fn new(place: Locator, access: Arc<Access>, changed: Arc<Notify>) -> Self {
        Self {
            place,
            access,
            state: Mutex::new(ConnectionState::Connecting),
            lost: Notify::new(),
            link: watch::Sender::new(Link::Connecting),
            changed,
            warned: AtomicBool::new(false),
        }
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Where the server is, or was when it was last seen.
    pub(super) fn address(&self) -> Option<Address> {
        match (&*lock(&self.state), &self.place) {
            (ConnectionState::Up(live), _) => Some(live.at.clone()),
            (_, Locator::At(at)) => Some(at.clone()),
            (_, Locator::Elected(_)) => None,
        }
    }

    /// Calls a script. Gives up at `end`, and at once while the connection is lost. A call with `waits_past_timeout`
    /// also counts as a timeout at `end`, but waits until the answer comes or the connection breaks.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        call: &ScriptCall<'_>,
        end: Instant,
    ) -> Result<T, CallFailure> {
        let live = self.live(end).await.map_err(|error| CallFailure {
            error,
            moved: None,
            stale: false,
        })?;
        let mut connection = live.connection.clone();
        // A script that the server does not know is loaded and called again: it has not run.
        let invocation = call.invocation(&live.run.id);
        let mut asked = pin!(invocation.invoke_async(&mut connection));
        let mut answer = timeout_at(end, &mut asked).await;
        if answer.is_err() && call.waits_past_timeout {
            drop(self.judge(&live, answer));
            answer = Ok(asked.await);
        }
        let proven = matches!(answer, Ok(Ok(_)));
        live.proven.fetch_or(proven, Ordering::Relaxed);
        self.judge(&live, answer)
    }

    /// The connection, once the first attempt has ended.
    async fn live(&self, end: Instant) -> Result<RedisConnection, StoreError> {
        let mut link = self.link.subscribe();
        let tried = link.wait_for(|link| *link != Link::Connecting);
        // The sender is ours.
        drop(timeout_at(end, tried).await);
        match &*lock(&self.state) {
            ConnectionState::Connecting => Err(unreachable("not connected yet")),
            ConnectionState::Up(live) => Ok(live.clone()),
            ConnectionState::Down(error) => Err(error.clone()),
        }
    }

    /// Decides what an answer means for the connection.
    fn judge<T>(
        &self,
        live: &RedisConnection,
        answer: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<T, CallFailure> {
        match answer {
            Ok(Ok(value)) => {
                live.timeouts.store(0, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Err(error)) => {
                live.timeouts.store(0, Ordering::Relaxed);
                let failed = self.access.error(&error);
                let fault = fault(&error);
                if fault.ends_connection() {
                    self.give_up(live.id, &failed);
                }
                let moved = (fault == ErrorClass::Moved).then(|| error.redirect_node());
                Err(CallFailure {
                    error: failed,
                    moved: moved
                        .flatten()
                        .and_then(|(to, slot)| Some((slot, Address::redirected(to, &live.at)?))),
                    stale: matches!(
                        fault,
                        ErrorClass::Moved | ErrorClass::Busy | ErrorClass::Broken
                    ),
                })
            }
            Err(_) => {
                let error = timed_out(self.access.response_timeout());
                if live.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
                    self.give_up(live.id, &error);
                }
                Err(CallFailure {
                    error,
                    moved: None,
                    stale: false,
                })
            }
        }
    }

    /// Stops using connection `id`; a later one is left alone.
    fn give_up(&self, id: u64, why: &StoreError) {
        let mut state = lock(&self.state);
        if matches!(&*state, ConnectionState::Up(live) if live.id == id) {
            let reason = why.to_string();
            *state = ConnectionState::Down(match why {
                StoreError::Refused { .. } => why.clone(),
                _ => unreachable(&reason),
            });
            drop(state);
            warn!(reason, "lost Redis, reconnecting");
            self.show(Link::Down(reason.into()));
            self.lost.notify_one();
        }
    }

    fn show(&self, link: Link) {
        self.link.send_replace(link);
        self.changed.notify_one();
    }

    /// Keeps a connection up for as long as it is polled.
    pub(super) async fn supervise(self: Arc<Self>) {
        let mut failures = Failures::new(BACKOFF);
        let mut last_reason = None;
        for id in 0.. {
            match self.establish(id).await {
                Ok(live) => {
                    last_reason = None;
                    let proven = Arc::clone(&live.proven);
                    self.use_until_lost(live).await;
                    if proven.load(Ordering::Relaxed) {
                        failures.succeeded();
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    // Once per reason, not once per attempt.
                    if last_reason.as_ref() != Some(&reason) {
                        warn!(reason, "cannot connect to Redis, trying again");
                        last_reason = Some(reason.clone());
                    }
                    *lock(&self.state) = ConnectionState::Down(error);
                    self.show(Link::Down(reason.into()));
                }
            }
            sleep(failures.failed(clock::now(), rand::random())).await;
        }
    }

    async fn use_until_lost(&self, live: RedisConnection) {
        *lock(&self.state) = ConnectionState::Up(live.clone());
        self.show(Link::Up);
        info!(run_id = live.run.id, server = %live.at, "connected to Redis");
        while self.is_in_use(live.id) {
            tokio::select! {
                () = self.lost.notified() => {}
                () = sleep(CHECK) => self.check(&live).await,
            }
        }
    }

    fn is_in_use(&self, id: u64) -> bool {
        matches!(&*lock(&self.state), ConnectionState::Up(live) if live.id == id)
    }

    async fn check(&self, live: &RedisConnection) {
        let mut connection = live.connection.clone();
        let mut asking = redis::cmd("INFO");
        asking.arg(live.run.section);
        let answer = timeout(
            self.access.response_timeout(),
            asking.query_async::<String>(&mut connection),
        )
        .await;
        // Only its meaning for the connection matters here; a call has its own answer.
        if let Ok(info) = self.judge(live, answer)
            && live.run.is_over(&info)
        {
            let reason = format!("another server answers at {}", live.at);
            self.give_up(live.id, &unreachable(&reason));
        }
        // A replaced primary does not know that while it is cut off from the others.
        if let Locator::Elected(sentinels) = &self.place
            && let Ok(primary) = sentinels.primary().await
            && primary != live.at
        {
            let reason = format!("the Sentinels name {primary} instead of {}", live.at);
            self.give_up(live.id, &unreachable(&reason));
        }
    }
}

#[cfg(test)]
mod tests;
