//! Policies as lines of text, there and back.

use super::{Files, GOOD};
use crate::policy::PolicyTextError;
use crate::types::Limit;
use sluiced_core::distance::TooFar;
use sluiced_core::headroom::Headroom;
use sluiced_core::policy::{as_written, is_same};

/// A limit as a file has it.
fn limit(text: &str) -> Limit {
    let text = format!("{GOOD}[limits.x]\n{text}\n");
    let loaded = Files::new(&[&text]).load(&[]);
    let loaded = loaded.map_err(|faults| faults.to_string());
    loaded.expect("it loads").settings.limits["x"].clone()
}

fn paced() -> Limit {
    limit("kind = \"paced\"\nrate = \"400/1s\"")
}

#[test]
fn defaults_are_written_out() {
    assert_eq!(
        paced().policy_line(),
        "kind=paced rate=400/1s headroom=auto"
    );
    assert_eq!(
        limit("kind = \"gcra\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"").policy_line(),
        "kind=gcra rate=5/1h burst=0 headroom=auto"
    );
}

#[test]
fn every_kind_comes_back_from_its_own_policy() {
    for text in [
        "kind = \"paced\"\nrate = \"400/1s\"\nheadroom = \"7ms\"",
        "kind = \"gcra\"\nrate = \"5/1h\"\nburst = 3",
        "kind = \"paced\"\nrate = \"100000/36h\"",
        "kind = \"once\"\nttl = \"36h\"\nlease = \"45s\"",
        "kind = \"token_bucket\"\ncapacity = 9\nrefill = 2\ninterval = \"90s\"\nborrow = 4",
        "kind = \"fixed_window\"\nrate = \"1000/month\"",
        "kind = \"fixed_window\"\nrate = \"10/1d\"",
        "kind = \"fixed_window\"\nrate = \"10/1d\"\naligned = true\nheadroom = \"1s\"",
        "kind = \"fixed_window\"\nrate = \"10/day\"\ntimezone = \"Europe/Berlin\"",
        "kind = \"token_bucket\"\ncapacity = 9\nrefill = 2\ninterval = \"90s\"\ncontinuous = false\nstart = \"empty\"",
        "kind = \"sliding_log\"\nrate = \"5/1h30m\"",
        "kind = \"concurrency\"\nlimit = 7\nlease = \"45s\"",
        "kind = \"once\"\nttl = \"3d\"\nlease = \"45s\"\non_unknown = \"dead_letter\"",
    ] {
        let key = if text.contains("once") {
            "\nkey = \"{{ message_id }}\""
        } else {
            ""
        };
        let limit = limit(&format!("{text}{key}"));
        let line = limit.policy_line();
        for pair in text.lines() {
            let word = pair.replace(" = ", "=").replace('"', "");
            // One duration, two ways to write it.
            let word = word.replace("90s", "1m30s").replace("36h", "1d12h");
            assert!(line.split(' ').any(|known| known == word), "{word}: {line}");
        }
        assert_eq!(limit.with_policy(&line).unwrap().policy_line(), line);
    }
}

#[test]
fn what_a_policy_does_not_name_is_the_default_and_not_what_the_file_says() {
    let file = limit(
        "kind = \"gcra\"\nrate = \"5/1h\"\nheadroom = \"2s\"\nburst = 7\nkey = \"{{ body.to }}\"\ncost = \"{{ body.n }}\"",
    );
    let other = file.with_policy("kind=gcra rate=1/1s").unwrap();
    assert_eq!(other.headroom().all(), std::time::Duration::from_millis(35));
    let line = "kind=gcra rate=1/1s burst=0 headroom=auto";
    assert_eq!(other.policy_line(), line);
    // How messages are counted is not part of it.
    assert_eq!((other.key(), other.cost()), (file.key(), file.cost()));
}

#[test]
fn other_policies_are_read_and_wrong_ones_told() {
    let limit = paced().with_policy("kind=paced rate=300/1s").unwrap();
    assert_eq!(limit.policy_line(), "kind=paced rate=300/1s headroom=auto");
    let wrong = |text| paced().with_policy(text).unwrap_err().to_string();
    assert!(wrong("kind=gcra rate=1/1s").contains("gcra"));
    assert!(wrong("key=a").contains("`key` cannot be changed"));
    assert!(wrong("rate").contains("name=value"));
    assert!(wrong("rate=fast").contains("rate = `fast`"));
    assert!(wrong("horizon=1h").contains("write 20ms to 1s"));
}

/// Two replicas that divide one row in two ways would send more than it allows.
#[test]
fn a_policy_of_another_division_is_refused() {
    let text = "kind = \"paced\"\nrate = \"400/1s\"\n";
    let plain = limit(text);
    let divided = limit(&format!(
        "{text}reserve = \"25%\"\nmax_cost = 10\ncost = \"{{{{ body.n }}}}\""
    ));
    let line = divided.policy_line();
    assert_eq!(
        line,
        "kind=paced rate=400/1s headroom=auto max_cost=10 reserve=25%"
    );
    assert_eq!(divided.with_policy(&line).unwrap().policy_line(), line);
    let why = plain.with_policy(&line).unwrap_err().to_string();
    assert_eq!(
        why,
        "it has max_cost = 10, and this file max_cost = 1: restart the replicas with the same value"
    );
    let why = divided
        .with_policy("kind=paced rate=400/1s max_cost=10")
        .unwrap_err();
    assert!(
        why.to_string()
            .starts_with("it has reserve = none, and this file reserve = 25%")
    );
}

/// Without a written horizon, the headroom decides how far ahead slots are leased, in a file and in
/// a policy.
#[test]
fn a_horizon_that_is_not_written_follows_the_headroom() {
    let horizon = |limit: &Limit| limit.as_paced().expect("it is paced").horizon();
    let ms = std::time::Duration::from_millis;
    assert_eq!(horizon(&paced()), ms(150));
    for (policy, expected) in [
        ("kind=paced rate=400/1s headroom=30ms", 150),
        ("kind=paced rate=400/1s headroom=40ms", 160),
        ("kind=paced rate=400/1s headroom=250ms", 1_000),
        ("kind=paced rate=400/1s headroom=5ms horizon=60ms", 60),
    ] {
        let limit = paced().with_policy(policy).expect("a policy");
        assert_eq!(horizon(&limit), ms(expected), "{policy}");
        assert_eq!(limit.policy_line(), policy);
    }
}

#[test]
fn a_headroom_that_follows_says_its_parts_in_the_policy_and_nowhere_else() {
    let text = "kind = \"paced\"\nrate = \"100/1s\"\nheadroom = \"auto\"";
    let paced = limit(text);
    assert_eq!(paced.policy_line(), "kind=paced rate=100/1s headroom=auto");
    let ms = std::time::Duration::from_millis;
    let measured = Headroom {
        late: ms(2),
        way: ms(40),
    };
    let line = paced.clone().with_measured(measured).policy_line();
    assert_eq!(line, "kind=paced rate=100/1s headroom=auto(2ms+40ms)");
    let read = paced.with_policy(&line).expect("a policy");
    assert_eq!(read.headroom(), measured);
    // The horizon follows it.
    assert_eq!(read.as_paced().expect("paced").horizon(), ms(168));
    assert_eq!(as_written(&line), as_written(&paced.policy_line()));
    assert!(is_same(&format!("{line} until=7"), &paced.policy_line()));
    for wrong in ["auto(", "auto(2ms)", "auto(2ms+)", "automatic"] {
        let text = format!("kind=paced rate=100/1s headroom={wrong}");
        assert!(paced.with_policy(&text).is_err(), "{wrong}");
    }
}

#[test]
fn between_what_a_headroom_follows_is_known_for_every_kind() {
    let bounds = |text: &str| limit(text).auto_bounds();
    let fixed = "kind = \"paced\"\nrate = \"100/1s\"\nheadroom = \"5ms\"";
    assert_eq!(bounds(fixed), None);
    let us = std::time::Duration::from_micros;
    let paced = "kind = \"paced\"\nrate = \"100/1s\"";
    let seen = bounds(paced).expect("it follows");
    assert_eq!((seen.least.all(), seen.most), (us(2_000), us(250_000)));
    let near = format!("{paced}\nhorizon = \"200ms\"");
    assert_eq!(bounds(&near).expect("it follows").most, us(50_000));
    for kind in ["gcra", "sliding_log", "fixed_window"] {
        let text = format!("kind = \"{kind}\"\nrate = \"5/10s\"\nheadroom = \"auto\"");
        let seen = bounds(&text).expect("it follows");
        assert_eq!((seen.least.all(), seen.most), (us(8_000), us(2_500_000)));
    }
}

#[test]
fn the_default_headroom_of_a_limit_by_key_suits_a_redis_ten_milliseconds_away() {
    let headroom = limit("kind = \"gcra\"\nrate = \"10/1s\"").headroom();
    let slow = std::time::Duration::from_millis;
    assert_eq!(TooFar::find(headroom, slow(24)), None);
    assert!(TooFar::find(headroom, slow(25)).is_some());
}

#[test]
fn a_file_that_is_read_again_changes_only_what_may_change() {
    let read = |text: &str| limit(&format!("kind = \"paced\"\n{text}"));
    let running =
        read("rate = \"100/1s\"\ncost = \"{{ body.parts }}\"\nmax_cost = 3\nhorizon = \"1s\"");
    let file = read("rate = \"80/1s\"\nreserve = \"10 %\"");
    let changed = running.with_live_keys_of(&file).expect("of one kind");
    let line = changed.policy_line();
    assert!(line.contains("rate=80/1s"), "{line}");
    assert!(line.contains("max_cost=3"), "{line}");
    assert!(
        !line.contains("reserve") && !line.contains("horizon"),
        "{line}"
    );
    // What is sent since the start must still fit.
    let running = read("rate = \"100/1s\"\ncost = \"{{ body.parts }}\"\nmax_cost = 10");
    let file = read("rate = \"4/1s\"\ncost = \"{{ body.parts }}\"\nmax_cost = 2");
    let why = running.with_live_keys_of(&file).unwrap_err();
    assert_eq!(why, PolicyTextError::TooLarge(10));
    let gcra = limit("kind = \"gcra\"\nrate = \"1/1s\"");
    assert!(running.with_live_keys_of(&gcra).is_err());
}
