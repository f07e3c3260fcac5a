//! How long the handshake of TCP takes: the measure of the way to the downstream.
//!
//! It is made on a thread that does nothing else, because the runtimes have other work, and what they are late by
//! would look like the way. The connection is closed at once; nothing is sent on it.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::ports::clock::Clock;
use crate::ports::resolve::Resolver;

/// Where connections to `origin` lead.
pub(super) async fn address(origin: &Uri, bound: Duration) -> Option<SocketAddr> {
    // An address of the sixth version stands in brackets.
    let host = origin.host()?.trim_matches(['[', ']']);
    let is_tls = origin.scheme() == Some(&Scheme::HTTPS);
    let port = origin.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let found = timeout(bound, Resolver::new().addresses(host)).await;
    let address = *found.ok()?.ok()?.first()?;
    Some(SocketAddr::new(address, port))
}

/// How long one takes. `None`: it could not be made.
pub(super) async fn with(address: SocketAddr, bound: Duration) -> Option<Duration> {
    let took = spawn_blocking(move || {
        let clock = Clock::start();
        let began = clock.now();
        let opened = TcpStream::connect_timeout(&address, bound);
        opened
            .ok()
            .map(|_closed_when_dropped| clock.now().since(began))
    });
    took.await.ok()?
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn it_is_made_where_something_listens_and_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let bound = Duration::from_secs(5);
        assert!(with(at, bound).await.is_some_and(|took| took < bound));
        drop(listener);
        assert_eq!(with(at, bound).await, None);
    }

    #[tokio::test]
    async fn it_leads_where_calls_do() {
        let bound = Duration::from_secs(5);
        for (origin, leads) in [
            ("http://127.0.0.1:81", Some("127.0.0.1:81")),
            ("http://127.0.0.1", Some("127.0.0.1:80")),
            ("https://[::1]", Some("[::1]:443")),
            ("http://nowhere.invalid", None),
        ] {
            let origin = origin.parse().expect("a uri");
            let leads = leads.map(|leads| leads.parse().expect("an address"));
            assert_eq!(address(&origin, bound).await, leads, "{origin}");
        }
    }
}
