use super::*;

#[test]
fn differences_never_go_below_zero() {
    let early = Mono::from_micros(10);
    let late = Mono::from_micros(25);
    assert_eq!(late.since(early), Duration::from_micros(15));
    assert_eq!(early.since(late), Duration::ZERO);
    assert_eq!(early - Duration::from_secs(1), Mono::from_micros(0));
}

mod clock {
    use super::*;

    const EPOCH: u64 = 1_700_000_000_000_000;
    const FINE: Duration = Duration::from_millis(1);

    fn mono(us: u64) -> Mono {
        Mono::from_micros(us)
    }

    fn store(us: u64) -> StoreTime {
        StoreTime::from_micros(EPOCH + us)
    }

    #[test]
    fn the_error_is_at_most_half_of_the_best_round_trip() {
        let mut map = ClockMap::default();
        // The truth: store = local + EPOCH. A slow, lopsided round trip first.
        assert_eq!(
            map.learn(mono(1_000), store(1_100), mono(5_000), FINE),
            Reading::First
        );
        assert_eq!(map.error(mono(5_000)), Some(Duration::from_micros(2_000)));
        // A quick one narrows it, a slow one after that does not widen it.
        assert_eq!(
            map.learn(mono(6_000), store(6_050), mono(6_200), FINE),
            Reading::Agrees
        );
        assert!(map.error(mono(6_200)) <= Some(Duration::from_micros(101)));
        map.learn(mono(7_000), store(7_900), mono(9_000), FINE);
        assert!(map.error(mono(9_000)) <= Some(Duration::from_micros(102)));
        let mapped = map.to_mono(store(20_000)).expect("known");
        assert!(mapped.as_micros().abs_diff(20_000) <= 102, "{mapped:?}");
    }

    #[test]
    fn a_step_shows_even_when_it_is_smaller_than_a_slow_round_trip_would_hide() {
        for by in [-3_000_i64, 3_000] {
            let mut map = ClockMap::default();
            map.learn(mono(1_000), store(1_050), mono(1_100), FINE);
            let stepped = StoreTime::from_micros((EPOCH + 2_050).saturating_add_signed(by));
            assert_eq!(
                map.learn(mono(2_000), stepped, mono(2_100), FINE),
                Reading::Stepped
            );
            // A replica that saw the step knows its size from the old mapping.
            assert_eq!(map.to_store(mono(2_050)), Some(store(2_050)));
        }
    }

    #[test]
    fn bounds_that_a_step_could_hide_in_do_not_count_as_held() {
        let mut map = ClockMap::default();
        map.learn(mono(0), store(100_000), mono(200_000), FINE);
        // 60 ms later than before: within the first bounds.
        map.learn(mono(300_000), store(360_100), mono(300_200), FINE);
        assert_eq!(map.trusted_from(FINE), mono(300_200) + FINE);
        map.learn(mono(400_000), store(460_040), mono(400_080), FINE);
        assert_eq!(map.trusted_from(FINE), mono(300_200) + FINE, "fine already");
    }

    #[test]
    fn drift_within_the_allowance_is_no_step() {
        let mut map = ClockMap::default();
        for second in 0..100_u64 {
            let at = second * 1_000_000;
            // 100 ppm fast.
            let reading = map.learn(
                mono(at),
                store(at + 50 + second * 100),
                mono(at + 100),
                FINE,
            );
            assert_ne!(reading, Reading::Stepped, "second {second}");
        }
        let mapped = map.to_store(mono(99_000_050)).expect("known");
        assert!(mapped.as_micros().abs_diff(EPOCH + 99_000_050 + 9_900) <= 150);
    }
}
