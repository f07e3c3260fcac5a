//! Any rate, alone and beside others.

use super::*;

#[test]
fn a_lone_replica_uses_every_slot_however_slow_the_rate() {
    for text in ["400/1s", "7/1s", "1/1s", "5/1m", "5/1h"] {
        let pace = pace(text);
        let mut state = settled(&pace);
        let (mut now, mut turn, mut all) = (START, None, Vec::new());
        for _ in 0..200 {
            let question = Ask {
                turn,
                ..ask(&state, 1_000, now)
            };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            all.extend(slots(answer.grant, &pace));
            turn = answer.turn;
            now = turn.expect("more is wanted than granted").at.as_micros();
        }
        let span = u128::from(all[all.len() - 1] - all[0]);
        let fair = (all.len() as u128 - 1) * u128::from(pace.period()) / u128::from(pace.units());
        assert_eq!(span, fair, "{text}: slots were left unused");
    }
}

#[test]
fn a_thousand_early_asks_change_nothing() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let first = lease_as(&mut state, &pace, 1_000, START, START);
    let turn = first.turn.expect("a turn");
    let before = state.clone();
    for i in 0..1_000 {
        let now = START + i * (turn.at.as_micros() - START - 1) / 1_000;
        // Other replicas took all slots that can be taken without a turn.
        let mut full = before.clone();
        full.as_mut().expect("a state").next += pace.horizon / 2;
        let kept = full.clone();
        let question = Ask {
            turn: Some(turn),
            ..ask(&state, 50, now)
        };
        let answer = lease(&mut full, &pace, RUN, &question, at(now));
        assert_eq!((answer.grant, answer.turn), (None, Some(turn)));
        assert_eq!(full, kept);
    }
}

#[test]
fn a_short_horizon_beside_a_long_one_takes_no_slot_twice() {
    let long = pace_of(
        400,
        Duration::from_secs(1),
        Duration::from_millis(5),
        Duration::from_millis(800),
    );
    let short = pace("400/1s");
    let mut state = settled(&long);
    let mut all = Vec::new();
    for (i, pace) in [&long, &long, &long, &long, &short, &long, &short, &short]
        .into_iter()
        .enumerate()
    {
        let now = START + i as u64;
        let question = Ask {
            turn: now_turn(now),
            ..ask(&state, 1_000, now)
        };
        let answer = lease(&mut state, pace, RUN, &question, at(now));
        assert!(!answer.guarded, "nothing was lost and no clock stepped");
        all.extend(slots(answer.grant, pace));
    }
    assert!(
        all[all.len() - 1] > START + 300_000,
        "the long one leased far ahead"
    );
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
}

#[test]
fn two_rates_side_by_side_never_push_the_row_away() {
    let (old, new) = (pace("1/1m"), pace("2/1m"));
    let mut state = settled(&old);
    let (mut turns, mut granted) = ([None, None], 0);
    let mut now = START;
    while now < START + 3_600_000_000 {
        for (i, pace) in [&old, &new].into_iter().enumerate() {
            if turns[i].is_none_or(|turn: Turn| turn.at.as_micros() <= now) {
                let question = Ask {
                    turn: turns[i],
                    ..ask(&state, 5, now)
                };
                let answer = lease(&mut state, pace, RUN, &question, at(now));
                granted += slots(answer.grant, pace).len();
                turns[i] = answer.turn;
            }
        }
        now += 50_000;
    }
    assert!((55..=120).contains(&granted), "{granted} in an hour");
}

#[test]
fn a_changed_rate_is_in_force_with_the_next_lease() {
    let (slow, fast) = (pace("1/1m"), pace("400/1s"));
    let mut state = settled(&slow);
    let answer = lease_as(&mut state, &slow, 1, START, START);
    let last = slots(answer.grant, &slow)[0];
    // Raised: a second later the new rate flows, not after the old minute.
    let raised = lease_as(&mut state, &fast, 10, START + 1, START + 1);
    let turn = raised.turn.expect("a turn");
    assert!(turn.at.as_micros() < START + 1_000_000);
    let question = Ask {
        turn: Some(turn),
        ..ask(&state, 10, turn.at.as_micros())
    };
    let row = slots(
        lease(&mut state, &fast, RUN, &question, turn.at).grant,
        &fast,
    );
    assert!(row[0] > last && row[0] < START + 1_000_000, "{row:?}");
    // Lowered: the next slot keeps the new interval to the last old one.
    let last = row[row.len() - 1];
    let now = last + 1;
    let lowered = lease_as(&mut state, &slow, 1, now, now);
    assert_eq!(lowered.grant, None);
    let turn = lowered.turn.expect("a turn");
    assert!(turn.at.as_micros() + slow.horizon >= last + slow.period);
}

/// Calls of the old row come as late as they may, and those of the new one at once.
#[test]
fn no_window_is_over_where_the_headroom_becomes_shorter() {
    let rate: Rate = "400/1s".parse().expect("a rate");
    let with = |headroom| Pace::new(rate, Duration::from_millis(headroom), DEFAULT_HORIZON);
    for (old, new) in [(37, 5), (37, 36), (20, 2), (5, 37)] {
        let paces = [with(old), with(new)];
        let late = [paces[0].headroom, 0];
        let mut state = settled(&paces[0]);
        let mut calls = Vec::new();
        for now in (START..START + 3_000_000).step_by(20_000) {
            let which = usize::from(now >= START + 1_500_000);
            let pace = &paces[which];
            let question = Ask {
                turn: now_turn(now),
                ..ask(&state, 1_000, now)
            };
            let answer = lease(&mut state, pace, RUN, &question, at(now));
            let row = slots(answer.grant, pace).into_iter();
            calls.extend(row.map(|slot| slot + late[which]));
        }
        calls.sort_unstable();
        assert!(calls.len() > 1_100, "{} calls", calls.len());
        let over = calls.windows(401).find(|all| all[400] - all[0] < 1_000_000);
        assert!(over.is_none(), "{old} ms, then {new} ms");
    }
}
