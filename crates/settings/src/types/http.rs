//! An HTTP downstream: the call of a message, when calls stop, and what the answers mean.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use super::auth::Auth;
use super::quota::Quota;
use crate::forms::templates::{ANSWER_TEMPLATE, BODY, HEADER};
use crate::forms::urls::{ALLOWED_HOST, HTTP_URL, NO_PROXY, PROXY_URL};
use crate::forms::{ANSWER, GOOD_ANSWER, METHOD, TEXT};
use crate::redacted::Redacted;
use crate::schema::Shape::{Flag, List, Named, Section, Whole};
use crate::schema::{SPAN, table, words};
use crate::text::{Length, TemplateText};
use sluiced_core::judge::{Lists, Texts};
use sluiced_template::{first_tag, secrets_in};

/// Headers that say how a request is framed, in small letters. They belong to the connection, and a wrong one could
/// turn one message into two requests.
pub const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

table! {
    /// An HTTP call per message.
    #[derive(Clone, Deserialize)]
    pub struct Http {
        /// http:// or https://, a template. Templates know body (parsed as JSON), headers, properties, routing_key,
        /// exchange, message_id (where the publisher gave none: one that is made at the first delivery and kept),
        /// route and attempt: "http://127.0.0.1:8080/send/{{ body.to | urlencode }}". url, headers and body also know
        /// secret, with the names of the table secrets.
        url: String = HTTP_URL, Required "http://127.0.0.1:8080/send";
        /// Hosts that a URL may lead to whose host is from a message: names, "*.example.com" for all names below one, "*" for
        /// any. With a port ("*:8443") that port, without one that of the scheme. Private addresses (of this machine, of its
        /// network, of a cloud's metadata) are called only for a host that stands here itself.
        allowed_hosts: Vec<String> = List(&ALLOWED_HOST), Default [];
        /// The method.
        method: String = METHOD, Default "POST";
        /// Headers of the call, templates by name.
        headers: BTreeMap<String, String> = Named { of: &HEADER, example: "content-type = \"application/json\"" },
            Default {};
        /// A template; absent: the body of the message, untouched.
        body: Option<String> = BODY, Optional "{{ body | tojson }}";
        /// As which user sluiced calls, or how it signs its calls.
        auth: Option<Auth> = Auth::SHAPE, Optional {};
        /// From the slot to the end of the answer. A longer call is a failed attempt, although the downstream may
        /// have taken the message: a repeat is then possible. At most service.grace.
        timeout: Length = SPAN, Default "10s";
        /// How long opening a connection may take, within timeout.
        connect_timeout: Length = SPAN, Default "5s";
        /// How long a call usually takes. The default prefetch follows from it; it changes no timing.
        latency: Length = SPAN, Default "250ms";
        /// The version of HTTP. With "2" many calls share a connection; the server must offer it in the handshake of
        /// TLS, and is called with it at once where the URL begins with http://.
        http: HttpVersion = HttpVersion::SHAPE, Default "1.1";
        /// Connections that are opened before the first slot. Over HTTP/2 calls are spread over them.
        warm_connections: u16 = Whole(0..=1000), Default 4;
        /// Idle connections are closed after this, and earlier where the downstream closes them earlier: as its
        /// Keep-Alive header says, or as it was seen to do twice.
        idle_timeout: Length = SPAN, Default "50s";
        /// Connections are used for no longer than this, and up to a fifth less. A new connection looks the host's name
        /// up again, so this is how long calls go to an address that the name has left.
        max_connection_age: Length = SPAN, Default "5m";
        /// An HTTP proxy that opens the connections (CONNECT), with its user if it asks for one. What the environment says
        /// of proxies (HTTPS_PROXY) is not read.
        proxy: Option<String> = PROXY_URL, Optional "http://sluiced@proxy.example:3128";
        /// The file that holds the password of the proxy's user. It is read anew for each connection.
        proxy_password_file: Option<PathBuf> = TEXT, Optional "credential:proxy";
        /// Hosts that are called without the proxy: names with all names below them, addresses, networks
        /// ("10.0.0.0/8").
        no_proxy: Vec<String> = List(&NO_PROXY), Default [];
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for servers that ask for one. Like its key it is read anew for each connection.
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:client-key";
        /// When calls stop, because the downstream is away or messages die in a row.
        breaker: Breaker = Section(Breaker::KEYS), Default {};
        /// The meaning of answers: codes ("409"), classes ("5xx"), "timeout", "connection", "unreadable" (an answer came
        /// whose meaning depends on what cannot be read). A code has precedence over a class. `sluiced check` prints what
        /// is done with each status.
        outcomes: Outcomes = Section(Outcomes::KEYS), Default {};
        /// A template over the answer (answer.status, answer.headers, answer.body) that returns what it means: accepted,
        /// throttled, held, transient or permanent. If it returns nothing, texts and the status decide. A success to
        /// which it cannot be applied is unreadable.
        outcome: Option<TemplateText> = ANSWER_TEMPLATE, Optional "{{ 'permanent' if answer.body.status == 'refused' }}";
        /// A template over the answer that returns when to come back, where no header says it: seconds, a length such as
        /// 4s, or a point in time.
        wait: Option<TemplateText> = ANSWER_TEMPLATE, Optional "{{ answer.body.parameters.retry_after }}";
        /// Keeps the first kilobyte of the answer on a dead letter, where `sluiced dead show` shows it. Off by
        /// default, because an answer may repeat content of the message.
        keep_answer: bool = Flag, Default false;
        /// What the downstream says of its own count, by the name of a limit of the route. When less is left than may
        /// be under way, a paced limit is frozen for every replica until the reset; of a keyed limit no more than is
        /// left passes until then, for the key. It never lets anything pass that the limit itself does not.
        quota: BTreeMap<String, Quota> = Named { of: &Section(Quota::KEYS), example: "provider" }, Default {};
        /// Which limit of the route a throttled call was refused for: its name, or a template over the answer that
        /// returns one. A keyed limit closes the key of that message for every replica, until the answer says to come
        /// back, and others go on; a paced one is frozen at once. If it returns nothing, the other calls show what it
        /// is about.
        throttles: Option<TemplateText> = ANSWER_TEMPLATE, Optional "{{ 'channel' if answer.headers['x-scope'] == 'user' }}";
        /// How long a throttled call waits if its answer does not say when to come back; a freeze lasts as long.
        throttle_wait: Length = SPAN, Default "1s";
        /// No answer is believed for longer than this, whatever it says of when to come back.
        max_throttle_wait: Length = SPAN, Default "1h";
    }
}

words! {
    /// A version of HTTP.
    pub enum HttpVersion {
        One = "1.1",
        Two = "2",
    }
}

impl Http {
    /// Whether the host of the URL is from the message.
    #[must_use]
    pub fn hosts_differ(&self) -> bool {
        let Some(tag) = first_tag(&self.url) else {
            return false;
        };
        let before = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = before.find(['/', '?', '#']);
        let scheme = self.url.len() - before.len();
        authority.is_none_or(|end| tag < scheme + end)
    }

    /// The key of an `auth`, or of a template with a secret, that shows its receiver what only the downstream may know.
    /// A signature shows nothing.
    pub(crate) fn shows_credentials(&self) -> Option<Vec<&str>> {
        let auth = self.auth.as_ref();
        if auth.is_some_and(|auth| !matches!(auth, Auth::Hmac(_) | Auth::Aws(_))) {
            return Some(vec!["auth"]);
        }
        let signs = |key: &[&str]| matches!(key, ["auth", "signed"]);
        let mut templates = self.of_call();
        let found = templates.find(|(key, text)| !signs(key) && !secrets_in(text).is_empty());
        found.map(|(key, _)| key)
    }

    /// The templates that may name secrets, each with its key.
    pub(crate) fn of_call(&self) -> impl Iterator<Item = (Vec<&str>, &str)> {
        let url = (vec!["url"], self.url.as_str());
        let body = self.body.iter().map(|body| (vec!["body"], body.as_str()));
        let headers = self
            .headers
            .iter()
            .map(|(name, text)| (vec!["headers", name], text.as_str()));
        let of_auth = self.auth.iter().flat_map(Auth::of_call);
        let auth = of_auth.map(|(mut key, text)| {
            key.insert(0, "auth");
            (key, text)
        });
        std::iter::once(url).chain(body).chain(headers).chain(auth)
    }
}

impl fmt::Debug for Http {
    /// Never the values of headers nor the body, for providers take keys in both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("url", &Redacted(&self.url))
            .field("method", &self.method)
            .field("headers", &self.headers.keys())
            .field("auth", &self.auth)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

table! {
    /// When calls stop because the downstream is away, or because messages die in a row.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Breaker {
        /// After so many calls in a row without an answer, or answered by 5xx, 401, 403 or 407 (SMPP: by a status about the
        /// session, the account or the centre, such as ESME_RSYSERR), nothing is sent: messages wait, and no attempt is
        /// spent. Never more than max_attempts. 0: never.
        failures: u32 = Whole(0..=1_000_000), Default 5;
        /// After so many messages in a row that are dead letters because they are rejected, with none accepted between, or
        /// because they cannot be decoded or counted, none dies any more. Rejected: one at a time is tried. Not decoded or
        /// counted: such messages are set aside for about a minute each time, and others pass. 0: never.
        dead_letters: u32 = Whole(0..=1_000_000), Default 50;
        /// After this, one replica makes one call, the probe. Doubles with each probe that fails.
        pause: Length = SPAN, Default "500ms";
        /// The longest pause.
        max_pause: Length = SPAN, Default "2s";
    }
}

table! {
    /// Which answers mean what.
    #[derive(Clone, Debug, Default, Deserialize)]
    pub struct Outcomes {
        /// Delivered.
        accepted: Vec<String> = List(&GOOD_ANSWER), Default [];
        /// Not now: spends no attempt. The other calls show whether the message, its key or the whole limit waits.
        throttled: Vec<String> = List(&ANSWER), Default [];
        /// Throttled for this message only, for example because of its recipient: it waits for as long as the answer
        /// says or for throttle_wait, spends no attempt, and freezes nothing.
        held: Vec<String> = List(&ANSWER), Default [];
        /// May pass later: an attempt, with backoff.
        transient: Vec<String> = List(&ANSWER), Default [];
        /// Can never pass: dead letter.
        permanent: Vec<String> = List(&ANSWER), Default [];
        /// Throttled, if the body of an answer contains one of these texts, with any status (within the first 64
        /// KiB). Blanks beside { } [ ] : and , do not count: the layout of JSON is the downstream's.
        throttled_text: Vec<String> = List(&TEXT), Default [];
        /// Throttled for this message only.
        held_text: Vec<String> = List(&TEXT), Default [];
        /// May pass later.
        transient_text: Vec<String> = List(&TEXT), Default [];
        /// Can never pass.
        permanent_text: Vec<String> = List(&TEXT), Default [];
        /// Delivered. The texts above have precedence.
        accepted_text: Vec<String> = List(&TEXT), Default [];
    }
}

impl Outcomes {
    /// As the judge reads them.
    #[must_use]
    pub fn lists(&self) -> Lists<'_> {
        Lists {
            accepted: &self.accepted,
            throttled: &self.throttled,
            held: &self.held,
            transient: &self.transient,
            permanent: &self.permanent,
            texts: Texts {
                accepted: &self.accepted_text,
                throttled: &self.throttled_text,
                held: &self.held_text,
                transient: &self.transient_text,
                permanent: &self.permanent_text,
            },
        }
    }
}
