//! What clients of a downstream need to connect, whatever the protocol: the credentials that settings name, TLS, why no
//! connection came about, and how long a handshake takes.
//!
//! The handshake of TCP is the measure of the way to the downstream. It is made on a thread that does nothing
//! else, because the runtimes have other work, and their delays would count as part of the way. The kernel
//! reports how long the thread itself waited for a processor, and that is subtracted. The connection is
//! closed at once; nothing is sent on it.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{self, SocketAddr};
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use rustls::ClientConfig;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::clock::Clock;
use super::connect::{ClientCertificate, Resolver, Secret, TlsError, client_config, why};
use super::downstream::Handshake;

/// A key of the downstream's configuration that cannot be used as it is. Only a changed
/// configuration helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct Misconfigured {
    /// The key below `[routes.NAME.downstream]`: `url`, `headers.X-Tenant`, `outcomes` …
    pub key: String,
    /// What is wrong, and what would be valid. Never a secret.
    pub why: String,
}

impl Misconfigured {
    /// `key` cannot be used, because of `why`.
    #[must_use]
    pub fn new(key: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            key: key.into(),
            why: why.to_string(),
        }
    }
}

/// The secrets that the settings of a downstream name, read from wherever they are kept.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The password, the token, or the key of signatures.
    pub secret: Option<Secret>,
    /// Ours, where the server asks for one.
    pub certificate: Option<ClientCertificate>,
    /// The password of the proxy's user.
    pub proxy: Option<Secret>,
    /// Secrets that templates name.
    pub named: BTreeMap<String, Secret>,
}

impl Credentials {
    /// The secret that the settings under `key` need.
    ///
    /// # Errors
    /// When there is none.
    pub fn secret(&self, key: &str) -> Result<&Secret, Misconfigured> {
        let secret = self.secret.as_ref();
        secret.ok_or_else(|| Misconfigured::new(key, "its secret is missing"))
    }
}

/// TLS that trusts `ca_file` and, if `native`, the system's certificates; with the client certificate if the server
/// asks for one.
///
/// # Errors
/// When certificates are missing or cannot be used.
pub fn tls(
    ca_file: Option<&Path>,
    ours: Option<&ClientCertificate>,
    native: bool,
) -> Result<ClientConfig, Misconfigured> {
    let unreadable = |path: &Path, error| {
        let why = format_args!("{} cannot be read: {error}", path.display());
        Misconfigured::new("ca_file", why)
    };
    let read = |path: &Path| std::fs::read(path).map_err(|error| unreadable(path, error));
    let ca = ca_file.map(read).transpose()?;
    client_config(ca.as_deref(), ours, native).map_err(|error| {
        let key = match error {
            TlsError::Authority(_) => "ca_file",
            TlsError::NoAuthority => "url",
            TlsError::Certificate(_) => "cert_file",
        };
        Misconfigured::new(key, error)
    })
}

/// Why no connection came about, for a person.
#[must_use]
pub fn connect_detail(error: &(dyn Error + 'static)) -> String {
    if causes(error).any(|cause| cause.to_string().starts_with("dns error")) {
        // It was resolved, and its addresses may not be used.
        let refused = find::<io::Error>(error);
        let refused = refused.filter(|io| io.kind() == io::ErrorKind::PermissionDenied);
        return refused.map_or_else(
            || "the host's name cannot be resolved".to_owned(),
            ToString::to_string,
        );
    }
    match find::<io::Error>(error) {
        Some(io) => why(io).unwrap_or_else(|| format!("no connection: {io}")),
        None => causes(error).last().map_or_else(
            || "no connection".to_owned(),
            |last| format!("no connection: {last}"),
        ),
    }
}

/// The innermost error of a kind.
pub fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error)
        .filter_map(|cause| cause.downcast_ref())
        .last()
}

/// An error and what caused it. An `io::Error` that wraps another skips that in `source`.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| {
        match cause.downcast_ref::<io::Error>().map(io::Error::get_ref) {
            Some(Some(inner)) => Some(inner as &(dyn Error + 'static)),
            _ => cause.source(),
        }
    })
}

/// Makes the handshake of a connection. `None`: it could not be made.
pub async fn way(host: &str, port: u16, bound: Duration) -> Option<Handshake> {
    let address = first_address(host, port, bound).await?;
    let is_local = address.ip().is_loopback();
    let took = match is_local {
        true => Duration::ZERO,
        false => handshake(address, None, bound).await?,
    };
    Some(Handshake { took, is_local })
}

/// Makes the handshake of a connection through a proxy, which `request` asks for it. The proxy answers when it has made
/// its own with the server, so the whole way is measured, wherever the proxy is. `None`: it could not be made.
pub async fn way_through(
    proxy: &str,
    port: u16,
    request: Vec<u8>,
    bound: Duration,
) -> Option<Handshake> {
    let address = first_address(proxy, port, bound).await?;
    let took = handshake(address, Some(request), bound).await?;
    Some(Handshake {
        took,
        is_local: false,
    })
}

/// Where connections to a host lead.
async fn first_address(host: &str, port: u16, bound: Duration) -> Option<SocketAddr> {
    let found = timeout(bound, Resolver::new().addresses(host)).await;
    let address = *found.ok()?.ok()?.first()?;
    Some(SocketAddr::new(address, port))
}

/// How long one handshake takes. `None`: it could not be made.
async fn handshake(
    address: SocketAddr,
    tunnel: Option<Vec<u8>>,
    bound: Duration,
) -> Option<Duration> {
    let took = spawn_blocking(move || {
        let clock = Clock::start();
        let (mut began, mut before) = (clock.now(), waited());
        let mut connection = net::TcpStream::connect_timeout(&address, bound).ok()?;
        if let Some(request) = tunnel {
            // The way to the proxy is a part of the way through it.
            (began, before) = (clock.now(), waited());
            open_tunnel(&mut connection, &request, bound).ok()?;
        }
        let waited = waited().saturating_sub(before);
        Some(clock.now().since(began).saturating_sub(waited))
    });
    took.await.ok()?
}

/// Asks a proxy for a connection, and waits until it says that there is one.
fn open_tunnel(proxy: &mut net::TcpStream, request: &[u8], bound: Duration) -> io::Result<()> {
    /// A proxy's answer is a line and a few headers.
    const MOST: u64 = 8 * 1024;
    proxy.set_read_timeout(Some(bound))?;
    proxy.set_write_timeout(Some(bound))?;
    proxy.write_all(request)?;
    let mut status = String::new();
    io::BufReader::new(proxy.take(MOST)).read_line(&mut status)?;
    let code = status.split(' ').nth(1);
    let is_open = status.starts_with("HTTP/1.") && code == Some("200");
    is_open
        .then_some(())
        .ok_or_else(|| io::Error::other("the proxy opens no connection"))
}

/// How long this thread has waited for a processor since it started: the second number, in nanoseconds
/// (`Documentation/scheduler/sched-stats.rst` of Linux). Zero if the kernel does not report it.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let number = text.split_whitespace().nth(1);
    Duration::from_nanos(number.and_then(|text| text.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
