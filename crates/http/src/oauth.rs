//! Tokens of OAuth 2.0 for the header `Authorization`, asked for with the credentials of a client (RFC 6749, section 4.4).
//!
//! Problem: a token lasts for minutes or hours, and a call whose token has to be fetched first leaves too late for its slot.
//! So it is fetched before the first slot, and again after three to four fifths of its life, while calls go on with the old
//! one. One request for a token is under way at a time, for all routes of this process that have the same client: servers
//! limit such requests too.
//!
//! Where there is no token, calls fail without being made, as if the downstream refused connections: the breaker opens, and
//! its reason is what the token's server said. A token that the downstream refuses (401) is replaced once, and the call is
//! made again without an attempt. If the new one is refused as well, that is an answer like any other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rand::RngExt as _;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use url::form_urlencoded;

use super::egress::Egress;
use sluiced_core::backoff::Backoff;
use sluiced_ports::connect::Secret;
use sluiced_ports::dial::{Misconfigured, connect_detail};
use sluiced_ports::lock;
use sluiced_settings::types::{ClientAuth, Oauth2};

/// How long a request for a token may take.
const BOUND: Duration = Duration::from_secs(10);
/// An answer with a token is no larger.
const MAX_ANSWER: usize = 64 * 1024;
/// The life of a token whose server does not say it.
const UNSAID: Duration = Duration::from_secs(300);
/// A longer life is not believed: a clock that has to hold for so long is not worth it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Between two requests that fail.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// A token that is refused sooner than this was not refused because it had ended.
const NEW: Duration = Duration::from_secs(5);

/// The tokens of one client.
pub(super) struct Tokens {
    client: Client<HttpsConnector<Egress>, Full<Bytes>>,
    settings: Oauth2,
    secret: Secret,
    state: Mutex<State>,
    /// Held by the request that is under way.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Grows when a token is refused.
    edition: u64,
    failed: Option<Failed>,
}

struct Token {
    header: HeaderValue,
    since: Instant,
    renew_at: Instant,
    ends: Instant,
}

/// The last request failed.
struct Failed {
    why: String,
    times: u32,
    again_at: Instant,
}

/// What makes two clients the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    token_url: String,
    client_id: String,
    secret: [u8; 32],
    scope: Option<String>,
    audience: Option<String>,
}

static SHARED: Mutex<Option<HashMap<Identity, Weak<Tokens>>>> = Mutex::new(None);

/// The answer with a token (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Some servers write the number as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

/// The answer without one (section 5.2).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    error: String,
    error_description: String,
}

impl Tokens {
    /// Those of this client, shared with all other routes of this process that have the same.
    ///
    /// # Errors
    /// When the client cannot be written in a request.
    pub(super) fn of(
        settings: &Oauth2,
        secret: &Secret,
        network: HttpsConnector<Egress>,
    ) -> Result<Arc<Self>, Misconfigured> {
        let digest = ring::digest::digest(
            &ring::digest::SHA256,
            secret.last().expose_secret().as_bytes(),
        );
        let mut identity = Identity {
            token_url: settings.token_url.clone(),
            client_id: settings.client_id.clone(),
            secret: [0; 32],
            scope: settings.scope.clone(),
            audience: settings.audience.clone(),
        };
        identity.secret.copy_from_slice(digest.as_ref());
        settings
            .token_url
            .parse::<http::Uri>()
            .map_err(|_| Misconfigured::new("auth.token_url", "is no URL"))?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.get_or_insert_default();
        shared.retain(|_, tokens| tokens.strong_count() > 0);
        if let Some(known) = shared.get(&identity).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // One request in minutes is not worth a connection that rests.
            .pool_max_idle_per_host(0)
            .build(network);
        let tokens = Arc::new(Self {
            client,
            settings: settings.clone(),
            secret: secret.clone(),
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        });
        shared.insert(identity, Arc::downgrade(&tokens));
        Ok(tokens)
    }

    /// Fetches a token in the background if one is needed soon. Must be called inside a tokio runtime.
    pub(super) fn ahead(self: &Arc<Self>) {
        let is_due = {
            let (state, now) = (lock(&self.state), Instant::now());
            let is_new = |token: &Token| now < token.renew_at;
            let may_ask = |failed: &Failed| now >= failed.again_at;
            !state.token.as_ref().is_some_and(is_new) && state.failed.as_ref().is_none_or(may_ask)
        };
        if is_due && self.asking.try_lock().is_ok() {
            let this = Arc::clone(self);
            tokio::spawn(async move { this.fetch(false).await });
        }
    }

    /// The header with a token, fetched if there is none.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(super) async fn header(&self) -> Result<HeaderValue, String> {
        if let Some(header) = self.valid() {
            return Ok(header);
        }
        self.fetch(true).await;
        self.valid().ok_or_else(|| {
            let state = lock(&self.state);
            let why = state.failed.as_ref().map(|failed| failed.why.as_str());
            format!("no token: {}", why.unwrap_or("it has ended already"))
        })
    }

    /// Changes when a token was refused and is replaced.
    pub(super) fn edition(&self) -> u64 {
        lock(&self.state).edition
    }

    /// The downstream answered a call that had the token of this edition.
    pub(super) fn answered(&self, status: StatusCode, edition: u64) {
        let mut state = lock(&self.state);
        let is_old = |token: &Token| token.since.elapsed() >= NEW;
        if status == StatusCode::UNAUTHORIZED
            && state.edition == edition
            && state.token.as_ref().is_some_and(is_old)
        {
            state.token = None;
            state.edition += 1;
            info!(server = %self.server(), "the downstream refused the token: another one is asked for");
        }
    }

    fn valid(&self) -> Option<HeaderValue> {
        let state = lock(&self.state);
        let token = state.token.as_ref();
        let token = token.filter(|token| Instant::now() < token.ends)?;
        Some(token.header.clone())
    }

    /// Asks for a token, unless another task did meanwhile, or the last request failed a moment ago. `is_needed`: a call
    /// waits for it.
    async fn fetch(&self, is_needed: bool) {
        let _asking = self.asking.lock().await;
        {
            let (state, now) = (lock(&self.state), Instant::now());
            let is_good = |token: &Token| match is_needed {
                true => now < token.ends,
                false => now < token.renew_at,
            };
            let waits = |failed: &Failed| now < failed.again_at;
            if state.token.as_ref().is_some_and(is_good) || state.failed.as_ref().is_some_and(waits)
            {
                return;
            }
        }
        let asked = timeout(BOUND, self.ask()).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {BOUND:?}")));
        let mut state = lock(&self.state);
        match asked {
            Ok(token) => {
                state.failed = None;
                state.token = Some(token);
            }
            Err(why) => {
                let times = state.failed.as_ref().map_or(0, |failed| failed.times) + 1;
                let wait = AGAIN.ceiling(times);
                let why = format!("{}: {why}", self.server());
                warn!(why, again_in = ?wait, "no token could be fetched");
                state.failed = Some(Failed {
                    why,
                    times,
                    again_at: Instant::now() + wait,
                });
            }
        }
    }

    async fn ask(&self) -> Result<Token, String> {
        let since = Instant::now();
        let answer = self.client.request(self.request()?).await;
        let answer = answer.map_err(|error| connect_detail(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| format!("its answer broke off: {error}"))?;
        let body = body.to_bytes();
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        let granted: Granted = serde_json::from_slice(&body)
            .map_err(|_| format!("its answer ({status}) has no access_token with a token_type"))?;
        token(&granted, since, rand::rng().random_range(0.0..1.0))
    }

    /// A POST of a form (RFC 6749, section 4.4.2).
    fn request(&self) -> Result<Request<Full<Bytes>>, String> {
        let settings = &self.settings;
        let secret = self.secret.get();
        let secret = secret.expose_secret();
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        for (name, value) in [("scope", &settings.scope), ("audience", &settings.audience)] {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        let mut request = Request::post(&settings.token_url)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json");
        match settings.client_auth {
            ClientAuth::Body => {
                form.append_pair("client_id", &settings.client_id);
                form.append_pair("client_secret", secret);
            }
            ClientAuth::Basic => {
                // Both are encoded like a form first (section 2.3.1).
                let part = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect();
                let (id, secret): (String, String) = (part(&settings.client_id), part(secret));
                let pair = BASE64_STANDARD.encode(format!("{id}:{secret}"));
                let value = HeaderValue::try_from(format!("Basic {pair}"));
                let mut value = value.map_err(|_| "the client cannot be written".to_owned())?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
        }
        let request = request.body(Full::new(Bytes::from(form.finish())));
        request.map_err(|_| "token_url is no URL".to_owned())
    }

    /// The host of the token's server, for a person.
    fn server(&self) -> String {
        let url = self.settings.token_url.parse::<http::Uri>().ok();
        let host = url.as_ref().and_then(|url| url.authority());
        host.map_or_else(|| "token_url".to_owned(), ToString::to_string)
    }
}

/// The token of an answer. It is renewed after three to four fifths of its life: replicas that begin together do not ask
/// together each time. `fraction`: random, from 0 to 1.
fn token(granted: &Granted, since: Instant, fraction: f64) -> Result<Token, String> {
    if !granted.token_type.eq_ignore_ascii_case("bearer") {
        return Err("its token is no bearer token".to_owned());
    }
    let mut header = HeaderValue::try_from(format!("Bearer {}", granted.access_token))
        .map_err(|_| "its token has a control character".to_owned())?;
    header.set_sensitive(true);
    let seconds = match &granted.expires_in {
        None => None,
        Some(Seconds::Number(number)) => Some(*number),
        Some(Seconds::Text(text)) => text.trim().parse().ok(),
    };
    let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let life = life.unwrap_or(UNSAID).min(LONGEST);
    Ok(Token {
        header,
        since,
        renew_at: since + life.mul_f64(fraction.mul_add(0.2, 0.6)),
        // Its server counts from when it made the token, and the call takes a moment.
        ends: since + life.saturating_sub(Duration::from_secs(1)),
    })
}

/// What a server said instead of a token. The description is the server's own text, and is shown in part.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    const SHOWN: usize = 120;
    let said: Refused = serde_json::from_slice(body).unwrap_or_default();
    let text = [said.error, said.error_description].join(" ");
    let text: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN)
        .collect();
    match text.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {text}"),
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(json: &str) -> Result<Token, String> {
        let granted = serde_json::from_str(json).map_err(|error| error.to_string())?;
        token(&granted, Instant::now(), 0.5)
    }

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        for (expires, life) in [
            ("3600", 3600),
            ("3600.0", 3600),
            ("\"900\"", 900),
            ("null", 300),
            ("-1", 300),
            ("1e300", 300),
            ("99999999", 24 * 3600),
        ] {
            let json = format!(
                r#"{{"access_token":"a","token_type":"bearer","expires_in":{expires},"scope":"x"}}"#
            );
            let token = granted(&json).expect(expires);
            let lasts = |at: Instant| at.saturating_duration_since(token.since).as_secs();
            assert_eq!(lasts(token.ends), life - 1, "{expires}");
            assert_eq!(lasts(token.renew_at), life * 7 / 10, "{expires}");
            assert_eq!(token.header, "Bearer a");
            assert!(!format!("{:?}", token.header).contains('a'));
        }
    }

    #[test]
    fn what_is_no_bearer_token_is_refused() {
        for json in [
            r#"{"access_token":"a","token_type":"mac"}"#,
            r#"{"access_token":"a\nb","token_type":"Bearer"}"#,
            r#"{"token_type":"Bearer"}"#,
            r#"{"access_token":"a"}"#,
        ] {
            assert!(granted(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_refusal_is_shown_in_the_words_of_its_server() {
        let status = StatusCode::UNAUTHORIZED;
        for (body, shown) in [
            (
                r#"{"error":"invalid_client","error_description":"no\nsuch client"}"#,
                "401 Unauthorized: invalid_client no such client",
            ),
            ("<html>", "401 Unauthorized"),
            ("", "401 Unauthorized"),
        ] {
            assert_eq!(refusal(status, body.as_bytes()), shown);
        }
    }
}
