//! Redis stands still for longer than the response timeout, and answers after its requests were given up.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sluiced_core::limits::admission::Decision;
use sluiced_ports::limits::{KeyedLimit, LimitStore};
use sluiced_ports::store::{Store as _, StoreError};
use sluiced_settings::text::Length;
use sluiced_store::redis::{RedisOptions, RedisStore};

use super::rules::*;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{Paused, RedisServer};
use crate::support::wait::{eventually, eventually_async};

const PREFIX: &str = "late";
/// The time between two requests to a store that did not answer, as in `core::scheduler::questions`.
const PAUSE: Duration = Duration::from_millis(50);

async fn hasty(server: &RedisServer) -> RedisStore {
    drop(established(server, PREFIX).await);
    let options = RedisOptions {
        keyed: true,
        ..RedisOptions::single(server.url(), PREFIX)
    };
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    eventually(BOUND, "a connection", || link.borrow().is_up()).await;
    store.admit(&[], 0).await.unwrap();
    store
}

async fn ask(
    store: &RedisStore,
    limit: &Arc<KeyedLimit>,
    recipient: usize,
) -> Result<Decision, StoreError> {
    let candidate = new(vec![charge(limit, &format!("r{recipient}"), 1)]);
    let mut answer = store.admit(&[candidate], 1).await?;
    Ok(answer.decisions.remove(0))
}

/// Asks, as for a message, again and again until there is an answer.
async fn answered(store: &RedisStore, limit: &Arc<KeyedLimit>, recipient: usize) -> Decision {
    loop {
        match ask(store, limit, recipient).await {
            Ok(decision) => return decision,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// With one request the connection is kept, with more it is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_spends_nothing_of_messages_that_were_not_called() {
    for messages in [1, 8] {
        let server = RedisServer::start();
        let store = hasty(&server).await;
        for limit in [
            limit("log", log("1/1m", MS)),
            limit("gcra", gcra("1/1m", 0, MS)),
            limit("calls", concurrency(1, Duration::from_secs(60))),
        ] {
            // The script is loaded, so that one call is one request.
            assert!(is_granted(&answered(&store, &limit, usize::MAX).await));
            let paused = Paused::new(server.pid());
            let all = join_all((0..messages).map(|one| ask(&store, &limit, one))).await;
            assert!(all.iter().all(Result::is_err), "{all:?}");
            // They ask again, and again without an answer.
            let again = join_all((0..messages).map(|one| ask(&store, &limit, one))).await;
            assert!(again.iter().all(Result::is_err), "{again:?}");
            let asking = join_all((0..messages).map(|one| answered(&store, &limit, one)));
            let going_on = async {
                tokio::time::sleep(6 * PAUSE).await;
                drop(paused);
            };
            let (decided, ()) = tokio::join!(asking, going_on);
            let denied = decided.iter().filter(|decision| !is_granted(decision));
            let name = &limit.name;
            assert_eq!(denied.count(), 0, "{messages} of {name}: {decided:?}");
            eventually_async(BOUND, "a connection", async || {
                store.admit(&[], 0).await.is_ok()
            })
            .await;
        }
    }
}

/// A silent connection does not delay the next one for longer than a response timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fell_silent_is_waited_for_no_longer_than_the_next_takes() {
    let server = RedisServer::start();
    drop(established(&server, PREFIX).await);
    let proxy = Proxy::to(server.port()).await;
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    let mut options = RedisOptions::single(url, PREFIX);
    options.settings.connect_timeout = Length(Duration::from_millis(500));
    options.keyed = true;
    let store = RedisStore::connect(&options).unwrap();
    let link = store.link();
    eventually(BOUND, "a connection", || link.borrow().is_up()).await;
    let limit = limit("silent", log("1/1m", MS));
    proxy.set(Mode::Silent);
    let all = join_all((0..4).map(|one| ask(&store, &limit, one))).await;
    assert!(all.iter().all(Result::is_err), "{all:?}");
    eventually(BOUND, "it is given up", || !link.borrow().is_up()).await;
    proxy.set(Mode::Pass);
    eventually(BOUND, "another connection", || link.borrow().is_up()).await;
    let waits = std::time::SystemTime::now();
    assert!(is_granted(&answered(&store, &limit, 9).await));
    let waited = waits.elapsed().unwrap();
    assert!(
        waited < 3 * options.settings.response_timeout.get(),
        "{waited:?}"
    );
}
