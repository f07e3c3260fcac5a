//! Messages that several limits count, in any order: early, late, twice with the same places, or taken back
//! when others have passed since. Whatever is used must be such as each limit alone would have allowed, had
//! it been asked for it in the order of time.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::admit::{Booking, Cell, IfLate, Lost, Mode, Pass, Ruling, SOON, Want, admit};
use super::concurrency::Ticket;
use super::epoch::Era;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::limit::{Limit, Taken};
use super::sliding_log::SlidingLog;
use super::token_bucket::{Bucket, Refill, Start, TokenBucket};
use super::{Rule, State};
use crate::core::time::{StoreTime, micros};

const START: u64 = 1_795_228_193_000_000;
const HEADROOM: Duration = Duration::from_millis(20);

fn rules() -> Vec<Rule> {
    let rate = |text: &str| text.parse().expect("a rate");
    let gcra = |text, burst| Rule::Gcra(Gcra::new(rate(text), burst, HEADROOM).unwrap());
    let log = |text| Rule::SlidingLog(SlidingLog::new(rate(text), HEADROOM).unwrap());
    let bucket = |[capacity, amount, borrow]: [u32; 3], millis, refill| {
        let bucket = Bucket {
            capacity: NonZeroU32::new(capacity).unwrap(),
            amount: NonZeroU32::new(amount).unwrap(),
            interval: Duration::from_millis(millis),
            refill,
            start: Start::Full,
            borrow,
            headroom: HEADROOM,
        };
        Rule::TokenBucket(TokenBucket::new(bucket).unwrap())
    };
    vec![
        gcra("5/1s", 0),
        gcra("7/2s", 4),
        gcra("40/1s", 9),
        bucket([4, 3, 1], 700, Refill::Continuous),
        bucket([6, 4, 0], 900, Refill::Stepped),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("5/1s"), HEADROOM).unwrap()),
        Rule::FixedWindow(FixedWindow::aligned(rate("5/1s"), HEADROOM).unwrap()),
        log("5/1s"),
        log("9/3s"),
    ]
}

/// What becomes of a message that was granted.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Word of it comes so much later.
    Sent(u64),
    /// It is not sent, and offered back so much later.
    Refund(u64),
    /// Its replica dies before it is sent.
    Lost,
}

/// A message, and what becomes of it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// So much later than the one before it.
    after: u64,
    /// Which of the limits count it, as bits.
    by: u8,
    cost: u64,
    /// It asks so much later than it was told to, or earlier.
    late: i64,
    fate: Fate,
    /// It comes twice with the same places.
    twice: bool,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let late = prop_oneof![4 => Just(0), 2 => 0..300_000_i64, 1 => -500_000..3_000_000_i64];
    let span = || prop_oneof![Just(0), 0..200_000_u64, 0..2_000_000_u64];
    let fate = prop_oneof![
        16 => span().prop_map(Fate::Sent),
        3 => span().prop_map(Fate::Refund),
        1 => Just(Fate::Lost),
    ];
    let after = prop_oneof![Just(0), 0..60_000_u64, 0..900_000_u64];
    let twice = prop::bool::weighted(0.1);
    let plan = (after, 1..8_u8, 1..4_u64, late, fate, twice).prop_map(
        |(after, by, cost, late, fate, twice)| Plan {
            after,
            by,
            cost,
            late,
            fate,
            twice,
        },
    );
    prop::collection::vec(plan, 1..80)
}

/// What happens at a time.
#[derive(Clone, Debug)]
enum Event {
    Ask(Plan, [Option<Booking>; 3]),
    /// So many units of a limit that were taken then.
    Refund(usize, Taken, u64, u64),
    /// What was granted as of then was sent.
    Made(usize, u64),
}

struct Crowd<'a> {
    rules: [&'a Rule; 3],
    cells: [Cell; 3],
    era: Era,
    now: u64,
    events: BTreeMap<(u64, u32), Event>,
    count: u32,
    /// Of each limit, when how many units are used.
    used: [Vec<(u64, u64)>; 3],
}

impl<'a> Crowd<'a> {
    fn play(rules: [&'a Rule; 3], plans: &[Plan]) -> [Vec<(u64, u64)>; 3] {
        let mut crowd = Self {
            rules,
            cells: [Cell::default(), Cell::default(), Cell::default()],
            era: Era::whole(StoreTime::from_micros(START)),
            now: START,
            events: BTreeMap::new(),
            count: 0,
            used: [Vec::new(), Vec::new(), Vec::new()],
        };
        let mut at = START;
        for plan in plans {
            at += plan.after;
            crowd.at(at, Event::Ask(*plan, [None; 3]));
        }
        while let Some(((at, _), event)) = crowd.events.pop_first() {
            assert!(crowd.count < 20_000, "it goes on for ever");
            crowd.now = at.max(crowd.now);
            match event {
                Event::Ask(plan, held) => crowd.ask(plan, held),
                Event::Refund(limit, taken, at, cost) => crowd.refund(limit, taken, at, cost),
                Event::Made(limit, at) => crowd.made(limit, at),
            }
        }
        crowd.used
    }

    fn at(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    fn ask(&mut self, plan: Plan, held: [Option<Booking>; 3]) {
        let now = StoreTime::from_micros(self.now);
        let limits = self.rules.map(|rule| Limit::new(rule, Lost::Closed, now));
        let counts = (0..3).filter(|i| plan.by & (1 << i) > 0);
        let named: Vec<_> = counts
            .filter(|i| plan.cost <= self.rules[*i].most())
            .collect();
        let wants: Vec<_> = named
            .iter()
            .map(|i| Want {
                limit: &limits[*i],
                cell: *i,
                cost: plan.cost,
                held: held[*i],
            })
            .collect();
        if wants.is_empty() {
            return;
        }
        let (mode, ticket) = (Mode::Reserve(IfLate::Grant), Ticket(1));
        match admit(&wants, &mut self.cells, mode, ticket, &self.era, now) {
            Ruling::Granted { passes } => {
                for (i, pass) in named.iter().zip(passes) {
                    self.granted(*i, pass, plan, held[*i]);
                }
            }
            Ruling::Denied { until, booked, .. } => {
                assert!(until > now);
                let mut places = [None; 3];
                for (claim, booking) in booked {
                    places[named[claim]] = Some(booking);
                }
                let again = until.as_micros().saturating_add_signed(plan.late);
                // Once: who is late for ever is denied for ever, and so is who becomes ever more.
                let next = Plan {
                    late: 0,
                    twice: false,
                    ..plan
                };
                for _ in 0..1 + u8::from(plan.twice) {
                    self.at(again.max(self.now + 1), Event::Ask(next, places));
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn granted(&mut self, i: usize, pass: Pass, plan: Plan, held: Option<Booking>) {
        let at = pass.at.as_micros();
        let usable = micros(self.rules[i].usable());
        assert!(at + usable >= self.now && at <= self.now + micros(SOON));
        // A step of a bucket begins with a call whatever becomes of it.
        let begins = match self.rules[i] {
            Rule::TokenBucket(rule) => rule.numbers()[3] == 1,
            _ => false,
        };
        let when = self.now.max(at);
        match plan.fate {
            Fate::Refund(later) if !begins => {
                let taken = held.map_or(Taken::Now, |_| Taken::AtPlace);
                self.at(when + later, Event::Refund(i, taken, at, plan.cost));
            }
            Fate::Lost if !begins => {}
            Fate::Refund(_) | Fate::Lost => self.used[i].push((at, plan.cost)),
            Fate::Sent(told) => {
                self.used[i].push((at, plan.cost));
                // Word that nobody asked for does no harm.
                self.at(when + told, Event::Made(i, at));
            }
        }
    }

    fn refund(&mut self, i: usize, taken: Taken, at: u64, cost: u64) {
        let now = StoreTime::from_micros(self.now);
        let limit = Limit::new(self.rules[i], Lost::Closed, now);
        let at = StoreTime::from_micros(at);
        let cell = &mut self.cells[i];
        let undone = cell.state.as_ref();
        let undone = undone.and_then(|state| limit.undo(state, taken, at, cost, Ticket(1), now));
        if let Some(state) = undone {
            cell.state = Some(state);
        }
    }

    fn made(&mut self, i: usize, at: u64) {
        let now = StoreTime::from_micros(self.now);
        let limit = Limit::new(self.rules[i], Lost::Closed, now);
        let cell = &mut self.cells[i];
        let noted = cell.state.as_ref();
        let noted = noted.and_then(|state| limit.made(state, StoreTime::from_micros(at), now));
        if let Some(state) = noted {
            cell.state = Some(state);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_used_is_such_as_each_limit_alone_allows(
        which in prop::array::uniform3(0..9_usize),
        plans in plans(),
    ) {
        let rules = rules();
        let used = Crowd::play(which.map(|i| &rules[i]), &plans);
        for (which, mut used) in which.into_iter().zip(used) {
            used.sort_unstable();
            if let Rule::FixedWindow(rule) = &rules[which] && !rule.is_of_the_clock() {
                // The downstream's windows begin with the first call that comes after the last one.
                let (mut start, mut taken) = (0, 0);
                for (at, cost) in used {
                    if at >= start + 1_000_000 {
                        (start, taken) = (at, 0);
                    }
                    taken += cost;
                    prop_assert!(taken <= 5, "{taken} units in a window");
                }
                continue;
            }
            let limit = Limit::new(&rules[which], Lost::Closed, StoreTime::from_micros(START));
            let mut state: Option<State> = None;
            for (at, cost) in used {
                let fit = limit.earliest(state.as_ref(), at, cost);
                let soonest = fit.map(|fit| fit.at);
                // Fractions of a microsecond may be rounded once more; the headroom is for more than that.
                prop_assert!(
                    soonest.is_some_and(|soonest| soonest <= at + 1),
                    "{:?}: {soonest:?} at {at}", rules[which]
                );
                state = Some(limit.book(state.as_ref(), at, cost, Ticket(1), START));
            }
        }
    }
}
