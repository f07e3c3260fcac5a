//! No kind is over its limit, over random sequences of questions, places and refunds.

use super::*;

/// Who will ask at which time, with which place.
type Waiting = BTreeMap<(u64, u128), (Step, Booking)>;

/// A step of a random sequence.
#[derive(Clone, Copy, Debug)]
struct Step {
    after: u64,
    cost: u64,
    reserve: bool,
    /// It was not sent, and is offered back so much later.
    refund: Option<u64>,
    /// How late it arrives, in thousandths of the headroom.
    late: u64,
    /// How much later than it might it asks with its place.
    delay: u64,
}

fn steps(scale: u64, cost: u64) -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0), 0..scale / 20, 0..scale * 2];
    let step = (
        after,
        1..=cost,
        any::<bool>(),
        prop::option::weighted(0.15, 0..scale / 10),
        0..=1000_u64,
        prop_oneof![Just(0), 0..scale / 10, 0..scale * 3],
    )
        .prop_map(|(after, cost, reserve, refund, late, delay)| Step {
            after,
            cost,
            reserve,
            refund,
            late,
            delay,
        });
    prop::collection::vec(step, 1..120)
}

/// Plays the steps and answers when how many units arrive, in order. Who has a place asks at its time
/// or later, as others do meanwhile.
fn arrivals(rule: &Rule, steps: &[Step]) -> Vec<(u64, u64)> {
    let mut one = One::new(rule.clone());
    let headroom = micros(rule.headroom());
    let mut arrived = Vec::new();
    let mut waiting = Waiting::new();
    let mut ask = |one: &mut One, waiting: &mut Waiting, step: Step, held| {
        let mode = if step.reserve { RESERVE } else { Mode::Take };
        match one.ask(step.cost, mode, held) {
            Ruling::Granted { passes } => {
                let at = passes[0].at.as_micros();
                assert!(
                    one.now.saturating_sub(at) <= headroom,
                    "it cannot be used any more"
                );
                let Some(later) = step.refund else {
                    arrived.push((at + step.late * headroom / 1000, step.cost));
                    return;
                };
                one.now += later;
                let taken = held.map_or(Taken::Now, |_| Taken::AtPlace);
                one.refund(taken, at, step.cost);
            }
            Ruling::Denied { booked, until, .. } => {
                if let Some((_, place)) = booked.first() {
                    let again = until.as_micros() + step.delay;
                    // Once: in windows it could be the end of each of them that it comes at.
                    let step = Step { delay: 0, ..step };
                    waiting.insert((again, one.asked), (step, *place));
                }
            }
            _ => {}
        }
    };
    for step in steps {
        let next = one.now + step.after;
        while let Some(entry) = waiting.first_entry().filter(|entry| entry.key().0 <= next) {
            one.now = one.now.max(entry.key().0);
            let (step, place) = entry.remove();
            ask(&mut one, &mut waiting, step, Some(place));
        }
        one.now = one.now.max(next);
        ask(&mut one, &mut waiting, *step, None);
    }
    for _ in 0..10_000 {
        let Some(((again, _), (step, place))) = waiting.pop_first() else {
            break;
        };
        one.now = one.now.max(again);
        ask(&mut one, &mut waiting, step, Some(place));
    }
    assert!(waiting.is_empty(), "some wait for ever: {waiting:?}");
    arrived.sort_unstable();
    arrived
}

/// The most units in any half-open window of `length`.
fn most_in(arrivals: &[(u64, u64)], length: u64) -> u64 {
    let within = |start: u64| {
        let inside = arrivals
            .iter()
            .filter(|(at, _)| (start..start + length).contains(at));
        inside.map(|(_, cost)| cost).sum::<u64>()
    };
    arrivals
        .iter()
        .map(|(at, _)| within(*at))
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_sliding_log_is_never_over(steps in steps(1_000_000, 3), limit in 3_u32..9) {
        let rule = log(&format!("{limit}/1s"), 20 * MS);
        let most = most_in(&arrivals(&rule, &steps), 1_000_000);
        prop_assert!(most <= u64::from(limit), "{most} units in a second");
    }

    #[test]
    fn gcra_without_a_burst_is_never_over(steps in steps(1_000_000, 1), limit in 1_u32..9) {
        let rule = gcra(&format!("{limit}/1s"), 0, 20 * MS);
        let most = most_in(&arrivals(&rule, &steps), 1_000_000);
        prop_assert!(most <= u64::from(limit), "{most} units in a second");
    }

    #[test]
    fn gcra_adds_no_more_than_its_burst(steps in steps(1_000_000, 3), burst in 2_u32..9) {
        let rule = gcra("4/1s", burst, 20 * MS);
        let most = most_in(&arrivals(&rule, &steps), 1_000_000);
        prop_assert!(most <= u64::from(4 + burst), "{most} units in a second");
    }

    #[test]
    fn a_bucket_adds_no_more_than_its_capacity(
        steps in steps(1_000_000, 3),
        stepped in any::<bool>(),
        borrow in 0_u32..4,
    ) {
        let refill = if stepped { Refill::Stepped } else { Refill::Continuous };
        let rule = Rule::TokenBucket(TokenBucket::new(Bucket {
            headroom: 20 * MS,
            ..bucket(5, 2, 1000 * MS, refill, borrow)
        }).unwrap());
        let most = most_in(&arrivals(&rule, &steps), 1_000_000);
        prop_assert!(most <= u64::from(5 + 2 + borrow), "{most} units in a second");
    }

    #[test]
    fn windows_from_the_first_call_are_never_over(steps in steps(1_000_000, 3)) {
        let rule = Rule::FixedWindow(FixedWindow::from_first_call(rate("5/1s"), 20 * MS).unwrap());
        // The downstream's own windows begin with the first call that arrives after the last one.
        let (mut start, mut used) = (0, 0);
        for (at, cost) in arrivals(&rule, &steps) {
            if at >= start + 1_000_000 {
                (start, used) = (at, 0);
            }
            used += cost;
            prop_assert!(used <= 5, "{used} units in a window");
        }
    }

    #[test]
    fn windows_of_the_clock_are_never_over(steps in steps(1_000_000, 3), calendar in any::<bool>()) {
        let rule = if calendar {
            let seconds = Calendar::new(CalendarUnit::Second, Zone::utc());
            FixedWindow::calendar(units(5), seconds, 20 * MS)
        } else {
            FixedWindow::aligned(rate("5/1s"), 20 * MS)
        };
        let mut used = std::collections::HashMap::new();
        for (at, cost) in arrivals(&Rule::FixedWindow(rule.unwrap()), &steps) {
            let window: &mut u64 = used.entry(at / 1_000_000).or_default();
            *window += cost;
            prop_assert!(*window <= 5, "{window} units in a window");
        }
    }
}
