//! Limits of the kind `paced`: every key, valid and wrong.

use super::*;

/// The good configuration's own limit with more keys.
fn paced(text: &str) -> String {
    GOOD.replace("rate = \"400/1s\"", text)
}

fn said_of_paced(text: &str) -> Vec<String> {
    lines(&[&paced(text)], &[])
}

#[test]
fn with_every_key() {
    let text = paced(
        "rate = \"400/1s\"\ncost = \"{{ body.text | sms_segments(reference=16) }}\"\nmax_cost = 6\nreserve = \"12.5%\"\nreserve_priority = 7",
    );
    let loaded = Files::new(&[&text]).load(&[]).expect("it loads");
    assert_eq!(loaded.warnings.all(), []);
    let limit = &loaded.settings.limits["provider"];
    let paced = limit.as_paced().expect("a paced limit");
    assert_eq!(limit.kind(), "paced");
    assert!(limit.key().is_none());
    assert!(
        matches!(&paced.cost, Costing::Template(text) if text.as_str().contains("sms_segments"))
    );
    assert_eq!(limit.largest_cost().get(), 6);
    assert_eq!(paced.reserve.map(|share| share.of(400)), Some(50));
    assert_eq!(paced.reserve_priority, 7);
    assert_eq!(limit.lost_wait(), LostWait::Forever);
}

#[test]
fn the_largest_cost_follows_the_cost() {
    for (text, largest) in [
        ("rate = \"400/1s\"", 1),
        ("rate = \"400/1s\"\ncost = 3", 3),
        ("rate = \"400/1s\"\ncost = \"3\"", 3),
        ("rate = \"400/1s\"\ncost = \"{{ body.n }}\"", 10),
        (
            "rate = \"400/1s\"\ncost = \"{{ body.n }}\"\nmax_cost = 4",
            4,
        ),
    ] {
        let loaded = Files::new(&[&paced(text)]).load(&[]).expect("it loads");
        let limit = &loaded.settings.limits["provider"];
        assert_eq!(limit.largest_cost().get(), largest, "{text}");
    }
}

#[test]
fn wrong_values() {
    assert_eq!(
        said_of_paced(
            "rate = \"400/day\"\ncost = 0\nmax_cost = 0\nreserve = \"0%\"\nreserve_priority = 10\nburst = 5\nkey = \"{{ body.to }}\""
        ),
        [
            "a.toml:2:8: limits.provider.rate: window `day`: only kind = \"fixed_window\" goes by the calendar; write a duration, such as \"1s\" or \"1d\"",
            "a.toml:3:8: limits.provider.cost: `0` is no cost; write a whole number from 1 to 10000000, or a template such as \"{{ body.text | sms_segments }}\"",
            "a.toml:4:12: limits.provider.max_cost: `0` does not fit; a whole number from 1 to 10000000 is needed",
            "a.toml:5:11: limits.provider.reserve: `0%` is no share; write a percentage above 0 and below 100, such as \"20%\"",
            "a.toml:6:20: limits.provider.reserve_priority: `10` does not fit; a whole number from 1 to 9 is needed",
            "a.toml:7:1: limits.provider.burst: the kind paced has no such key; kinds that have it: gcra",
            "a.toml:8:1: limits.provider.key: the kind paced has no such key; kinds that have it: gcra, token_bucket, fixed_window, sliding_log, concurrency, once",
        ]
    );
}

#[test]
fn shares_that_are_none() {
    for share in ["20", "100%", "-5%", "0.001%", "%", "x%", "1.%", "0.0%"] {
        assert_eq!(
            said_of_paced(&format!("rate = \"400/1s\"\nreserve = \"{share}\"")),
            [format!(
                "a.toml:3:11: limits.provider.reserve: `{share}` is no share; write a percentage above 0 and below 100, such as \"20%\""
            )]
        );
    }
    assert_eq!(
        said_of_paced("rate = \"400/1s\"\nreserve = 20"),
        [
            "a.toml:3:11: limits.provider.reserve: `20` is no share; write a percentage above 0 and below 100, such as \"20%\""
        ]
    );
}

#[test]
fn a_cost_that_never_fits() {
    assert_eq!(
        said_of_paced("rate = \"5/1s\"\ncost = 6"),
        [
            "a.toml:3:8: limits.provider.cost: messages of 6 units never fit into 5/1s; write max_cost = 5 or less"
        ]
    );
    assert_eq!(
        said_of_paced("rate = \"400/1s\"\ncost = 6\nmax_cost = 5"),
        [
            "a.toml:3:8: limits.provider.cost: a message of 6 can never pass, for 5 is the most that fits; write 5 or less, or max_cost = 6"
        ]
    );
    assert_eq!(
        said_of_paced("rate = \"5/1s\"\ncost = \"{{ body.n }}\""),
        [
            "a.toml:1:9: limits.provider.max_cost: messages of up to 10 units (the default) never fit into 5/1s; write max_cost = 5 or less"
        ]
    );
}

/// Both parts of a limit keep their share: the rest beside the reserve must hold the largest message.
#[test]
fn a_reserve_that_leaves_too_little_for_a_message() {
    assert_eq!(
        said_of_paced("rate = \"20/1s\"\ncost = \"{{ body.n }}\"\nmax_cost = 6\nreserve = \"80%\""),
        [
            "a.toml:4:12: limits.provider.max_cost: messages of up to 6 units never fit into the 4 of 20/1s that the reserve leaves; write max_cost = 4 or less, or a smaller reserve"
        ]
    );
}

/// One replica alone would send it, and two would take the slots of each other's messages.
#[test]
fn a_message_whose_slots_no_lease_holds() {
    assert_eq!(
        said_of_paced("rate = \"100/1h\"\ncost = \"{{ body.n }}\"\nmax_cost = 10"),
        [
            "a.toml:4:12: limits.provider.max_cost: messages of up to 10 units take slots that lie 5m56s apart in 100/1h: of several replicas none would get all slots of such a message; write max_cost = 3 or less, or a shorter window"
        ]
    );
    assert_eq!(
        said_of_paced("rate = \"1000/1h\"\ncost = \"{{ body.n }}\"\nmax_cost = 10"),
        Vec::<String>::new()
    );
}

#[test]
fn a_large_cost_leaves_much_of_the_rate() {
    assert_eq!(
        said_of_paced("rate = \"20/1s\"\ncost = \"{{ body.n }}\"\nmax_cost = 8"),
        [
            "a.toml:4:12: warning: limits.provider.max_cost: messages of up to 8 units leave only 65 % of 20/1s in use, for any of them may come; write a smaller max_cost if none are that large"
        ]
    );
}

#[test]
fn a_reserve_for_none_or_for_all() {
    assert_eq!(
        said_of_paced("rate = \"400/1s\"\nreserve_priority = 3"),
        [
            "a.toml:3:20: warning: limits.provider.reserve_priority: there is no reserve that it could be for; write reserve = \"20%\" beside it, or take it out"
        ]
    );
    let text = paced("rate = \"400/1s\"\nreserve = \"20%\"");
    assert_eq!(
        lines(&[&text.replace("queue =", "priority = 5\nqueue =")], &[]),
        [
            "a.toml:3:11: warning: limits.provider.reserve: every route of this limit has a priority of 5 or more, so everything may take the reserve and it keeps nothing free; write a lower priority for one of them, or a higher reserve_priority"
        ]
    );
    assert_eq!(
        said_of_paced("rate = \"1/1s\"\nreserve = \"20%\""),
        [
            "a.toml:2:8: limits.provider.rate: a rate of 1 unit leaves nothing to keep in reserve; write one of more units, such as 60/1m in place of 1/1s, or take reserve out of limits.provider"
        ]
    );
}
