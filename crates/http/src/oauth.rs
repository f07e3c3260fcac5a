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

mod grant;
mod state;

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
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};
use url::form_urlencoded;

use self::grant::{granted, refusal};
pub(super) use self::state::Given;
use self::state::{State, Token};
use super::egress::Egress;
use sluiced_ports::connect::Secret;
use sluiced_ports::dial::{Misconfigured, connect_detail};
use sluiced_ports::lock;
use sluiced_settings::types::{ClientAuth, Http, Oauth2};

/// How long a request for a token may take.
const BOUND: Duration = Duration::from_secs(10);
/// An answer with a token is no larger.
const MAX_ANSWER: usize = 64 * 1024;

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
            if let Some(found) = lock(&self.state).look(Instant::now()) {
                return found;
            }
            if changes.changed().await.is_err() {
                return Err("no token".to_owned());
            }
        }
    }

    /// The downstream answered a call that had this token. Returns whether another call has another one, for a call that was
    /// refused.
    pub(super) fn answered(&self, status: StatusCode, number: u64) -> bool {
        let follows = lock(&self.state).answered(status, number, Instant::now());
        if follows.turns {
            self.wake.notify_one();
        }
        if follows.is_replaced && follows.turns {
            info!(server = %self.server(), "the downstream refused the token: another one is asked for");
        }
        follows.is_replaced
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

    async fn fetch(&self) {
        let asked = timeout(BOUND, self.ask()).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {BOUND:?}")));
        let asked = asked.map_err(|why| format!("{}: {why}", self.server()));
        if let Err(why) = &asked {
            warn!(why, "no token could be fetched");
        }
        lock(&self.state).fetched(asked, Instant::now());
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
        granted(status, &body, since, rand::rng().random_range(0.0..1.0))
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
        let due = lock(&this.state).due_at(Instant::now());
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

fn way_of(http: &Http) -> [Option<String>; 4] {
    let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    [
        http.proxy.clone(),
        Some(http.no_proxy.join(",")),
        file(&http.ca_file),
        file(&http.cert_file),
    ]
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}
