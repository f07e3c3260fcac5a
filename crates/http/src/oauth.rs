//! Tokens for the header `Authorization`: asked for with the credentials of a client (OAuth 2.0, RFC 6749, section 4.4) or
//! with claims that are signed (RFC 7523, section 2.1), or the signed claims themselves, as Apple wants them.
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
mod key;
mod source;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::StatusCode;
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

use self::grant::{granted, lasting, refusal};
use self::source::{Source, Step};
pub(super) use self::state::Given;
use self::state::{State, Token};
use super::egress::Egress;
use sluiced_ports::connect::Secret;
use sluiced_ports::dial::{Misconfigured, connect_detail};
use sluiced_ports::lock;
use sluiced_settings::types::{Auth, Http, Jwt, Oauth2};

/// How long a request for a token may take.
const BOUND: Duration = Duration::from_secs(10);
/// The file of the secret is looked at this often: an operator who mends it does not wait for the next token.
const LOOK: Duration = Duration::from_secs(10);
/// An answer with a token is no larger.
const MAX_ANSWER: usize = 64 * 1024;

/// The tokens of one client.
pub(super) struct Tokens {
    client: Client<HttpsConnector<Egress>, Full<Bytes>>,
    source: Source,
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
    source: Source,
    /// The secret itself, as a digest, and its file.
    secret: [u8; 32],
    file: Option<PathBuf>,
    /// The way to the server: the proxy, and files of certificates.
    way: [Option<String>; 4],
}

/// What a configuration says of a client whose tokens are kept here.
pub(super) enum TokenAuth<'a> {
    Oauth2(&'a Oauth2),
    Jwt(&'a Jwt),
}

impl<'a> TokenAuth<'a> {
    /// `None`: this way to be recognized has no tokens of its own.
    pub(super) fn of(auth: &'a Auth) -> Option<Self> {
        match auth {
            Auth::Oauth2(client) => Some(Self::Oauth2(client)),
            Auth::Jwt(jwt) => Some(Self::Jwt(jwt)),
            Auth::Basic(_) | Auth::Bearer(_) | Auth::Hmac(_) | Auth::Aws(_) => None,
        }
    }

    fn source(&self) -> Source {
        match self {
            Self::Oauth2(client) => Source::from(*client),
            Self::Jwt(jwt) => Source::from(*jwt),
        }
    }

    /// The file of the secret.
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Oauth2(client) => client.client_secret_file.as_ref(),
            Self::Jwt(jwt) => Some(&jwt.key_file),
        }
    }

    /// Whether a server is asked by TLS.
    pub(super) fn asks_by_tls(&self) -> bool {
        let source = self.source();
        source
            .token_url()
            .is_some_and(|url| url.starts_with("https:"))
    }
}

static SHARED: Mutex<Option<HashMap<Identity, Weak<Tokens>>>> = Mutex::new(None);

impl Tokens {
    /// Those of this client, shared with all other routes of this process that have the same.
    ///
    /// # Errors
    /// When the client cannot be written in a request, or its key cannot be read.
    pub(super) fn of(
        auth: &TokenAuth<'_>,
        secret: &Secret,
        http: &Http,
        network: HttpsConnector<Egress>,
    ) -> Result<Arc<Self>, Misconfigured> {
        let source = auth.source();
        let text = secret.last();
        if let TokenAuth::Jwt(_) = auth {
            key::check(text.expose_secret())
                .map_err(|why| Misconfigured::new("auth.key_file", why))?;
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.expose_secret().as_bytes());
        let mut identity = Identity {
            source: source.clone(),
            secret: [0; 32],
            file: auth.file().cloned(),
            way: way_of(http),
        };
        identity.secret.copy_from_slice(digest.as_ref());
        if let Some(Err(_)) = source.token_url().map(str::parse::<http::Uri>) {
            return Err(Misconfigured::new("auth.token_url", "is no URL"));
        }
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
            source,
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

    /// Whether the file of the secret has another one than at the last token.
    fn has_new_secret(&self) -> bool {
        let before = self.secret.last();
        let is_new = self.secret.get().expose_secret() != before.expose_secret();
        if is_new {
            info!(server = %self.server(), "the secret of the tokens has changed: another one is asked for");
        }
        is_new
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
        let fraction = rand::rng().random_range(0.0..1.0);
        let secret = self.secret.get();
        let step = self
            .source
            .step(secret.expose_secret(), SystemTime::now())?;
        let request = match step {
            Step::Made(token, lasts) => return lasting(&token, lasts, since, fraction),
            Step::Ask(request) => *request,
        };
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| connect_detail(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| format!("its answer broke off: {error}"))?;
        let body = body.to_bytes();
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        granted(status, &body, since, fraction)
    }

    /// The host of the token's server, for a person.
    pub(super) fn server(&self) -> String {
        let Some(url) = self.source.token_url() else {
            return "the key in key_file".to_owned();
        };
        let url = url.parse::<http::Uri>().ok();
        let host = url.as_ref().and_then(|url| url.authority());
        host.map_or_else(|| "token_url".to_owned(), ToString::to_string)
    }
}

/// Fetches tokens for as long as any route uses them.
async fn keep(tokens: Weak<Tokens>) {
    while let Some(this) = tokens.upgrade() {
        let due = lock(&this.state).due_at(Instant::now());
        if due <= Instant::now() || this.has_new_secret() {
            this.fetch().await;
            continue;
        }
        let wake = Arc::clone(&this.wake);
        drop(this);
        tokio::select! {
            () = sleep_until(due.min(Instant::now() + LOOK)) => {}
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
