//! Files that are no TOML, wrong shapes, and how faults are shown.

use super::{Files, GOOD, changed, lines, said};
use crate::text::WindowRate;

#[test]
fn a_list_that_is_not_closed() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provider\""),
        [
            "a.toml:8:1: this is no TOML: missing comma between array elements, expected `,`; perhaps a list above is not closed: write `]` at its end"
        ]
    );
}

#[test]
fn a_text_that_is_not_closed() {
    assert_eq!(
        changed("\"sms\"\n", "\"sms\n"),
        [
            "a.toml:5:13: this is no TOML: invalid basic string, expected `\"`; a text must end with a quote on its own line"
        ]
    );
}

#[test]
fn a_value_without_quotes() {
    assert_eq!(
        changed("\"400/1s\"", "400/1s"),
        [
            "a.toml:2:8: this is no TOML: string values must be quoted, expected literal string; write the value in quotes"
        ]
    );
}

#[test]
fn a_rate_whose_unit_has_no_number() {
    let said = "`400/s` has no number before its unit; write \"400/1s\"";
    let at = format!("a.toml:2:8: limits.provider.rate: {said}");
    assert_eq!(changed("400/1s", "400/s"), [at]);
    let window = "[limits.quota]\nkind = \"fixed_window\"\nrate = \"10/d\"\n";
    let window = GOOD.replace("[routes.sms]", &format!("{window}\n[routes.sms]"));
    let window = window.replace("[\"provider\"]", "[\"provider\", \"quota\"]");
    let said = lines(&[&window], &[]);
    assert!(said[0].ends_with("write \"10/1d\""), "{said:?}");
}

#[test]
fn windows_have_durations_and_words() {
    for text in ["10/1d", "1000/month", "5/250ms", "1/week"] {
        let rate: WindowRate = text.parse().expect(text);
        assert_eq!(rate.to_string(), text);
    }
    let spaced: WindowRate = " 1_000 / day ".parse().expect("spaces");
    assert_eq!(spaced.to_string(), "1000/day");
    for text in [
        "10/days",
        "0/day",
        "x/day",
        "10",
        "/day",
        "10/",
        "99999999/day",
    ] {
        assert!(text.parse::<WindowRate>().is_err(), "{text}");
    }
}

#[test]
fn a_header_that_is_not_closed() {
    assert_eq!(
        changed("[routes.sms]", "[routes.sms"),
        ["a.toml:4:12: this is no TOML: unclosed table, expected `]`"]
    );
}

#[test]
fn a_key_twice() {
    assert_eq!(
        changed("[routes.sms]", "[routes.sms]\nqueue = \"a\""),
        [
            "a.toml:6:1: this is no TOML: duplicate key; it stands above already: take one of them out"
        ]
    );
}

#[test]
fn a_syntax_error_hides_no_wrong_value_elsewhere() {
    assert_eq!(
        changed("\"400/1s\"", "\"400\"\nheadroom = 5ms"),
        [
            "a.toml:2:8: limits.provider.rate: `400` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"",
            "a.toml:3:12: this is no TOML: string values must be quoted, expected literal string; write the value in quotes"
        ]
    );
}

#[test]
fn an_unknown_kind_close_to_a_known_one() {
    assert_eq!(
        changed("\"http\"", "\"htp\"\nfoo = 1"),
        [
            "a.toml:9:8: routes.sms.downstream.kind: `htp` is no kind; write \"http\" or \"smpp\"; did you mean \"http\"?",
            "a.toml:10:1: routes.sms.downstream.foo: unknown key; known here: url, allowed_hosts, method, headers, body, auth, timeout, connect_timeout, latency, http, warm_connections, idle_timeout, max_connection_age, proxy, proxy_password_file, no_proxy, ca_file, cert_file, key_file, breaker, outcomes, outcome, wait, keep_answer, quota, throttles, throttle_wait, max_throttle_wait"
        ]
    );
}

#[test]
fn a_kind_that_does_not_exist() {
    assert_eq!(
        changed("rate", "kind = \"leaky\"\nrate"),
        [
            "a.toml:2:8: limits.provider.kind: `leaky` is no kind; write \"paced\" or \"gcra\" or \"token_bucket\" or \"fixed_window\" or \"sliding_log\" or \"concurrency\" or \"once\""
        ]
    );
}

#[test]
fn no_kind() {
    assert_eq!(
        changed("kind = \"http\"\nurl = \"http://", "url = \"ftp://"),
        ["a.toml:8:13: routes.sms.downstream.kind: missing; write `kind = \"http\" or \"smpp\"`",]
    );
}

#[test]
fn no_queue() {
    assert_eq!(
        changed("queue = \"sms\"\n", ""),
        ["a.toml:4:9: routes.sms.queue: missing; write it, such as `queue = \"sms\"`"]
    );
}

#[test]
fn no_downstream() {
    assert_eq!(
        changed(
            "[routes.sms.downstream]\nkind = \"http\"\nurl = \"http://127.0.0.1:8080/send\"\n",
            ""
        ),
        [
            "a.toml:4:9: routes.sms.downstream: missing; write a table `[routes.sms.downstream]`, or `downstream = { kind = \"http\", url = \"http://127.0.0.1:8080/send\" }`"
        ]
    );
}

#[test]
fn a_route_full_of_faults() {
    assert_eq!(
        changed(
            "[\"provider\"]",
            "[\"provider\"]\nprefetch = 0\nmax_attempts = 0\nqueue_type = \"qorum\"\nmax_hold = \"20m\"\nmax_body = \"5\"\ndeclare = \"yes\"\nmax_age = \"0s\"\nretry = { base = \"10m\", max = \"1m\" }\non_denied = \"drop\"\nmax_hld = \"1s\""
        ),
        [
            "a.toml:7:12: routes.sms.prefetch: `0` does not fit; a whole number from 1 to 65535 is needed",
            "a.toml:8:16: routes.sms.max_attempts: `0` does not fit; a whole number from 1 to 1000000 is needed",
            "a.toml:9:14: routes.sms.queue_type: `qorum` is not possible; write \"classic\" or \"quorum\"; did you mean \"quorum\"?",
            "a.toml:10:12: routes.sms.max_hold: 20m is half of the broker's ack timeout of 30m or more; write less than 15m",
            "a.toml:11:12: routes.sms.max_body: `5` is no size; write a number with its unit, such as \"64KiB\" or \"1MiB\"",
            "a.toml:12:11: routes.sms.declare: `yes` is no flag; write true or false",
            "a.toml:13:11: routes.sms.max_age: `0s` is no time at all; it must be above zero",
            "a.toml:14:18: routes.sms.retry.base: 10m is longer than retry.max of 1m; write 1m or less",
            "a.toml:15:13: routes.sms.on_denied: `drop` is not possible; write \"hold\" or \"delay\" or \"nack\" or \"dead_letter\"",
            "a.toml:16:1: routes.sms.max_hld: unknown key; did you mean `max_hold`?"
        ]
    );
}

#[test]
fn tables_that_are_none() {
    assert_eq!(
        lines(&["limits = 5\nadmin = 6\nx = 1.5\nroutes = []\n"], &[]),
        [
            "a.toml:1:1: limits: a number where a table is needed; write `[limits]` and its keys below",
            "a.toml:2:1: admin: a number where a table is needed; write `[admin]` and its keys below",
            "a.toml:3:1: x: unknown key; known here: rabbitmq, redis, admin, log, service, backend, embedded, secrets, limits, routes, callers, defaults",
            "a.toml:4:1: routes: a list where a table is needed; write `[routes]` and its keys below",
        ]
    );
}

#[test]
fn a_fault_shows_its_key_and_value_with_a_caret() {
    assert_eq!(
        said(
            &[
                GOOD,
                "[limits.provider]\nrate   = \"400\"  # per second\nheadrom = \"5ms\"\n"
            ],
            &[]
        ),
        "\
error: limits.provider.rate: `400` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"
 --> b.toml:2:10
  |
2 | rate   = \"400\"
  |          ^^^^^

error: limits.provider.headrom: unknown key; did you mean `headroom`?
 --> b.toml:3:1
  |
3 | headrom = …
  | ^^^^^^^

"
    );
}

/// The text beside a fault on its line may be a secret.
#[test]
fn a_fault_shows_its_part_of_a_line_at_its_column() {
    let below = |text: &str| said(&[&format!("{GOOD}{text}\n")], &[]);
    assert_eq!(
        below("auth = { token = \"hunter2\", kind = \"baerer\" }"),
        "\
error: routes.sms.downstream.auth.kind: `baerer` is no kind; write \"basic\" or \"bearer\" or \"hmac\" or \"oauth2\" or \"jwt\" or \"aws_sigv4\"; did you mean \"bearer\"?
  --> a.toml:11:36
   |
11 | ...                   kind = \"baerer\"
   |                              ^^^^^^^^

"
    );
}

/// A variable has no line: its name is the place.
#[test]
fn a_fault_of_a_variable_names_it() {
    assert_eq!(
        said(&[GOOD], &[("SLUICED__ROUTES__SMS__PREFETCH", "many")]),
        "\
error: routes.sms.prefetch: `many` does not fit; a whole number from 1 to 65535 is needed
--> SLUICED__ROUTES__SMS__PREFETCH

"
    );
}

/// Nine faults or more: a line each, so that they fit one screen.
#[test]
fn many_faults_stay_on_one_screen() {
    let text: String = (0..9).map(|i| format!("[routes.r{i}]\n")).collect();
    let said = said(&[&text], &[]);
    assert_eq!(said.lines().count(), 27);
    assert!(!said.contains('^'));
}

#[test]
fn colours_come_only_when_they_are_wanted() {
    for text in ["x = 1", "a=1\nb=1\nc=1\nd=1\ne=1\nf=1\ng=1\nh=1"] {
        let files = Files::new(&[text]);
        let faults = files.load(&[]).expect_err("an unknown key");
        assert!(faults.render(true).contains("\x1b["));
        assert!(!faults.render(false).contains('\x1b'));
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let binary = dir.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).expect("a file");
    let files = [dir.path().join("none.toml"), dir.path().to_owned(), binary];
    let faults = crate::load(&files, std::iter::empty()).expect_err("no file");
    let dir = dir.path().display().to_string();
    assert_eq!(
        faults.to_string().replace(&dir, "DIR"),
        "DIR/none.toml: the file cannot be read: No such file or directory (os error 2)
DIR: this is a directory; name a file
DIR/binary.toml: the file is no text in UTF-8"
    );
}

proptest::proptest! {
    /// Whatever is cut out of a file or inserted into it, loading returns a result and does not
    /// panic.
    #[test]
    fn damaged_files_are_answered(
        from in 0..GOOD.len(),
        length in 0..40_usize,
        put in "[\\[\\]{}='\"a-z0-9.#\\n é]{0,6}",
    ) {
        let to = (from + length).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..from], &GOOD[to..]);
        let files = Files::new(&[&text]);
        if let Err(faults) = files.load(&[]) {
            proptest::prop_assert!(faults.count(crate::Severity::Error) > 0);
            proptest::prop_assert!(!faults.render(true).is_empty());
        }
    }
}
