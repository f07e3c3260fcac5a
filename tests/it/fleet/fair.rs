//! Tenants share the limit over the whole fleet, whatever stands in front of the queue.
//!
//! Shares are counted in calls, not in time, so a machine that stands still changes little. They are
//! printed; the tests assert that a tenant with few messages does not wait behind one with many.

use std::collections::BTreeMap;

use sluiced_core::time::Mono;

use super::{Fleet, PATIENCE, Plan};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, program};
use crate::support::soak::soak;
use crate::support::wait::{eventually, within};

/// Replicas that share fairly by `to`, and send it with each call.
fn plan(name: &'static str, keys: &'static str) -> Plan {
    Plan {
        rate: "400/1s",
        keys,
        marked: "{{ body.to }}",
        ..Plan::of(name)
    }
}

const FAIR: &str = "fair_by = \"{{ body.to }}\"\n";
/// The same, and a replica holds [`HELD`] messages.
const FAIR_FEW: &str = "fair_by = \"{{ body.to }}\"\nprefetch = 200\n";
const HELD: u64 = 200;

/// The next messages of a tenant.
fn of(tenant: usize, numbers: std::ops::Range<usize>) -> impl Iterator<Item = (String, usize)> {
    numbers.map(move |n| (format!("{tenant}-{n}"), tenant))
}

/// The tenants of all calls, in their order.
fn tenants(fleet: &Fleet) -> Vec<usize> {
    let calls: Vec<(Mono, Box<str>)> = fleet.provider.keyed();
    calls
        .iter()
        .map(|(_, tenant)| tenant.parse().unwrap())
        .collect()
}

/// Calls of each tenant, from the first call of the last one that shows up until the first one has a
/// tenth of its calls left: the last few of a tenant are not on every replica.
fn shares(calls: &[usize], others: std::ops::Range<usize>) -> BTreeMap<usize, f64> {
    let places = |tenant: usize| -> Vec<usize> {
        let own = calls.iter().enumerate().filter(|(_, of)| **of == tenant);
        own.map(|(place, _)| place).collect()
    };
    let own: Vec<_> = others.map(places).collect();
    let first = own.iter().map(|places| places[0]).max().unwrap();
    let last = own.iter().map(|places| places[places.len() * 9 / 10]).min();
    let mut shares = BTreeMap::new();
    for tenant in &calls[first..last.unwrap()] {
        *shares.entry(*tenant).or_default() += 1.0;
    }
    shares
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_backlog_in_front_leaves_the_others_their_share() {
    // With --soak a hundred times the backlog of each other one, and all of it is sent.
    const OTHERS: usize = 100;
    let front = if soak() { 100 * OTHERS } else { 30 * OTHERS };
    // A slow machine sets the backlog aside more slowly: at half of the rate that matters half as much.
    let mut fleet = Plan {
        rate: "200/1s",
        ..plan("fair-long", FAIR)
    }
    .prepare()
    .await;
    fleet.publish(of(0, 0..front)).await;
    // In an order without a pattern: from one to the next is a step that has no factor in common
    // with their number.
    let order = (0..9 * OTHERS).map(|n| (1 + (n * 7 + n / 9) % 9, n / 9));
    fleet
        .publish(order.map(|(tenant, n)| (format!("{tenant}-{n}"), tenant)))
        .await;
    fleet.add(3);
    let others = |fleet: &Fleet| tenants(fleet).iter().filter(|of| **of != 0).count();
    eventually(PATIENCE, "all of the others came", || {
        others(&fleet) >= 9 * OTHERS
    })
    .await;
    let report = if soak() {
        fleet.finish(&[NEW_SCHEDULE]).await
    } else {
        fleet.stop_early(&[NEW_SCHEDULE]).await
    };
    assert_eq!(report.repeated, 0, "{report:?}");
    let calls = tenants(&fleet);
    eprintln!("{:?}", shares(&calls, 1..10));
    let last = calls.iter().rposition(|tenant| *tenant != 0).unwrap();
    let before = calls[..last].iter().filter(|tenant| **tenant == 0).count();
    assert!(
        before <= front * 3 / 4,
        "{before} of the backlog went before the last of the others"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_are_shares() {
    let keys = "fair_by = \"{{ body.to }}\"\nweights = { 1 = 3 }\n";
    // A slow machine sets the backlog aside more slowly: at half of the rate that matters half as much.
    let mut fleet = Plan {
        rate: "200/1s",
        ..plan("fair-weights", keys)
    }
    .prepare()
    .await;
    fleet.publish(of(0, 0..1_500)).await;
    fleet.publish(of(1, 0..900)).await;
    fleet.add(3);
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
    let shares = shares(&tenants(&fleet), 1..2);
    let share = shares[&1] / (shares[&0] + shares[&1]);
    eprintln!("{share:.3} of 0.75: {shares:?}");
    // More than the half of the calls that it would have without its weight.
    assert!((0.6..=0.9).contains(&share), "{shares:?}");
}

/// Messages that a replica has parked safely.
async fn parked(replica: &mut Daemon, name: &str) -> f64 {
    let series = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"parked\"}}");
    replica.metric(&series).await
}

/// Waits until these replicas have parked this many together: which of them does depends on what it receives.
async fn parks(replicas: &mut [Daemon], name: &str, count: f64) {
    for replica in &mut *replicas {
        replica.ready().await;
    }
    let parks = async {
        loop {
            let mut all = 0.0;
            for replica in &mut *replicas {
                all += parked(replica, name).await;
            }
            if all >= count {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within(LONG, "messages are parked", parks).await;
}

/// Waits until any of these replicas has parked this many, and names it: which does so first depends on the others.
async fn one_parks(replicas: &mut [Daemon], name: &str, count: f64) -> usize {
    let parks = async {
        loop {
            for (place, replica) in replicas.iter_mut().enumerate() {
                replica.ready().await;
                if parked(replica, name).await >= count {
                    return place;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    within(LONG, "one of them parks", parks).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_while_it_parks_loses_nothing() {
    let name = "fair-killed";
    let mut fleet = plan(name, FAIR_FEW).prepare().await;
    fleet.publish(of(0, 0..2_000)).await;
    let others = (0..450).map(|n| (1 + n % 9, n / 9));
    fleet
        .publish(others.map(|(tenant, n)| (format!("{tenant}-{n}"), tenant)))
        .await;
    fleet.add(3);
    for messages in [10.0, 1.0] {
        let place = one_parks(&mut fleet.replicas, name, messages).await;
        let old = fleet.replace(place);
        old.kill(&[NEW_SCHEDULE]).await;
    }
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    // Calls that were made, and copies that were confirmed, of messages that were not acknowledged yet: no
    // more than a replica holds.
    assert!(report.repeated <= 2 * HELD, "{report:?}");
    assert!(report.undated <= 2 * HELD, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_parked_when_tenants_do_not_share_any_more() {
    let name = "fair-off";
    let mut fleet = plan(name, FAIR).prepare().await;
    fleet.publish(of(0, 0..2_500)).await;
    fleet.publish(of(1, 0..100)).await;
    fleet.add(2);
    parks(&mut fleet.replicas, name, 100.0).await;
    for replica in fleet.replicas.drain(..) {
        replica.stop(&[NEW_SCHEDULE]).await;
    }
    fleet.plan.keys = "";
    fleet.add(2);
    let first = &fleet.replicas[0];
    first
        .says("parked queues of an earlier configuration")
        .await;
    let mut check = program(&["check", "--connect", "--config"]);
    let said = check.arg(first.config()).output().unwrap();
    let said = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    assert!(said.contains("stand parked in fair-off.parked."), "{said}");
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    assert_eq!(report.repeated, 0, "{report:?}");
}
