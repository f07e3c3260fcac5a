//! No window is over its limit, whatever random fleets ask for.

use super::*;
use crate::rate::MAX_WINDOW;

/// What a random fleet does next.
#[derive(Clone, Debug)]
enum Event {
    /// Replica, want, whether it waits for its turn.
    Ask(usize, u64, bool),
    Wait(u64),
    Freeze(u64),
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

/// The summed costs of messages for which this many units are wanted.
fn sums(pace: &Pace, want: u64) -> Vec<u64> {
    let costs = (want..).map(|n| 1 + n * 7 % pace.max_cost);
    let sums = costs.scan(0, |sum, cost| {
        *sum += cost;
        Some(*sum)
    });
    let sums = sums.take_while(|sum| *sum <= want).take(20);
    sums.filter(|_| pace.max_cost > 1).collect()
}

/// Checks every guarantee while `events` happen. Returns all slots in the order of grants.
fn play(pace: &Pace, events: &[Event]) -> Result<Vec<u64>, TestCaseError> {
    let mut state = None;
    let (mut now, mut run) = (START, 1);
    let mut turns = [None; 5];
    let mut all: Vec<u64> = Vec::new();
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
                    sums: sums(pace, want),
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
                turns[replica] = answer.turn;
            }
        }
    }
    Ok(all)
}

/// The guarantees of one answer.
fn check(
    pace: &Pace,
    question: &Ask,
    answer: &LeaseAnswer,
    before: Option<&Schedule>,
    after: Option<&Schedule>,
    earlier: &[u64],
) -> Result<(), TestCaseError> {
    let now = answer.now.as_micros();
    let after = after.expect("a lease leaves a state");
    let row = slots(answer.grant, pace);
    prop_assert!(row.len() as u64 <= question.want.min(pace.batch));
    let granted = row.len() as u64;
    prop_assert_eq!(question.whole_messages(granted), granted, "whole messages");
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
    for number in [
        after.next,
        after.line,
        after.front,
        after.slip,
        after.generation,
    ] {
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
        // Larger batches would only take long.
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
        // A replica that asks once and without a turn may find too little for its most expensive message.
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

/// A fixed window of a minute lets twice the limit through around its edge (198 of 100 in two seconds, 1,980
/// of 1,000 in three). A paced limit spreads them over the minute, whatever is asked for.
#[test]
fn around_the_edge_of_a_minute_no_more_pass_than_anywhere() {
    for (text, each, seconds) in [("100/1m", 99, 2_u64), ("1000/1m", 990, 3)] {
        let pace = pace(text);
        let minute = START - START % 60_000_000 + 120_000_000;
        let mut state = settled(&pace);
        let mut all = Vec::new();
        for now in (minute - 1_000_000..minute + 1_000_000).step_by(10_000) {
            let answer = lease_as(&mut state, &pace, each, now, now);
            all.extend(slots(answer.grant, &pace));
        }
        let units = all.len() as u64;
        let most = pace.units() * seconds / 60 + 1;
        assert!((2..=most).contains(&units), "{units} of {most}");
    }
}
