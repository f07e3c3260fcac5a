//! How long a handshake takes.
//!
//! The handshake of TCP is the measure of the way to the downstream. It is made on a thread that does nothing
//! else, because the runtimes have other work, and their delays would count as part of the way. The kernel
//! reports how long the thread itself waited for a processor, and that is subtracted. The connection is
//! closed at once; nothing is sent on it.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{self, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::connect::Resolver;
use sluiced_ports::clock;
use sluiced_ports::downstream::Handshake;

/// One for the process: while a name server does not answer, each attempt would leave a thread behind otherwise.
static NAMES: LazyLock<Resolver> = LazyLock::new(Resolver::new);

/// Makes the handshake of a connection. `bound` holds for the lookup of the name and for the handshake by itself.
/// `None`: it could not be made.
pub async fn timed_handshake(host: &str, port: u16, bound: Duration) -> Option<Handshake> {
    let address = first_address(host, port, bound).await?;
    let is_local = address.ip().is_loopback();
    let took = match is_local {
        true => Duration::ZERO,
        false => handshake(address, None, bound).await?,
    };
    Some(Handshake { took, is_local })
}

/// Makes the handshake of a connection through a proxy, which `request` asks for it. The proxy answers when it has made
/// its own with the server, so the whole way is measured, wherever the proxy is. `bound` holds for the lookup of
/// the name, for connecting, and for each read and write by itself. `None`: it could not be made.
pub async fn timed_handshake_through(
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
    let found = timeout(bound, NAMES.addresses(host)).await;
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
        let (mut began, mut before) = (clock::now(), waited());
        let mut connection = net::TcpStream::connect_timeout(&address, bound).ok()?;
        if let Some(request) = tunnel {
            // The way to the proxy is a part of the way through it.
            (began, before) = (clock::now(), waited());
            open_tunnel(&mut connection, &request, bound).ok()?;
        }
        let waited = waited().saturating_sub(before);
        Some(clock::now().since(began).saturating_sub(waited))
    });
    took.await.ok()?
}

/// Asks a proxy for a connection, and waits until it says that there is one.
fn open_tunnel(proxy: &mut net::TcpStream, request: &[u8], bound: Duration) -> io::Result<()> {
    /// A proxy's answer is a line and a few headers.
    const MAX_STATUS_LINE: u64 = 8 * 1024;
    proxy.set_read_timeout(Some(bound))?;
    proxy.set_write_timeout(Some(bound))?;
    proxy.write_all(request)?;
    let mut status = String::new();
    io::BufReader::new(proxy.take(MAX_STATUS_LINE)).read_line(&mut status)?;
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
