//! Keys that are called once.

use super::super::admission::{Candidate, Charge, Decision, decide};
use super::super::cell::{Cell, Limit, LimitAccess};
use super::super::once::{NotCalled, OnUnknown, Once, OnceState};
use super::super::record::{read, write};
use super::super::{Fit, KindState, LimitState, Ticket};
use super::*;

const LEASE: u64 = 30_000_000;
const TTL: u64 = 86_400_000_000;
const FIRST: Ticket = Ticket(7 << Ticket::QUESTION_BITS);
const OTHER: Ticket = Ticket(8 << Ticket::QUESTION_BITS);

fn once(on_unknown: OnUnknown) -> Rule {
    Rule::Once(Once::new(micros(TTL), micros(LEASE), on_unknown, MS).unwrap())
}

/// One key of a limit, as a store keeps it.
struct Key {
    rule: Rule,
    state: Option<LimitState>,
    now: u64,
}

impl Key {
    fn new(on_unknown: OnUnknown) -> Self {
        Self {
            rule: once(on_unknown),
            state: None,
            now: START,
        }
    }

    fn ask(&mut self, ticket: Ticket, died: u64) -> Decision {
        let (now, rule) = (at(self.now), &self.rule);
        let access = LimitAccess::Open;
        let limit = Limit { rule, access };
        let mut cells = [Cell::of(rule, self.state.take(), now)];
        let candidate = Candidate {
            charges: vec![Charge {
                limit: &limit,
                key: 0,
                cost: cost(1),
            }],
            was_denied: false,
            slots: cost(1),
            ticket,
            died: at(died),
            others_wait: false,
        };
        let decision = decide(&[candidate], &mut cells, 1, now).remove(0);
        let [cell] = cells;
        self.state = cell.state;
        decision
    }

    fn becomes(&mut self, change: impl FnOnce(&Rule, &KindState) -> Option<KindState>) -> bool {
        let state = self.state.as_mut().expect("it was asked for");
        let changed = change(&self.rule, &state.taken);
        let is_changed = changed.is_some();
        state.taken = changed.unwrap_or_else(|| state.taken.clone());
        is_changed
    }

    fn is_granted(&mut self, ticket: Ticket) -> bool {
        matches!(self.ask(ticket, 0), Decision::Granted { .. })
    }

    fn is_full(&mut self, ticket: Ticket) -> bool {
        let full = Fit::Full;
        matches!(self.ask(ticket, 0), Decision::Denied { fits, .. } if fits == full)
    }

    fn ended(&mut self, ticket: Ticket, died: u64) -> Option<NotCalled> {
        match self.ask(ticket, died) {
            Decision::NotCalled { how, .. } => Some(how),
            _ => None,
        }
    }
}

#[test]
fn a_repeat_is_done_until_the_time_to_live_is_over() {
    let mut key = Key::new(OnUnknown::Resend);
    assert!(key.is_granted(FIRST));
    assert!(key.is_full(OTHER), "the call is under way");
    let now = at(key.now);
    assert!(key.becomes(|rule, _| rule.done(now)));
    assert_eq!(key.ended(OTHER, 0), Some(NotCalled::Done));
    key.now += TTL - 1;
    assert_eq!(key.ended(OTHER, 0), Some(NotCalled::Done));
    key.now += 1;
    assert!(key.is_granted(OTHER));
}

#[test]
fn a_call_that_failed_frees_the_key_and_only_its_own() {
    let mut key = Key::new(OnUnknown::DeadLetter);
    assert!(key.is_granted(FIRST));
    let now = at(key.now);
    let release =
        |ticket| move |rule: &Rule, taken: &KindState| Some(rule.release(taken, ticket, now)?.0);
    assert!(!key.becomes(release(OTHER)));
    assert!(key.becomes(release(FIRST)));
    assert!(!key.becomes(release(FIRST)));
    assert!(key.is_granted(OTHER));
}

#[test]
fn after_the_lease_it_is_unknown_and_the_rule_says_what_follows() {
    let mut key = Key::new(OnUnknown::Resend);
    assert!(key.is_granted(FIRST));
    key.now += LEASE - 1;
    assert!(key.is_full(OTHER));
    key.now += 1;
    assert!(key.is_granted(OTHER));

    let mut key = Key::new(OnUnknown::DeadLetter);
    assert!(key.is_granted(FIRST));
    let now = at(key.now + LEASE - 1);
    assert!(key.becomes(|rule, taken| rule.renew(taken, FIRST, now)));
    key.now += 2 * LEASE - 2;
    assert!(key.is_full(OTHER), "it was renewed");
    key.now += 1;
    assert_eq!(key.ended(OTHER, 0), Some(NotCalled::Unknown));
    let now = at(key.now);
    assert!(
        !key.becomes(|rule, taken| rule.renew(taken, FIRST, now)),
        "too late"
    );
    key.now += TTL - 1;
    assert_eq!(key.ended(OTHER, 0), Some(NotCalled::Unknown));
    key.now += 1;
    assert!(key.is_granted(OTHER), "it is forgotten like what is done");
}

/// The release of a claim may be lost with the connection, and the message asks again.
#[test]
fn a_message_that_asks_again_has_its_own_claim_back() {
    let mut key = Key::new(OnUnknown::DeadLetter);
    assert!(key.is_granted(FIRST));
    assert!(key.is_granted(FIRST.next()));
    key.now += LEASE;
    assert!(
        key.is_granted(FIRST.next().next()),
        "nothing of it is unknown"
    );
    // An earlier question that arrives late takes nothing away.
    assert!(key.is_full(FIRST));
    assert!(key.is_full(OTHER));
}

#[test]
fn a_dead_letter_that_comes_back_is_called_again() {
    let mut key = Key::new(OnUnknown::DeadLetter);
    assert!(key.is_granted(FIRST));
    let died = key.now + LEASE;
    assert!(
        matches!(key.ask(OTHER, died), Decision::Denied { .. }),
        "the claim counts"
    );
    key.now += LEASE;
    assert_eq!(
        key.ended(OTHER, key.now - LEASE - 1),
        Some(NotCalled::Unknown)
    );
    assert!(matches!(key.ask(OTHER, died), Decision::Granted { .. }));
    // The time of its death does not count for later claims.
    key.now += LEASE;
    let third = Ticket(9 << Ticket::QUESTION_BITS);
    assert_eq!(key.ended(third, died - 1), Some(NotCalled::Unknown));
    // An accepted key stays done.
    let now = at(key.now);
    assert!(key.becomes(|rule, _| rule.done(now)));
    assert_eq!(key.ended(third, key.now), Some(NotCalled::Done));
}

#[test]
fn all_states_are_written_and_read() {
    let rule = once(OnUnknown::DeadLetter);
    for (claim, text) in [
        (OnceState::Free, "o 0"),
        (OnceState::Done { until: START }, "o 1795228193000012"),
        (
            OnceState::Claimed {
                ticket: FIRST,
                since: 5,
                ends: 6,
            },
            "o 5 6 7000000",
        ),
    ] {
        let state = LimitState {
            taken: KindState::Once(claim),
            next_return: Default::default(),
            quota: Default::default(),
            owed: Default::default(),
        };
        assert_eq!(write(&state, at(START)), text);
        assert_eq!(read(text, &rule), Some(state));
    }
    for text in [
        "o",
        "o x",
        "o 1 2",
        "o 1 2 g",
        "o 1 2 3 4",
        "o 9007199254740992",
    ] {
        assert_eq!(read(text, &rule), None, "{text}");
    }
}

#[test]
fn no_time_is_zero_and_none_is_remembered_for_ever() {
    let new = |ttl, lease| Once::new(micros(ttl), micros(lease), OnUnknown::Resend, MS);
    assert!(new(0, 1).is_err() && new(1, 0).is_err());
    assert!(new(u64::MAX, 1).is_err());
}
