//! What routes and downstreams have in common: merged into each, at the place where it was written.

use super::{Files, lines, shown};
use crate::types::Downstream;

/// Three routes, which write only what differs.
const THREE: &str = r#"[limits.provider]
rate = "40/1s"

[limits.recipient]
kind = "sliding_log"
rate = "5/1h"
key = "{{ body.to }}"

[defaults.route]
limits = ["provider", "recipient"]
prefetch = 50
retry = { base = "2s", max = "1m" }
results = { routing_key = "results" }

[defaults.downstream]
kind = "http"
url = "http://127.0.0.1:8080/send"
timeout = "3s"
headers = { a = "1", b = "2" }

[routes.passwords]
queue = "passwords"
priority = 9

[routes.marketing]
queue = "marketing"
limits = ["provider"]
retry.max = "2m"
results.exchange = "other"

[routes.marketing.downstream]
headers.b = "3"

[routes.centre]
queue = "centre"

[routes.centre.downstream]
kind = "smpp"
url = "smpp://127.0.0.1:2775"
window = 20
system_id = "sms"
password = "secret"
source = "1"
destination = "{{ body.to }}"
text = "{{ body.text }}"
"#;

#[test]
fn each_route_has_what_it_does_not_write_itself() {
    let files = Files::new(&[THREE]);
    let variables = [("SLUICED__DEFAULTS__ROUTE__PREFETCH", "60")];
    let loaded = files.load(&variables).expect("it loads");
    let routes = &loaded.settings.routes;
    let passwords = &routes["passwords"];
    assert_eq!(passwords.limits, ["provider", "recipient"]);
    assert_eq!(
        routes["marketing"].limits,
        ["provider"],
        "a list as a whole"
    );
    assert!(routes.values().all(|route| route.prefetch == Some(60)));
    let shown = files.short(&shown(&loaded).join("\n"));
    for line in [
        "routes.passwords.prefetch = 60  # SLUICED__DEFAULTS__ROUTE__PREFETCH",
        "routes.passwords.downstream.timeout = \"3s\"  # a.toml:18",
        "routes.passwords.downstream.headers.b = \"***\"  # a.toml:19",
        "routes.marketing.retry.base = \"2s\"  # a.toml:12",
        "routes.marketing.retry.max = \"2m\"  # a.toml:28",
        "routes.marketing.downstream.headers.a = \"***\"  # a.toml:19",
        "routes.marketing.downstream.headers.b = \"***\"  # a.toml:32",
        "routes.centre.downstream.timeout = \"10s\"  # default",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} in {shown}"
        );
    }
    assert!(matches!(routes["centre"].downstream, Downstream::Smpp(_)));
}

/// A fault is reported once, where it was written; what only a route can have wrong names that route.
#[test]
fn faults_have_the_place_of_what_was_given() {
    let wrong = |from: &str, to: &str| {
        assert!(THREE.contains(from), "{from}");
        lines(&[&THREE.replace(from, to)], &[])
    };
    assert_eq!(
        wrong("prefetch =", "prefetcch ="),
        ["a.toml:11:1: defaults.route.prefetcch: unknown key; did you mean `prefetch`?"]
    );
    assert_eq!(
        wrong("prefetch = 50", "prefetch = 70000"),
        [
            "a.toml:11:12: defaults.route.prefetch: `70000` does not fit; a whole number from 1 to 65535 is needed"
        ]
    );
    assert_eq!(
        wrong("[\"provider\", \"recipient\"]", "[\"provider\", 5]"),
        [
            "a.toml:10:23: defaults.route.limits[1]: a number where a text is needed; write it in quotes"
        ]
    );
    assert_eq!(
        wrong(
            "[\"provider\", \"recipient\"]",
            "[\"provider\", \"recipent\"]"
        )[0],
        "a.toml:10:23: routes.centre.limits[1]: no limit has the name `recipent`; did you mean \"recipient\"?"
    );
}

#[test]
fn what_each_route_writes_itself_is_no_default() {
    let with = |line: &str| lines(&[THREE, &format!("[defaults.route]\n{line}\n")], &[]);
    assert_eq!(
        with("queue = \"sms\""),
        [
            "b.toml:2:1: defaults.route.queue: each route names its own queue; write it in [routes.NAME]"
        ]
    );
    assert_eq!(
        with("downstream.timeout = \"1s\""),
        ["b.toml:2:1: defaults.route.downstream: write these keys in [defaults.downstream]"]
    );
    let without_kind = lines(&[&THREE.replace("kind = \"http\"\n", "")], &[]);
    assert_eq!(
        without_kind[0],
        "a.toml:15:11: defaults.downstream.kind: missing; write `kind = \"http\" or \"smpp\"`"
    );
}
