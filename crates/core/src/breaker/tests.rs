//! When a breaker opens, which replica makes the probe, and when it closes.

use super::*;
use crate::time::StoreTime;

fn rule() -> BreakerRule {
    BreakerRule {
        failures: NonZeroU32::new(3),
        rejections: NonZeroU32::new(4),
        pause: Backoff::new(Duration::from_millis(500), Duration::from_secs(2)),
        probe: Duration::from_secs(10),
    }
}

const fn is_probing(breaker: &Breaker) -> bool {
    matches!(breaker.state, BreakerState::Probing { .. })
}

/// A replica whose own calls failed asks for the probe this much later, in milliseconds.
const LATER: u64 = 200;

/// A store and its replicas; the replicas' clocks are the store's.
struct Fleet {
    shared: StoredBreaker,
    replicas: Vec<Breaker>,
    now: u64,
}

impl Fleet {
    fn of(replicas: usize) -> Self {
        Self {
            shared: StoredBreaker::default(),
            replicas: vec![Breaker::new(rule()); replicas],
            now: 1_000_000_000,
        }
    }

    fn mono(&self) -> Mono {
        Mono::from_micros(self.now)
    }

    fn answer(&mut self, replica: usize, told: Option<BreakerReport>) -> Option<BreakerStatus> {
        let told = told?;
        let now = StoreTime::from_micros(self.now);
        let breaker = &mut self.replicas[replica];
        let status = report(
            &mut self.shared,
            told,
            "refused",
            breaker.version(),
            &rule(),
            now,
        );
        let until = status.until.map(|at| Mono::from_micros(at.as_micros()));
        let at = Mono::from_micros(self.now);
        breaker.update(&status, until, at);
        if status.changed {
            for other in &mut self.replicas {
                let looked = report(
                    &mut self.shared,
                    BreakerReport::Look,
                    "",
                    other.version(),
                    &rule(),
                    now,
                );
                other.update(&looked, until, at);
            }
        }
        Some(status)
    }

    fn call_ends(&mut self, replica: usize, evidence: Evidence) {
        let now = self.mono();
        let breaker = &mut self.replicas[replica];
        let is_probe = is_probing(breaker);
        let told = breaker.note_call_end(evidence, is_probe, now);
        self.answer(replica, told);
    }

    /// Lets each replica ask what is due, and answers those that may send.
    fn at(&mut self, millis: u64) -> Vec<usize> {
        self.now = 1_000_000_000 + millis * 1_000;
        for replica in 0..self.replicas.len() {
            let now = self.mono();
            let told = self.replicas[replica].ask(now);
            self.answer(replica, told);
        }
        let now = self.mono();
        let may = |breaker: &Breaker| breaker.blocked(0, now).is_none();
        (0..self.replicas.len())
            .filter(|i| may(&self.replicas[*i]))
            .collect()
    }
}

#[test]
fn failures_in_a_row_open_it_for_all_and_one_that_succeeds_between_does_not() {
    let mut fleet = Fleet::of(3);
    for evidence in [
        Evidence::Away,
        Evidence::Away,
        Evidence::Accepted,
        Evidence::Away,
        Evidence::Away,
    ] {
        fleet.call_ends(0, evidence);
    }
    assert_eq!(fleet.at(0), [0, 1, 2]);
    fleet.call_ends(0, Evidence::Unclear);
    fleet.call_ends(0, Evidence::Away);
    assert_eq!(fleet.at(0), [0_usize; 0]);
    assert!(fleet.replicas.iter().all(Breaker::is_open));
}

#[test]
fn one_replica_probes_at_a_time_and_pauses_grow_to_their_bound() {
    let mut fleet = Fleet::of(3);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    // The others fail as well, and report it late: that is the same outage.
    (0..9).for_each(|_| fleet.call_ends(1, Evidence::Away));
    let mut last = 0;
    // Those that had no call of their own that failed are the first to probe.
    for (pause, replica) in [(500, 1), (1_000, 2), (2_000 + LATER, 0), (2_000 + LATER, 0)] {
        assert_eq!(fleet.at(last + pause - 1), [0_usize; 0]);
        let probing = fleet.at(last + pause);
        assert_eq!(probing, [replica]);
        let now = fleet.mono();
        fleet.replicas[probing[0]].note_call(now);
        assert_eq!(fleet.at(last + pause + 10), [0_usize; 0]);
        last += pause + 10;
        fleet.call_ends(probing[0], Evidence::Away);
    }
}

#[test]
fn a_probe_that_succeeds_lets_all_go_on_one_more_at_a_time() {
    let mut fleet = Fleet::of(2);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    let probing = fleet.at(500)[0];
    let now = fleet.mono();
    fleet.replicas[probing].note_call(now);
    fleet.call_ends(probing, Evidence::Accepted);
    // The one whose calls had failed tries one for itself.
    let now = fleet.mono();
    fleet.replicas[0].note_call(now);
    fleet.call_ends(0, Evidence::Accepted);
    let now = fleet.mono();
    for breaker in &mut fleet.replicas {
        assert!(!breaker.is_open());
        for at_once in 1..=RAMP {
            assert!(breaker.blocked(at_once - 1, now).is_none());
            assert!(breaker.blocked(at_once, now).is_some());
            assert_eq!(breaker.note_call_end(Evidence::Accepted, false, now), None);
        }
        assert!(breaker.is_closed());
    }
    // The next outage begins with a short pause again.
    (0..3).for_each(|_| fleet.call_ends(1, Evidence::Away));
    assert_eq!(fleet.at(999), [0_usize; 0]);
    assert_eq!(fleet.at(1_000), [0]);
}

/// Calls that were in flight when the breaker opened end while the probe is out: by their timeout, as a rule.
#[test]
fn the_end_of_an_earlier_call_is_not_the_end_of_the_probe() {
    for earlier in [
        Evidence::Away,
        Evidence::Rejected,
        Evidence::Unclear,
        Evidence::Alive,
        Evidence::Accepted,
    ] {
        let mut fleet = Fleet::of(1);
        (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
        assert_eq!(fleet.at(500 + LATER), [0]);
        let now = fleet.mono();
        let breaker = &mut fleet.replicas[0];
        assert!(breaker.note_call(now));
        assert_eq!(breaker.note_call_end(earlier, false, now), None);
        assert!(is_probing(breaker), "{earlier:?}: no second probe");
        fleet.call_ends(0, Evidence::Accepted);
        assert!(!fleet.replicas[0].is_open(), "{earlier:?}");
    }
}

#[test]
fn a_probe_that_did_not_leave_is_made_at_the_next_slot() {
    let mut fleet = Fleet::of(2);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    let probing = fleet.at(500)[0];
    let now = fleet.mono();
    let breaker = &mut fleet.replicas[probing];
    breaker.note_call(now);
    assert!(breaker.blocked(1, now).is_some());
    breaker.note_unsent();
    assert!(breaker.blocked(0, now).is_none());
    breaker.note_call(now);
    fleet.call_ends(probing, Evidence::Accepted);
    let may = |breaker: &Breaker| breaker.blocked(0, now).is_none();
    assert!(fleet.replicas.iter().all(may));
}

#[test]
fn a_probe_that_was_never_made_is_passed_on() {
    let mut fleet = Fleet::of(2);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    // The second has no message to send, or has died.
    assert_eq!(fleet.at(500), [1]);
    assert_eq!(fleet.at(10_499), [1]);
    fleet.replicas.remove(1);
    assert_eq!(fleet.at(10_500 + LATER), [0]);
}

#[test]
fn a_store_that_forgot_or_went_back_in_time_keeps_nothing_shut_for_long() {
    let mut fleet = Fleet::of(2);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    fleet.shared = StoredBreaker::default();
    assert_eq!(
        fleet.at(500 + LATER),
        [0, 1],
        "both learn that nothing is known, and go on"
    );
    (0..3).for_each(|_| fleet.call_ends(1, Evidence::Away));
    assert_eq!(fleet.at(501 + LATER), [0_usize; 0]);
    let mut early = Fleet::of(1);
    early.shared = fleet.shared.clone();
    early.now -= 900_000_000;
    let status = early.answer(0, Some(BreakerReport::Look)).unwrap();
    let wait = status.until.unwrap().since(status.now);
    assert!(wait <= Duration::from_secs(10), "{wait:?}");
}

#[test]
fn without_an_answer_it_stays_shut_and_asks_again() {
    let mut breaker = Breaker::new(rule());
    let at = Mono::from_micros;
    for _ in 0..2 {
        assert_eq!(breaker.note_call_end(Evidence::Away, false, at(5)), None);
    }
    assert_eq!(
        breaker.note_call_end(Evidence::Away, false, at(5)),
        Some(BreakerReport::Failed)
    );
    breaker.note_no_answer(at(10));
    assert_eq!(breaker.ask(at(1_000_009)), None);
    assert!(breaker.blocked(0, at(1_000_009)).is_some());
    assert_eq!(breaker.ask(at(1_000_010)), Some(BreakerReport::Failed));
}

/// Redis was away at that moment. Messages would spend their attempts again until calls had failed in a row once more.
#[test]
fn what_the_store_did_not_hear_is_reported_again() {
    let mut fleet = Fleet::of(1);
    for _ in 0..2 {
        fleet.call_ends(0, Evidence::Away);
    }
    let (now, breaker) = (fleet.mono(), &mut fleet.replicas[0]);
    assert_eq!(
        breaker.note_call_end(Evidence::Away, false, now),
        Some(BreakerReport::Failed)
    );
    breaker.note_no_answer(now);
    let look = BreakerStatus::default();
    breaker.update(&look, None, now);
    assert!(
        breaker.is_open(),
        "a look does not say that a call succeeded"
    );
    assert_eq!(fleet.at(900), [], "it is not time to ask again");
    assert_eq!(fleet.at(1_000), []);
    assert_eq!(fleet.shared.pauses, 1, "the store has heard it");
    assert_eq!(fleet.at(1_500 + 200), [0], "the probe");
}

/// What each replica's calls show, for a minute of calls every 10 ms: how many it made, and how many of them were
/// refused.
fn a_minute(fleet: &mut Fleet, evidence: &[Evidence]) -> Vec<(u32, u32)> {
    let mut calls = vec![(0, 0); evidence.len()];
    let start = (fleet.now - 1_000_000_000) / 1_000;
    for step in 0..6_000_u64 {
        fleet.at(start + step * 10);
        for (replica, shown) in evidence.iter().enumerate() {
            let now = fleet.mono();
            if fleet.replicas[replica].blocked(0, now).is_none() {
                fleet.replicas[replica].note_call(now);
                fleet.call_ends(replica, *shown);
                calls[replica].0 += 1;
                calls[replica].1 += u32::from(*shown != Evidence::Accepted);
            }
        }
    }
    calls
}

/// A wrong template (422) or a wrong token (401) of one replica: the others pause once, and go on at once.
#[test]
fn a_replica_whose_own_calls_are_refused_stops_only_itself() {
    for (wrong, in_a_row) in [(Evidence::Rejected, 4), (Evidence::Away, 3)] {
        let mut fleet = Fleet::of(3);
        let evidence = [wrong, Evidence::Accepted, Evidence::Accepted];
        let calls = a_minute(&mut fleet, &evidence);
        // Pauses of its own: 0.5, 1, 2, 2 … seconds.
        assert!(
            (in_a_row..in_a_row + 34).contains(&calls[0].1),
            "{wrong:?}: {calls:?}"
        );
        for others in &calls[1..] {
            assert!(others.0 >= 5_900, "{wrong:?}: {calls:?}");
        }
        assert_eq!(fleet.shared.version, 2, "it opened and closed once");
        assert_eq!(fleet.replicas[0].away_for(), Some(AwayFor::ThisReplica));
        assert_eq!(fleet.replicas[1].away_for(), None);
        // Mended, it goes on by itself.
        let calls = a_minute(&mut fleet, &[Evidence::Accepted; 3]);
        assert!(calls[0].0 >= 5_700, "{wrong:?}: {calls:?}");
        assert_eq!(fleet.replicas[0].away_for(), None);
    }
}

/// Most replicas are wrong: those that are right go on all the same.
#[test]
fn replicas_that_are_right_go_on_however_many_are_wrong() {
    let mut fleet = Fleet::of(5);
    let mut evidence = [Evidence::Away; 5];
    evidence[3] = Evidence::Accepted;
    let calls = a_minute(&mut fleet, &evidence);
    assert!(calls[3].0 >= 5_000, "{calls:?}");
    assert!(calls[0].0 < 60, "{calls:?}");
}

/// After an outage of all, each replica tries one call for itself: none waits for a pause of its own.
#[test]
fn an_outage_of_all_ends_for_all_at_once() {
    let mut fleet = Fleet::of(4);
    let calls = a_minute(&mut fleet, &[Evidence::Away; 4]);
    let all: u32 = calls.iter().map(|(calls, _)| calls).sum();
    assert!(all < 12 + 34, "one probe at a time: {calls:?}");
    let calls = a_minute(&mut fleet, &[Evidence::Accepted; 4]);
    assert!(calls.iter().all(|(calls, _)| *calls >= 5_700), "{calls:?}");
}

#[test]
fn rejections_in_a_row_open_it_and_one_that_is_accepted_between_does_not() {
    let mut fleet = Fleet::of(2);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Rejected));
    fleet.call_ends(0, Evidence::Accepted);
    // Signs that show nothing about messages change nothing.
    for evidence in [
        Evidence::Rejected,
        Evidence::Away,
        Evidence::Rejected,
        Evidence::Alive,
    ] {
        fleet.call_ends(0, evidence);
    }
    fleet.call_ends(0, Evidence::Rejected);
    assert_eq!(fleet.at(0), [0, 1]);
    fleet.call_ends(0, Evidence::Rejected);
    assert_eq!(fleet.at(0), [0_usize; 0]);
    assert_eq!(fleet.replicas[0].rejections(), Some(4));
    // One more at each probe, with growing pauses.
    let mut last = 0;
    fleet.replicas.truncate(1);
    for pause in [500, 1_000, 2_000].map(|pause| pause + LATER) {
        assert_eq!(fleet.at(last + pause - 1), [0_usize; 0]);
        assert_eq!(fleet.at(last + pause), [0]);
        let now = fleet.mono();
        fleet.replicas[0].note_call(now);
        fleet.call_ends(0, Evidence::Rejected);
        last += pause;
    }
    assert_eq!(fleet.at(last + 2_000 + LATER), [0]);
    let now = fleet.mono();
    fleet.replicas[0].note_call(now);
    fleet.call_ends(0, Evidence::Accepted);
    assert!(fleet.replicas.iter().all(|breaker| !breaker.is_open()));
    assert_eq!(fleet.replicas[0].rejections(), None);
}

/// After an outage the first message may be a bad one: the next is tried at once, not after a pause.
#[test]
fn a_probe_that_is_rejected_is_followed_by_another_until_these_are_too_many() {
    let mut fleet = Fleet::of(1);
    (0..3).for_each(|_| fleet.call_ends(0, Evidence::Away));
    assert_eq!(fleet.at(500 + LATER), [0]);
    for _ in 0..3 {
        let now = fleet.mono();
        assert_eq!(fleet.replicas[0].blocked(0, now), None);
        fleet.replicas[0].note_call(now);
        fleet.call_ends(0, Evidence::Rejected);
    }
    let now = fleet.mono();
    fleet.replicas[0].note_call(now);
    fleet.call_ends(0, Evidence::Rejected);
    assert_eq!(fleet.at(501 + LATER), [0_usize; 0]);
}
