//! Which names a fleet may use, and why another fleet is refused.

use super::*;

const NOW: StoreTime = StoreTime::from_micros(1_000_000_000_000);

fn of(fleet: &str, names: &[(&str, bool)]) -> Registration {
    let names = names
        .iter()
        .map(|(name, shared)| ((*name).to_owned(), *shared));
    Registration {
        format: STATE_FORMAT,
        fleet: vec![fleet.to_owned()],
        names: names.collect(),
    }
}

#[test]
fn a_name_of_another_fleet_is_refused_and_nothing_is_registered() {
    let mut all = BTreeMap::new();
    let one = of("a", &[("limits.account", false), ("routes.sms", false)]);
    assert_eq!(register(&mut all, "one", &one, NOW), []);
    let two = of("b", &[("limits.account", false), ("limits.other", false)]);
    let later = NOW + Duration::from_secs(3);
    let refused = register(&mut all, "two", &two, later);
    let expected = ForeignName {
        name: "limits.account".to_owned(),
        fleet: "a".to_owned(),
        replica: "one".to_owned(),
        ago: Duration::from_secs(3),
        shared: false,
        format: STATE_FORMAT,
    };
    assert_eq!(refused, [expected]);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["one"]);
    // The first fleet is not disturbed.
    assert_eq!(register(&mut all, "one", &one, later), []);
}

#[test]
fn a_rollout_that_adds_a_queue_or_another_replica_is_no_foreigner() {
    let mut all = BTreeMap::new();
    let before = of("a", &[("limits.account", false), ("routes.sms", false)]);
    assert_eq!(register(&mut all, "one", &before, NOW), []);
    let more = [
        ("limits.account", false),
        ("routes.sms", false),
        ("routes.mail", false),
    ];
    assert_eq!(register(&mut all, "two", &of("a", &more), NOW), []);
}

#[test]
fn a_limit_is_shared_only_if_both_files_say_so() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut all = BTreeMap::new();
        let one = of("a", &[("limits.account", theirs)]);
        assert_eq!(register(&mut all, "one", &one, NOW), []);
        let two = of("b", &[("limits.account", ours)]);
        let refused = register(&mut all, "two", &two, NOW);
        assert_eq!(refused.is_empty(), ours && theirs, "{ours} {theirs}");
        assert!(refused.iter().all(|one| one.shared == theirs));
    }
}

#[test]
fn a_claim_is_over_after_an_hour() {
    let mut all = BTreeMap::new();
    let (one, two) = (
        of("a", &[("routes.sms", false)]),
        of("b", &[("routes.sms", false)]),
    );
    assert_eq!(register(&mut all, "one", &one, NOW), []);
    assert_eq!(
        register(&mut all, "two", &two, NOW + REGISTRATION_TTL).len(),
        1
    );
    let later = NOW + REGISTRATION_TTL + Duration::from_micros(1);
    assert_eq!(register(&mut all, "two", &two, later), []);
    // Now it is the first one that is refused.
    assert_eq!(register(&mut all, "one", &one, later).len(), 1);
}

#[test]
fn the_words_name_both_fleets_and_the_keys_to_write() {
    let mut all = BTreeMap::new();
    let names = [
        ("limits.account", false),
        ("limits.other", true),
        ("routes.sms", false),
    ];
    register(&mut all, "host:7", &of("rabbit@a:/", &names), NOW);
    let own = of("rabbit@a:b", &names);
    let refused = register(&mut all, "host:8", &own, NOW + Duration::from_secs(3));
    assert_eq!(
        in_words("rabbit@a:b", "sluiced", &refused),
        "limits.account and routes.sms belong to the fleet `rabbit@a:/` in this Redis under the prefix `sluiced` (its replica host:7 was there 3 s ago), and this is the fleet `rabbit@a:b`: \
         write another prefix in [redis] of one of the fleets; or, if both are one fleet, fleet = \"rabbit@a:/\" in [redis] of this one; \
         or, for a limit that both fleets are to share, shared = true in the table of limits.account of both files"
    );
    let routes: Vec<_> = refused
        .into_iter()
        .filter(|one| one.name == "routes.sms")
        .collect();
    let said = in_words("rabbit@a:b", "sluiced", &routes);
    assert!(said.starts_with("routes.sms belongs to"), "{said}");
    assert!(!said.contains("shared"), "{said}");
}

#[test]
fn one_name_in_common_makes_one_fleet() {
    let of = |fleets: &[&str]| Registration {
        fleet: fleets.iter().map(|&name| name.to_owned()).collect(),
        ..of("", &[("routes.sms", false)])
    };
    let mut all = BTreeMap::new();
    register(&mut all, "one", &of(&["rabbit@a:/", "mq:5672:/"]), NOW);
    for (fleet, refused) in [
        (&["rabbit@b:/", "mq:5672:/"][..], 0),
        (&["rabbit@a:/"], 0),
        (&["rabbit@b:/"], 1),
        (&["rabbit@a:x", "mq:5672:x"], 1),
    ] {
        assert_eq!(foreign(&all, &of(fleet), NOW).len(), refused, "{fleet:?}");
    }
}

#[test]
fn a_replica_of_another_form_is_refused_even_of_the_same_fleet() {
    let names = [("limits.account", true), ("routes.sms", false)];
    let mut all = BTreeMap::new();
    register(&mut all, "host:7", &of("a", &names), NOW);
    for fleet in ["a", "b"] {
        let next = Registration {
            format: STATE_FORMAT + 1,
            ..of(fleet, &names[..1])
        };
        let refused = register(&mut all, "host:8", &next, NOW + Duration::from_secs(3));
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(
            (&*refused[0].name, refused[0].format),
            ("limits.account", STATE_FORMAT)
        );
    }
    // Without a name in common they do not meet.
    let apart = Registration {
        format: STATE_FORMAT + 1,
        ..of("a", &[("limits.mail", false)])
    };
    assert_eq!(register(&mut all, "host:9", &apart, NOW), []);
    // The words are those of this version, which meets a later one.
    let refused = foreign(&all, &of("a", &[("limits.mail", false)]), NOW);
    assert_eq!(
        in_words("a", "sluiced", &refused),
        "this version keeps its state in Redis in format 1, and the replica host:9 in format 2 under the same prefix `sluiced` (it was there 0 s ago): \
         the two cannot keep one limit together. Stop all replicas of the other version first (one that was killed counts for an hour), \
         or write another prefix in [redis] of this one, if the two share no limit"
    );
}
