//! Which file or which update of an operator counts, and how long a pause lasts.

use super::*;

fn at(micros: u64) -> StoreTime {
    StoreTime::from_micros(micros)
}

fn file(replica: &str, file: &str, known: Option<LimitPolicy>) -> Declaration {
    Declaration {
        replica: replica.to_owned(),
        file: file.to_owned(),
        known,
    }
}

/// One of three replicas has this file.
const FEW: FileCounts = FileCounts {
    replicas: 3,
    same: 1,
};

/// A replica declares itself, and most have its file.
fn declare(stored: &mut Option<LimitPolicy>, replica: &Declaration, now: StoreTime) -> LimitPolicy {
    super::declare(stored, replica, FileCounts::ALONE, now)
}

fn over<'a>(before: &LimitPolicy, text: &'a str) -> PolicyUpdate<'a> {
    PolicyUpdate {
        replaces: before.version,
        text,
        file: "",
        by: "op",
    }
}

#[test]
fn the_last_word_counts_and_a_file_that_says_nothing_new_is_none() {
    let mut stored = None;
    let first = declare(&mut stored, &file("a", "rate=400/1s", None), at(10));
    assert_eq!((first.updates, first.origin), (1, Origin::File));
    assert!(set(&mut stored, &over(&first, "rate=300/1s"), at(20)));
    // A restart with the same file leaves the live value as it is.
    let again = declare(&mut stored, &file("b", "rate=400/1s", None), at(30));
    assert_eq!((again.text.as_str(), again.updates), ("rate=300/1s", 2));
    // The file of one replica among several changes nothing; once most have it, it counts.
    let other = file("c", "rate=500/1s", None);
    let kept = super::declare(&mut stored, &other, FEW, at(40));
    assert_eq!(kept.updates, 2);
    let changed = declare(&mut stored, &other, at(50));
    assert_eq!(changed.text, "rate=500/1s");
    assert_eq!((changed.updates, changed.origin), (3, Origin::File));
}

#[test]
fn most_is_more_than_half() {
    let most = |same, replicas| FileCounts { replicas, same }.is_majority();
    assert!(most(1, 1) && most(2, 3) && most(3, 4));
    assert!(!most(1, 2) && !most(1, 3) && !most(2, 4));
}

/// One replica of three has another file: it waits as long as it is alone with it, also when it or another one starts
/// again. An operator's value stays meanwhile.
#[test]
fn replicas_with_different_files_do_not_take_turns() {
    let mut stored = None;
    let old = file("a", "rate=200/1s", None);
    let new = file("b", "rate=300/1s", None);
    let most = FileCounts {
        replicas: 3,
        same: 2,
    };
    declare(&mut stored, &old, at(10));
    for round in 2..6 {
        super::declare(&mut stored, &new, FEW, at(round * 10));
        let kept = super::declare(&mut stored, &old, most, at(round * 10 + 5));
        assert_eq!((kept.text.as_str(), kept.updates), ("rate=200/1s", 1));
    }
    let changed = super::declare(&mut stored, &new, most, at(100));
    assert_eq!((changed.text.as_str(), changed.updates), ("rate=300/1s", 2));
    // The last one with the old file changes nothing back.
    let kept = super::declare(&mut stored, &old, FEW, at(110));
    assert_eq!(kept.updates, 2);
}

#[test]
fn a_change_of_what_was_changed_meanwhile_is_refused() {
    let mut stored = None;
    let first = declare(&mut stored, &file("a", "rate=400/1s", None), at(10));
    assert!(set(&mut stored, &over(&first, "rate=300/1s"), at(20)));
    assert!(!set(&mut stored, &over(&first, "rate=200/1s"), at(30)));
    assert_eq!(stored.unwrap().text, "rate=300/1s");
}

#[test]
fn what_the_store_lost_is_declared_again_by_the_replica_that_knows_the_latest() {
    let mut stored = None;
    let first = declare(&mut stored, &file("a", "rate=400/1s", None), at(10));
    set(&mut stored, &over(&first, "rate=300/1s"), at(20));
    let latest = stored.take();
    let old = file("a", "rate=400/1s", Some(first.clone()));
    assert_eq!(declare(&mut stored, &old, at(30)), first);
    let new = file("b", "rate=400/1s", latest.clone());
    assert_eq!(declare(&mut stored, &new, at(40)), latest.clone().unwrap());
    // A replica that knows less than the store gets the store's policy.
    assert_eq!(declare(&mut stored, &old, at(50)), latest.unwrap());
}

#[test]
fn a_replica_that_remembers_nothing_does_not_hide_one_that_does() {
    let now = at(1_795_228_193_000_000);
    let later = |micros| now + Duration::from_micros(micros);
    let mut stored = None;
    let first = declare(&mut stored, &file("a", "rate=400/1s", None), now);
    assert_eq!(first.version.since(), now);
    set(&mut stored, &over(&first, "rate=300/1s"), later(20));
    let live = stored.take();
    // Everything is lost, and the first to come is new.
    declare(&mut stored, &file("b", "rate=400/1s", None), later(5_000));
    let knows = file("a", "rate=400/1s", live.clone());
    assert_eq!(declare(&mut stored, &knows, later(9_000)), live.unwrap());
}

#[test]
fn a_file_that_changes_the_kind_is_remembered_whatever_follows() {
    let log = "kind=sliding_log rate=3/1h";
    let window = "kind=fixed_window rate=3/1h";
    let mut stored = None;
    let first = declare(&mut stored, &file("a", log, None), at(10));
    assert_eq!(first.kind_changed_at, at(0));
    let other = file("a", "kind=sliding_log rate=4/1h", None);
    assert_eq!(declare(&mut stored, &other, at(20)).kind_changed_at, at(0));
    let changed = declare(&mut stored, &file("a", window, None), at(30));
    assert_eq!(changed.kind_changed_at, at(30));
    // Later versions have it, too, and a store that loses it gets it back.
    set(
        &mut stored,
        &over(&changed, "kind=fixed_window rate=2/1h"),
        at(40),
    );
    pause(&mut stored, Duration::ZERO, "op", at(50));
    let latest = stored.take();
    let again = file("b", window, latest);
    assert_eq!(declare(&mut stored, &again, at(60)).kind_changed_at, at(30));
    let back = declare(&mut stored, &file("a", log, None), at(70));
    assert_eq!(back.kind_changed_at, at(70));
}

#[test]
fn a_pause_bars_and_resume_opens_and_each_is_a_word() {
    let mut stored = None;
    declare(&mut stored, &file("a", "rate=400/1s", None), at(10));
    let until = pause(&mut stored, Duration::from_micros(100), "op", at(20));
    assert_eq!(until, Some(at(120)));
    let known = stored.as_ref().unwrap().version;
    let pace = Pace::new(
        "10/1s".parse().unwrap(),
        Duration::ZERO,
        Duration::from_millis(120),
    );
    let barred = |known, stored: &Option<_>, now| {
        let ask = Ask {
            sums: Vec::new(),
            want: 5,
            turn: None,
            clock_view: super::super::schedule::ClockView::Unproven,
            lead: Duration::ZERO,
        };
        let limit = (&pace, known);
        let answer = lease_under(stored.as_ref(), &mut None, limit, "r", &ask, now);
        (answer.turn.is_some(), answer.paused_until)
    };
    assert_eq!(barred(known, &stored, at(119)), (false, Some(at(120))));
    assert_eq!(barred(known, &stored, at(120)), (true, None));
    assert_eq!(resume(&mut stored, "ann", at(60)), Some(true));
    assert_eq!(
        barred(known, &stored, at(60)),
        (false, None),
        "an old version"
    );
    let known = stored.as_ref().unwrap().version;
    assert_eq!(barred(known, &stored, at(60)), (true, None));
    assert_eq!(resume(&mut stored, "bob", at(70)), Some(false));
    let policy = stored.as_ref().unwrap();
    assert_eq!((policy.updates, &*policy.resumed_by), (4, "bob"));
    assert_eq!(policy.changed, PolicyVersion::first(at(10)), "by the file");
    pause(&mut stored, Duration::from_micros(100), "op", at(80));
    assert_eq!(stored.as_ref().unwrap().resumed_by, "");
}

#[test]
fn a_pause_lasts_no_longer_for_a_clock_that_goes_back() {
    let (noon, hour) = (at(50_000_000_000), Duration::from_secs(3600));
    let mut stored = None;
    let same = file("a", "rate=400/1s", None);
    let first = declare(&mut stored, &same, noon);
    pause(&mut stored, hour, "op", noon);
    let paused = declare(&mut stored, &same, noon + hour / 2);
    let until = |policy: &LimitPolicy| policy.pause.as_ref().map(|pause| pause.until);
    assert_eq!((until(&paused), paused.updates), (Some(noon + hour), 2));
    // Back by ten hours: the first replica that declares itself reports it.
    let earlier = noon - hour * 10;
    let told = declare(&mut stored, &same, earlier);
    assert_eq!((until(&told), told.updates), (Some(earlier + hour), 3));
    assert!(told.version > paused.version && told.changed == first.changed);
    assert_eq!(declare(&mut stored, &same, earlier + hour / 2), told);
    assert_eq!(told.paused_until(earlier + hour), None);
}

#[test]
fn a_limit_that_was_never_declared_cannot_be_paused() {
    assert_eq!(pause(&mut None, Duration::MAX, "op", at(1)), None);
    assert_eq!(resume(&mut None, "op", at(1)), None);
}

#[test]
fn a_policy_that_was_set_for_a_while_ends_with_the_next_declaration() {
    let mut stored = None;
    let first = declare(&mut stored, &file("a", "rate=400/1s", None), at(10));
    let set_for = ending("rate=300/1s", at(100));
    assert!(set(&mut stored, &over(&first, &set_for), at(20)));
    let same = file("a", "rate=400/1s", None);
    let during = declare(&mut stored, &same, at(99));
    assert_eq!((during.text.as_str(), during.updates), (&*set_for, 2));
    // Lost in between: a replica gives it back with its end.
    stored = None;
    let again = file("b", "rate=400/1s", Some(during.clone()));
    assert_eq!(declare(&mut stored, &again, at(99)), during);
    let after = declare(&mut stored, &same, at(100));
    assert_eq!((after.text.as_str(), after.updates), ("rate=400/1s", 3));
    assert!(after.version > during.version);
    assert_eq!(declare(&mut stored, &same, at(101)), after);
}

#[test]
fn the_end_of_a_policy_is_its_last_word() {
    let text = ending("rate=300/1s", at(7));
    assert_eq!(ends(&text), ("rate=300/1s", Some(at(7))));
    for endless in ["rate=300/1s", "rate=300/1s until=soon", "until=7"] {
        assert_eq!(ends(endless), (endless, None));
    }
}

#[test]
fn an_update_has_the_time_at_which_the_store_replaced_the_policy() {
    let (read, written) = (
        StoreTime::from_micros(5_000_000),
        StoreTime::from_micros(5_000_700),
    );
    let declaration = |file: &str| Declaration {
        replica: "host:1".to_owned(),
        file: file.to_owned(),
        known: None,
    };
    let mut policy = None;
    let first = declare(&mut policy, &declaration("kind=paced rate=1/1s"), read);
    let replaced = |replaces: PolicyVersion, policy: &LimitPolicy, decided| {
        let replacement = Replacement {
            replaces,
            policy,
            decided,
        };
        replacement.at(written)
    };
    assert_eq!(
        replaced(PolicyVersion::NONE, &first, read),
        first,
        "the first one is older than any update"
    );
    let other = declare(&mut policy, &declaration("kind=gcra rate=1/1s"), read);
    let made = replaced(first.version, &other, read);
    assert_eq!(made.version.number(), written.as_micros());
    assert_eq!(
        (made.changed, made.kind_changed_at),
        (made.version, written)
    );
    let minute = Duration::from_secs(60);
    let later = StoreTime::from_micros(5_000_500);
    pause(&mut policy, minute, "op", later).unwrap();
    let paused = replaced(other.version, policy.as_ref().unwrap(), later);
    assert_eq!(paused.pause.unwrap().until, written + minute);
    assert_eq!(
        (paused.changed, paused.kind_changed_at),
        (other.changed, other.kind_changed_at)
    );
    assert_eq!(
        replaced(PolicyVersion::NONE, &other, later),
        other,
        "one that is given back stays as it is"
    );
}
