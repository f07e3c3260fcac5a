//! Waits double up to their maximum, and chance keeps them within their bounds.

use proptest::prelude::*;

use super::*;

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

#[test]
fn doubles_up_to_the_maximum() {
    let secs: Vec<u64> = (0..12).map(|n| BACKOFF.ceiling(n).as_secs()).collect();
    assert_eq!(secs, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert_eq!(BACKOFF.ceiling(u32::MAX), Duration::from_secs(300));
}

#[test]
fn a_maximum_below_the_base_wins_and_no_base_means_no_wait() {
    let short = Backoff {
        max: Duration::from_millis(10),
        ..BACKOFF
    };
    assert_eq!(short.ceiling(1), Duration::from_millis(10));
    let none = Backoff {
        base: Duration::ZERO,
        ..BACKOFF
    };
    assert_eq!(none.ceiling(100), Duration::ZERO);
}

#[test]
fn odd_fractions_stay_in_bounds() {
    assert_eq!(BACKOFF.full_jitter(1, f64::NAN), Duration::from_secs(1));
    assert_eq!(
        BACKOFF.full_jitter(1, f64::INFINITY),
        Duration::from_secs(1)
    );
    assert_eq!(BACKOFF.full_jitter(1, -3.0), Duration::ZERO);
}

#[test]
fn failures_in_a_row_are_counted_until_it_works() {
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let mut failures = Failures::new(BACKOFF);
    assert_eq!((failures.since(), failures.retry_at()), (None, at(0)));
    failures.failed(at(10), 0.0);
    failures.failed(at(20), 1.0);
    assert_eq!(
        (failures.since(), failures.retry_at()),
        (Some(at(10)), at(22))
    );
    failures.succeeded();
    assert_eq!((failures.since(), failures.retry_at()), (None, at(0)));
    failures.failed(at(30), 1.0);
    assert_eq!(
        (failures.since(), failures.retry_at()),
        (Some(at(30)), at(31))
    );
}

proptest! {
    #[test]
    fn never_beyond_the_ceiling(
        base in 0_u64..=u64::MAX, max in 0_u64..=u64::MAX,
        failures in any::<u32>(), fraction in any::<f64>(),
    ) {
        let backoff = Backoff::new(Duration::from_micros(base), Duration::from_micros(max));
        let wait = backoff.full_jitter(failures, fraction);
        prop_assert!(wait <= backoff.ceiling(failures));
        prop_assert!(wait <= backoff.max);
        let wait = backoff.half_jitter(failures, fraction);
        prop_assert!(wait <= backoff.ceiling(failures));
        prop_assert!(wait >= backoff.ceiling(failures) / 2);
    }

    #[test]
    fn ceilings_never_shrink(base in 0_u64..10_000_000, failures in 0_u32..100) {
        let backoff = Backoff { base: Duration::from_micros(base), ..BACKOFF };
        prop_assert!(backoff.ceiling(failures) <= backoff.ceiling(failures + 1));
    }

    #[test]
    fn the_fraction_covers_the_whole_span(failures in 1_u32..20, fraction in 0.0_f64..1.0) {
        let wait = BACKOFF.full_jitter(failures, fraction).as_secs_f64();
        let wanted = BACKOFF.ceiling(failures).as_secs_f64() * fraction;
        prop_assert!((wait - wanted).abs() < 1e-6);
    }
}
