//! Callers: where they ask, their limits, and what a headroom must keep for them.

use super::{GOOD, lines};

const CALLERS: &str =
    "[callers.web]\nlisten = \"unix:/run/sluiced/c.sock\"\nlimits = [\"provider\"]\n";

fn said(text: &str) -> Vec<String> {
    lines(&[&format!("{GOOD}\n{CALLERS}\n{text}")], &[])
}

#[test]
fn callers_beside_a_route_are_good() {
    assert_eq!(said(""), Vec::<String>::new());
}

#[test]
fn faults_of_callers_name_the_key_and_what_is_right() {
    for (text, wrong) in [
        (
            "[callers.b]\nlisten = \"unix:/run/sluiced/c.sock\"\nlimits = [\"provider\"]",
            "callers.web.listen: `callers.b` listens there; write another place",
        ),
        (
            "[callers.b]\nlisten = \"0.0.0.0:9470\"\nlimits = [\"provider\"]",
            "can be reached from other machines, so callers need a token",
        ),
        (
            "[callers.b]\nlisten = \"127.0.0.1:9470\"\nlimits = [\"provide\"]",
            "no limit has the name `provide`",
        ),
        (
            "[callers.b]\nlisten = \"127.0.0.1:9470\"\nlimits = [\"repeats\"]\n[limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"",
            "callers.b.limits[0]: `repeats` calls each message of a queue once",
        ),
        (
            "[callers.b]\nlisten = \"127.0.0.1:9470\"\nlimits = [\"provider\"]\nuse_within = \"2s\"",
            "callers.b.use_within: a call may come 2s after its permit",
        ),
        (
            "[callers.b]\nlisten = \"127.0.0.1:9470\"\nlimits = [\"calls\"]\nends_after = \"1m\"\n[limits.calls]\nkind = \"concurrency\"\nlimit = 3\nlease = \"1m\"",
            "callers.b.ends_after: 1m is longer than service.grace of 20s",
        ),
        (
            "[callers.b]\nlisten = \"nowhere\"\nlimits = [\"provider\"]",
            "callers.b.listen: `nowhere` is no place to listen at",
        ),
        (
            "[limits.fixed]\nkind = \"paced\"\nrate = \"10/1s\"\nheadroom = \"5ms\"\n[callers.b]\nlisten = \"127.0.0.1:9470\"\nlimits = [\"fixed\"]",
            "the headroom of `fixed` keeps 1ms250us for that; write headroom = \"auto\" or 8ms there",
        ),
    ] {
        let said = said(text);
        assert!(
            said.iter().any(|line| line.contains(wrong)),
            "{text}: {said:#?}"
        );
    }
}

#[test]
fn a_route_must_not_have_the_name_of_callers() {
    let text = GOOD.replace("[routes.sms", "[routes.\"callers.web\"");
    let said = lines(&[&format!("{text}\n{CALLERS}")], &[]);
    assert!(
        said.iter()
            .any(|line| line.contains("under which these callers are shown")),
        "{said:#?}"
    );
}

#[test]
fn without_a_queue_the_fleet_has_a_name_in_the_file() {
    let limit = "[limits.provider]\nkind = \"paced\"\nrate = \"400/1s\"\n";
    let text = format!("{limit}{CALLERS}");
    let said = lines(&[&text], &[]);
    assert!(
        said.iter().any(|line| line.contains("write redis.fleet")),
        "{said:#?}"
    );
    let named = format!("[redis]\nfleet = \"callers\"\n{text}");
    assert_eq!(lines(&[&named], &[]), Vec::<String>::new());
    let list = format!("[backend]\nqueue = \"embedded\"\n{GOOD}{CALLERS}");
    let said = lines(&[&list], &[]);
    assert!(
        said.iter()
            .any(|line| line.contains("a list comes to its end")),
        "{said:#?}"
    );
}
