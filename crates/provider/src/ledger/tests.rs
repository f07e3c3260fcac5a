//! Which calls count as over the limit, repeated, lost or unexpected.

use super::*;
use sluiced_ports::clock;

fn ledger() -> Ledger {
    let rate = |text: &str| text.parse().expect("a rate");
    Ledger::new(rate("2/1s"), Some(rate("1/1s")))
}

fn call(ledger: &Ledger, at: u64, id: &str, accepted: bool) {
    ledger.note_arrival(Some(Arrival {
        at: Mono::from_micros(at),
        units: 1,
        key: Some(id.into()),
    }));
    ledger.note_call(CallRecord {
        id: Some(id.into()),
        caller: Some(format!("caller of {id}").into()),
        accepted,
    });
}

#[test]
fn a_refused_call_and_its_repetition_are_no_repeat() {
    let ledger = ledger();
    call(&ledger, 1_000_000, "a", false);
    call(&ledger, 2_000_000, "a", true);
    let report = ledger.report(&Expect::Count(1));
    assert_eq!((report.calls, report.accepted, report.unique), (2, 1, 1));
    assert_eq!((report.repeated, report.lost), (0, Some(0)));
    assert_eq!(report.callers.get("caller of a"), Some(&2));
}

#[test]
fn lost_repeated_and_unexpected_messages_are_named() {
    let ledger = ledger();
    for (at, id) in [(1, "a"), (2, "b"), (3, "b"), (4, "stray")] {
        call(&ledger, at * 1_000_000, id, true);
    }
    let wanted = ["a", "b", "c"].map(str::to_owned).to_vec();
    let report = ledger.report(&Expect::Ids(wanted));
    assert_eq!((report.lost, report.lost_ids), (Some(1), vec!["c".into()]));
    assert_eq!(
        (report.repeated, report.repeated_ids),
        (1, vec!["b".into()])
    );
    assert_eq!(report.unexpected, 1);
    assert_eq!((report.gap_p50_us, report.over), (Some(1_000_000), 0));
}

#[test]
fn keys_and_units_are_judged_too() {
    let ledger = ledger();
    let arrive = |at: u64, units: u32, key: &str| {
        ledger.note_arrival(Some(Arrival {
            at: Mono::from_micros(at),
            units,
            key: Some(key.into()),
        }));
    };
    arrive(0, 1, "a");
    arrive(400_000, 1, "b");
    arrive(1_000_000, 1, "a");
    let report = ledger.report(&Expect::Nothing);
    assert_eq!((report.over, report.keys), (0, 2));
    assert_eq!((report.key_worst, report.key_over), (1, 0));
    arrive(1_200_000, 2, "b");
    let report = ledger.report(&Expect::Nothing);
    assert_eq!((report.units, report.worst, report.over), (5, 4, 1));
    assert_eq!((report.key_worst, report.key_over), (3, 1));
}

/// As if it had been frozen for two seconds, with calls a second apart on two connections.
#[test]
fn a_reading_thread_that_stood_still_makes_no_bunch_of_what_it_reads_late() {
    let ledger = ledger();
    let now = clock::now();
    let arrive = |ago: u64| {
        ledger.note_arrival(Some(Arrival {
            at: now - Duration::from_millis(ago),
            units: 1,
            key: None,
        }));
    };
    arrive(2_000);
    arrive(1_000);
    // A report is asked for in the middle of its first round.
    ledger.begin_round();
    assert_eq!((ledger.live().calls, ledger.live().over), (2, 0));
    arrive(1_500);
    arrive(500);
    for _ in 1..ROUNDS {
        ledger.begin_round();
    }
    assert_eq!(ledger.live().worst, 2, "now the earlier ones are judged");
    let report = ledger.report(&Expect::Nothing);
    assert_eq!((report.calls, report.worst, report.over), (4, 2, 0));
}

#[test]
fn a_reset_forgets_everything() {
    let ledger = ledger();
    call(&ledger, 1, "a", true);
    ledger.reset();
    assert_eq!(ledger.live(), LiveFigures::default());
    let report = ledger.report(&Expect::Nothing);
    assert_eq!((report.calls, report.used, report.lost), (0, None, None));
}

#[test]
fn a_call_without_a_time_counts_and_is_in_no_window() {
    let ledger = ledger();
    call(&ledger, 1_000_000, "a", true);
    ledger.note_arrival(None);
    ledger.note_arrival(None);
    let report = ledger.report(&Expect::Nothing);
    assert_eq!((report.calls, report.undated), (3, 2));
    assert_eq!((report.worst, report.over), (1, 0));
}
