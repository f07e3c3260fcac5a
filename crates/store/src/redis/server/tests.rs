//! How soon a Redis that was away is asked again.

use super::*;

#[test]
fn a_redis_that_was_away_for_long_is_soon_asked_again() {
    let longest = BACKOFF.half_jitter(u32::MAX, 1.0);
    assert!(longest <= Duration::from_secs(2), "{longest:?}");
}
