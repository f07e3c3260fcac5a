//! The table of keys: every key of the configuration with its shape, its default and what it does.
//!
//! One declaration makes the struct that the program reads and the `Key`s (see `schema`) from
//! which everything else follows: the checks of shape, the defaults, `check --print`, the JSON schema and
//! `config/default.toml`. The comments of the fields are the text of that file.

mod auth;
mod aws;
mod callers;
mod http;
mod limit;
mod limit_facts;
mod quota;
mod results;
mod route;
mod rules;
mod smpp;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::conform::unwritten;
use super::forms::{
    AMQP_URL, FLEET, HOST_NAME, INSTANCE, LISTEN, LOG_LEVEL, MANAGEMENT_URL, PREFIX, REDIS_URL,
    TEXT,
};
use super::schema::Shape::{self, Length as Within, List, Named, Part, Section};
use super::schema::{SPAN, table, words};
use super::text::Length;
use sluiced_core::backoff::Backoff;
use sluiced_core::breaker::BreakerRule;

pub use auth::{Auth, AwsSigv4, ClientAuth, HashFunction, Hmac, Jwt, Oauth2, SecretEncoding};
pub use aws::{AwsCredentials, AwsVariables};
pub use callers::{Callers, Shown, callers_route};
pub use http::{Breaker, FRAMING, Http, HttpVersion, Outcomes};
pub use limit::{FixedWindow, Limit, OfKind, OnUnknown, Paced, Start};
pub use quota::{Quota, QuotaFormat};
pub use results::{ResultOn, Results, Unroutable};
pub use route::{Downstream, JournalLines, MAX_LIMITS, OnDenied, QueueType, Route, WhenUnsendable};
pub use smpp::{Smpp, SmppBind, SmppEncoding, SmppLong, SmppOutcomes};

pub(super) use limit::{ABSENT, LIMIT};

/// A probe of a downstream that was away has ended after the call's timeout and this.
const PROBE_SLACK: Duration = Duration::from_secs(1);

/// The whole configuration.
pub(super) static ROOT: Shape = Section(Settings::KEYS);

table! {
    /// Everything.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Settings {
        rabbitmq: RabbitMq = Section(RabbitMq::KEYS), Default {};
        redis: Redis = Section(Redis::KEYS), Default {};
        admin: Admin = Section(Admin::KEYS), Default {};
        log: Log = Section(Log::KEYS), Default {};
        service: Service = Section(Service::KEYS), Default {};
        backend: Backend = Section(Backend::KEYS), Default {};
        embedded: Embedded = Section(Embedded::KEYS), Default {};
        /// Secrets for calls over HTTP, each with a name and its file: secret.NAME in the templates of url, headers and
        /// body, and in those of a signature. Names have letters, digits and `_`. A file is read again every half a
        /// minute while calls are made, and at once when the downstream answers 401 or 403.
        secrets: BTreeMap<String, PathBuf> = Named { of: &TEXT, example: "infobip = \"credential:infobip\"" }, Default {};
        /// A limit, shared by every replica and every route that names it. Any number of them,
        /// with names of letters, digits, `_`, `-` and `.`. Six kinds; a route may have one of the kind paced and
        /// any of the others.
        ///
        /// cost, key and fair_by are templates over the message. They know body (parsed as JSON), headers,
        /// properties, routing_key, exchange, message_id, route and attempt, and besides minijinja's filters:
        /// sms_segments (of a text; sms_segments(encoding="ucs2") where the provider always sends UCS-2,
        /// sms_segments(reference=16) where its concatenation headers are the long ones, and transliterate=true as in a
        /// downstream of the kind smpp), pointer (a JSON pointer: `body | pointer("/to/0")`), host (of a URL), urlencode
        /// and tojson.
        limits: BTreeMap<String, Limit> = Named { of: &LIMIT, example: "" }, Default {};
        /// A route: one work queue, the limits that its messages must pass, and where they go.
        routes: BTreeMap<String, Route> = Named { of: &ROUTE, example: "sms" }, Default {};
        /// A listener for programs that share the limits without a queue: they ask for a turn (POST /v1/permits), and make
        /// the call themselves when they get it. Any number of them.
        callers: BTreeMap<String, Callers> = Named { of: &CALLERS, example: "web" }, Default {};
        /// What routes have in common.
        defaults: Defaults = Section(Defaults::KEYS), Default {};
    }
}

/// A route.
static ROUTE: Shape = Section(Route::KEYS);
/// A listener for callers.
static CALLERS: Shape = Section(Callers::KEYS);

table! {
    /// Given to the routes before these are read: nothing is left here.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Defaults {
        /// Any keys of a route: every route has them unless it writes its own. Tables are merged key by key; any other
        /// value, a list too, counts as a whole.
        route: Option<IgnoredAny> = Part { of: &ROUTE, own: OWN, example: "max_hold = \"1s\"" }, Optional {};
        /// Any keys of a downstream, in the same way. A downstream of another kind gets none of them.
        downstream: Option<IgnoredAny> = Part { of: &Downstream::SHAPE, own: &[], example: "kind = \"http\"\ntimeout = \"10s\"" },
            Optional {};
    }
}

/// What each route writes itself.
const OWN: &[(&str, &str)] = &[
    (
        "queue",
        "each route names its own queue; write it in [routes.NAME]",
    ),
    (
        "standby_for",
        "a route stands by for one other; write it in [routes.NAME]",
    ),
    ("downstream", "write these keys in [defaults.downstream]"),
];

/// The defaults of `config/default.toml`, with neither limits nor routes.
impl Default for Settings {
    fn default() -> Self {
        unwritten(&ROOT)
    }
}

impl Settings {
    /// The paced limit of a route, with its name.
    #[must_use]
    pub fn paced_limit<'a>(&'a self, route: &'a Route) -> Option<(&'a str, &'a Paced)> {
        self.paced_of(&route.limits)
    }

    /// The paced one of these limits, with its name.
    #[must_use]
    pub fn paced_of(&self, limits: &[String]) -> Option<(&str, &Paced)> {
        limits.iter().find_map(|name| {
            let (name, limit) = self.limits.get_key_value(name)?;
            Some((name.as_str(), limit.as_paced()?))
        })
    }

    /// The limits of all routes and callers.
    pub fn named_limits(&self) -> impl Iterator<Item = &String> {
        let routes = self.routes.values().map(|route| &route.limits);
        let callers = self.callers.values().map(|callers| &callers.limits);
        routes.chain(callers).flatten()
    }

    /// What follows for limits from the routes that name them: the messages of a route that sends segments cost up to so
    /// many. Without `max_cost`: 10, but no more than half of the rate, and than fit into the window of a connection.
    pub(super) fn follow(&mut self) {
        for route in self.routes.values() {
            let Some(smpp) = route.in_segments() else {
                continue;
            };
            for name in &route.limits {
                if let Some(Limit::Paced(paced)) = self.limits.get_mut(name) {
                    paced.counts_segments(smpp.window.into());
                }
            }
        }
    }

    /// Gives credentials of AWS what the environment says of them.
    pub(super) fn find_aws(&mut self, variables: &AwsVariables) {
        for route in self.routes.values_mut() {
            if let Downstream::Http(http) = &mut route.downstream
                && let Some(Auth::Aws(aws)) = &mut http.auth
            {
                aws.variables = variables.clone();
            }
        }
    }

    /// How many messages of a route one replica holds.
    #[must_use]
    pub fn prefetch(&self, route: &Route) -> u16 {
        let paced = self.paced_limit(route);
        paced.map_or(route.prefetch_unpaced(), |(_, paced)| {
            route.prefetch_for(paced.rate.0)
        })
    }

    /// Whether more of the answers of a route is used than their meaning.
    #[must_use]
    pub fn uses_answers(&self, route: &Route) -> bool {
        route.keep_answer()
            || route.results.is_some()
            || route.journal != JournalLines::None && route.journal_id.is_some()
            || !route.quotas().is_empty()
            || route.throttles().is_some()
            || self.actuals(route).next().is_some()
    }

    /// Where the answers of a route say what a call used, by the names of its limits, and the most that they are
    /// believed.
    pub fn actuals<'a>(
        &'a self,
        route: &'a Route,
    ) -> impl Iterator<Item = (&'a str, &'a str, Option<NonZeroU32>)> {
        route.limits.iter().filter_map(|name| {
            let limit = self.limits.get(name)?;
            Some((name.as_str(), limit.actual()?.as_str(), limit.max_actual()))
        })
    }

    /// The routes of a queue, by name.
    pub fn of_queue<'s>(&'s self, queue: &'s str) -> impl Iterator<Item = (&'s str, &'s Route)> {
        let all = self.routes.iter();
        all.filter(move |(_, route)| route.queue == queue)
            .map(|(name, route)| (name.as_str(), route))
    }

    /// The queues whose messages a limit counts, each named once.
    #[must_use]
    pub fn queues_of(&self, limit: &str) -> Vec<&str> {
        let counted = |route: &&Route| route.limits.iter().any(|name| name == limit);
        let routes = self.routes.values().filter(counted);
        let queues: BTreeSet<&str> = routes.map(|route| route.queue.as_str()).collect();
        queues.into_iter().collect()
    }

    /// When calls of a route stop because its downstream is away; `None`: never.
    #[must_use]
    pub fn breaker(&self, route: &Route) -> Option<BreakerRule> {
        let breaker = route.breaker();
        // One host that is away must not stop the others.
        if route.hosts_differ() {
            return None;
        }
        // A message must not be dead before the breaker opens.
        let failures = NonZeroU32::new(breaker.failures.min(route.max_attempts));
        let rejections = self.dying(route);
        (failures.is_some() || rejections.is_some()).then(|| BreakerRule {
            failures,
            rejections,
            pause: Backoff::new(breaker.pause.get(), breaker.max_pause.get()),
            probe: route.call_timeout() + PROBE_SLACK,
        })
    }

    /// After how many dead letters in a row a route stops; `None`: never. A list comes to its end: it is still
    /// there, and the exit code says how many died.
    #[must_use]
    pub fn dying(&self, route: &Route) -> Option<NonZeroU32> {
        if self.backend.queue == QueueBackend::Embedded {
            return None;
        }
        NonZeroU32::new(route.breaker().dead_letters)
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct RabbitMq {
        /// Where the broker is: amqp:// or amqps://. Several: a cluster; each attempt takes the next one.
        urls: Vec<SecretString> = List(&AMQP_URL), Default ["amqp://guest:guest@127.0.0.1:5672/%2f"];
        /// Replaces the password in every URL. Absent: the URLs are used as they are.
        password_file: Option<PathBuf> = TEXT, Optional "credential:rabbitmq";
        /// The management API, which `sluiced check --connect` reads to find policies that act on queues of sluiced.
        /// Nothing is changed: its user needs the tag `management` and no permission. Without a password in the URL
        /// that of password_file counts.
        management: Option<SecretString> = MANAGEMENT_URL, Optional "http://monitor@127.0.0.1:15672";
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for brokers that ask for one (ssl_options.verify = verify_peer). Like its key
        /// it is read anew for each connection.
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:rabbitmq-key";
        /// How often each side sends a heartbeat, in whole seconds; a dead connection is noticed after twice this
        /// time.
        heartbeat: Length = Within(Duration::from_secs(1)..=Duration::from_secs(3600)), Default "10s";
        /// How long one attempt to connect may take.
        connect_timeout: Length = SPAN, Default "10s";
        /// How long nothing may be written or confirmed before a copy (for a wait queue or the dead letters) is
        /// published again, which makes a duplicate if the first one did arrive. A slow network gets more time: that
        /// of the unconfirmed bytes at 64 KiB a second.
        confirm_timeout: Length = SPAN, Default "10s";
        /// The broker's own consumer_timeout: after this time it closes the channel of an unacknowledged delivery.
        /// No message waits in memory for longer than half of it, nor for a queue that takes its result or its copy for
        /// longer than a quarter. Must not be above the broker's setting.
        ack_timeout: Length = SPAN, Default "30m";
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Redis {
        /// Where the limits are shared: redis:// or rediss:// (TLS).
        url: SecretString = REDIS_URL, Default "redis://127.0.0.1:6379/0";
        /// single: one server, or an address that always leads to the primary. sentinel: the Sentinels name the
        /// primary, and its successor after a failover:
        ///   mode = "sentinel"
        ///   urls = ["redis://sentinel-a:26379", "redis://sentinel-b:26379", "redis://sentinel-c:26379"]
        ///   sentinel_service = "mymaster"
        ///   sentinel_user = "sluiced"
        ///   sentinel_password_file = "credential:sentinel"
        /// cluster: each limit lies on one of the masters, and all of them are found from some:
        ///   mode = "cluster"
        ///   urls = ["redis://node-a:6379", "redis://node-b:6379", "redis://node-c:6379"]
        mode: RedisMode = RedisMode::SHAPE, Default "single";
        /// Several, for the modes sentinel and cluster: the Sentinels, whose /N is the database at the primary, or
        /// some nodes of the cluster. They differ in nothing but host and port.
        urls: Vec<SecretString> = List(&REDIS_URL), Default [];
        /// What the Sentinels call the group of servers: the word after `sentinel monitor`.
        sentinel_service: Option<String> = TEXT, Apart "mymaster";
        /// For the Sentinels, as user and password_file are for the servers.
        sentinel_user: Option<String> = TEXT, Apart "sluiced";
        /// The password of sentinel_user.
        sentinel_password_file: Option<PathBuf> = TEXT, Apart "credential:sentinel";
        /// Replaces the user in the URL. What a user needs (the last word for a cluster only), "sluiced" being the
        /// prefix below; `sluiced check --connect` says what is missing:
        ///   ACL SETUSER sluiced on >PASSWORD ~sluiced:* &sluiced:* +@connection +@hash +@keyspace +@pubsub +@sortedset +@string -@dangerous +evalsha +script|load +info +time +cluster|slots
        /// If it may read CONFIG too (+config|get), sluiced warns if nothing is kept on disk. At a Sentinel:
        ///   ACL SETUSER sluiced on >PASSWORD +@connection -@dangerous +sentinel|master
        user: Option<String> = TEXT, Optional "sluiced";
        /// Replaces the password in the URL. Absent: the URL is used as it is.
        password_file: Option<PathBuf> = TEXT, Optional "credential:redis";
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for servers that ask for one (tls-auth-clients).
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:redis-key";
        /// What every key starts with. Fleets with different prefixes share nothing.
        prefix: String = PREFIX, Default "sluiced";
        /// The fleet that the limits and routes of this file belong to. Under one prefix a name belongs to one fleet:
        /// another one that uses it does not run, unless both share it (shared, of a limit). Absent: the name of
        /// RabbitMQ's cluster with the virtual host, such as "rabbit@mq1:/", and the addresses of urls;
        /// "embedded" for backend.queue = "embedded".
        fleet: Option<String> = FLEET, Optional "rabbit@mq1:/";
        /// How long one attempt to connect may take.
        connect_timeout: Length = SPAN, Default "2s";
        /// How long Redis may take to answer. Longer: sluiced waits for a slow Redis. Shorter: slots in late replies
        /// are lost sooner. Without Redis nothing is sent.
        response_timeout: Length = SPAN, Default "500ms";
    }
}

words! {
    /// How Redis is run.
    pub enum RedisMode {
        /// One server, or an address that always leads to the primary.
        Single = "single",
        /// A primary with replicas, watched by Sentinels.
        Sentinel = "sentinel",
        Cluster = "cluster",
    }
}

impl Redis {
    /// Where to connect to: `urls` if there are any, else `url` alone.
    #[must_use]
    pub fn addresses(&self) -> &[SecretString] {
        if self.urls.is_empty() {
            std::slice::from_ref(&self.url)
        } else {
            &self.urls
        }
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Admin {
        /// Address of /metrics, /healthz and /readyz. Empty: no listener.
        listen: String = LISTEN, Default "127.0.0.1:9464";
        /// Names under which these pages and the status page may be asked, besides addresses, localhost and the name
        /// in listen; without a port. Others are refused, because a web page could have them (DNS rebinding).
        hosts: Vec<String> = List(&HOST_NAME), Default [];
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Log {
        /// A level (error, warn, info, debug, trace, off), or levels by module: "info,sluiced_amqp=debug".
        /// `sluiced run --log-level` overrides it.
        level: String = LOG_LEVEL, Default "info";
        /// human, json, or auto: human on a terminal, JSON otherwise.
        format: LogFormat = LogFormat::SHAPE, Default "auto";
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Service {
        /// How long calls that were started may take to finish after SIGTERM. No call may have a longer timeout.
        /// Give the supervisor (TimeoutStopSec, terminationGracePeriodSeconds) some seconds more than this.
        grace: Length = SPAN, Default "20s";
        /// The name of this replica, on the status page, in the log and in `sluiced limits`. No two replicas may have the
        /// same: name them by the variable SLUICED__SERVICE__INSTANCE, not in a file that they share. The units for
        /// systemd set it to host and unit. Absent: host and process.
        instance: Option<String> = INSTANCE, Optional "web-1:sluiced";
    }
}

table! {
    /// Where queues and limits live.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Backend {
        /// rabbitmq, or embedded: a file or stdin of this process, for a run without a broker.
        queue: QueueBackend = QueueBackend::SHAPE, Default "rabbitmq";
        /// redis, or memory: the limit then holds for this process alone.
        limits: LimitBackend = LimitBackend::SHAPE, Default "redis";
    }
}

table! {
    /// The queue in this process, for `backend.queue = "embedded"`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Embedded {
        /// For backend.queue = "embedded": newline-delimited JSON, one message a line; "-" is stdin.
        input: PathBuf = TEXT, Default "-";
        /// The file for messages that were not delivered, with the reason. The progress of a list in a file is
        /// written beside it (.checkpoint): another run of the same list goes on from there; `run --fresh` starts
        /// over.
        leftover: PathBuf = TEXT, Default "leftover.ndjson";
    }
}

words! {
    pub enum LogFormat {
        /// Human on a terminal, JSON otherwise.
        Auto = "auto",
        Human = "human",
        Json = "json",
    }
}

words! {
    pub enum QueueBackend {
        Rabbitmq = "rabbitmq",
        /// A file or stdin of newline-delimited JSON; the run ends when all is settled.
        Embedded = "embedded",
    }
}

words! {
    pub enum LimitBackend {
        Redis = "redis",
        /// This process alone.
        Memory = "memory",
    }
}
