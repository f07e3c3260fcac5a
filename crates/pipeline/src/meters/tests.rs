//! The values of labels are those of the core, and counting needs no recorder.

use std::time::Duration;

use super::*;
use sluiced_core::judge::Outcome;
use sluiced_ports::queue::Verdict;

/// A series that starts at zero must have the same text that is counted later.
#[test]
fn label_values_are_those_of_the_core() {
    let outcomes = [
        Outcome::Accepted,
        Outcome::Throttled {
            wait: Duration::ZERO,
        },
        Outcome::Held {
            wait: Duration::ZERO,
        },
        Outcome::TRANSIENT,
        Outcome::Permanent,
    ];
    assert_eq!(outcomes.map(Outcome::label).as_slice(), OUTCOMES);
    let verdicts = [
        Verdict::Done,
        Verdict::Dropped,
        Verdict::Later {
            delay: Duration::ZERO,
            headers: Vec::new(),
        },
        Verdict::Parked {
            parked_queue: sluiced_core::parking::ParkedQueue::of(0),
            headers: Vec::new(),
        },
        Verdict::GiveBack,
        Verdict::Dead {
            reason: DeadReason::Denied,
            headers: Vec::new(),
        },
    ];
    let labels: Vec<_> = verdicts.iter().map(Verdict::label).collect();
    assert_eq!(labels, VERDICTS);
}

#[test]
fn without_a_recorder_counting_does_nothing() {
    let route = RouteMeters::new("sms");
    route.call("accepted", "2xx");
    route.age_seconds.record(1.0);
    route.queue_delay_seconds.record(1.0);
}
