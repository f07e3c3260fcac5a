//! Tokens: what a server gives for a time, and calls need. Those of `oauth` are a header of the call; `metadata` gives
//! credentials with which it is signed. `state` says when they are asked for.
//!
//! Problem: a token lasts for minutes or hours, and a call whose token has to be fetched first leaves too late for its
//! slot. So a task of its own fetches it before the first slot, and again after three to four fifths of its life, while
//! calls go on with the old one. One request for a token is under way at a time, for all routes of this process that
//! have the same client: servers limit such requests too.
//!
//! Where there is no token, calls fail without being made, as if the downstream refused connections: the breaker opens,
//! and its reason is what the token's server said.
//!
//! A token that worked and is refused now has ended early: it is replaced, and its call is made again without an
//! attempt. A token that never worked is replaced too, but less and less often, and its refusals are answers like any
//! other: otherwise a client that may not call would call for ever. A route that is refused again and again takes no
//! token away from other routes ([`TokenAccepted`]).

mod client;
mod metadata;
mod oauth;
mod source;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use rand::RngExt as _;
use secrecy::ExposeSecret as _;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use self::client::TokenClient;
use self::source::{Source, Words};
pub(crate) use self::state::CallToken;
use self::state::{Token, TokenState};
use super::aws::Credentials as AwsCredentials;
use crate::connections::connect::network;
use crate::connections::egress::Proxy;
use sluiced_net::connect::Secret;
use sluiced_net::dial::{Credentials, Misconfigured, tls};
use sluiced_ports::lock;
use sluiced_settings::types::{Auth, Http, HttpVersion};

/// How long a request for a token may take.
const BOUND: Duration = Duration::from_secs(10);
/// The file of the secret is looked at this often: an operator who mends it does not wait for the next token.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The tokens of one client.
pub(crate) struct Tokens {
    client: TokenClient,
    source: Source,
    secret: Secret,
    state: Mutex<TokenState>,
    /// Told of each change of the state.
    changes: watch::Sender<()>,
    /// Wakes the task that fetches.
    wake: Arc<Notify>,
    /// Where that task runs: calls have runtimes that end before others. `None`: where it is started.
    runtime: Option<Handle>,
    is_kept: AtomicBool,
}

/// Whether the last call of a route was not refused because of its token.
#[derive(Debug, Default)]
pub(crate) struct TokenAccepted(AtomicBool);

/// What makes two clients the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ClientIdentity {
    source: Source,
    /// The secret itself, as a digest, and its file.
    secret: [u8; 32],
    file: Option<PathBuf>,
    /// The way to the server: the proxy, and files of certificates.
    way: [Option<String>; 4],
}

/// What a server gave, and how long it lasts from when it was asked for; `None`: the server does not say it.
struct IssuedToken {
    gives: TokenValue,
    life: Option<Duration>,
}

/// What a call gets.
#[derive(Clone)]
enum TokenValue {
    /// The header `Authorization`.
    Header(HeaderValue),
    /// The credentials of its signature.
    Aws(Arc<AwsCredentials>),
}

static SHARED: Mutex<Option<HashMap<ClientIdentity, Weak<Tokens>>>> = Mutex::new(None);

impl Tokens {
    /// The tokens that calls with this `auth` need, shared with all other routes of this process that have the same
    /// client. `None`: they need none.
    ///
    /// # Errors
    /// When the client cannot be written in a request, its key cannot be read, or there is no way to its server.
    pub(crate) fn for_auth(
        auth: &Auth,
        secret: &Secret,
        http: &Http,
        credentials: &Credentials,
    ) -> Result<Option<Arc<Self>>, Misconfigured> {
        let Some((source, file)) = Source::for_auth(auth)? else {
            return Ok(None);
        };
        let text = secret.last();
        source.check(text.expose_secret())?;
        let digest = ring::digest::digest(&ring::digest::SHA256, text.expose_secret().as_bytes());
        let mut identity = ClientIdentity {
            way: way_of(&source, http),
            source: source.clone(),
            secret: [0; 32],
            file,
        };
        identity.secret.copy_from_slice(digest.as_ref());
        let mut guard = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = guard.get_or_insert_default();
        shared.retain(|_, tokens| tokens.strong_count() > 0);
        if let Some(shared_tokens) = shared.get(&identity).and_then(Weak::upgrade) {
            return Ok(Some(shared_tokens));
        }
        let client = client(&source, http, credentials)?;
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
        Ok(Some(tokens))
    }

    /// The token of this moment, once there is one.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(crate) async fn token(self: &Arc<Self>) -> Result<CallToken, String> {
        self.start();
        let what = self.source.words().what;
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(found) = lock(&self.state).current(Instant::now()) {
                return found.map_err(|why| format!("no {what}: {why}"));
            }
            if changes.changed().await.is_err() {
                return Err(format!("no {what}"));
            }
        }
    }

    /// The token of this moment, if it is there already.
    pub(crate) fn at_hand(&self) -> Option<CallToken> {
        lock(&self.state).current(Instant::now())?.ok()
    }

    /// The downstream answered a call with token `number`. Returns whether a refused call may be made again with a new
    /// token.
    pub(crate) fn note_answer(
        &self,
        (status, headers, body): (StatusCode, &HeaderMap, &[u8]),
        number: u64,
        token_accepted: &TokenAccepted,
    ) -> bool {
        let is_refused = self.source.is_refused(status, headers, body);
        let worked = token_accepted.0.swap(!is_refused, Ordering::Relaxed);
        let follows = lock(&self.state).note_answer(is_refused, worked, number, Instant::now());
        if follows.is_rescheduled {
            self.wake.notify_one();
        }
        if follows.is_replaced && follows.is_rescheduled {
            let Words { what, again, .. } = self.source.words();
            info!(server = %self.server(), "the downstream refused the {what}: {again}");
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
            let Words { secret, again, .. } = self.source.words();
            info!(server = %self.server(), "{secret} has changed: {again}");
        }
        is_new
    }

    async fn fetch(&self) {
        let fetched = timeout(BOUND, self.ask())
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {BOUND:?}")))
            .map_err(|why| format!("{}: {why}", self.server()));
        if let Err(why) = &fetched {
            warn!(why, "no {} could be fetched", self.source.words().what);
        }
        lock(&self.state).note_fetch(fetched, Instant::now());
        self.changes.send_replace(());
    }

    async fn ask(&self) -> Result<Token, String> {
        let since = Instant::now();
        let fraction = rand::rng().random_range(0.0..1.0);
        let secret = self.secret.get();
        let secret_text = secret.expose_secret();
        let issued = self.source.ask(&self.client, secret_text).await?;
        Token::new(issued, since, Instant::now(), fraction)
    }

    /// The host of the token's server, for a person.
    pub(crate) fn server(&self) -> String {
        let Some(url) = self.source.url() else {
            return "the key in key_file".to_owned();
        };
        let url = url.parse::<http::Uri>().ok();
        let Some(authority) = url.as_ref().and_then(|url| url.authority()) else {
            return "token_url".to_owned();
        };
        // Without a user and a password, which it may have.
        match authority.port() {
            Some(port) => format!("{}:{port}", authority.host()),
            None => authority.host().to_owned(),
        }
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
            () = sleep_until(due.min(Instant::now() + CHECK_INTERVAL)) => {}
            () = wake.notified() => {}
        }
    }
}

/// Asks the token server on the way that calls take, or directly.
fn client(
    source: &Source,
    http: &Http,
    credentials: &Credentials,
) -> Result<TokenClient, Misconfigured> {
    let is_tls = source.url().is_some_and(|url| url.starts_with("https:"));
    let (certificate, proxy) = match source.is_near() {
        true => (None, None),
        false => {
            let proxy = Proxy::new(http, credentials.proxy.as_ref())?;
            (credentials.certificate.as_ref(), proxy)
        }
    };
    let tls = tls(http.ca_file.as_deref(), certificate, is_tls)?;
    let timeout = http.connect_timeout.get();
    let network = network(tls, timeout, proxy, None, HttpVersion::One);
    Ok(TokenClient::new(network))
}

fn way_of(source: &Source, http: &Http) -> [Option<String>; 4] {
    let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let authority = file(&http.ca_file);
    match source.is_near() {
        true => [None, None, authority, None],
        false => [
            http.proxy.clone(),
            Some(http.no_proxy.join(",")),
            authority,
            file(&http.cert_file),
        ],
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}
