//! What answers say in numbers.

use super::*;

#[test]
fn a_number_is_missed_where_it_should_be() {
    let estimate = Cost::ONE;
    let used = [AnswerUsage {
        estimate,
        units: None,
        most: None,
    }];
    let of = |call: CallEnd<'static>| {
        let call = CallEnd {
            used: &used,
            ..call
        };
        alone(&call).used[0]
    };
    let missed = |is_unanswered| Used::Unreadable { is_unanswered };
    assert_eq!(of(answered(Outcome::Accepted, 200)), missed(false));
    assert_eq!(of(answered(THROTTLED, 429)), Used::Absent);
    let silent = call(Outcome::TRANSIENT, Err(Silence::Timeout));
    assert_eq!(of(silent), missed(true));
}

#[test]
fn a_quota_freezes_a_paced_limit_only_if_it_is_less_than_what_is_under_way() {
    let left = |units, reset| {
        [Remaining {
            units,
            reset: Some(seconds(reset)),
        }]
    };
    let quota = |left: &[Remaining], in_flight| {
        let said = [AnswerQuota {
            left: Some(left),
            spare: 5,
            of: QuotaOf::Slots {
                cost: Cost::ONE,
                in_flight,
            },
            wait: SECOND,
            max_wait: seconds(100),
        }];
        let call = CallEnd {
            quotas: &said,
            ..answered(Outcome::Accepted, 200)
        };
        alone(&call).quotas[0]
    };
    let QuotaOutcome::Reported { then, .. } = quota(&left(45, 30), 40) else {
        panic!("it is said");
    };
    assert_eq!(then, QuotaConsequence::Nothing);
    let QuotaOutcome::Reported {
        then,
        is_implausible,
        ..
    } = quota(&left(44, 300), 40)
    else {
        panic!("it is said");
    };
    let freeze = QuotaConsequence::Freeze {
        left: 44,
        length: seconds(100),
    };
    assert_eq!((then, is_implausible), (freeze, true));
}

#[test]
fn a_quota_of_a_key_is_written_without_what_is_spared() {
    let left = [Remaining {
        units: 9,
        reset: None,
    }];
    let said = |left| {
        [AnswerQuota {
            left,
            spare: 4,
            of: QuotaOf::Key { cost: Cost::ONE },
            wait: seconds(7),
            max_wait: seconds(100),
        }]
    };
    let quota = |quotas: &[AnswerQuota<'_>], outcome, status| {
        let call = CallEnd {
            quotas,
            ..answered(outcome, status)
        };
        alone(&call).quotas[0]
    };
    let QuotaOutcome::Reported { then, .. } = quota(&said(Some(&left)), THROTTLED, 429) else {
        panic!("it is said");
    };
    let tighten = QuotaConsequence::Tighten {
        units: 5,
        length: seconds(7),
    };
    assert_eq!(then, tighten);
    let none = said(None);
    assert_eq!(
        quota(&none, Outcome::Accepted, 200),
        QuotaOutcome::Unreadable
    );
    assert_eq!(quota(&none, THROTTLED, 429), QuotaOutcome::Absent);
}
