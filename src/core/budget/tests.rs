//! What the kinds promise, over random sequences of questions, places and refunds.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::admit::{Booking, Cell, Lost, Mode, Ruling, SOON, Want, admit};
use super::concurrency::{Concurrency, Ticket};
use super::epoch::Era;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::limit::{Limit, Taken};
use super::sliding_log::SlidingLog;
use super::token_bucket::{Bucket, Refill, Start, TokenBucket};
use super::*;
use crate::core::calendar::{Calendar, CalendarUnit};
use crate::core::rate::Rate;
use crate::core::time::{StoreTime, micros};
use crate::core::zone::Zone;

const START: u64 = 1_795_228_193_000_012;
const MS: Duration = Duration::from_millis(1);

fn units(units: u32) -> NonZeroU32 {
    NonZeroU32::new(units).unwrap()
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn log(text: &str, headroom: Duration) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate(text), headroom).unwrap())
}

fn gcra(text: &str, burst: u32, headroom: Duration) -> Rule {
    Rule::Gcra(Gcra::new(rate(text), burst, headroom).unwrap())
}

fn bucket(capacity: u32, amount: u32, interval: Duration, refill: Refill, borrow: u32) -> Bucket {
    Bucket {
        capacity: units(capacity),
        amount: units(amount),
        interval,
        refill,
        start: Start::Full,
        borrow,
        headroom: Duration::ZERO,
    }
}

/// One budget and a clock that the test moves.
struct One {
    rule: Rule,
    cell: Cell,
    now: u64,
    asked: u128,
}

impl One {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            cell: Cell::default(),
            now: START,
            asked: 0,
        }
    }

    fn ask(&mut self, cost: u64, mode: Mode, held: Option<Booking>) -> Ruling {
        let limit = Limit::new(&self.rule, Lost::Closed, StoreTime::from_micros(self.now));
        let want = Want {
            limit: &limit,
            cell: 0,
            cost,
            held,
        };
        let cells = std::slice::from_mut(&mut self.cell);
        let era = Era::whole(StoreTime::from_micros(START));
        let now = StoreTime::from_micros(self.now);
        self.asked += 1;
        let ruling = admit(&[want], cells, mode, Ticket(self.asked), &era, now);
        // As a store does: a state that says nothing is gone.
        let dead = |state: &State| limit.dies_at(state).as_micros() <= self.now;
        if self.cell.state.as_ref().is_some_and(dead) {
            self.cell.state = None;
        }
        ruling
    }

    fn takes(&mut self, cost: u64) -> bool {
        matches!(self.ask(cost, Mode::Take, None), Ruling::Granted { .. })
    }

    /// How long until `cost` fits, from a denial.
    fn wait(&mut self, cost: u64) -> u64 {
        match self.ask(cost, Mode::Take, None) {
            Ruling::Denied { until, usage, .. } => {
                let wait = until.as_micros() - self.now;
                assert_eq!(micros_of(usage.retry_after), wait);
                wait
            }
            other => panic!("{other:?}"),
        }
    }

    fn refund(&mut self, taken: Taken, at: u64, cost: u64) -> bool {
        let now = StoreTime::from_micros(self.now);
        let limit = Limit::new(&self.rule, Lost::Closed, now);
        let at = StoreTime::from_micros(at);
        let state = self.cell.state.as_ref();
        let undone = state.and_then(|state| limit.undo(state, taken, at, cost, Ticket(7), now));
        let done = undone.is_some();
        self.cell.state = undone.or(self.cell.state.take());
        done
    }
}

fn micros_of(duration: Duration) -> u64 {
    micros(duration)
}

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
    let headroom = micros_of(rule.headroom());
    let mut arrived = Vec::new();
    let mut waiting = Waiting::new();
    let mut ask = |one: &mut One, waiting: &mut Waiting, step: Step, held| {
        let mode = if step.reserve {
            Mode::Reserve
        } else {
            Mode::Take
        };
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

#[test]
fn a_backlog_of_one_key_is_denied_once_and_passes_at_the_rate() {
    for rule in [
        log("10/1m", Duration::ZERO),
        gcra("10/1m", 0, Duration::ZERO),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("10/1m"), Duration::ZERO).unwrap()),
        Rule::TokenBucket(
            TokenBucket::new(bucket(10, 10, 60_000 * MS, Refill::Continuous, 0)).unwrap(),
        ),
    ] {
        let mut one = One::new(rule);
        let mut places = Vec::new();
        for _ in 0..10_000 {
            match one.ask(1, Mode::Reserve, None) {
                Ruling::Granted { .. } => places.push(one.now),
                Ruling::Denied { booked, .. } => {
                    let (_, booking) = booked[0];
                    places.push(booking.at.as_micros());
                }
                other => panic!("it fits: {other:?}"),
            }
        }
        assert!(places.is_sorted());
        assert!(
            places[9_999] - START <= 1_000 * 60_000_000,
            "{:?}",
            one.rule
        );
        // Each passes at its own time without asking for more.
        for at in places.into_iter().skip(1_000) {
            one.now = at;
            let held = Booking {
                at: StoreTime::from_micros(at),
                epoch: Era::whole(StoreTime::default()).epoch,
            };
            let ruling = one.ask(1, Mode::Reserve, Some(held));
            assert!(matches!(ruling, Ruling::Granted { .. }), "{ruling:?}");
        }
    }
}

/// As of when it counts, or until when it is denied.
fn asked(one: &mut One, held: Option<Booking>) -> Result<u64, Booking> {
    match one.ask(1, Mode::Reserve, held) {
        Ruling::Granted { passes } => Ok(passes[0].at.as_micros()),
        Ruling::Denied { booked, .. } => Err(booked[0].1),
        other => panic!("it fits: {other:?}"),
    }
}

#[test]
fn a_place_that_passed_by_counts_as_soon_as_what_others_used_leaves_room() {
    // One in 5.1 s.
    let (interval, soon) = (5_100_000, micros(SOON));
    let mut one = One::new(gcra("1/5s", 0, 100 * MS));
    assert_eq!(asked(&mut one, None), Ok(START));
    let places = [(); 4].map(|()| asked(&mut one, None).unwrap_err());
    assert_eq!(places[3].at.as_micros(), START + 4 * interval);
    // All have passed by. The first one counts from now on, and who comes a moment too soon after it
    // is told from when on, and asks no more.
    one.now = START + 20 * interval;
    let first = one.now;
    assert_eq!(asked(&mut one, Some(places[0])), Ok(first));
    one.now = first + interval - soon;
    assert_eq!(asked(&mut one, Some(places[1])), Ok(first + interval));
    // Much too soon: it gets a new place behind what others used.
    let new = asked(&mut one, Some(places[2])).unwrap_err();
    assert_eq!(new.at.as_micros(), first + 2 * interval);
    // One without a place does not push in before it.
    let last = asked(&mut one, None).unwrap_err();
    assert_eq!(last.at.as_micros(), first + 3 * interval);
    one.now = new.at.as_micros();
    assert_eq!(asked(&mut one, Some(new)), Ok(one.now));
    // Twice with one place (its message came twice) is two uses.
    one.now += interval - soon - 1;
    assert!(asked(&mut one, Some(new)).is_err());
}

#[test]
fn who_was_not_sent_keeps_its_place() {
    for rule in [
        log("1/1s", 100 * MS),
        gcra("1/1s", 0, 100 * MS),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("1/1s"), 100 * MS).unwrap()),
    ] {
        let mut one = One::new(rule);
        assert_eq!(asked(&mut one, None), Ok(START));
        let place = asked(&mut one, None).unwrap_err();
        let behind = asked(&mut one, None).unwrap_err();
        one.now = place.at.as_micros();
        assert_eq!(asked(&mut one, Some(place)), Ok(one.now));
        assert!(one.refund(Taken::AtPlace, one.now, 1), "{:?}", one.rule);
        one.now += 50_000;
        let again = asked(&mut one, Some(place));
        assert_eq!(again, Ok(place.at.as_micros()), "{:?}", one.rule);
        one.now = behind.at.as_micros();
        assert_eq!(asked(&mut one, Some(behind)), Ok(one.now));
    }
}

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
            one.ask(most + 1, Mode::Reserve, None),
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

#[test]
fn one_limit_is_not_pushed_ahead_because_of_another() {
    let sender = gcra("100/1s", 99, Duration::ZERO);
    let recipient = log("1/1m", Duration::ZERO);
    let now = StoreTime::from_micros(START);
    let limits = [&sender, &recipient].map(|rule| Limit::new(rule, Lost::Closed, now));
    let era = Era::whole(now);
    let wants = [0, 1].map(|i| Want {
        limit: &limits[i],
        cell: i,
        cost: 1,
        held: None,
    });
    let mut cells = [Cell::default(), Cell::default()];
    let ask = |cells: &mut [Cell]| admit(&wants, cells, Mode::Reserve, Ticket(1), &era, now);
    assert!(matches!(ask(&mut cells), Ruling::Granted { .. }));
    let Ruling::Denied {
        until, by, booked, ..
    } = ask(&mut cells)
    else {
        panic!("the recipient had one already");
    };
    assert_eq!((by, until), (1, now + Duration::from_secs(60)));
    // It has a place in both of them, and there is room before it for 99 to other recipients.
    let claims: Vec<_> = booked.iter().map(|(claim, _)| *claim).collect();
    assert_eq!(claims, [0, 1]);
    let mut other = |mode| {
        cells[1] = Cell::default();
        admit(&wants, &mut cells, mode, Ticket(1), &era, now)
    };
    let Ruling::Granted { passes } = other(Mode::Peek) else {
        panic!("nothing was asked for");
    };
    assert_eq!(passes[0].usage.remaining, 99);
    for _ in 0..99 {
        assert!(matches!(other(Mode::Take), Ruling::Granted { .. }));
    }
    let Ruling::Denied { until, by, .. } = other(Mode::Reserve) else {
        panic!("the sender had a hundred already");
    };
    assert_eq!((by, until), (0, now + 10 * MS));
}

/// Where places of one limit would take the other one's room away, that one is asked again.
#[test]
fn no_place_is_booked_where_it_takes_room_from_others() {
    let sender = log("100/1s", Duration::ZERO);
    let recipient = log("1/1m", Duration::ZERO);
    let now = StoreTime::from_micros(START);
    let limits = [&sender, &recipient].map(|rule| Limit::new(rule, Lost::Closed, now));
    let era = Era::whole(now);
    let wants = [0, 1].map(|i| Want {
        limit: &limits[i],
        cell: i,
        cost: 1,
        held: None,
    });
    let mut cells = [Cell::default(), Cell::default()];
    let ask = |cells: &mut [Cell]| admit(&wants, cells, Mode::Reserve, Ticket(1), &era, now);
    assert!(matches!(ask(&mut cells), Ruling::Granted { .. }));
    let mut both = 0;
    for n in 0..300 {
        let before = cells[0].state.clone();
        let Ruling::Denied { booked, .. } = ask(&mut cells) else {
            panic!("the recipient had one already");
        };
        let claims: Vec<_> = booked.iter().map(|(claim, _)| *claim).collect();
        if claims == [0, 1] {
            // A place a minute leaves room for all others of the sender.
            assert_eq!(both, n);
            both += 1;
        } else {
            assert_eq!(claims, [1]);
            assert_eq!(cells[0].state, before);
        }
    }
    // What is remembered of a hundred a second, and beside that so many places.
    assert_eq!(both, 100 + 127);
    let sender_alone = &wants[..1];
    for _ in 0..99 {
        let ruling = admit(sender_alone, &mut cells, Mode::Take, Ticket(1), &era, now);
        assert!(matches!(ruling, Ruling::Granted { .. }));
    }
}

/// Whoever comes with places in two limits that passed by is granted the next moment that suits both.
#[test]
fn places_in_several_limits_that_passed_by_count_at_one_moment() {
    let rules = [gcra("1/2s", 0, 100 * MS), gcra("1/3s", 0, 100 * MS)];
    let start = StoreTime::from_micros(START);
    let limits = [&rules[0], &rules[1]].map(|rule| Limit::new(rule, Lost::Closed, start));
    let era = Era::whole(start);
    let mut cells = [Cell::default(), Cell::default()];
    let mut ask = |now: StoreTime, places: &[(usize, Booking)]| {
        let held = |i| places.iter().find(|(of, _)| *of == i).map(|(_, at)| *at);
        let wants = [0, 1].map(|i| Want {
            limit: &limits[i],
            cell: i,
            cost: 1,
            held: held(i),
        });
        admit(&wants, &mut cells, Mode::Reserve, Ticket(1), &era, now)
    };
    assert!(matches!(ask(start, &[]), Ruling::Granted { .. }));
    let mut places = Vec::new();
    for i in 1..=3_u32 {
        let Ruling::Denied { until, booked, .. } = ask(start, &[]) else {
            panic!("it was granted");
        };
        assert_eq!(until, start + Duration::from_millis(3_100) * i);
        assert_eq!(booked.len(), 2);
        places.push(booked);
    }
    let late = start + Duration::from_secs(60);
    let mut granted = |now: StoreTime, i: usize| match ask(now, &places[i]) {
        Ruling::Granted { passes } => {
            assert_eq!(passes[0].at, passes[1].at);
            Some(passes[0].at.since(late))
        }
        _ => None,
    };
    assert_eq!(granted(late, 1), Some(Duration::ZERO));
    let next = Duration::from_millis(3_100);
    assert_eq!(granted(late, 0), Some(next));
    // That is all that there is within the time that anybody is told.
    assert_eq!(granted(late, 2), None);
}

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
