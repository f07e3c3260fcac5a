//! How long the handshake of TCP takes: the measure of the way to the downstream.
//!
//! It is made on a thread that does nothing else, because the runtimes have other work, and what they are late by
//! would look like the way. For how long the thread itself waited for a processor, the kernel says, and that is taken
//! off. The connection is closed at once; nothing is sent on it.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::ports::clock::Clock;
use crate::ports::connect::Resolver;

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
        let before = waited();
        let _closed_when_dropped = TcpStream::connect_timeout(&address, bound).ok()?;
        let waited = waited().saturating_sub(before);
        Some(clock.now().since(began).saturating_sub(waited))
    });
    took.await.ok()?
}

/// How long this thread has waited for a processor since it started: the second number, in nanoseconds
/// (`Documentation/scheduler/sched-stats.rst` of Linux). Zero where the kernel does not say.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let number = text.split_whitespace().nth(1);
    Duration::from_nanos(number.and_then(|text| text.parse().ok()).unwrap_or(0))
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

    /// Two threads want one processor: the kernel counts what one of them waits for the other.
    #[test]
    fn the_wait_for_a_processor_is_known() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        if !std::path::Path::new("/proc/thread-self/schedstat").exists() {
            return;
        }
        let burn = |until: &dyn Fn() -> bool| {
            let mine = sched_getaffinity(None).expect("the processors of this thread");
            let first = (0..CpuSet::MAX_CPU).find(|cpu| mine.is_set(*cpu));
            let mut one = CpuSet::new();
            one.set(first.expect("it has one"));
            sched_setaffinity(None, &one).expect("it may run there");
            while !until() {}
        };
        let seen = std::sync::atomic::AtomicBool::new(false);
        let is_seen = || seen.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| burn(&is_seen));
            scope.spawn(|| {
                burn(&|| waited() > Duration::from_millis(1));
                seen.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        });
        assert!(is_seen());
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
