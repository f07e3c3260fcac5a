//! The breaker in Redis against the decision in Rust: the same statuses over random reports.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluiced_core::backoff::Backoff;
use sluiced_core::breaker::{BreakerReport, BreakerRule, StoredBreaker, report};
use sluiced_ports::store::Store as _;

use super::world;

fn reports() -> impl Strategy<Value = (BreakerReport, u64)> {
    let what = prop_oneof![
        Just(BreakerReport::Failed),
        Just(BreakerReport::Passed),
        Just(BreakerReport::Probe),
        Just(BreakerReport::Look)
    ];
    // How far the replica is behind the store, or ahead of it if the store has lost something.
    (what, 0..3_u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lua_decides_as_rust_does(reports in prop::collection::vec(reports(), 1..40), key in any::<u64>()) {
        let world = world();
        let store = Arc::clone(&world.store);
        let rule = BreakerRule {
            failures: Some(NonZeroU32::MIN),
            rejections: None,
            pause: Backoff::new(Duration::from_micros(300), Duration::from_micros(2_000)),
            probe: Duration::from_micros(900),
        };
        let route = format!("route-{key}");
        let mut shared = StoredBreaker::default();
        let mut version = 1_u64;
        for (told, behind) in reports {
            let known = (version + 1).saturating_sub(behind);
            let why = format!("why {known}");
            let answer = store.report_breaker(&route, told, &why, known, &rule);
            let status = world.runtime.block_on(answer).unwrap();
            let expected = report(&mut shared, told, &why, known, &rule, status.now);
            version = status.version;
            prop_assert_eq!(status, expected);
        }
    }
}
