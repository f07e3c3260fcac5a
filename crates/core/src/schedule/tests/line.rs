//! A replica that is denied waits in a line.

use super::*;

#[test]
fn a_replica_that_asks_a_moment_late_still_finds_its_share() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let mut turns: Vec<Turn> = (0..200)
        .filter_map(|_| lease_as(&mut state, &pace, 1_000, START, START).turn)
        .collect();
    turns.sort_by_key(|turn| turn.at);
    // Each pair comes the wrong way round, the first of it 3 ms late.
    for pair in turns[20..].chunks_exact(2) {
        for turn in [pair[1], pair[0]] {
            let now = pair[1].at.as_micros() + u64::from(turn == pair[0]) * 500;
            let question = Ask {
                turn: Some(turn),
                ..ask(&state, 1_000, now)
            };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            assert!(slots(answer.grant, &pace).len() as u64 >= turn.share);
        }
    }
}

#[test]
fn a_replica_that_was_overtaken_goes_before_the_line_and_the_line_moves_once() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let waiting: Vec<Turn> = (0..100)
        .filter_map(|_| lease_as(&mut state, &pace, 1_000, START, START).turn)
        .collect();
    let (line, now) = (
        state.as_ref().expect("a state").line,
        waiting[9].at.as_micros(),
    );
    // Another replica took half a horizon more than its share.
    state.as_mut().expect("a state").next = now + pace.horizon + 60_000;
    let mut last = 0;
    for turn in &waiting[..10] {
        let question = Ask {
            turn: Some(*turn),
            ..ask(&state, 1_000, now)
        };
        let again = lease(&mut state, &pace, RUN, &question, at(now))
            .turn
            .expect("a turn");
        let line = state.as_ref().expect("a state").line;
        assert!(again.at.as_micros() + pace.horizon < line, "not to the end");
        assert!(again.at.as_micros() > last, "turns are apart");
        last = again.at.as_micros();
    }
    let s = state.expect("a state");
    assert!(s.front < s.line && s.line - line == s.slip);
    assert!(s.slip <= s.front - now);
}

#[test]
fn a_line_of_the_lost_is_bounded() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    for _ in 0..100_000 {
        lease_as(&mut state, &pace, 1_000, START, START);
    }
    let s = state.as_ref().expect("a state");
    assert!(s.line <= START + pace.horizon + LINE_MAX);
    // Also if the clock stepped back and no replica noticed.
    let back = START - 7_200_000_000;
    let s = state.as_mut().expect("a state");
    (s.next, s.last) = (back, back);
    let turn = lease_as(&mut state, &pace, 1_000, back, back)
        .turn
        .expect("a turn");
    assert!(turn.at.as_micros() <= back + LINE_MAX + 2 * pace.horizon);
}

/// Shares shrink as the line grows, but not below the cost of a message: it could never be sent. A share, and
/// a grant, is for whole messages.
#[test]
fn however_long_the_line_a_share_holds_the_next_message() {
    let pace = pace("400/1s").with_costs_up_to(cost(3));
    let mut state = settled(&pace);
    let mut turns = vec![None; 500];
    let (mut granted, mut now) = (0, START);
    while now < START + 10_000_000 {
        for turn in &mut turns {
            if turn.is_some_and(|turn: Turn| turn.at > at(now)) {
                continue;
            }
            let question = Ask {
                turn: *turn,
                sums: (1..=10).map(|messages| messages * 3).collect(),
                ..ask(&state, 30, now)
            };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            let units = answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            assert!(units.is_multiple_of(3), "{units} units for messages of 3");
            granted += units;
            *turn = answer.turn;
            let whole = |share: u64| share > 0 && share.is_multiple_of(3);
            assert!(turn.is_none_or(|turn| whole(turn.share)), "{turn:?}");
        }
        now += 1_000;
    }
    let row = 10_000_000 * pace.units / pace.period;
    assert!(granted >= row * 99 / 100, "{granted} of {row} units leased");
}

/// Slots further apart than the line reaches: all that wait have the turn for the next slot. Each replica asks a little
/// after its turn, always as late, and the nearest must not get every slot.
#[test]
fn a_slow_limit_serves_replicas_at_any_distance() {
    const FARTHER: u64 = 300;
    for (rate, replicas) in [
        ("1/1m", 2),
        ("2/1m", 2),
        ("10/1m", 4),
        ("30/1h", 3),
        ("1/1h", 3),
    ] {
        let pace = pace(rate);
        let mut state = settled(&pace);
        let mut asks: Vec<(u64, Option<Turn>)> = vec![(START, None); replicas];
        let mut granted = vec![0_u64; replicas];
        while granted.iter().sum::<u64>() < 200 * replicas as u64 {
            let delay = |replica: usize| 200 + FARTHER * replica as u64;
            let first = (0..replicas).min_by_key(|replica| asks[*replica].0 + delay(*replica));
            let replica = first.expect("some ask");
            let (from, turn) = asks[replica];
            let now = from + delay(replica);
            let question = Ask {
                turn,
                ..ask(&state, 1, now)
            };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            granted[replica] += u64::from(answer.grant.is_some());
            let again = match answer.turn {
                Some(turn) => turn.at.as_micros(),
                // It was served, and the next message waits at once.
                None => now,
            };
            asks[replica] = (again, answer.turn);
        }
        let least = granted.iter().min().expect("some replicas");
        assert!(*least > 140, "{rate}: {granted:?}");
    }
}
