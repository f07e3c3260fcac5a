//! Redis dies, hangs, loses its state, or refuses: no slot is granted twice, calls end, and the link
//! recovers.

use std::time::Duration;

use crate::support::redis::{Paused, RedisServer};
use crate::support::wait::{eventually, eventually_async, within};
use secrecy::SecretString;
use sluiced_core::schedule::{Ask, ClockView, Grant, LeaseAnswer, Pace, Turn};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::LimitStore as _;
use sluiced_ports::link::Link;
use sluiced_ports::store::{PacedRow, Store, StoreError};
use sluiced_settings::text::Length;
use sluiced_store::redis::{RedisOptions, RedisStore};
use tokio::sync::watch;

const BOUND: Duration = Duration::from_secs(30);
const RESPONSE: Duration = Duration::from_secs(2);

fn options(url: String) -> RedisOptions {
    let mut options = RedisOptions::single(url, "faults");
    options.settings.connect_timeout = Length(Duration::from_secs(3));
    options.settings.response_timeout = Length(RESPONSE);
    options
}

/// Waits until Redis is up, and returns the link, which reports every change after that.
async fn is_up(store: &RedisStore) -> watch::Receiver<Link> {
    let mut link = store.link();
    let up = async { link.wait_for(Link::is_up).await.map(drop) };
    within(BOUND, "Redis is up", up).await.unwrap();
    link
}

async fn connect(server: &RedisServer) -> (RedisStore, watch::Receiver<Link>) {
    let store = RedisStore::connect(&options(server.url())).unwrap();
    let link = is_up(&store).await;
    (store, link)
}

fn limit() -> PacedRow {
    PacedRow::new(
        "provider",
        Pace::new(
            "400/1s".parse().unwrap(),
            Duration::from_millis(5),
            Duration::from_millis(150),
        ),
    )
}

/// Asked by a replica that does not trust its clock yet.
const fn look(want: u64) -> Ask {
    Ask {
        want,
        sums: Vec::new(),
        turn: None,
        clock_view: ClockView::Unproven,
        lead: Duration::ZERO,
    }
}

/// Asked at its turn by one that knows the clock and the generation as of this answer.
fn steady(want: u64, clock: &LeaseAnswer) -> Ask {
    Ask {
        turn: Some(Turn {
            at: clock.now,
            share: want,
            slip: 0,
        }),
        clock_view: ClockView::Steady {
            generation: clock.generation,
            predicted: clock.now,
        },
        ..look(want)
    }
}

/// Asks until slots are granted, also after errors. Returns whether the schedule was guarded.
async fn lease(store: &RedisStore, limit: &PacedRow) -> (Grant, bool) {
    let asking = async {
        let mut guarded = false;
        loop {
            if let Ok(clock) = store.lease(limit, look(0)).await {
                guarded |= clock.guarded;
                let question = steady(20, &clock);
                if let Ok(answer) = store.lease(limit, question).await {
                    guarded |= answer.guarded;
                    if let Some(grant) = answer.grant {
                        return (grant, guarded);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(BOUND, "a grant", asking).await
}

fn end(limit: &PacedRow, grant: &Grant) -> StoreTime {
    grant.slot(&limit.pace, u64::from(grant.count.get()) - 1)
}

/// The next grant after a loss starts behind the last one, and the store knew that it must.
async fn goes_on_behind(store: &RedisStore, limit: &PacedRow, last: &Grant) {
    let (grant, guarded) = lease(store, limit).await;
    assert!(guarded, "a loss must be noticed");
    let distance = limit.pace.headroom() + limit.pace.interval();
    assert!(grant.first >= end(limit, last) + distance);
}

fn no_key_without_ttl(server: &RedisServer) {
    let connection = &mut server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(connection).unwrap();
        assert!(ttl > 0, "{key}: PTTL {ttl}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_noticed_even_if_the_state_survives() {
    let server = RedisServer::start_with("--appendonly yes --appendfsync always", None);
    let (store, link) = connect(&server).await;
    let limit = limit();
    let (last, _) = lease(&store, &limit).await;
    server.kill();
    eventually(BOUND, "the loss is seen", || {
        matches!(*link.borrow(), Link::Down(_))
    })
    .await;
    // Down: calls fail at once, many of them in less time than one timeout.
    let failing = async {
        for _ in 0..1_000 {
            let error = store.lease(&limit, look(1)).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
    };
    within(BOUND, "a thousand failures", failing).await;
    server.boot();
    let link = is_up(&store).await;
    let kept: bool = redis::cmd("EXISTS")
        .arg("faults:{provider}:paced")
        .query(&mut server.connection())
        .unwrap();
    assert!(kept, "the append-only file brought the state back");
    goes_on_behind(&store, &limit, &last).await;
    assert!(!link.has_changed().unwrap(), "it was lost once");
    no_key_without_ttl(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_times_out_and_what_it_granted_is_never_granted_again() {
    let server = RedisServer::start();
    let (store, link) = connect(&server).await;
    let limit = limit();
    let (last, _) = lease(&store, &limit).await;
    let clock = store.lease(&limit, look(0)).await.unwrap();
    let paused = Paused::new(server.pid());
    let mut timeouts = 0;
    let hanging = async {
        // These wait in the socket and run once Redis goes on: their slots are discarded.
        while link.borrow().is_up() {
            let question = steady(20, &clock);
            let error = store.lease(&limit, question).await.unwrap_err();
            timeouts += u32::from(matches!(error, StoreError::Timeout { .. }));
        }
    };
    within(BOUND, "the connection is given up", hanging).await;
    assert!(timeouts >= 1, "the first calls waited for their answer");
    drop(paused);
    is_up(&store).await;
    // The slots that the late calls were granted lie before this, and no replica gets them again.
    let next: u64 = redis::cmd("HGET")
        .arg("faults:{provider}:paced")
        .arg("next")
        .query(&mut server.connection())
        .unwrap();
    assert!(next > end(&limit, &last).as_micros());
    let (grant, _) = lease(&store, &limit).await;
    assert!(grant.first.as_micros() >= next);
    no_key_without_ttl(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_starts_behind_the_guard() {
    let server = RedisServer::start();
    let (store, _) = connect(&server).await;
    let limit = limit();
    for _ in 0..3 {
        let (last, _) = lease(&store, &limit).await;
        () = redis::cmd("FLUSHALL")
            .query(&mut server.connection())
            .unwrap();
        goes_on_behind(&store, &limit, &last).await;
    }
    no_key_without_ttl(&server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_redis_forgot_are_loaded_again() {
    let server = RedisServer::start();
    let (store, link) = connect(&server).await;
    let limit = limit();
    lease(&store, &limit).await;
    () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query(&mut server.connection())
        .unwrap();
    store.lease(&limit, look(0)).await.unwrap();
    store.freeze(&limit, Duration::ZERO).await.unwrap();
    assert!(!link.has_changed().unwrap(), "the connection is fine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_redis_closes_come_back() {
    let server = RedisServer::start();
    let (store, link) = connect(&server).await;
    let limit = limit();
    let (last, _) = lease(&store, &limit).await;
    let names: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut server.connection())
        .unwrap();
    assert!(names.contains("name=sluiced"));
    for kind in ["normal", "pubsub"] {
        let _: i64 = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg(kind)
            .query(&mut server.connection())
            .unwrap();
    }
    eventually(BOUND, "the loss is seen", || link.has_changed().unwrap()).await;
    is_up(&store).await;
    let (grant, _) = lease(&store, &limit).await;
    assert!(grant.first > end(&limit, &last));
    // Notices come again as well.
    let mut notices = store.notices();
    let telling = async {
        loop {
            store
                .freeze(&limit, Duration::from_millis(1))
                .await
                .unwrap();
            let heard = tokio::time::timeout(Duration::from_millis(50), notices.recv()).await;
            if heard.is_ok() {
                return;
            }
        }
    };
    within(BOUND, "a notice", telling).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = RedisServer::start_with("", Some("right-secret"));
    let wrong = options(server.url_with("wrong-secret"));
    let none = options(server.url().replace(":right-secret@", ""));
    for options in [wrong, none] {
        let store = RedisStore::connect(&options).unwrap();
        let link = store.link();
        eventually(BOUND, "a refusal", || {
            matches!(*link.borrow(), Link::Down(_))
        })
        .await;
        let error = store.lease(&limit(), look(0)).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        let shown = format!(
            "{error} {error:?} {:?} {store:?} {options:?}",
            link.borrow()
        );
        assert!(!shown.contains("-secret"), "{shown}");
    }
    let (store, _) = connect(&server).await;
    store.lease(&limit(), look(0)).await.unwrap();
    // A password from another key replaces the one in the URL.
    let mut replaced = options(server.url_with("wrong-secret"));
    replaced.password = Some(SecretString::from("right-secret").into());
    let store = RedisStore::connect(&replaced).unwrap();
    is_up(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_refuses_is_said_with_its_text() {
    let server = RedisServer::start();
    let (store, link) = connect(&server).await;
    let limit = limit();
    let connection = &mut server.connection();
    () = redis::cmd("SET")
        .arg("faults:{provider}:paced")
        .arg("text")
        .query(connection)
        .unwrap();
    let error = store.lease(&limit, look(0)).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert!(store.freeze(&limit, Duration::ZERO).await.is_err());
    () = redis::cmd("DEL")
        .arg("faults:{provider}:paced")
        .query(connection)
        .unwrap();
    // Without the right to call scripts.
    () = redis::cmd("ACL")
        .arg(&["SETUSER", "default", "-@scripting"])
        .query(connection)
        .unwrap();
    let error = store.lease(&limit, look(0)).await.unwrap_err();
    assert!(error.to_string().contains("NOPERM"), "{error}");
    assert!(!error.is_transient());
    assert!(!link.has_changed().unwrap(), "the connection is fine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_freeze_holds_without_the_right_to_tell() {
    let server = RedisServer::start();
    let (store, _) = connect(&server).await;
    () = redis::cmd("ACL")
        .arg(&["SETUSER", "default", "resetchannels"])
        .query(&mut server.connection())
        .unwrap();
    let limit = limit();
    let frozen = eventually_async(BOUND, "a freeze", async || {
        store.freeze(&limit, Duration::from_secs(60)).await.is_ok()
    });
    frozen.await;
    is_up(&store).await;
    let answer = store.lease(&limit, look(0)).await.unwrap();
    assert!(answer.frozen_until.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_redis_is_left_for_its_master() {
    let server = RedisServer::start();
    let (store, link) = connect(&server).await;
    let limit = limit();
    let (last, _) = lease(&store, &limit).await;
    let connection = &mut server.connection();
    // No master is at that address: a former master that was demoted, as clients see it after a failover.
    () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg("1")
        .query(connection)
        .unwrap();
    let error = store.lease(&limit, look(1)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(!link.borrow().is_up());
    () = redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .query(connection)
        .unwrap();
    is_up(&store).await;
    let (grant, _) = lease(&store, &limit).await;
    assert!(grant.first > end(&limit, &last));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_never_there_is_found_later() {
    let server = RedisServer::start();
    server.kill();
    let store = RedisStore::connect(&options(server.url())).unwrap();
    let link = store.link();
    eventually(BOUND, "no connection", || {
        matches!(*link.borrow(), Link::Down(_))
    })
    .await;
    server.boot();
    is_up(&store).await;
    store.lease(&limit(), look(0)).await.unwrap();
}

#[tokio::test]
async fn a_url_that_is_none_is_an_error_without_the_url() {
    for url in ["", "redis://:a-secret@host:port", "http://:a-secret@host"] {
        let error = RedisStore::connect(&options(url.to_owned())).unwrap_err();
        assert!(!error.is_transient());
        assert!(
            !format!("{error} {error:?}").contains("a-secret"),
            "{error}"
        );
    }
}

#[test]
fn all_keys_of_a_script_lie_in_one_cluster_slot() {
    // All that belongs to a limit has the limit's name as its hash tag.
    let server = RedisServer::start_clustered();
    let connection = &mut server.connection();
    let slot = |key: &str, connection: &mut redis::Connection| -> u32 {
        redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(key)
            .query(connection)
            .unwrap()
    };
    let tag = slot("provider", connection);
    for part in ["paced", "paced:2", "policy", "replicas"] {
        let key = format!("faults:{{provider}}:{part}");
        assert_eq!(slot(&key, connection), tag, "{key}");
    }
    let freeze = std::fs::read_to_string("lua/freeze.lua").unwrap();
    assert!(!freeze.contains("KEYS[2]"));
}

/// A replica that starts meanwhile would make another key, under which copies that wait are not believed. The regular
/// look is every ten seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_the_headers_is_there_again_when_a_lease_shows_the_loss() {
    let server = RedisServer::start();
    let (store, _link) = connect(&server).await;
    let marks = store.marks();
    within(BOUND, "a key", marks.known()).await;
    lease(&store, &limit()).await;
    let before = marks.signing().text();
    let mut connection = server.connection();
    redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    assert!(lease(&store, &limit()).await.1, "the loss is seen");
    let key = "faults:{fleet}:marks";
    eventually(Duration::from_secs(5), "the key is there again", || {
        let now: Option<String> = redis::cmd("GET").arg(key).query(&mut connection).unwrap();
        now.as_ref() == Some(&before)
    })
    .await;
}
