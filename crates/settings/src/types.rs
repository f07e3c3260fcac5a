//! The table of keys: every key of the configuration with its shape, its default and what it does.
//!
//! One declaration makes the struct that the program reads and the `KeySpec`s (see `schema`) from
//! which everything else follows: the checks of shape, the defaults, `check --print`, the JSON schema and
//! `config/default.toml`. The comments of the fields are the text of that file.

mod auth;
mod aws;
mod callers;
mod http;
mod limit;
mod limit_facts;
mod quota;
mod rabbitmq;
mod redis;
mod results;
mod route;
mod rules;
mod service;
mod settings_facts;
mod smpp;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::forms::TEXT;
use super::schema::Shape::{self, Named, Part, Section};
use super::schema::table;

pub use auth::{Auth, AwsSigv4, ClientAuth, HashFunction, Hmac, Jwt, Oauth2, SecretEncoding};
pub use aws::{AwsCredentials, AwsVariables};
pub use callers::{Callers, SourceSummary, callers_route};
pub use http::{Breaker, FRAMING, Http, HttpVersion, Outcomes};
pub use limit::{FixedWindow, Limit, OfKind, OnUnknown, Paced, Start};
pub use quota::{Quota, QuotaFormat};
pub use rabbitmq::RabbitMq;
pub use redis::{Redis, RedisMode};
pub use results::{ResultOn, Results, Unroutable};
pub use route::{Downstream, JournalLines, MAX_LIMITS, OnDenied, QueueType, Route, WhenUnsendable};
pub use service::{Admin, Backend, Embedded, LimitBackend, Log, LogFormat, QueueBackend, Service};
pub use smpp::{Smpp, SmppBind, SmppEncoding, SmppLong, SmppOutcomes};

pub(super) use limit::{ABSENT, LIMIT};

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
        /// with names of letters, digits, `_`, `-` and `.`. Seven kinds; a route may have one of the kind paced and
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
    /// Keys for every route and downstream. They are moved there before these fields are read, so the fields stay empty.
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
