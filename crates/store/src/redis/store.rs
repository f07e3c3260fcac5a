//! The store in Redis, on a thread of its own: paced limits, breakers and the states of the replicas;
//! `limits` adds the keyed limits, `policies` the policies.
//!
//! One hash for each paced limit, each route that has a breaker, and the replicas, and one script for each
//! decision (`lua/`), so that a decision is one round trip and atomic. Connections are supervised: they are
//! rebuilt in the background and, until one is back, every call fails at once instead of waiting for a dead
//! socket.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use redis::Script;
use tokio::sync::{broadcast, watch};
use tokio_util::task::AbortOnDropHandle;

use super::RedisOptions;
use super::connection::Connection;
use super::limits::KeyedScripts;
use super::marks::KeptKeys;
use super::scripts::{Arg, ScriptCall, Scripts};
use super::{notices, unreachable};
use sluiced_core::breaker::{BreakerReport, BreakerRule, BreakerStatus};
use sluiced_core::owner::{self, ForeignName, Registration};
use sluiced_core::schedule::{Ask, Freeze, Grant, LeaseAnswer, Turn};
use sluiced_core::time::{StoreTime, micros};
use sluiced_core::version::PolicyVersion;
use sluiced_ports::clock::Thread;
use sluiced_ports::link::Link;
use sluiced_ports::marks::Marks;
use sluiced_ports::store::{
    BAR, FleetReports, Notice, PLACES, PacedRow, REPORT_EVERY, RegistrationAction, SHOWN,
    StatusReport, StatusStore, Store, StoreError, StoreFuture,
};

/// The limits in Redis: schedules, and states by key.
pub struct RedisStore {
    connection: Arc<Connection>,
    pub(super) scripts: Scripts,
    pub(super) notices: broadcast::Sender<Notice>,
    pub(super) limits: Arc<KeyedScripts>,
    /// The beat, from the first question about a keyed limit on.
    pub(super) beat_task: OnceLock<AbortOnDropHandle<()>>,
    /// The keys of marks, from the first question about them on.
    marks: OnceLock<KeptKeys>,
    _supervisor: AbortOnDropHandle<()>,
    _listener: AbortOnDropHandle<()>,
    /// The thread of the connections and of the beat: callers have runtimes of their own, which may
    /// end before this one. It is dropped last.
    pub(super) thread: Thread,
}

impl RedisStore {
    /// Starts to connect in the background, on an urgent thread, and returns at once; the connection is
    /// kept up until the store is dropped. (On the shared runtime, a lease took twice as long where
    /// the machine is busy.)
    ///
    /// # Errors
    /// When the URLs or the certificates cannot be read, or there is no thread. It is no error if
    /// Redis is out of reach.
    pub fn connect(options: &RedisOptions) -> Result<Self, StoreError> {
        let thread = Thread::start("redis")
            .map_err(|e| unreachable(&format!("there is no thread for it: {e}")))?;
        let _there = thread.handle().enter();
        let connection = Arc::new(Connection::new(options)?);
        let supervisor = tokio::spawn(Arc::clone(&connection).supervise());
        let notices = broadcast::Sender::new(notices::CAPACITY);
        let replica = format!("{:016x}", rand::random::<u64>());
        let listener = tokio::spawn(notices::listen(
            Arc::clone(&connection),
            replica.clone(),
            notices.clone(),
        ));
        Ok(Self {
            limits: Arc::new(KeyedScripts::new(Arc::clone(&connection), replica)),
            beat_task: OnceLock::new(),
            marks: OnceLock::new(),
            scripts: Scripts::new(Arc::clone(connection.access())),
            connection,
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

impl Store for RedisStore {
    fn lease<'a>(&'a self, limit: &'a PacedRow, ask: Ask) -> StoreFuture<'a, LeaseAnswer> {
        async move {
            let [
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
                paused_until,
            ]: [u64; 12] = self.call(self.scripts.lease(limit, &ask)).await?;
            // No more is granted than was asked for: another number would be no grant.
            let count = u32::try_from(count).unwrap_or(0);
            if let Some(keys) = self.marks.get().filter(|_| guarded > 0) {
                keys.state_is_new();
            }
            let ahead = |until| (until > 0).then(|| StoreTime::from_micros(until));
            Ok(LeaseAnswer {
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
                frozen_until: ahead(frozen_until),
                paused_until: ahead(paused_until),
                guarded: guarded > 0,
                version: PolicyVersion::new(version),
            })
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, limit: &'a PacedRow, length: Duration) -> StoreFuture<'a, Freeze> {
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

    fn report_breaker<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        why: &'a str,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus> {
        async move {
            let scripts = &self.scripts;
            let args = vec![
                Arg::Text(scripts.channel()),
                Arg::Text(route),
                Arg::Text(report.name()),
                Arg::Number(known),
                Arg::Number(micros(rule.pause.base.min(rule.pause.max))),
                Arg::Number(micros(rule.pause.max)),
                Arg::Number(micros(rule.probe)),
                Arg::Text(why),
            ];
            // The braces are Redis Cluster's hash tag, as those of the limits.
            let key = format!("{}:{{{route}}}:breaker", scripts.prefix());
            let call = ScriptCall::new(&scripts.breaker, key, Vec::new(), args);
            let reply: (u64, u64, u64, u8, u8, String) = self.call(call).await?;
            let (now, version, until, may_probe, changed, why) = reply;
            Ok(BreakerStatus {
                now: StoreTime::from_micros(now),
                version,
                until: (until > 0).then(|| StoreTime::from_micros(until)),
                may_probe: may_probe > 0,
                changed: changed > 0,
                why: why.into(),
            })
        }
        .boxed()
    }

    fn register_names<'a>(
        &'a self,
        act: RegistrationAction,
        replica: &'a str,
        registration: &'a Registration,
    ) -> StoreFuture<'a, Vec<ForeignName>> {
        async move {
            let sign = |shared: bool| if shared { '+' } else { '-' };
            let signed_names: Vec<_> = registration
                .names
                .iter()
                .map(|(name, shared)| format!("{}{name}", sign(*shared)))
                .collect();
            let fleet = registration.fleet.join("\t");
            let mut args = vec![
                Arg::Text(act.name()),
                Arg::Text(replica),
                Arg::Text(&fleet),
                Arg::Number(micros(owner::REGISTRATION_TTL)),
                Arg::Number(registration.format.into()),
            ];
            args.extend(signed_names.iter().map(|name| Arg::Text(name)));
            let key = format!("{}:{{fleet}}:owners", self.scripts.prefix());
            let call = ScriptCall::new(&self.scripts.own, key, Vec::new(), args);
            let reply: Vec<(String, String, String, u64, u8, u32)> = self.call(call).await?;
            let registrations =
                reply
                    .into_iter()
                    .map(|(name, fleet, replica, ago, shared, format)| ForeignName {
                        name,
                        fleet,
                        replica,
                        ago: Duration::from_micros(ago),
                        shared: shared > 0,
                        format,
                    });
            let mut foreign: Vec<_> = registrations.collect();
            foreign.sort();
            Ok(foreign)
        }
        .boxed()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.connection.link()
    }

    fn marks(&self) -> Marks {
        let keeper = || {
            KeptKeys::start(
                Arc::clone(&self.connection),
                self.scripts.prefix(),
                &self.thread,
            )
        };
        self.marks.get_or_init(keeper).marks()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    fn about_replicas<'a>(&self, script: &'a Script, args: Vec<Arg<'a>>) -> ScriptCall<'a> {
        let key = |name| format!("{}:{{fleet}}:{name}", self.scripts.prefix());
        ScriptCall::new(script, key("status"), vec![key("bars")], args)
    }
}

/// The reply of `hear.lua`: (age in µs, text) of each replica, then (limit, place, units) of each bar.
type HeardReply = (Vec<(u64, String)>, Vec<(String, usize, f64)>);

impl StatusStore for RedisStore {
    fn report_status<'a>(&'a self, report: StatusReport<'a>) -> StoreFuture<'a, ()> {
        async move {
            let mut args = vec![
                Arg::Text(report.replica),
                Arg::Text(report.text),
                Arg::Number(micros(SHOWN)),
                Arg::Number(micros(report.passed).max(1)),
                Arg::Number(micros(BAR)),
                Arg::Number(PLACES as u64),
            ];
            for (limit, units) in report.used {
                args.extend([Arg::Text(limit), Arg::Number(*units)]);
            }
            let script = self.about_replicas(&self.scripts.status, args);
            self.call(script).await
        }
        .boxed()
    }

    fn read_reports(&self) -> StoreFuture<'_, FleetReports> {
        async move {
            let args = [SHOWN, REPORT_EVERY, BAR].map(|length| Arg::Number(micros(length)));
            let script = self.about_replicas(&self.scripts.hear, args.into());
            let (texts, bars): HeardReply = self.call(script).await?;
            let texts = texts.into_iter();
            let mut heard = FleetReports {
                replicas: texts
                    .map(|(ago, text)| (Duration::from_micros(ago), text))
                    .collect(),
                ..FleetReports::default()
            };
            for (limit, ago, units) in bars {
                heard.note(&limit, ago, units);
            }
            Ok(heard)
        }
        .boxed()
    }
}
