//! What can be counted exactly, written down and given back.

use super::*;

#[test]
fn numbers_that_a_double_would_round_are_refused() {
    let year = Rate::new(units(1), Duration::from_secs(366 * 86_400)).unwrap();
    assert!(matches!(
        Gcra::new(year, 1_000_000, MS),
        Err(RuleError::TooLarge { .. })
    ));
    assert!(matches!(Gcra::new(year, 2, MS), Err(RuleError::TooSlow(_))));
    assert!(matches!(
        SlidingLog::new(rate("10_001/1s"), MS),
        Err(RuleError::TooMany { .. })
    ));
    let vast = bucket(
        u32::MAX,
        1,
        Duration::from_secs(3600),
        Refill::Continuous,
        u32::MAX,
    );
    assert!(matches!(
        TokenBucket::new(vast),
        Err(RuleError::TooLarge { .. })
    ));
    assert!(matches!(
        FixedWindow::aligned(rate("5/10ms"), 5 * MS),
        Err(RuleError::Headroom { .. })
    ));
}

#[test]
fn states_are_read_back_as_they_were_written() {
    use super::admit::Epoch;
    let now = StoreTime::from_micros(START);
    let lease = Duration::from_secs(30);
    for rule in [
        log("3/7s", 3 * MS),
        gcra("7/3s", 4, MS),
        Rule::FixedWindow(FixedWindow::aligned(rate("3/7s"), MS).unwrap()),
        Rule::TokenBucket(
            TokenBucket::new(bucket(1, 3, 7_000 * MS, Refill::Continuous, 4)).unwrap(),
        ),
        Rule::Concurrency(Concurrency::new(units(4), lease, MS).unwrap()),
    ] {
        let mut one = One::new(rule);
        one.takes(2);
        one.now += 12;
        one.takes(1);
        let state = one.cell.state.clone().unwrap();
        let text = record::write(&state, Epoch(9));
        assert_eq!(record::read(&text, &one.rule, Epoch(9), now), Some(state));
        assert_eq!(record::read(&text, &one.rule, Epoch(8), now), None);
        for cut in 1..text.len() {
            // A part of a state is none, or one that still holds the bounds of its kind.
            let part = record::read(&text[..cut], &one.rule, Epoch(9), now);
            let mut spoiled = One::new(one.rule.clone());
            spoiled.cell.state = part;
            let granted = (0..10).filter(|_| spoiled.takes(1)).count() as u64;
            assert!(granted <= one.rule.most(), "{:?} {text} {cut}", one.rule);
        }
    }
}

/// What was taken while the bucket would have been full without it has run over since: it does not come back.
#[test]
fn a_refund_gives_no_more_back_than_the_bucket_had_room_for() {
    let rule = bucket(4, 3, 720 * MS, Refill::Continuous, 0);
    let mut one = One::new(Rule::TokenBucket(TokenBucket::new(rule).unwrap()));
    assert!(one.takes(3));
    let taken = one.now;
    one.now += 719_000;
    assert!(one.takes(1));
    // Three came meanwhile, but for a thousandth; all four can be there only because three were taken.
    assert!(!one.refund(Taken::Now, taken, 3));
    assert!(one.takes(2) && !one.takes(1));
}

/// A refund right after it gives all of it back.
#[test]
fn a_refund_at_once_gives_all_back() {
    let rule = bucket(4, 3, 720 * MS, Refill::Continuous, 0);
    let mut one = One::new(Rule::TokenBucket(TokenBucket::new(rule).unwrap()));
    assert!(one.takes(3));
    assert!(one.refund(Taken::Now, one.now, 3));
    assert!(one.takes(4));
}
