//! Which calls the store still counts while they are renewed, and which are lost.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use futures::FutureExt as _;

use super::*;
use sluiced_core::limits::Rule;
use sluiced_core::limits::Ticket;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::rate::Cost;
use sluiced_ports::limits::{Candidate, Charge, Corrected, Decisions, LimitKey, Look};
use sluiced_ports::lock;
use sluiced_ports::store::{Notice, StoreFuture};
use sluiced_telemetry::Counter;

/// The limit whose calls the store knows.
const KNOWN: &str = "known";

/// A store that knows the calls of one limit, and none of others that it renews, where some are given back at that
/// moment.
#[derive(Debug, Default)]
struct Raced {
    refunder: OnceLock<Refunder>,
    /// What is given back during the next renewal.
    given_back: Mutex<Vec<GrantedCharge>>,
    renewals: AtomicU64,
    /// For each renewal, how many of its calls were known.
    renewed: Mutex<Vec<usize>>,
    /// How long it takes to release calls or to mark messages as done.
    trip: Duration,
    corrected: AtomicU64,
}

impl LimitStore for Raced {
    fn notices(&self) -> tokio::sync::broadcast::Receiver<Notice> {
        tokio::sync::broadcast::channel(1).1
    }

    fn admit<'a>(&'a self, _: &'a [Candidate], _: u64) -> StoreFuture<'a, Decisions> {
        unreachable!("nothing is asked for")
    }

    fn release<'a>(&'a self, granted: &'a [GrantedCharge]) -> StoreFuture<'a, usize> {
        async {
            if !self.trip.is_zero() && !granted.is_empty() {
                tokio::time::sleep(self.trip).await;
            }
            Ok(granted.len())
        }
        .boxed()
    }

    fn mark_done<'a>(&'a self, _: &'a [GrantedCharge]) -> StoreFuture<'a, ()> {
        async {
            tokio::time::sleep(self.trip).await;
            Ok(())
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [GrantedCharge]) -> StoreFuture<'a, Vec<GrantedCharge>> {
        async {
            let given_back = std::mem::take(&mut *lock(&self.given_back));
            if let Some(refunder) = self.refunder.get().filter(|_| !given_back.is_empty()) {
                refunder.refund_now(&given_back).await;
            }
            self.renewals.fetch_add(1, Ordering::Relaxed);
            let mut unknown = calls.to_vec();
            unknown.retain(|call| *call.charge().limit.name != *KNOWN);
            lock(&self.renewed).push(calls.len() - unknown.len());
            Ok(unknown)
        }
        .boxed()
    }

    fn correct<'a>(&'a self, corrections: &'a [Correction]) -> StoreFuture<'a, Vec<usize>> {
        async {
            let count = corrections.len() as u64;
            self.corrected.fetch_add(count, Ordering::Relaxed);
            Ok(Vec::new())
        }
        .boxed()
    }

    fn askers(&self) -> u64 {
        1
    }

    fn look<'a>(&'a self, _: &'a Arc<KeyedLimit>, _: LimitKey) -> StoreFuture<'a, Look> {
        unreachable!("nothing is looked at")
    }
}

/// A call, one of at most five under way, with a lease of 30 ms: it is renewed every 10 ms.
fn call(ticket: u128) -> GrantedCharge {
    call_of("calls", ticket)
}

fn call_of(limit: &str, ticket: u128) -> GrantedCharge {
    let five = NonZeroU32::new(5).unwrap();
    let lease = Duration::from_millis(30);
    let rule = Rule::Concurrency(Concurrency::new(five, lease, Duration::ZERO).unwrap());
    let limit = Arc::new(KeyedLimit::new(limit, rule, LostWait::Forever));
    let charge = Charge {
        limit,
        key: LimitKey::from_digest([7; 16]),
        cost: Cost::new(NonZeroU32::MIN),
    };
    GrantedCharge::call(&charge, Ticket(ticket))
}

/// How many calls are lost when one is under way and `given_back` is given back during the renewal.
async fn lost(in_flight: GrantedCharge, given_back: Vec<GrantedCharge>) -> u64 {
    let lost = Arc::new(AtomicU64::new(0));
    let meters = KeyedMeters {
        used_units: Counter::noop(),
        actual: Counter::noop(),
        denials: Counter::noop(),
        refunds: Counter::noop(),
        leases_lost: Counter::from_arc(Arc::clone(&lost)),
    };
    let store = Arc::new(Raced {
        given_back: Mutex::new(given_back),
        ..Raced::default()
    });
    let limits = vec![Arc::clone(&in_flight.charge().limit)];
    let meters = Arc::new(BTreeMap::from([(Arc::from("calls"), meters)]));
    let as_store: Arc<dyn LimitStore> = store.clone();
    let (refunder, work) = Refunder::new(as_store, meters, limits, drop);
    store.refunder.set(refunder.clone()).unwrap();
    refunder.began(&[in_flight]);
    let renewed = async {
        while store.renewals.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        // The reply of the store is handled before the next entry is taken.
        assert!(refunder.done(&[]).await);
    };
    tokio::select! {
        () = work => unreachable!("the store has a way to it"),
        renewed = timeout(Duration::from_secs(10), renewed) => renewed.unwrap(),
    }
    lost.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_call_that_the_store_does_not_know_is_lost() {
    assert_eq!(lost(call(1), Vec::new()).await, 1);
}

#[tokio::test]
async fn a_call_that_is_given_back_while_it_is_renewed_is_not_lost() {
    assert_eq!(lost(call(1), vec![call(1)]).await, 0);
    assert_eq!(lost(call(1), vec![call(2)]).await, 1);
}

/// The leases of a call may differ: one has ended, the other counts still, and must not end while the call is made.
#[tokio::test]
async fn a_call_that_one_limit_lost_is_renewed_in_the_other() {
    let store = Arc::new(Raced::default());
    let in_flight = [call(1), call_of(KNOWN, 1)];
    let limits = in_flight
        .iter()
        .map(|call| Arc::clone(&call.charge().limit));
    let as_store: Arc<dyn LimitStore> = store.clone();
    let meters = Arc::new(BTreeMap::new());
    let (refunder, work) = Refunder::new(as_store, meters, limits.collect(), drop);
    refunder.began(&in_flight);
    let renewed = async {
        while store.renewals.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = work => unreachable!("the store has a way to it"),
        renewed = timeout(Duration::from_secs(10), renewed) => renewed.unwrap(),
    }
    assert_eq!(lock(&store.renewed)[..3], [1, 1, 1]);
}

/// Calls end faster than the store takes them.
#[tokio::test]
async fn calls_are_renewed_also_while_others_end_all_the_time() {
    let store = Arc::new(Raced {
        trip: Duration::from_millis(5),
        ..Raced::default()
    });
    let in_flight = call(1);
    let limits = vec![Arc::clone(&in_flight.charge().limit)];
    let as_store: Arc<dyn LimitStore> = store.clone();
    let meters = Arc::new(BTreeMap::new());
    let (refunder, work) = Refunder::new(as_store, meters, limits, drop);
    refunder.began(&[in_flight]);
    let ending = async {
        for ticket in 2.. {
            if store.renewals.load(Ordering::Relaxed) >= 3 {
                break;
            }
            // It is renewed again as long as it is known.
            refunder.began(&[call(1)]);
            refunder.ended(vec![call(ticket)]);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = work => unreachable!("the store has a way to it"),
        ended = timeout(Duration::from_secs(10), ending) => ended.unwrap(),
    }
}

/// Messages are accepted faster than the store marks them as done.
#[tokio::test]
async fn corrections_are_written_also_while_messages_are_accepted_all_the_time() {
    let store = Arc::new(Raced {
        trip: GATHER * 2,
        ..Raced::default()
    });
    let accepted = call(1);
    let Charge { limit, key, .. } = accepted.charge().clone();
    let as_store: Arc<dyn LimitStore> = store.clone();
    let meters = Arc::new(BTreeMap::new());
    let (refunder, work) = Refunder::new(as_store, meters, vec![Arc::clone(&limit)], drop);
    let what = Corrected::More { units: 3 };
    refunder.correct(Correction { what, limit, key });
    let accepting = async {
        while store.corrected.load(Ordering::Relaxed) == 0 {
            // Its entry is sent; whether the store knows is not waited for.
            let _ = refunder
                .done(std::slice::from_ref(&accepted))
                .now_or_never();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = work => unreachable!("the store has a way to it"),
        written = timeout(Duration::from_secs(10), accepting) => written.unwrap(),
    }
}
