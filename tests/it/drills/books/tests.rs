//! The checker must notice each fault.

use super::*;

/// Three messages to the same recipient were published; these calls were taken, by these replicas, this many
/// milliseconds after the start.
fn of(calls: &[(u64, &str, u64)]) -> (Books, Instant) {
    let mut books = Books::new(Some(2));
    let start = Instant::now();
    for n in 0..3 {
        books.published((n * RECIPIENTS).to_string());
    }
    for (n, by, after) in calls {
        let message = (n * RECIPIENTS).to_string();
        *books.taken.entry(message.clone()).or_default() += 1;
        books.calls.push(Call {
            at: start + Duration::from_millis(*after),
            message,
            by: (*by).to_owned(),
        });
    }
    (books, start)
}

#[test]
fn what_ends_once_and_in_time_holds() {
    let (books, _) = of(&[(0, "one", 0), (1, "one", 1), (2, "one", 1_000)]);
    assert!(books.sums().hold(), "{:?}", books.sums());
}

#[test]
fn a_lost_message_is_seen_unless_it_waits() {
    let (mut books, _) = of(&[(0, "one", 0), (1, "one", 1)]);
    assert_eq!(books.sums().lost, 1);
    assert!(!books.sums().hold());
    books.waiting.insert((2 * RECIPIENTS).to_string());
    assert_eq!((books.sums().lost, books.sums().waiting), (0, 1));
    assert!(books.sums().hold());
}

#[test]
fn a_call_that_comes_too_early_for_its_recipient_is_seen() {
    let (books, _) = of(&[(0, "one", 0), (1, "one", 1), (2, "one", 999)]);
    assert_eq!(books.sums().over, 1);
    assert!(!books.sums().hold());
}

#[test]
fn a_repeat_needs_a_call_before_it_whose_answer_was_unknown() {
    let calls = [
        (0, "one", 0),
        (1, "one", 1),
        (2, "one", 2_000),
        (2, "two", 3_000),
    ];
    let at = |start: Instant, ms| start + Duration::from_millis(ms);
    let (mut books, start) = of(&calls);
    books.recipient = None;
    assert_eq!(books.sums().twice, 1);
    assert!(!books.sums().hold());
    // Far more calls than a replica holds lie between that call and the times before and after it.
    for (n, after) in (0..=HELD as u64).flat_map(|n| [(n, 1_000 + n), (n, 2_200 + n)]) {
        books.calls.push(Call {
            at: at(start, after),
            message: format!("other-{n}"),
            by: "one".to_owned(),
        });
    }
    // A call of another replica, of another time, or the repeat itself is no excuse.
    books.excuse(Some("two".to_owned()), start, at(start, 2_500));
    books.excuse(Some("one".to_owned()), start, at(start, 999));
    books.excuse(None, at(start, 2_900), at(start, 4_000));
    assert!(!books.sums().hold());
    books.excuse(Some("one".to_owned()), at(start, 1_900), at(start, 2_100));
    assert!(books.sums().hold(), "{:?}", books.sums());
}

#[test]
fn what_is_delivered_and_dead_is_seen() {
    let (mut books, _) = of(&[(0, "one", 0), (1, "one", 1), (2, "one", 1_000)]);
    let id = (2 * RECIPIENTS).to_string();
    let properties = BasicProperties::default().with_message_id(id.into());
    books.buried(&(Vec::new(), properties));
    assert!(!books.sums().hold());
}
