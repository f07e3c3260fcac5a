//! The store of paced limits in Redis, on a thread of its own; `limits` adds the keyed ones.
//!
//! One hash per paced limit and one script per decision (`lua/`), so that a decision is one round
//! trip and atomic. Connections are supervised: they are rebuilt in the background and, until one is
//! back, every call fails at once instead of queueing up behind a dead socket.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{broadcast, watch};
use tokio_util::task::AbortOnDropHandle;

use super::connection::Connection;
use super::limits::Limits;
use super::options::RedisOptions;
use super::scripts::{ScriptCall, Scripts};
use super::{fault, notices};
use crate::core::policy::PolicyVersion;
use crate::core::schedule::{Answer, Ask, Freeze, Grant, Turn};
use crate::core::time::StoreTime;
use crate::ports::link::Link;
use crate::ports::notice::{Notice, Notices};
use crate::ports::pace::{PaceStore, PacedLimit, StoreError, StoreFuture};
use crate::ports::urgent::Thread;

/// The limits in Redis: schedules, and states by key.
pub struct RedisStore {
    connection: Arc<Connection>,
    pub(super) scripts: Scripts,
    notices: broadcast::Sender<Notice>,
    pub(super) limits: Arc<Limits>,
    /// Beats from the first question about a keyed limit on.
    pub(super) heart: OnceLock<AbortOnDropHandle<()>>,
    _supervisor: AbortOnDropHandle<()>,
    _listener: AbortOnDropHandle<()>,
    /// Where the connections live and the heart beats: callers have runtimes of their own, which may
    /// end before ours. The last to be dropped.
    pub(super) thread: Thread,
}

impl RedisStore {
    /// Starts to connect in the background, on an urgent thread, and answers at once; the connection is
    /// kept up until the store is dropped. (On the shared runtime, a lease took twice as long where
    /// the machine is busy.)
    ///
    /// # Errors
    /// When the URLs or the certificates cannot be read, or there is no thread. That Redis is out of
    /// reach is no error.
    pub fn connect(options: &RedisOptions) -> Result<Self, StoreError> {
        let thread = Thread::start("redis")
            .map_err(|e| fault::unreachable(&format!("there is no thread for it: {e}")))?;
        let _there = thread.handle().enter();
        let connection = Arc::new(Connection::new(options)?);
        let supervisor = tokio::spawn(Arc::clone(&connection).supervise());
        let notices = broadcast::Sender::new(notices::CAPACITY);
        let channel = options.channel();
        let replica = format!("{:016x}", rand::random::<u64>());
        let listener = tokio::spawn(notices::listen(
            Arc::clone(&connection),
            replica.clone(),
            notices.clone(),
        ));
        let limits = Limits::new(
            Arc::clone(&connection),
            (options.settings.prefix.clone(), channel.clone(), replica),
        );
        Ok(Self {
            connection,
            limits: Arc::new(limits),
            heart: OnceLock::new(),
            scripts: Scripts::new(options.settings.prefix.clone(), channel),
            notices,
            _supervisor: AbortOnDropHandle::new(supervisor),
            _listener: AbortOnDropHandle::new(listener),
            thread,
        })
    }

    /// Calls a script.
    pub(super) async fn call<T: redis::FromRedisValue>(
        &self,
        script: ScriptCall<'_>,
    ) -> Result<T, StoreError> {
        self.connection.call(&script).await
    }
}

impl PaceStore for RedisStore {
    fn lease<'a>(&'a self, limit: &'a PacedLimit, ask: Ask) -> StoreFuture<'a, Answer> {
        async move {
            let reply: (u64, u64, u64, u64, u32, u64, u64, u64, u64, u8, u64) =
                self.call(self.scripts.lease(limit, &ask)).await?;
            let (
                now,
                generation,
                first,
                rem,
                count,
                turn,
                share,
                slip,
                frozen_until,
                guarded,
                version,
            ) = reply;
            Ok(Answer {
                now: StoreTime::from_micros(now),
                generation,
                grant: NonZeroU32::new(count).map(|count| Grant {
                    first: StoreTime::from_micros(first),
                    rem,
                    count,
                }),
                turn: (turn > 0).then(|| Turn {
                    at: StoreTime::from_micros(turn),
                    share,
                    slip,
                }),
                frozen_until: (frozen_until > 0).then(|| StoreTime::from_micros(frozen_until)),
                guarded: guarded > 0,
                version: PolicyVersion::new(version),
            })
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, limit: &'a PacedLimit, length: Duration) -> StoreFuture<'a, Freeze> {
        async move {
            let (now, until, generation) = self.call(self.scripts.freeze(limit, length)).await?;
            Ok(Freeze {
                now: StoreTime::from_micros(now),
                until: StoreTime::from_micros(until),
                generation,
            })
        }
        .boxed()
    }

    fn give_back<'a>(&'a self, limit: &'a PacedLimit, tail: Grant) -> StoreFuture<'a, bool> {
        async move {
            let taken: u8 = self.call(self.scripts.give_back(limit, &tail)).await?;
            Ok(taken > 0)
        }
        .boxed()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.connection.link()
    }
}

impl Notices for RedisStore {
    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}
