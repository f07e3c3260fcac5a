//! Keys that are called once, on both stores.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::limits::Fit;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::once::{NotCalled, OnUnknown};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{Candidate, Charge, GrantedCharge, KeyedLimit, LimitStore};
use sluiced_ports::store::Notice;
use sluiced_store::memory::MemoryStore;

use super::rules::*;
use crate::support::contract::contract;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually_async, within};

type Store = Arc<dyn LimitStore>;

const HOUR: Duration = Duration::from_secs(3600);

async fn redis() -> (Store, Store) {
    let server = RedisServer::shared();
    let one = established(server, "once").await;
    (Arc::new(one), Arc::new(connect(server, "once").await))
}

/// One store for both replicas: it is this process alone.
async fn memory() -> (Store, Store) {
    let store: Store = Arc::new(MemoryStore::default());
    std::future::ready((Arc::clone(&store), store)).await
}

async fn decided(store: &Store, candidate: Candidate) -> Decision {
    let mut answer = store.admit(&[candidate], 1).await.unwrap();
    answer.decisions.remove(0)
}

async fn ask(store: &Store, charges: Vec<Charge>) -> Decision {
    decided(store, new(charges)).await
}

/// A message of this key is granted. Returns its claim.
async fn claimed(store: &Store, limit: &Arc<KeyedLimit>, text: &str) -> GrantedCharge {
    let candidate = new(vec![charge(limit, text, 1)]);
    let claim = GrantedCharge::call(&candidate.charges[0], candidate.ticket);
    assert!(claim.is_claim());
    let decision = decided(store, candidate).await;
    assert!(is_granted(&decision), "{decision:?}");
    claim
}

const DONE: Decision = Decision::NotCalled {
    by: 0,
    how: NotCalled::Done,
};
const UNKNOWN: Decision = Decision::NotCalled {
    by: 0,
    how: NotCalled::Unknown,
};

async fn one_is_called_and_the_others_are_repeats((store, other): (Store, Store)) {
    let limit = limit("one", once(HOUR, HOUR, OnUnknown::Resend));
    let claim = claimed(&store, &limit, "a").await;
    let waits = ask(&other, vec![charge(&limit, "a", 1)]).await;
    let Decision::Denied { by: 0, fits, .. } = waits else {
        panic!("{waits:?}");
    };
    assert_eq!(fits, Fit::Full, "it is not known when the call ends");
    store.mark_done(slice::from_ref(&claim)).await.unwrap();
    assert_eq!(ask(&other, vec![charge(&limit, "a", 1)]).await, DONE);
    // A later end takes nothing back.
    store.release(slice::from_ref(&claim)).await.unwrap();
    store.mark_done(&[claim]).await.unwrap();
    assert_eq!(ask(&store, vec![charge(&limit, "a", 1)]).await, DONE);
    let look = other.look(&limit, key("a")).await.unwrap();
    assert_eq!((look.limit, look.room.remaining), (1, 0));
    assert_eq!(look.fits, Fit::At(look.room.reset_at));
    assert!(takes(&*store, &limit, "b").await, "another key");
}

async fn what_is_done_is_forgotten_after_its_time((store, other): (Store, Store)) {
    let limit = limit("forgotten", once(200 * MS, HOUR, OnUnknown::DeadLetter));
    let claim = claimed(&store, &limit, "a").await;
    store.mark_done(&[claim]).await.unwrap();
    eventually_async(BOUND, "the end of the time to live", async || {
        takes(&*other, &limit, "a").await
    })
    .await;
}

async fn a_failed_call_frees_its_key((store, other): (Store, Store)) {
    let limit = limit("failed", once(HOUR, HOUR, OnUnknown::DeadLetter));
    let claim = claimed(&store, &limit, "a").await;
    assert!(!takes(&*other, &limit, "a").await);
    store.release(slice::from_ref(&claim)).await.unwrap();
    let second = claimed(&other, &limit, "a").await;
    // The first ends once more: the second has another claim.
    store.release(&[claim]).await.unwrap();
    assert!(!takes(&*store, &limit, "a").await);
    other.release(&[second]).await.unwrap();
    assert!(takes(&*store, &limit, "a").await);
}

async fn a_claim_that_is_not_renewed_leaves_it_unknown((store, other): (Store, Store)) {
    let lease = 300 * MS;
    let dead = limit("unknown-dead", once(HOUR, lease, OnUnknown::DeadLetter));
    let again = limit("unknown-again", once(HOUR, lease, OnUnknown::Resend));
    let lost = claimed(&store, &dead, "a").await;
    claimed(&store, &again, "a").await;
    eventually_async(BOUND, "the end of the lease", async || {
        ask(&other, vec![charge(&dead, "a", 1)]).await == UNKNOWN
    })
    .await;
    let gone = store.renew(slice::from_ref(&lost)).await.unwrap();
    assert_eq!(tickets(&gone), [lost.ticket().unwrap()]);
    eventually_async(BOUND, "it may be called again", async || {
        takes(&*other, &again, "a").await
    })
    .await;
    // Its replica is alive after all, and the downstream had accepted it.
    store.mark_done(&[lost]).await.unwrap();
    assert_eq!(ask(&other, vec![charge(&dead, "a", 1)]).await, DONE);
}

async fn a_dead_letter_that_comes_back_may_be_called((store, other): (Store, Store)) {
    let limit = limit("letters", once(HOUR, 100 * MS, OnUnknown::DeadLetter));
    claimed(&store, &limit, "a").await;
    eventually_async(BOUND, "the end of the lease", async || {
        ask(&other, vec![charge(&limit, "a", 1)]).await == UNKNOWN
    })
    .await;
    let died = |died: StoreTime| Candidate {
        died,
        ..new(vec![charge(&limit, "a", 1)])
    };
    let now = store.admit(&[], 0).await.unwrap().now;
    assert_eq!(decided(&store, died(now - HOUR)).await, UNKNOWN);
    assert!(is_granted(&decided(&store, died(now)).await));
}

async fn a_message_that_asks_again_has_its_claim_back((store, other): (Store, Store)) {
    let limit = limit("again", once(HOUR, HOUR, OnUnknown::DeadLetter));
    let first = new(vec![charge(&limit, "a", 1)]);
    let (early, again) = (first.clone(), first.clone());
    let again = Candidate {
        ticket: first.ticket.next(),
        ..again
    };
    assert!(is_granted(&decided(&store, first).await));
    assert!(is_granted(&decided(&store, again).await));
    assert!(!is_granted(&decided(&store, early).await), "it comes late");
    assert!(!takes(&*other, &limit, "a").await);
}

async fn it_is_all_or_none_with_other_limits((store, _): (Store, Store)) {
    let once = limit("all-once", once(HOUR, HOUR, OnUnknown::Resend));
    let hour = limit("all-hour", log("2/1h", MS));
    let both = |id: &str| vec![charge(&once, id, 1), charge(&hour, "x", 1)];
    let other_way = |id: &str| vec![charge(&hour, "x", 1), charge(&once, id, 1)];
    let first = new(both("a"));
    let claim = GrantedCharge::call(&first.charges[0], first.ticket);
    assert!(is_granted(&decided(&store, first).await));
    store.mark_done(&[claim]).await.unwrap();
    let remaining = async || store.look(&hour, key("x")).await.unwrap().room.remaining;
    // A repeat takes nothing of the other limit, and does not wait for it.
    assert_eq!(ask(&store, both("a")).await, DONE);
    assert_eq!(remaining().await, 1);
    assert!(is_granted(&ask(&store, both("b")).await));
    let repeat = ask(&store, other_way("a")).await;
    let how = NotCalled::Done;
    assert_eq!(repeat, Decision::NotCalled { by: 1, how });
    // A message that the other limit denies claims nothing.
    assert!(matches!(
        ask(&store, both("c")).await,
        Decision::Denied { by: 1, .. }
    ));
    assert!(takes(&*store, &once, "c").await);
}

async fn a_replica_that_waits_is_notified_when_the_call_ends((store, other): (Store, Store)) {
    let limit = limit("noticed", once(HOUR, HOUR, OnUnknown::Resend));
    let mut notices = other.notices();
    for (n, ends) in [false, true].into_iter().enumerate() {
        // A subscription is not there at once.
        let notified = within(BOUND, "a notice", async {
            for round in 0.. {
                let text = format!("{n} {round}");
                let claim = claimed(&store, &limit, &text).await;
                assert!(!takes(&*other, &limit, &text).await);
                match ends {
                    true => store.mark_done(&[claim]).await.unwrap(),
                    false => drop(store.release(&[claim]).await.unwrap()),
                }
                if let Ok(notice) = tokio::time::timeout(100 * MS, notices.recv()).await {
                    return (notice.unwrap(), text);
                }
            }
            unreachable!("it goes on until there is a notice")
        });
        let (notice, text) = notified.await;
        let expected = Notice::Freed {
            limit: Arc::clone(&limit.name),
            key: key(&text),
            units: 1,
        };
        assert_eq!(notice, expected);
    }
}

contract!(redis, memory; (
    one_is_called_and_the_others_are_repeats,
    what_is_done_is_forgotten_after_its_time,
    a_failed_call_frees_its_key,
    a_claim_that_is_not_renewed_leaves_it_unknown,
    a_dead_letter_that_comes_back_may_be_called,
    a_message_that_asks_again_has_its_claim_back,
    it_is_all_or_none_with_other_limits,
    a_replica_that_waits_is_notified_when_the_call_ends,
));
