//! Registrations in Redis against the decision in Rust: what is refused, over random registrations of random fleets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluiced_core::owner::{
    REGISTRATION_TTL, Registration, STATE_FORMAT, StoredRegistration, foreign, register,
};
use sluiced_core::time::StoreTime;
use sluiced_ports::store::{RegistrationAction, Store as _};

use super::world;
use crate::support::redis::RedisServer;

#[derive(Clone, Debug)]
enum Step {
    /// A replica of a fleet registers or looks.
    Asks(
        RegistrationAction,
        usize,
        usize,
        u32,
        BTreeMap<String, bool>,
    ),
    Leaves(usize),
    /// All registrations become older: Redis' clock cannot be set.
    Older(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    let name = prop::sample::select(vec![
        "limits.account",
        "limits.a-b.c",
        "routes.sms",
        "routes.x",
    ]);
    let names = prop::collection::btree_map(name.prop_map(str::to_owned), any::<bool>(), 0..4);
    let act =
        prop_oneof![4 => Just(RegistrationAction::Register), 1 => Just(RegistrationAction::Look)];
    prop_oneof![
        6 => (act, 0..4_usize, 0..FLEETS.len(), prop_oneof![4 => Just(STATE_FORMAT), 1 => Just(STATE_FORMAT + 1)], names)
            .prop_map(|(act, replica, fleet, format, names)| Step::Asks(act, replica, fleet, format, names)),
        1 => (0..4_usize).prop_map(Step::Leaves),
        1 => prop_oneof![0..2_000_u64, 3_599_000_000..3_600_100_000_u64].prop_map(Step::Older),
    ]
}

/// Names of virtual hosts may have any characters.
const FLEETS: [&[&str]; 4] = [
    &["rabbit@a:/", "mq:1:/"],
    &["rabbit@b:/", "mq:1:/"],
    &["rabbit@a:b c+-|"],
    &["é", "rabbit@b:/"],
];

/// The key of a world's registrations.
const KEY: &str = "oracle:{fleet}:owners";

fn older(connection: &mut redis::Connection, by: u64) {
    let all: BTreeMap<String, String> = redis::cmd("HGETALL").arg(KEY).query(connection).unwrap();
    for (replica, text) in all {
        let (at, rest) = text.split_once('\n').unwrap();
        let at = at.parse::<u64>().unwrap() - by;
        let hset = redis::cmd("HSET")
            .arg(KEY)
            .arg(replica)
            .arg(format!("{at}\n{rest}"))
            .clone();
        hset.query::<()>(connection).unwrap();
    }
}

/// A registration that ends while the test runs may be over in one and not in the other.
fn is_at_its_end(all: &BTreeMap<String, StoredRegistration>, now: StoreTime) -> bool {
    all.values().any(|one| {
        let left = (one.at + REGISTRATION_TTL)
            .since(now)
            .max(now.since(one.at + REGISTRATION_TTL));
        left < Duration::from_millis(50)
    })
}

fn redis_time(connection: &mut redis::Connection) -> StoreTime {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    StoreTime::from_micros(seconds * 1_000_000 + micros)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lua_decides_as_rust_does(steps in prop::collection::vec(steps(), 1..30)) {
        let world = world();
        let store = Arc::clone(&world.store);
        let mut connection = RedisServer::shared().connection();
        redis::cmd("DEL").arg(KEY).query::<()>(&mut connection).unwrap();
        let mut all = BTreeMap::new();
        for step in steps {
            match step {
                Step::Asks(act, replica, fleet, format, names) => {
                    let fleet = FLEETS[fleet].iter().map(|&name| name.to_owned()).collect();
                    let (replica, own) = (format!("replica {replica}"), Registration { format, fleet, names });
                    let now = redis_time(&mut connection);
                    prop_assume!(!is_at_its_end(&all, now));
                    let answer = world.runtime.block_on(store.register_names(act, &replica, &own)).unwrap();
                    let expected = match act {
                        RegistrationAction::Register => register(&mut all, &replica, &own, now),
                        _ => foreign(&all, &own, now),
                    };
                    let plain = |all: Vec<sluiced_core::owner::ForeignName>| {
                        let plain = all.into_iter().map(|one| (one.name, one.fleet, one.replica, one.shared, one.format));
                        plain.collect::<Vec<_>>()
                    };
                    prop_assert_eq!(plain(answer), plain(expected));
                }
                Step::Leaves(replica) => {
                    let replica = format!("replica {replica}");
                    let none = Registration { format: STATE_FORMAT, fleet: Vec::new(), names: BTreeMap::new() };
                    let leaving = store.register_names(RegistrationAction::Leave, &replica, &none);
                    prop_assert_eq!(world.runtime.block_on(leaving).unwrap(), []);
                    all.remove(&replica);
                }
                Step::Older(by) => {
                    older(&mut connection, by);
                    for one in all.values_mut() {
                        one.at = StoreTime::from_micros(one.at.as_micros() - by);
                    }
                }
            }
        }
    }
}
