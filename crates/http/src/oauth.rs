//! Tokens of OAuth 2.0 for the header `Authorization`, asked for with the credentials of a client (RFC 6749, section 4.4).
//!
//! Problem: a token lasts for minutes or hours, and a call whose token has to be fetched first leaves too late for its slot.
//! So a task of its own fetches it before the first slot, and again after three to four fifths of its life, while calls go on
//! with the old one. One request for a token is under way at a time, for all routes of this process that have the same
//! client: servers limit such requests too.
//!
//! Where there is no token, calls fail without being made, as if the downstream refused connections: the breaker opens, and
//! its reason is what the token's server said.
//!
//! A token that worked and is refused now (401) has ended early: it is replaced, and its call is made again without an
//! attempt. A token that never worked is replaced too, but less and less often, and its refusals are answers like any other:
//! otherwise a client that may not call would call for ever.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};
use url::form_urlencoded;

use super::egress::Egress;
use sluiced_core::backoff::Backoff;
use sluiced_ports::connect::Secret;
use sluiced_ports::dial::{Misconfigured, connect_detail};
use sluiced_ports::lock;
use sluiced_settings::types::{ClientAuth, Http, Oauth2};

/// How long a request for a token may take.
const BOUND: Duration = Duration::from_secs(10);
/// An answer with a token is no larger.
const MAX_ANSWER: usize = 64 * 1024;
/// The life of a token whose server does not say it.
const UNSAID: Duration = Duration::from_secs(300);
/// A longer life is not believed: a clock that has to hold for so long is not worth it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A token with a shorter life has ended when its call arrives.
const SHORTEST: Duration = Duration::from_secs(2);
/// Between two requests that fail.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// A token that works and is refused sooner than this is not replaced: a message that is refused for a reason of its own
/// would ask for tokens without end.
const NEW: Duration = Duration::from_secs(5);
/// Between two tokens that never worked.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// The tokens of one client.
pub(super) struct Tokens {
    client: Client<HttpsConnector<Egress>, Full<Bytes>>,
    settings: Oauth2,
    secret: Secret,
    state: Mutex<State>,
    /// Told of each change of the state.
    changes: watch::Sender<()>,
    /// Ends the rest of the task that fetches.
    wake: Arc<Notify>,
    /// Where that task runs: calls have runtimes that end before others. `None`: where it is started.
    runtime: Option<Handle>,
    is_kept: AtomicBool,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// How many there were.
    count: u64,
    failed: Option<Failed>,
    /// So many in a row were refused although they never worked.
    refused: u32,
}

struct Token {
    header: HeaderValue,
    number: u64,
    since: Instant,
    /// A call with it had another answer than 401.
    works: bool,
    renew_at: Instant,
    ends: Instant,
}

/// A token for one call.
pub(super) struct Given {
    pub(super) header: HeaderValue,
    /// By which [`Tokens::answered`] knows it.
    pub(super) number: u64,
}

/// There is no new token before a time.
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
    in_body: bool,
    /// The secret itself, as a digest, and its file.
    secret: [u8; 32],
    file: Option<PathBuf>,
    scope: Option<String>,
    audience: Option<String>,
    /// The way to the server: the proxy, and files of certificates.
    way: [Option<String>; 4],
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
    error: Option<Value>,
    error_description: Option<Value>,
}

impl Tokens {
    /// Those of this client, shared with all other routes of this process that have the same.
    ///
    /// # Errors
    /// When the client cannot be written in a request.
    pub(super) fn of(
        settings: &Oauth2,
        secret: &Secret,
        http: &Http,
        network: HttpsConnector<Egress>,
    ) -> Result<Arc<Self>, Misconfigured> {
        let digest = ring::digest::digest(
            &ring::digest::SHA256,
            secret.last().expose_secret().as_bytes(),
        );
        let mut identity = Identity {
            token_url: settings.token_url.clone(),
            client_id: settings.client_id.clone(),
            in_body: settings.client_auth == ClientAuth::Body,
            secret: [0; 32],
            file: settings.client_secret_file.clone(),
            scope: settings.scope.clone(),
            audience: settings.audience.clone(),
            way: way_of(http),
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
            changes: watch::Sender::new(()),
            wake: Arc::default(),
            runtime: Handle::try_current().ok(),
            is_kept: AtomicBool::new(false),
        });
        shared.insert(identity, Arc::downgrade(&tokens));
        Ok(tokens)
    }

    /// The token of this moment, once there is one.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(super) async fn given(self: &Arc<Self>) -> Result<Given, String> {
        self.start();
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(found) = self.look() {
                return found;
            }
            if changes.changed().await.is_err() {
                return Err("no token".to_owned());
            }
        }
    }

    /// A token, or why there is none. `None`: it is being fetched.
    fn look(&self) -> Option<Result<Given, String>> {
        let state = lock(&self.state);
        if let Some(token) = state
            .token
            .as_ref()
            .filter(|token| Instant::now() < token.ends)
        {
            return Some(Ok(Given {
                header: token.header.clone(),
                number: token.number,
            }));
        }
        let failed = state.failed.as_ref();
        failed.map(|failed| Err(format!("no token: {}", failed.why)))
    }

    /// The downstream answered a call that had this token. Returns whether another call has another one, for a call that was
    /// refused.
    pub(super) fn answered(&self, status: StatusCode, number: u64) -> bool {
        let is_refused = status == StatusCode::UNAUTHORIZED;
        let mut state = lock(&self.state);
        let Some(token) = state.token.as_mut().filter(|token| token.number == number) else {
            return is_refused;
        };
        if !is_refused {
            token.works = true;
            // The wait for a token that works is over: this one is renewed in its time.
            let waited = std::mem::take(&mut state.refused) > 0;
            if waited
                && state
                    .failed
                    .as_ref()
                    .is_some_and(|failed| failed.times == 0)
            {
                state.failed = None;
                drop(state);
                self.wake.notify_one();
            }
            return false;
        }
        let works = token.works;
        if works && token.since.elapsed() < NEW {
            // It works for others: this refusal is about its own call.
            return false;
        }
        if works {
            info!(server = %self.server(), "the downstream refused the token: another one is asked for");
            (state.token, state.failed) = (None, None);
        } else if state.failed.is_none() {
            state.refused += 1;
            let wait = REFUSED.ceiling(state.refused);
            state.failed = Some(Failed {
                why: "the downstream refuses each token".to_owned(),
                times: 0,
                again_at: Instant::now() + wait,
            });
        }
        drop(state);
        self.wake.notify_one();
        works
    }

    /// Starts the task that fetches, once.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_kept.swap(true, Ordering::Relaxed) {
            return;
        }
        let keeping = keep(Arc::downgrade(self));
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(keeping)),
            None => drop(tokio::spawn(keeping)),
        }
    }

    /// When the next token is asked for.
    fn due_at(&self) -> Instant {
        let state = lock(&self.state);
        match (&state.failed, &state.token) {
            (Some(failed), _) => failed.again_at,
            (None, Some(token)) => token.renew_at,
            (None, None) => Instant::now(),
        }
    }

    async fn fetch(&self) {
        let asked = timeout(BOUND, self.ask()).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {BOUND:?}")));
        {
            let mut state = lock(&self.state);
            match asked {
                Ok(mut token) => {
                    state.count += 1;
                    token.number = state.count;
                    (state.token, state.failed) = (Some(token), None);
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
        self.changes.send_replace(());
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
    pub(super) fn server(&self) -> String {
        let url = self.settings.token_url.parse::<http::Uri>().ok();
        let host = url.as_ref().and_then(|url| url.authority());
        host.map_or_else(|| "token_url".to_owned(), ToString::to_string)
    }
}

/// Fetches tokens for as long as any route uses them.
async fn keep(tokens: Weak<Tokens>) {
    while let Some(this) = tokens.upgrade() {
        let due = this.due_at();
        if due <= Instant::now() {
            this.fetch().await;
            continue;
        }
        let wake = Arc::clone(&this.wake);
        drop(this);
        tokio::select! {
            () = sleep_until(due) => {}
            () = wake.notified() => {}
        }
    }
}

/// The token of an answer. It is renewed after three to four fifths of its life: replicas that begin together do not ask
/// together each time. `fraction`: random, from 0 to 1.
fn token(granted: &Granted, since: Instant, fraction: f64) -> Result<Token, String> {
    // Apigee writes `BearerToken`.
    if !granted
        .token_type
        .to_ascii_lowercase()
        .starts_with("bearer")
    {
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
    if life < SHORTEST {
        return Err(format!(
            "its token lasts for {life:?}, which is too short to use it"
        ));
    }
    let renew_at = since + life.mul_f64(fraction.mul_add(0.2, 0.6));
    // Its server counts from when it made the token, and the call takes a moment.
    let (now, ends) = (
        Instant::now(),
        since + life.saturating_sub(Duration::from_secs(1)),
    );
    if ends <= now {
        return Err(format!(
            "its token lasts for {life:?} and took longer than that"
        ));
    }
    Ok(Token {
        header,
        number: 0,
        since,
        works: false,
        // Not at once, or it would be asked for without a pause.
        renew_at: renew_at.max(now + Duration::from_millis(500)),
        ends,
    })
}

fn way_of(http: &Http) -> [Option<String>; 4] {
    let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    [
        http.proxy.clone(),
        Some(http.no_proxy.join(",")),
        file(&http.ca_file),
        file(&http.cert_file),
    ]
}

/// What a server said instead of a token. The description is the server's own text, and is shown in part.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    const SHOWN: usize = 120;
    let said: Refused = serde_json::from_slice(body).unwrap_or_default();
    let parts = [said.error, said.error_description].into_iter().flatten();
    let parts = parts.filter(|part| !part.is_null());
    let parts = parts.map(|part| {
        part.as_str()
            .map_or_else(|| part.to_string(), str::to_owned)
    });
    let text = parts.collect::<Vec<_>>().join(" ");
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

    fn granted(json: &str, since: Instant) -> Result<Token, String> {
        let granted = serde_json::from_str(json).map_err(|error| error.to_string())?;
        token(&granted, since, 0.5)
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
            let since = Instant::now();
            let token = granted(&json, since).expect(expires);
            let lasts = |at: Instant| at.saturating_duration_since(since).as_secs();
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
            r#"{"access_token":"a","token_type":"Bearer","expires_in":0}"#,
        ] {
            assert!(granted(json, Instant::now()).is_err(), "{json}");
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
            (
                r#"{"error":"invalid_scope","error_description":null}"#,
                "401 Unauthorized: invalid_scope",
            ),
            (
                r#"{"error":{"code":7},"error_description":"no"}"#,
                "401 Unauthorized: {\"code\":7} no",
            ),
            ("<html>", "401 Unauthorized"),
            ("", "401 Unauthorized"),
        ] {
            assert_eq!(refusal(status, body.as_bytes()), shown);
        }
    }
}
