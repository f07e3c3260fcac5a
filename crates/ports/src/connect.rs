//! Shared by the crates that connect to servers: whether a server can be reached, the addresses of its host,
//! TLS, and secrets.
//!
//! **Names.** Problem: the system's lookup blocks a thread, for half a minute where DNS does not answer, and
//! a timeout ends only the waiting. A client that looks a name up for each attempt piles up threads until the
//! system refuses more, and then a runtime panics. So there is at most one lookup of a name under way;
//! attempts that need the name meanwhile wait for the same answer, each within its own bound. Lookups of other names
//! wait for one of `MOST` places. If no thread can be started, that is an error. Nothing is cached: the next lookup asks the system again.
//!
//! **TLS** is in `tls`.
//!
//! **Secrets.** Problem: a password that was read once at the start is wrong after a rotation, and every
//! later attempt to connect fails. So the secret is read again for each login. If that fails (a file is being
//! replaced), the last good one is used, with a warning.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io, thread};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use secrecy::SecretString;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::warn;

use super::lock;

pub use self::tls::{ClientCertificate, Tls, TlsError, client_config};

mod tls;

/// The state of a connection that is supervised and rebuilt by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not connected since the start.
    Connecting,
    /// Usable.
    Up,
    /// Lost, with the reason as an operator should read it. Being rebuilt with backoff.
    Down(Arc<str>),
}

impl Link {
    /// Whether it can be used now.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}

/// Lookups of different names at a time. Names that are made from messages can be many, and those whose servers do not
/// answer keep their places for half a minute.
const MOST: usize = 64;

type Addresses = Option<Result<Vec<IpAddr>, Arc<io::Error>>>;
type UnderWay = BTreeMap<String, watch::Receiver<Addresses>>;

/// Looks names up. Copies share what is under way.
#[derive(Clone)]
pub struct Resolver {
    lookup: fn(&str) -> io::Result<Vec<IpAddr>>,
    under_way: Arc<Mutex<UnderWay>>,
    places: Arc<Semaphore>,
}

/// For so long an address may say nothing before the next one is tried beside it (RFC 8305, section 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The stream to the first of these addresses that answers. One that says nothing does not keep the others waiting. Has no
/// bound in time.
///
/// # Errors
/// When all of them refuse, or there is none.
pub async fn first_stream(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let (mut left, mut under_way) = (addresses.iter(), FuturesUnordered::new());
    let mut failure = io::Error::other("its name has no address");
    loop {
        let begun = left.next().map(TcpStream::connect);
        let wait = begun.as_ref().map_or(Duration::MAX, |_| NEXT_ADDRESS);
        under_way.extend(begun);
        // The next one begins at once if one of these fails.
        match timeout(wait, under_way.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => failure = error,
            Ok(None) => return Err(failure),
            Err(_) => {}
        }
    }
}

impl Resolver {
    /// One that asks the system.
    #[must_use]
    pub fn new() -> Self {
        Self::with(system)
    }

    fn with(lookup: fn(&str) -> io::Result<Vec<IpAddr>>) -> Self {
        Self {
            lookup,
            under_way: Arc::default(),
            places: Arc::new(Semaphore::new(MOST)),
        }
    }

    /// The addresses of a host, by name or as an address. Has no bound in time: the caller has one.
    ///
    /// # Errors
    /// When the name is not known, or there is no thread for the lookup.
    pub async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let mut answer = self.ask(host).await?;
        let answer = answer.wait_for(Option::is_some).await;
        match answer.as_deref() {
            Ok(Some(Ok(found))) => Ok(found.clone()),
            Ok(Some(Err(error))) => Err(io::Error::new(error.kind(), Arc::clone(error))),
            _ => Err(io::Error::other("the lookup broke off")),
        }
    }

    async fn ask(&self, host: &str) -> io::Result<watch::Receiver<Addresses>> {
        let known = lock(&self.under_way).get(host).cloned();
        if let Some(answer) = known {
            return Ok(answer);
        }
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(io::Error::other)?;
        let mut under_way = lock(&self.under_way);
        // Another task asked while this one waited for its place.
        if let Some(answer) = under_way.get(host) {
            return Ok(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let (this, name) = (self.clone(), host.to_owned());
        thread::Builder::new()
            .name("resolve".to_owned())
            .spawn(move || {
                let found = (this.lookup)(&name).map_err(Arc::new);
                lock(&this.under_way).remove(&name);
                sender.send_replace(Some(found));
                drop(place);
            })?;
        under_way.insert(host.to_owned(), answer.clone());
        Ok(answer)
    }
}

fn system(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = (host, 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// Reads the secret; the error gives the reason, without the secret.
type Read = dyn Fn() -> Result<SecretString, String> + Send + Sync;

/// A secret, and how to read it again. Copies are the same.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    /// `None`: it is in the configuration.
    read: Option<Box<Read>>,
    known: Mutex<Known>,
}

struct Known {
    last: SecretString,
    /// The failure that was logged.
    logged: Option<String>,
}

impl Secret {
    /// A secret that `read` reads again, with its first value.
    pub fn rotating(
        first: SecretString,
        read: impl Fn() -> Result<SecretString, String> + Send + Sync + 'static,
    ) -> Self {
        Self::new(first, Some(Box::new(read)))
    }

    fn new(last: SecretString, read: Option<Box<Read>>) -> Self {
        let known = Mutex::new(Known { last, logged: None });
        Self(Arc::new(Inner { read, known }))
    }

    /// The current secret, or the last one that could be read.
    #[must_use]
    pub fn get(&self) -> SecretString {
        let now = self.0.read.as_ref().map(|read| read());
        let mut known = lock(&self.0.known);
        match now {
            None => {}
            Some(Ok(now)) => {
                known.last = now;
                known.logged = None;
            }
            // Once for each reason, not once for each attempt.
            Some(Err(why)) if known.logged.as_ref() != Some(&why) => {
                warn!(why, "a secret cannot be read again; the last one is used");
                known.logged = Some(why);
            }
            Some(Err(_)) => {}
        }
        known.last.clone()
    }

    /// The secret as it was used last.
    #[must_use]
    pub fn last(&self) -> SecretString {
        lock(&self.0.known).last.clone()
    }
}

impl From<SecretString> for Secret {
    fn from(fixed: SecretString) -> Self {
        Self::new(fixed, None)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a connection could not be opened, for a person. `None`: the error's own text says it as well.
#[must_use]
pub fn why(error: &io::Error) -> Option<String> {
    tls::why(error).or_else(|| {
        let said = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused",
            io::ErrorKind::ConnectionReset => "connection reset while it was opened",
            io::ErrorKind::UnexpectedEof => "connection closed while it was opened",
            _ => return None,
        };
        Some(said.to_owned())
    })
}

#[cfg(test)]
mod tests;
