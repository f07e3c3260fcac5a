//! A lookup that hangs takes one thread, and an unknown name is an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::*;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static GATE: Mutex<()> = Mutex::new(());

/// Hangs until the gate is open.
fn hangs(_host: &str) -> io::Result<Vec<IpAddr>> {
    ASKED.fetch_add(1, Ordering::SeqCst);
    drop(GATE.lock().unwrap());
    Ok(vec![IpAddr::from([10, 0, 0, 1])])
}

#[tokio::test]
#[allow(clippy::await_holding_lock, reason = "the lookup is to hang meanwhile")]
async fn a_lookup_that_hangs_takes_one_thread_however_often_it_is_asked() {
    let resolver = Resolver::with(hangs);
    let shut = GATE.lock().unwrap();
    for _ in 0..3 {
        let asking = (0..100).map(|_| resolver.addresses("hung.example"));
        let asked = timeout(Duration::from_millis(20), join_all(asking)).await;
        assert!(asked.is_err());
    }
    assert_eq!(lock(&resolver.in_flight).len(), 1);
    for n in 1..MAX_CONCURRENT_LOOKUPS {
        let name = format!("{n}.example");
        assert!(resolver.ask(&name).await.is_ok());
    }
    let one_more = resolver.ask("one.more.example");
    let waits = timeout(Duration::from_millis(20), one_more).await;
    assert!(waits.is_err(), "it waits for its place");
    assert_eq!(
        lock(&resolver.in_flight).len(),
        MAX_CONCURRENT_LOOKUPS,
        "bounded"
    );
    let own = resolver.addresses("192.0.2.7").await.unwrap();
    assert_eq!(own, [IpAddr::from([192, 0, 2, 7])], "no lookup");
    drop(shut);
    let found = resolver.addresses("hung.example").await.unwrap();
    assert_eq!(found, [IpAddr::from([10, 0, 0, 1])]);
    let found = resolver.addresses("one.more.example").await.unwrap();
    assert_eq!(found, [IpAddr::from([10, 0, 0, 1])], "and gets it");
    assert!(ASKED.load(Ordering::SeqCst) <= MAX_CONCURRENT_LOOKUPS + 2);
}

#[tokio::test]
async fn a_name_that_is_not_known_is_an_error() {
    let resolver = Resolver::with(|_| Err(io::Error::other("no such name")));
    let error = resolver.addresses("nowhere.example").await.unwrap_err();
    assert!(error.to_string().contains("no such name"));
}
