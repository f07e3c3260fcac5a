//! What the schedule promises, held against random fleets.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::core::rate::{Cost, Rate};

const RUN: &str = "run-1";
/// November 2026, as Redis would tell it.
const START: u64 = 1_795_228_193_000_012;

fn pace_of(units: u32, window: Duration, headroom: Duration, horizon: Duration) -> Pace {
    let units = NonZeroU32::new(units).expect("a rate is never zero");
    Pace::new(
        Rate::new(units, window).expect("a rate in range"),
        headroom,
        horizon,
    )
}

fn pace(text: &str) -> Pace {
    Pace::new(
        text.parse().expect("a rate"),
        Duration::from_millis(5),
        DEFAULT_HORIZON,
    )
}

fn cost(units: u32) -> Cost {
    Cost::new(NonZeroU32::new(units).expect("at least one"))
}

const fn at(micros: u64) -> StoreTime {
    StoreTime::from_micros(micros)
}

/// Asked by a replica that knows the clock and the epoch of the state.
fn ask(state: &Option<Schedule>, want: u64, now: u64) -> Ask {
    let steady = |s: &Schedule| Sight::Steady {
        epoch: s.epoch,
        predicted: at(now),
    };
    Ask {
        want,
        turn: None,
        sight: state.as_ref().map_or(Sight::Young, steady),
        lead: Duration::ZERO,
    }
}

/// Asked by one that saw the clock step.
fn stepped(state: &Option<Schedule>, predicted: u64) -> Ask {
    Ask {
        sight: Sight::Stepped {
            epoch: state.as_ref().expect("a state").epoch,
            predicted: at(predicted),
        },
        ..ask(state, 0, predicted)
    }
}

/// A turn that has come, for as much as one likes.
const fn now_turn(now: u64) -> Option<Turn> {
    Some(Turn {
        at: at(now),
        share: u64::MAX,
        slip: 0,
    })
}

/// Asks without a turn; the replica predicts what it is told to.
fn lease_as(
    state: &mut Option<Schedule>,
    pace: &Pace,
    want: u64,
    predicted: u64,
    now: u64,
) -> Answer {
    let question = ask(state, want, predicted);
    lease(state, pace, RUN, &question, at(now))
}

fn slots(grant: Option<Grant>, pace: &Pace) -> Vec<u64> {
    grant.map_or_else(Vec::new, |grant| {
        (0..u64::from(grant.count.get()))
            .map(|i| grant.slot(pace, i).as_micros())
            .collect()
    })
}

/// A schedule that has run for a while: nothing is guarded and `next` lies in the past.
fn settled(pace: &Pace) -> Option<Schedule> {
    let mut state = None;
    lease_as(&mut state, pace, 0, START - 10, START - 10);
    let s = state.as_mut().expect("a lease leaves a state");
    s.next = START - 1;
    s.line = START - 1;
    s.last = START - 1;
    state
}

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
        // Others took all that may be had without a turn.
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
    // Lowered: the next slot keeps the new distance from the last old one.
    let last = row[row.len() - 1];
    let now = last + 1;
    let lowered = lease_as(&mut state, &slow, 1, now, now);
    assert_eq!(lowered.grant, None);
    let turn = lowered.turn.expect("a turn");
    assert!(turn.at.as_micros() + slow.horizon >= last + slow.period);
}

#[test]
fn of_many_that_see_the_same_step_only_the_first_starts_a_new_epoch() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let old = state.clone();
    let hour = 3_600_000_000;
    let now = START + hour;
    let first = lease(&mut state, &pace, RUN, &stepped(&old, START), at(now));
    assert!(first.guarded);
    let fenced = state.clone();
    for i in 1..10 {
        let later = now + i * 1_000;
        let answer = lease(&mut state, &pace, RUN, &stepped(&old, START), at(later));
        assert!(!answer.guarded && answer.grant.is_none());
        assert_eq!(answer.epoch, first.epoch);
        // Nor does who has yet to see it get slots on the clock of before.
        let answer = lease(&mut state, &pace, RUN, &ask(&old, 0, START), at(later));
        assert!(!answer.guarded && answer.epoch == first.epoch);
    }
    assert_eq!(state, fenced);
}

#[test]
fn who_knows_an_older_epoch_gets_a_turn_for_when_it_may_trust_the_new_one() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let old = state.clone();
    lease(&mut state, &pace, RUN, &stepped(&old, START), at(START));
    // Long after, when the row is free.
    let now = START + 5_000_000;
    let answer = lease(&mut state, &pace, RUN, &ask(&old, 3, now), at(now));
    assert_eq!((answer.grant, answer.guarded), (None, false));
    let turn = answer.turn.expect("a turn");
    assert!(turn.at >= at(now) + pace.distrust());
    let question = Ask {
        turn: Some(turn),
        ..ask(&state, 3, turn.at.as_micros())
    };
    let answer = lease(&mut state, &pace, RUN, &question, turn.at);
    assert_eq!(slots(answer.grant, &pace).len(), 3);
}

#[test]
fn an_epoch_never_comes_twice() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let mut known = vec![state.as_ref().expect("a state").epoch];
    // Steps back again and again, a lost state, an older copy, another process.
    let copy = state.clone();
    for i in 1..50 {
        match i % 4 {
            0 => state = None,
            1 => state.clone_from(&copy),
            _ => {}
        }
        let run = format!("run-{i}");
        let mut question = ask(&state, 0, START);
        question.sight = Sight::Steady {
            epoch: known[known.len() - 1],
            predicted: at(START),
        };
        let answer = lease(
            &mut state,
            &pace,
            &run,
            &question,
            at(START - i * 10_000_000),
        );
        assert!(answer.guarded && !known.contains(&answer.epoch));
        known.push(answer.epoch);
    }
}

#[test]
fn a_clock_that_went_back_since_the_last_write_needs_no_witness() {
    let pace = pace("400/1s");
    for (by, seen) in [(500, false), (1_000, false), (1_001, true), (60_000, true)] {
        let mut state = settled(&pace);
        lease_as(&mut state, &pace, 4, START, START);
        let answer = lease_as(&mut state, &pace, 4, START - by, START - by);
        assert_eq!(answer.guarded, seen, "{by} us back");
    }
}

#[test]
fn a_slow_request_gets_no_slots_and_is_no_step() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let before = state.clone();
    let answer = lease_as(&mut state, &pace, 4, START, START + STEP_TOLERANCE + 1);
    assert_eq!((answer.grant, answer.guarded), (None, false));
    assert_eq!(state.map(|s| s.next), before.map(|s| s.next));
}

#[test]
fn a_freeze_keeps_its_length_over_a_step_of_the_clock() {
    let pace = pace("400/1s");
    let (second, hour) = (1_000_000, 3_600_000_000);
    for by in [hour, -hour] {
        let mut state = settled(&pace);
        let old = state.clone();
        freeze(&mut state, Duration::from_secs(30), at(START));
        let mut now = (START + 10 * second).saturating_add_signed(by);
        for i in 0..10 {
            // The first tells what it expected, the others are of an older epoch.
            lease(
                &mut state,
                &pace,
                RUN,
                &stepped(&old, START + 10 * second),
                at(now + i),
            );
        }
        let until = state.as_ref().expect("a state").frozen_until;
        assert!(until.abs_diff(now + 20 * second) <= second, "{by}: {until}");
        // A freeze that is over is forgotten, so that a step back does not bring it back.
        now = until + second;
        let answer = lease_as(&mut state, &pace, 1, now, now);
        assert!(answer.grant.is_some());
        assert_eq!(state.map(|s| s.frozen_until), Some(0));
    }
}

#[test]
fn a_freeze_that_finds_the_clock_set_back_ends_the_epoch() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    freeze(&mut state, Duration::from_secs(30), at(START));
    let back = START - 86_400_000_000;
    let told = freeze(&mut state, Duration::from_secs(1), at(back));
    assert_eq!(told.until, at(back) + Duration::from_secs(30));
    let answer = lease_as(&mut state, &pace, 0, back + 1, back + 1);
    assert!(answer.guarded);
    assert_eq!(answer.frozen_until, Some(told.until));
}

#[test]
fn a_turn_from_before_a_step_back_does_not_hold() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let back = START - 3_600_000_000;
    let question = Ask {
        turn: now_turn(START + 50_000),
        want: 1,
        ..stepped(&state, START)
    };
    let answer = lease(&mut state, &pace, RUN, &question, at(back));
    assert!(answer.guarded);
    assert!(answer.turn.expect("a turn").at.as_micros() < back + 1_000_000);
}

#[test]
fn who_comes_a_moment_late_still_finds_its_share() {
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
fn who_is_overtaken_goes_before_the_line_and_the_line_moves_once() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let waiting: Vec<Turn> = (0..100)
        .filter_map(|_| lease_as(&mut state, &pace, 1_000, START, START).turn)
        .collect();
    let (line, now) = (
        state.as_ref().expect("a state").line,
        waiting[9].at.as_micros(),
    );
    // Somebody took half a horizon more than was his.
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
        assert!(again.at.as_micros() > last, "no herd");
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
    // Also when the clock stepped back without a witness.
    let back = START - 7_200_000_000;
    let s = state.as_mut().expect("a state");
    (s.next, s.last) = (back, back);
    let turn = lease_as(&mut state, &pace, 1_000, back, back)
        .turn
        .expect("a turn");
    assert!(turn.at.as_micros() <= back + LINE_MAX + 2 * pace.horizon);
}

/// Shares shrink as the line grows, but not below what a message takes: it could never be sent.
#[test]
fn however_long_the_line_a_share_holds_the_dearest_message() {
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
                ..ask(&state, 30, now)
            };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            let units = answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            assert!(units == 0 || units >= 3, "{units} units for messages of 3");
            granted += units;
            *turn = answer.turn;
            assert!(turn.is_none_or(|turn| turn.share >= 3), "{turn:?}");
        }
        now += 1_000;
    }
    let row = 10_000_000 * pace.units / pace.period;
    assert!(granted >= row * 99 / 100, "{granted} of {row} units leased");
}

#[test]
fn the_tail_comes_back_only_while_nobody_leased_after_it() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let mine = lease_as(&mut state, &pace, 10, START, START)
        .grant
        .expect("slots");
    let before = state.clone();
    let theirs = lease_as(&mut state, &pace, 3, START + 1, START + 1)
        .grant
        .expect("slots");
    let tail = mine.tail(&pace, 4).expect("six are left");
    assert!(!give_back(&mut state, &pace, RUN, &tail));
    assert!(give_back(&mut state, &pace, RUN, &theirs));
    assert_eq!(state.as_ref().map(|s| s.next), before.map(|s| s.next));
    assert!(!give_back(&mut state, &pace, "run-2", &tail));
    assert!(give_back(&mut state, &pace, RUN, &tail));
    assert!(!give_back(&mut state, &pace, RUN, &tail), "once is enough");
    let again = lease_as(&mut state, &pace, 1, START + 2, START + 2)
        .grant
        .expect("a slot");
    assert_eq!((again.first, again.rem), (tail.first, tail.rem));
}

/// What a random fleet does next.
#[derive(Clone, Debug)]
enum Event {
    /// Replica, want, whether it heeds its turn.
    Ask(usize, u64, bool),
    Wait(u64),
    Freeze(u64),
    /// Give back what the last grant left from this slot on.
    GiveBack(u32),
    /// State lost, another process of the store, a step that a replica saw.
    Flush,
    Restart,
    Fence(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (0..5_usize, 0..300_u64, any::<bool>()).prop_map(|(r, w, t)| Event::Ask(r, w, t)),
        10 => prop_oneof![0..3_000_u64, 0..200_000_u64, 0..5_000_000_u64].prop_map(Event::Wait),
        1 => (0..2_000_000_u64).prop_map(Event::Freeze),
        2 => (0..40_u32).prop_map(Event::GiveBack),
        1 => Just(Event::Flush),
        1 => Just(Event::Restart),
        1 => (0..5_usize).prop_map(Event::Fence),
    ]
}

fn any_pace() -> impl Strategy<Value = Pace> {
    let window = prop_oneof![
        1_000..20_000_u64,
        1_000_000..2_000_000_u64,
        1..31_622_400_000_000_u64
    ];
    let units = prop_oneof![1..5_u32, 1..2_000_u32, 1..10_000_001_u32];
    let shape = (units, window, 0..20_000_u64, 1..800_000_u64);
    let dearest = prop_oneof![3 => Just(1), 1 => 1..8_u32];
    (shape, dearest).prop_map(|((units, window, headroom, horizon), dearest)| {
        let pace = pace_of(
            units,
            Duration::from_micros(window.max(1_000)),
            Duration::from_micros(headroom),
            Duration::from_micros(horizon),
        );
        pace.with_costs_up_to(cost(dearest.min(units)))
    })
}

/// Holds every promise while `events` happen. Answers all slots in the order of grants.
fn play(pace: &Pace, events: &[Event]) -> Result<Vec<u64>, TestCaseError> {
    let mut state = None;
    let (mut now, mut run) = (START, 1);
    let mut turns = [None; 5];
    let mut all: Vec<u64> = Vec::new();
    let mut last: Option<Grant> = None;
    for event in events {
        let name = format!("run-{run}");
        match *event {
            Event::Wait(wait) => now += wait,
            Event::Freeze(length) => {
                let until = freeze(&mut state, Duration::from_micros(length), at(now));
                prop_assert!(until.until.as_micros() >= now + length);
            }
            Event::Flush => state = None,
            Event::Restart => run += 1,
            Event::GiveBack(from) => {
                let tail = last.take().and_then(|grant| grant.tail(pace, from));
                if let Some(tail) = tail
                    && give_back(&mut state, pace, &name, &tail)
                {
                    all.truncate(all.len() - tail.count.get() as usize);
                }
            }
            Event::Fence(replica) => {
                if state.is_none() {
                    continue;
                }
                let question = stepped(&state, now);
                prop_assert!(lease(&mut state, pace, &name, &question, at(now)).guarded);
                turns[replica] = None;
            }
            Event::Ask(replica, want, heed) => {
                let turn: Option<Turn> = turns[replica].filter(|_| heed);
                let question = Ask {
                    turn,
                    ..ask(&state, want, now)
                };
                let before = state.clone();
                let answer = lease(&mut state, pace, &name, &question, at(now));
                check(
                    pace,
                    &question,
                    &answer,
                    before.as_ref(),
                    state.as_ref(),
                    &all,
                )?;
                all.extend(slots(answer.grant, pace));
                last = answer.grant.or(last);
                turns[replica] = answer.turn;
            }
        }
    }
    Ok(all)
}

/// The promises of one answer.
fn check(
    pace: &Pace,
    question: &Ask,
    answer: &Answer,
    before: Option<&Schedule>,
    after: Option<&Schedule>,
    earlier: &[u64],
) -> Result<(), TestCaseError> {
    let now = answer.now.as_micros();
    let after = after.expect("a lease leaves a state");
    let row = slots(answer.grant, pace);
    prop_assert!(row.len() as u64 <= question.want.min(pace.batch));
    prop_assert!(row.is_empty() || row.len() as u64 >= question.want.min(pace.least));
    prop_assert!(
        row.iter()
            .all(|slot| (now..=now + pace.horizon).contains(slot))
    );
    if let Some(frozen) = answer.frozen_until {
        prop_assert!(row.iter().all(|slot| *slot >= frozen.as_micros()));
    }
    let distance = if answer.guarded {
        pace.headroom + pace.period.div_ceil(pace.units)
    } else {
        0
    };
    if let (Some(first), Some(last)) = (row.first(), earlier.last()) {
        prop_assert!(*first >= last + distance, "{first} follows {last}");
    }
    prop_assert_eq!(answer.turn.is_some(), (row.len() as u64) < question.want);
    prop_assert!(answer.turn.is_none_or(|turn| turn.at.as_micros() > now));
    prop_assert!(
        after.line <= now.max(after.frozen_until) + pace.horizon + LINE_MAX
            || before.is_some_and(|s| s.line == after.line)
            || after.line == now + pace.guard_micros()
    );
    prop_assert!(after.rem < after.units);
    for number in [after.next, after.line, after.front, after.slip, after.epoch] {
        prop_assert!(number < 1 << 53);
    }
    let early = question.turn.is_some_and(|turn| turn.at.as_micros() > now);
    if early && row.is_empty() && !answer.guarded && question.want > 0 {
        prop_assert_eq!(before, Some(after));
        prop_assert_eq!(answer.turn, question.turn);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_n_plus_1_slots_span_a_period(pace in any_pace(), events in prop::collection::vec(event(), 1..150)) {
        let all = play(&pace, &events)?;
        let n = usize::try_from(pace.units).expect("64 bits");
        for i in n..all.len() {
            prop_assert!(all[i] - all[i - n] >= pace.period, "{} to {}", all[i - n], all[i]);
        }
        prop_assert!(all.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn a_row_without_a_break_has_no_drift(
        pace in any_pace(),
        asks in prop::collection::vec(1..50_u64, 1..60),
    ) {
        // Whole batches of more than this would only take long.
        prop_assume!(pace.batch <= 2_000);
        // Turns are rounded up by less than a microsecond each; a horizon of a few would not cover it.
        prop_assume!(pace.horizon >= 1_000);
        let mut state = settled(&pace);
        let (mut now, mut all, mut turn) = (START, Vec::new(), None);
        for want in asks {
            let question = Ask { turn, ..ask(&state, want.max(pace.batch + 1), now) };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            all.extend(slots(answer.grant, &pace));
            turn = answer.turn;
            now = turn.expect("more is wanted than granted").at.as_micros();
        }
        // Who asks once and without a turn may find too little for its dearest message.
        prop_assume!(!all.is_empty());
        let full = u128::from(pace.period) * (all.len() as u128 - 1) / u128::from(pace.units);
        prop_assert_eq!(u128::from(all[all.len() - 1] - all[0]), full);
    }

    #[test]
    fn a_clock_set_back_never_repeats_a_slot_in_real_time(
        pace in any_pace(),
        first in 1..100_u64,
        by in 100_001..10_000_000_000_u64,
        later in 0..400_000_u64,
    ) {
        let mut state = settled(&pace);
        let question = Ask { turn: now_turn(START), ..ask(&state, first, START) };
        let old = slots(lease(&mut state, &pace, RUN, &question, at(START)).grant, &pace);
        // `later` microseconds pass in truth, the clock says `by` less. The asker predicted right.
        let now = START + later - by;
        let answer = lease_as(&mut state, &pace, first, START + later, now);
        prop_assert!(answer.guarded);
        let next = state.expect("a state").next + by;
        let gap = pace.headroom + pace.period.div_ceil(pace.units);
        prop_assert!(old.last().is_none_or(|last| next >= last + gap));
    }

    #[test]
    fn extreme_paces_stay_exact(
        units in prop_oneof![Just(1_u32), Just(10_000_000)],
        window in prop_oneof![Just(Duration::from_millis(1)), Just(MAX_WINDOW)],
        horizon in prop_oneof![Just(1_u64), Just(150_000), Just(u64::MAX)],
        headroom in prop_oneof![Just(0_u64), Just(5_000), Just(u64::MAX)],
        want in prop_oneof![Just(1_u64), Just((1 << 53) - 1)],
        length in prop_oneof![Just(Duration::ZERO), Just(Duration::MAX)],
    ) {
        let pace = pace_of(units, window, Duration::from_micros(headroom), Duration::from_micros(horizon));
        let exact = 1_u64 << 53;
        prop_assert!((pace.horizon + 1) * pace.units + pace.units < exact);
        prop_assert!(pace.batch * CYCLE < exact);
        prop_assert!(pace.batch * pace.period + pace.units < exact);
        let mut state = settled(&pace);
        freeze(&mut state, length, at(START));
        let mut now = START;
        for _ in 0..20 {
            let question = Ask { turn: now_turn(now), ..ask(&state, want, now) };
            let answer = lease(&mut state, &pace, RUN, &question, at(now));
            let s = state.as_ref().expect("a state");
            prop_assert!(s.next < exact && s.line < exact && s.frozen_until < exact);
            prop_assert!(answer.turn.is_none_or(|turn| turn.at.as_micros() < exact));
            now += 1_000;
        }
    }
}
