//! Calls whose credentials are refused.

use super::*;

#[test]
fn other_credentials_spare_an_attempt_once_in_a_row() {
    let mut call = CallEnd {
        renewed: true,
        ..answered(Outcome::TRANSIENT, 401)
    };
    for attempts in [0, 1] {
        let follows = alone(&call);
        assert_eq!(follows.tries.attempts, attempts);
        assert_eq!(follows.tries.renewed, attempts == 0);
        call.tries = follows.tries;
    }
    assert_eq!(alone(&call).tries.attempts, 1);
}

/// Five calls in a row had a secret that has been replaced: none of them is an attempt, and the downstream is not away.
#[test]
fn a_call_with_replaced_credentials_does_not_count() {
    let mut gate = Gate::new(None, Some(breaker()));
    let transient = Outcome::Transient { wait: None };
    let call = CallEnd {
        renewed: true,
        ..answered(transient, 401)
    };
    for _ in 0..5 {
        let follows = decide(&call, &mut gate, &mut Refusals::default(), |at| at);
        assert_eq!(follows.tries.attempts, 0);
        assert_eq!(follows.downstream, DownstreamState::default());
        let again = NextStep::Again {
            waits: NextWait::Here(None),
            other_route_first: false,
        };
        assert_eq!(follows.next, again);
        assert_eq!(follows.claims, ClaimsEnd::Released);
        assert!(!follows.refunds_units, "others may be accepted");
    }
}

/// Only a probe whose credentials are refused gives units back: where others pass, a refused call may have counted.
#[test]
fn units_are_returned_while_the_credentials_are_refused_for_all() {
    let transient = Outcome::Transient { wait: None };
    let refused = answered(transient, 403);
    assert!(away(&refused).refunds_units);
    assert!(!alone(&refused).refunds_units, "others may be accepted");
    assert!(!away(&answered(transient, 503)).refunds_units);
    let partly_taken = CallEnd {
        has_rest: true,
        ..refused
    };
    assert!(!away(&partly_taken).refunds_units, "a part was taken");
}
