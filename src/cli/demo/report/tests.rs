//! The sentence of a demo that went well, and of one that failed.

use super::*;
use sluiced_provider::{Behaviour, Expect, Provider};

/// The report of a provider without calls, as a start.
fn proof() -> Proof {
    let rate: Rate = "400/1s".parse().expect("a rate");
    let address = "127.0.0.1:0".parse().expect("an address");
    let provider = Provider::start(address, Behaviour::judging(rate)).expect("it starts");
    let mut report = provider.report(&Expect::Count(2_000));
    report.calls = 2_000;
    report.unique = 2_000;
    report.lost = Some(0);
    report.worst = 398;
    report.used = Some(0.995_02);
    report.duration_us = 5_022_500;
    (report.gap_p50_us, report.gap_p99_us) = (Some(2_513), Some(3_020));
    Proof {
        rate,
        messages: 2_000,
        report,
        fleet: None,
    }
}

#[test]
fn a_clean_run_is_said_in_one_sentence() {
    let text = proof().to_string();
    assert!(
        text.ends_with(
            "PASSED: 2000 of 2000 delivered, none lost, none twice;\n\
             worst second 398 of 400; 99.5 % of the limit used"
        ),
        "{text}"
    );
}

#[test]
fn one_call_too_early_or_one_message_lost_fails_it() {
    let mut over = proof();
    (over.report.over, over.report.worst) = (1, 401);
    assert!(!over.holds());
    assert!(
        over.to_string()
            .contains("worst second 401 of 400, 1 call TOO EARLY;")
    );
    let mut lost = proof();
    (lost.report.lost, lost.report.unique) = (Some(1), 1_999);
    assert!(!lost.holds());
    assert!(lost.to_string().contains("1999 of 2000 delivered, 1 LOST"));
    let mut silent = proof();
    silent.report.calls = 0;
    assert!(!silent.holds(), "no call proves nothing");
}

#[test]
fn every_line_fits_a_narrow_terminal() {
    let mut proof = proof();
    proof.messages = 1_000_000;
    proof.report.unique = 1_000_000;
    proof.report.over = 123_456;
    proof.report.over_at_us = vec![1_234_567_890; 10];
    proof.report.undated = 123_456;
    proof.report.repeated = 2;
    proof.report.repeated_ids = vec!["demo-000001".to_owned(); 10];
    proof.report.callers.insert("replica 1".into(), 1_000);
    proof.fleet = Some(FleetFacts {
        script_calls: 61,
        left: 1,
        dead: 1,
        killed: 12,
    });
    for line in proof.to_string().lines() {
        assert!(line.len() <= 79, "{line}");
    }
}
