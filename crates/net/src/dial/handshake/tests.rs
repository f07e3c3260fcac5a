//! How a handshake is measured, and where it leads.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[tokio::test]
async fn it_is_made_where_something_listens_and_nowhere_else() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound");
    let bound = Duration::from_secs(5);
    assert!(
        handshake(at, None, bound)
            .await
            .is_some_and(|took| took < bound)
    );
    drop(listener);
    assert_eq!(handshake(at, None, bound).await, None);
}

/// Two threads need one processor: the kernel counts how long one of them waits for the other.
#[test]
fn the_wait_for_a_processor_is_known() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if !Path::new("/proc/thread-self/schedstat").exists() {
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
    let seen = AtomicBool::new(false);
    let is_seen = || seen.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| burn(&is_seen));
        scope.spawn(|| {
            burn(&|| waited() > Duration::from_millis(1));
            seen.store(true, Ordering::Relaxed);
        });
    });
    assert!(is_seen());
}

#[tokio::test]
async fn it_leads_where_calls_do() {
    let bound = Duration::from_secs(5);
    for (host, leads) in [
        ("127.0.0.1", Some("127.0.0.1:81")),
        ("::1", Some("[::1]:81")),
        ("nowhere.invalid", None),
    ] {
        let leads = leads.map(|leads| leads.parse().expect("an address"));
        assert_eq!(first_address(host, 81, bound).await, leads, "{host}");
    }
}
