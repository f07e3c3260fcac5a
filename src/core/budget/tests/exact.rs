//! To the microsecond and the unit.

use super::*;

#[test]
fn a_denial_names_the_exact_microsecond() {
    let day = Calendar::new(CalendarUnit::Day, Zone::utc());
    for rule in [
        log("3/7s", 3 * MS),
        gcra("7/3s", 4, MS),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("3/7s"), MS).unwrap()),
        Rule::FixedWindow(FixedWindow::aligned(rate("3/7s"), MS).unwrap()),
        Rule::FixedWindow(FixedWindow::calendar(units(3), day, MS).unwrap()),
        Rule::TokenBucket(
            TokenBucket::new(bucket(5, 3, 7_000 * MS, Refill::Continuous, 0)).unwrap(),
        ),
        Rule::TokenBucket(TokenBucket::new(bucket(5, 3, 7_000 * MS, Refill::Stepped, 0)).unwrap()),
        Rule::TokenBucket(
            TokenBucket::new(bucket(5, 3, 7_000 * MS, Refill::Continuous, 2)).unwrap(),
        ),
    ] {
        let mut one = One::new(rule);
        while one.takes(2) {}
        let wait = one.wait(2);
        one.now += wait - 1;
        assert!(!one.takes(2), "{:?}", one.rule);
        one.now += 1;
        assert!(one.takes(2), "{:?}", one.rule);
    }
}

#[test]
fn no_time_is_lost_to_rounding() {
    for rule in [
        gcra("7/1s", 0, Duration::ZERO),
        Rule::TokenBucket(
            TokenBucket::new(bucket(1, 7, 1000 * MS, Refill::Continuous, 0)).unwrap(),
        ),
    ] {
        let mut one = One::new(rule);
        let granted = (0..3 * 7_000)
            .filter(|i| {
                // Every third of an interval, as exactly as whole microseconds can say it.
                one.now = START + (i * 1_000_000_u64).div_ceil(21);
                one.takes(1)
            })
            .count();
        assert_eq!(granted, 7_000);
    }
}

#[test]
fn a_cost_beyond_what_a_budget_ever_holds_is_never() {
    let lease = Duration::from_secs(30);
    for (rule, most) in [
        (log("3/1s", MS), 3),
        (gcra("30/1s", 4, MS), 5),
        (
            Rule::FixedWindow(FixedWindow::aligned(rate("3/1s"), MS).unwrap()),
            3,
        ),
        (
            Rule::TokenBucket(TokenBucket::new(bucket(5, 3, 7 * MS, Refill::Stepped, 2)).unwrap()),
            7,
        ),
        (
            Rule::Concurrency(Concurrency::new(units(4), lease, MS).unwrap()),
            4,
        ),
    ] {
        let mut one = One::new(rule);
        assert!(matches!(
            one.ask(most + 1, RESERVE, None),
            Ruling::Never { by: 0, .. }
        ));
        assert_eq!(one.cell.state, None);
        assert!(one.takes(most));
    }
}

#[test]
fn debts_of_a_bucket_are_paid_by_the_next_ones() {
    let rule = TokenBucket::new(bucket(2, 1, 1000 * MS, Refill::Continuous, 3)).unwrap();
    let mut one = One::new(Rule::TokenBucket(rule));
    assert!(one.takes(5));
    // Three are owed: the next one comes when one of them is back.
    assert_eq!(one.wait(1), 1_000_000);
    one.now += 1_000_000;
    assert!(one.takes(1));
    assert!(!one.takes(1));
}

#[test]
fn a_bucket_that_starts_empty_fills_from_the_first_question() {
    let rule = TokenBucket::new(Bucket {
        start: Start::Empty,
        ..bucket(2, 1, 1000 * MS, Refill::Continuous, 0)
    });
    let mut one = One::new(Rule::TokenBucket(rule.unwrap()));
    assert_eq!(one.wait(2), 2_000_000);
    one.now += 1_999_999;
    assert_eq!(one.wait(2), 1);
    one.now += 1;
    assert!(one.takes(2));
}
