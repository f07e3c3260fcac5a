//! A crowd of messages that ask one key of a limit, and what becomes of those that are granted: sent,
//! up to a headroom late; refunded; or lost with their replica.

use std::time::Duration;

use proptest::prelude::*;

use super::admission::{self, Candidate, Charge, Decision};
use super::cell::{self, Cell, Limit, LimitAccess};
use super::{START, at};
use crate::limits::{Fit, KindState, LimitState, Rule, Ticket, UnusedUnits};
use crate::time::micros;

/// What becomes of a message that is granted, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// The message arrives this much of the headroom later.
    Sent(u64),
    /// The message is refunded this much of the span later.
    Refunded(u64),
    Dropped,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Ask {
        cost: u64,
        was_denied: bool,
        fate: Fate,
    },
    /// Time passes, in thousandths of the span.
    Pass(u64),
    /// This many microseconds.
    Nudge(u64),
    /// Until the last message that was denied fits, or a microsecond less.
    UntilItFits(bool),
    /// The store's clock goes back, in thousandths of the span, and a little: a log knows its entries by their
    /// microsecond, and those of before must not be those of afterwards by the numbers that are drawn here.
    Back(u64),
}

/// A call that arrived at the downstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) granted: u64,
    pub(super) arrived: u64,
    pub(super) cost: u64,
}

/// One key. Times are true ones: the store's clock is behind them by as much as it went back.
#[derive(Debug)]
pub(super) struct Crowd {
    pub(super) rule: Rule,
    pub(super) state: Option<LimitState>,
    pub(super) now: u64,
    pub(super) calls: Vec<Call>,
    pub(super) granted: usize,
    /// When the last one was granted.
    pub(super) last: Option<u64>,
    /// The call that begins a window is always sent.
    pub(super) first_arrive: bool,
    back: u64,
    span: u64,
    told: Option<u64>,
    /// Refunds under way: when, granted at, on the store's clock too, and the cost.
    refunds: Vec<(u64, u64, u64, u64)>,
    tickets: u128,
}

impl Crowd {
    /// A key of which nothing was taken; steps are parts of `span`.
    pub(super) fn new(rule: Rule, span: u64) -> Self {
        Self {
            rule,
            state: None,
            now: START,
            calls: Vec::new(),
            granted: 0,
            last: None,
            first_arrive: false,
            back: 0,
            span,
            told: None,
            refunds: Vec::new(),
            tickets: 0,
        }
    }

    pub(super) fn play(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Ask {
                    cost,
                    was_denied,
                    fate,
                } => {
                    let decision = self.ask(cost, was_denied);
                    if matches!(decision, Decision::Granted { .. }) {
                        self.meets(fate, cost);
                    }
                }
                Step::Pass(part) => self.reach(self.now + self.span * part / 1_000),
                Step::Nudge(by) => self.reach(self.now + by),
                Step::UntilItFits(early) => {
                    let told = self.told.take().unwrap_or(self.now) - u64::from(early);
                    self.reach(told.max(self.now));
                }
                Step::Back(part) => {
                    self.back += self.span * part / 1_000 + self.span * 137 / 1_000_000
                }
            }
        }
    }

    pub(super) fn ask(&mut self, cost: u64, was_denied: bool) -> Decision {
        let now = at(self.now - self.back);
        let rule = self.rule.around(now);
        let limit = Limit {
            rule: &rule,
            access: LimitAccess::Open,
        };
        let mut cells = [Cell::of(&rule, self.state.clone(), now)];
        self.tickets += 1;
        let candidate = Candidate {
            charges: vec![Charge {
                limit: &limit,
                key: 0,
                cost: super::cost(cost),
            }],
            was_denied,
            slots: super::cost(1),
            ticket: Ticket(self.tickets),
            died: at(0),
            others_wait: false,
        };
        let decision = admission::decide(&[candidate], &mut cells, 1, now).remove(0);
        let [cell] = cells;
        self.keep(cell);
        if let Decision::Denied {
            fits: Fit::At(fits),
            ..
        } = decision
        {
            self.told = Some(fits.as_micros() + self.back);
        }
        decision
    }

    /// By how much the store's clock is behind.
    pub(super) const fn behind(&self) -> u64 {
        self.back
    }

    /// The last ticket.
    pub(super) const fn ticket(&self) -> Ticket {
        Ticket(self.tickets)
    }

    /// Whether it is granted; then its call arrives at once.
    pub(super) fn takes(&mut self, cost: u64) -> bool {
        let granted = matches!(self.ask(cost, false), Decision::Granted { .. });
        if granted {
            self.meets(Fate::Sent(0), cost);
        }
        granted
    }

    fn meets(&mut self, fate: Fate, cost: u64) {
        self.granted += 1;
        self.last = Some(self.now);
        let fate = match (fate, self.began(cost)) {
            (Fate::Refunded(part), true) if self.first_arrive => Fate::Sent(part.min(1_000)),
            (Fate::Dropped, true) if self.first_arrive => Fate::Sent(1_000),
            (fate, _) => fate,
        };
        match fate {
            Fate::Sent(part) => self.calls.push(Call {
                granted: self.now,
                arrived: self.now + micros(self.rule.headroom().all()) * part / 1_000,
                cost,
            }),
            Fate::Refunded(part) => {
                let due = self.now + self.span * part / 1_000;
                self.refunds
                    .push((due, self.now, self.now - self.back, cost));
            }
            Fate::Dropped => (),
        }
    }

    /// Whether the last grant began a window of the first call.
    fn began(&self, cost: u64) -> bool {
        let taken = self.state.as_ref().map(|state| &state.taken);
        matches!(taken, Some(KindState::FixedWindow(s)) if s.used == cost)
    }

    /// Time passes, and refunds come back meanwhile.
    pub(super) fn reach(&mut self, time: u64) {
        self.refunds.sort_unstable();
        while let Some((due, asked, granted, cost)) = self.refunds.first().copied()
            && due <= time
        {
            self.refunds.remove(0);
            self.now = self.now.max(due);
            self.refund(granted, cost, self.now - asked);
        }
        self.now = time;
    }

    /// As a store does: what was not changed is not written.
    fn keep(&mut self, cell: Cell) {
        if cell.changed {
            self.state = cell.state;
        }
    }

    /// Units of messages that were not sent by now stay spent.
    pub(super) fn forget_refunds(&mut self) {
        self.refunds.clear();
    }

    /// A call that was granted then and took `cost` used `actual`.
    pub(super) fn used(&mut self, granted: u64, cost: u64, actual: u64) {
        if actual < cost {
            // Its clock did not go back.
            self.refund(granted, cost - actual, self.now - granted);
            return;
        }
        let now = at(self.now - self.back);
        let rule = self.rule.around(now);
        let limit = Limit {
            rule: &rule,
            access: LimitAccess::Open,
        };
        let mut cell = Cell::of(&rule, self.state.clone(), now);
        if actual > cost {
            crate::limits::add_debt(&limit, &mut cell, actual - cost, now);
        }
        self.keep(cell);
    }

    fn refund(&mut self, granted: u64, cost: u64, age: u64) -> bool {
        let now = at(self.now - self.back);
        let rule = self.rule.around(now);
        let limit = Limit {
            rule: &rule,
            access: LimitAccess::Open,
        };
        let mut cell = Cell::of(&rule, self.state.clone(), now);
        let taken = cell::refund(
            &limit,
            at(0),
            &mut cell,
            &UnusedUnits {
                at: at(granted),
                cost: super::cost(cost),
                age: Duration::from_micros(age),
            },
            now,
        );
        self.keep(cell);
        taken
    }
}

/// Costs that can fit, most of them small.
fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1_u64), 2 => 2..4_u64, 1 => 4..12_u64]
}

fn fates() -> impl Strategy<Value = Fate> {
    let part = || prop_oneof![2 => Just(0_u64), 2 => Just(1_000), 1 => 0..=1_000_u64];
    prop_oneof![
        6 => part().prop_map(Fate::Sent),
        2 => prop_oneof![2 => 0..300_u64, 1 => 0..1_500_u64].prop_map(Fate::Refunded),
        1 => Just(Fate::Dropped),
    ]
}

/// Steps; `back`: the clock may go back.
pub(super) fn steps(back: bool) -> impl Strategy<Value = Vec<Step>> {
    let ask = (costs(), any::<bool>(), fates());
    let ask = ask.prop_map(|(cost, was_denied, fate)| Step::Ask {
        cost,
        was_denied,
        fate,
    });
    let step = prop_oneof![
        10 => ask,
        2 => prop_oneof![3 => 0..400_u64, 2 => 400..1_300_u64].prop_map(Step::Pass),
        1 => (0..3_u64).prop_map(Step::Nudge),
        3 => any::<bool>().prop_map(Step::UntilItFits),
        u32::from(back) => (0..2_000_u64).prop_map(Step::Back),
    ];
    proptest::collection::vec(step, 1..80)
}
