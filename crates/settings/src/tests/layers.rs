//! The order of layers, and variables.

use secrecy::ExposeSecret as _;

use super::{Files, GOOD, lines};
use crate::{Effective, Extra, KeyPath, Loaded, Needs, Place, load_with};

fn origin<'a>(loaded: &'a Loaded, steps: &[&str]) -> &'a Effective {
    let path = KeyPath::of(steps);
    let mut all = loaded.origins.all().iter();
    all.find(|value| value.path == path).expect("a value")
}

#[test]
fn later_files_win_and_variables_win_over_all() {
    let files = Files::new(&[
        GOOD,
        "[routes.sms]\nmax_attempts = 7\nprefetch = 200\n[redis]\nprefix = \"b\"\n",
        "[routes.sms]\nmax_attempts = 8\n",
    ]);
    let loaded = files
        .load(&[("SLUICED__REDIS__PREFIX", "c"), ("PATH", "/bin")])
        .expect("it loads");
    assert_eq!(loaded.settings.redis.prefix, "c");
    let route = &loaded.settings.routes["sms"];
    assert_eq!((route.max_attempts, route.prefetch), (8, Some(200)));
    assert_eq!(route.queue, "sms");
    let shown = |steps: &[&str]| files.short(&origin(&loaded, steps).to_string());
    assert_eq!(
        shown(&["routes", "sms", "max_attempts"]),
        "routes.sms.max_attempts = 8  # c.toml:2"
    );
    assert_eq!(
        shown(&["redis", "prefix"]),
        "redis.prefix = \"c\"  # SLUICED__REDIS__PREFIX"
    );
    assert_eq!(
        shown(&["routes", "sms", "retry", "base"]),
        "routes.sms.retry.base = \"1s\"  # default"
    );
    assert_eq!(origin(&loaded, &["service", "grace"]).place, Place::Default);
}

#[test]
fn variables_carry_lists_numbers_flags_and_names() {
    let text = GOOD
        .replace("sms]", "sms-Out]")
        .replace("sms.down", "sms-Out.down");
    let files = Files::new(&[&text, "[limits.b]\nrate = \"1/1s\"\n"]);
    let loaded = files
        .load(&[
            ("SLUICED__RABBITMQ__URLS", "amqp://a:x@h1, amqp://a:x@h2"),
            ("SLUICED__ROUTES__SMS_OUT__LIMITS", "[\"b\"]"),
            ("SLUICED__ROUTES__SMS_OUT__PREFETCH", "12"),
            ("SLUICED__ROUTES__SMS_OUT__DECLARE", "true"),
            ("SLUICED__ROUTES__SMS_OUT__QUEUE", "12"),
            (
                "SLUICED__ROUTES__SMS_OUT__DOWNSTREAM__WARM_CONNECTIONS",
                "9",
            ),
            (
                "SLUICED__ROUTES__SMS_OUT__DOWNSTREAM__HEADERS__X_API_KEY",
                "k",
            ),
            ("SLUICED__LIMITS__B__RATE", "20/1s"),
        ])
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    let urls = &loaded.settings.rabbitmq.urls;
    assert_eq!(urls[1].expose_secret(), "amqp://a:x@h2");
    let route = &loaded.settings.routes["sms-Out"];
    assert_eq!(route.limits, ["b"]);
    assert_eq!((route.prefetch, route.declare), (Some(12), true));
    assert_eq!(route.queue, "12");
    let crate::types::Downstream::Http(http) = &route.downstream else {
        panic!("another kind");
    };
    assert_eq!(http.warm_connections, 9);
    assert_eq!(http.headers["x-api-key"], "k");
}

#[test]
fn a_configuration_of_variables_alone_works() {
    let said = lines(
        &[],
        &[
            ("SLUICED__LIMITS__P__RATE", "1/1s"),
            ("SLUICED__ROUTES__R__QUEUE", "q"),
            ("SLUICED__ROUTES__R__LIMITS", "p"),
            ("SLUICED__ROUTES__R__DOWNSTREAM__KIND", "http"),
            ("SLUICED__ROUTES__R__DOWNSTREAM__URL", "http://h/"),
        ],
    );
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn wrong_variables_are_named() {
    assert_eq!(
        lines(
            &[GOOD],
            &[
                ("SLUICED__REDIS__URI", "redis://h"),
                ("SLUICED__REDIS", "redis://h"),
                ("SLUICED__ROUTES__SMS__PREFETCH", "many"),
                ("SLUICED__LIMITS__PROVIDER__RATE", "400"),
                ("SLUICED__ROUTES__SMS__", "1"),
                ("SLUICED__RDIS__URL", "redis://h"),
                ("SLUICED__ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", "1"),
            ]
        ),
        [
            "SLUICED__LIMITS__PROVIDER__RATE: limits.provider.rate: `400` is no rate; write units per window, such as \"400/1s\" or \"5/1h\"",
            "SLUICED__RDIS__URL: no key has this name; did you mean SLUICED__REDIS__URL?",
            "SLUICED__REDIS: no key has this name; write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL",
            "SLUICED__REDIS__URI: no key has this name; did you mean SLUICED__REDIS__URL?",
            "SLUICED__ROUTES__SMS__: no key has this name; write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL",
            "SLUICED__ROUTES__SMS__PREFETCH: routes.sms.prefetch: `many` does not fit; a whole number from 1 to 65535 is needed",
            "SLUICED__ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ: no key has this name; write SLUICED__<TABLE>__<KEY>, such as SLUICED__REDIS__URL",
        ]
    );
}

/// Such a mistake is not ignored, because the operator believes that the key is set.
#[test]
fn variables_with_other_underscores_are_told_the_right_name() {
    let text = GOOD
        .replace("sms]", "sms-out]")
        .replace("sms.down", "sms-out.down");
    let said = |name: &str| lines(&[&text], &[(name, "hunter2")]);
    for (slip, right) in [
        ("SLUICED_REDIS_URL", "SLUICED__REDIS__URL"),
        ("SLUICED_REDIS__URL", "SLUICED__REDIS__URL"),
        ("SLUICED__REDIS_URL", "SLUICED__REDIS__URL"),
        ("SLUICED__REDIS__URL__", "SLUICED__REDIS__URL"),
        (
            "SLUICED_REDIS_CONNECT_TIMEOUT",
            "SLUICED__REDIS__CONNECT_TIMEOUT",
        ),
        (
            "SLUICED_LIMITS_PROVIDER_RATE",
            "SLUICED__LIMITS__PROVIDER__RATE",
        ),
        (
            "SLUICED_ROUTES_SMS_OUT_MAX_HOLD",
            "SLUICED__ROUTES__SMS_OUT__MAX_HOLD",
        ),
        (
            "SLUICED_ROUTES_SMS_OUT_DOWNSTREAM_HEADERS_X_API_KEY",
            "SLUICED__ROUTES__SMS_OUT__DOWNSTREAM__HEADERS__X_API_KEY",
        ),
        ("SLUICED_ROUTES_NEW_QUEUE", "SLUICED__ROUTES__NEW__QUEUE"),
    ] {
        let message = "no key has this name; write two underscores between its steps";
        assert_eq!(said(slip), [format!("{slip}: {message}: {right}")]);
    }
    // What Kubernetes sets for services called sluiced and sluiced-redis.
    for other in [
        "SLUICED_PORT",
        "SLUICED_PORT_9464_TCP_ADDR",
        "SLUICED_SERVICE_HOST",
        "SLUICED_SERVICE_PORT",
        "SLUICED_REDIS_PORT",
        "SLUICED_REDIS_SERVICE_HOST",
        "SLUICED_",
    ] {
        assert_eq!(said(other), Vec::<String>::new(), "{other}");
    }
}

#[test]
fn a_variable_that_fits_two_names_is_refused() {
    let text = "[limits.a-b]\nrate = \"1/1s\"\n[limits.a_b]\nrate = \"1/1s\"\n";
    let said = lines(&[GOOD, text], &[("SLUICED__LIMITS__A_B__RATE", "2/1s")]);
    assert!(
        said.contains(&"SLUICED__LIMITS__A_B__RATE: it fits limits.a-b.rate and limits.a_b.rate; set it in a file".to_owned()),
        "{said:?}"
    );
}

/// A dot or a bracket in a name is no path through the tree.
#[test]
fn a_quoted_name_at_the_top_is_a_name() {
    let said = lines(
        &[&format!(
            "\"redis.url\" = \"x\"\n\"a[999999999]\" = 1\n{GOOD}"
        )],
        &[],
    );
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("a.toml:1:1: \"redis.url\": unknown key"),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("a.toml:2:1: \"a[999999999]\": unknown key"),
        "{said:?}"
    );
}

#[test]
fn lists_are_replaced_and_tables_are_merged() {
    let files = Files::new(&[
        GOOD,
        "[rabbitmq]\nurls = [\"amqp://a:x@h1\", \"amqp://a:x@h2\"]\n",
        "[rabbitmq]\nurls = [\"amqp://a:x@h3\"]\n",
    ]);
    let loaded = files.load(&[]).expect("it loads");
    let urls = &loaded.settings.rabbitmq.urls;
    assert_eq!((urls.len(), urls[0].expose_secret()), (1, "amqp://a:x@h3"));
    let place = &origin(&loaded, &["rabbitmq", "urls"]).place;
    assert_eq!(files.short(&place.to_string()), "c.toml:2:8");
}

/// If several layers have the same key, only the last one counts, and its fault is shown where it was
/// written.
#[test]
fn a_fault_stands_where_the_layer_that_wins_was_written() {
    let right = "rate = \"400/1s\"";
    let (first, second) = ("rate = \"first\"", "  rate   = \"second\"");
    let (wrong, variable) = (
        "is no rate; write units per window",
        "SLUICED__LIMITS__PROVIDER__RATE",
    );
    let lower = GOOD.replace(right, first);
    let upper = format!("# above\n[limits.provider]\n{second}\n");
    for (files, env, said) in [
        (
            vec![lower.as_str()],
            vec![],
            "a.toml:2:8: limits.provider.rate: `first`",
        ),
        (
            vec![GOOD, &upper],
            vec![],
            "b.toml:3:12: limits.provider.rate: `second`",
        ),
        (
            vec![&lower, &upper],
            vec![],
            "b.toml:3:12: limits.provider.rate: `second`",
        ),
        (
            vec![&lower, &upper],
            vec![(variable, "third")],
            "SLUICED__LIMITS__PROVIDER__RATE: limits.provider.rate: `third`",
        ),
    ] {
        let lines = lines(&files, &env);
        let [line] = &lines[..] else {
            panic!("one fault, not {lines:?}");
        };
        assert!(line.starts_with(&format!("{said} {wrong}")), "{line}");
    }
    // A valid value in an upper layer replaces a wrong one below.
    let right = lines(&[&lower, &upper], &[(variable, "400/1s")]);
    assert_eq!(right, Vec::<String>::new());
}

/// Every layer has these tables, each with a fault of its own: each is shown at its own place.
#[test]
fn faults_of_all_layers_are_shown_at_once() {
    let lower = GOOD.replace("queue = \"sms\"\n", "prefetch = 0\nmax_attempts = 0\n");
    let upper = "[routes.sms]\nmax_attempts = 9\nmax_hold = \"long\"\nmax_hld = \"1s\"\n";
    let env = [
        ("SLUICED__ROUTES__SMS__PREFETCH", "many"),
        ("SLUICED__ROUTES__SMS__DOWNSTREAM__URL", "ftp://h"),
    ];
    let said = lines(&[&lower, upper], &env);
    let begins = [
        "b.toml:1:9: routes.sms.queue: missing",
        "b.toml:3:12: routes.sms.max_hold: `long` is no duration",
        "b.toml:4:1: routes.sms.max_hld: unknown key; did you mean `max_hold`?",
        "SLUICED__ROUTES__SMS__DOWNSTREAM__URL: routes.sms.downstream.url: this URL must start with",
        "SLUICED__ROUTES__SMS__PREFETCH: routes.sms.prefetch: `many` does not fit",
    ];
    assert_eq!(said.len(), begins.len(), "{said:#?}");
    for (line, begin) in said.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
}

/// A table that a variable adds to still has its place in the file; one that only variables made has only
/// their names.
#[test]
fn a_table_stands_in_a_file_if_one_has_it() {
    let text = GOOD.replace("queue = \"sms\"\n", "");
    let said = lines(&[&text], &[("SLUICED__ROUTES__SMS__PREFETCH", "9")]);
    assert!(
        said[0].starts_with("a.toml:4:9: routes.sms.queue: missing"),
        "{said:?}"
    );
    let said = lines(&[GOOD], &[("SLUICED__LIMITS__MORE__KIND", "gcra")]);
    let missing = "SLUICED__LIMITS__MORE__KIND: limits.more.rate: missing";
    assert!(said[0].starts_with(missing), "{said:?}");
}

/// An element of a list has its place in the layer whose list counts.
#[test]
fn a_fault_of_an_element_stands_where_its_list_was_written() {
    let text = format!("{GOOD}[rabbitmq]\nurls = [\"amqp://h\"]\n");
    let said = lines(&[&text], &[("SLUICED__RABBITMQ__URLS", "nonsense")]);
    let begin = "SLUICED__RABBITMQ__URLS: rabbitmq.urls[0]: this is no URL";
    assert!(said[0].starts_with(begin), "{said:?}");
}

/// A missing section is not missing in a particular variable.
#[test]
fn a_fault_of_the_whole_has_no_place() {
    let said = lines(&[], &[("SLUICED__REDIS__PREFIX", "x")]);
    assert!(
        said[0].starts_with("configuration: routes: no route"),
        "{said:?}"
    );
}

/// Names stay as they are written, whatever `config` would make of them in a path.
#[test]
fn names_with_dots_dashes_and_capitals_are_kept() {
    let text = GOOD.replace("provider", "\"A.b-C[0]\"");
    let text = text.replace("limits = [\"\"A.b-C[0]\"\"]", "limits = [\"A.b-C[0]\"]");
    let said = lines(&[&text, "[limits.\"A.b-C[0]\"]\nheadroom = \"7ms\"\n"], &[]);
    assert_eq!(
        said,
        [
            "b.toml:1:9: limits.\"A.b-C[0]\": this name does not work; write letters, digits, `_`, `-` and `.`"
        ]
    );
    let named = GOOD.replace("provider", "Acme.eu-1");
    let named = named.replace("[limits.Acme.eu-1]", "[limits.\"Acme.eu-1\"]");
    let loaded = Files::new(&[&named]).load(&[("SLUICED__LIMITS__ACME_EU_1__HEADROOM", "7ms")]);
    let loaded = loaded
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    let limit = &loaded.settings.limits["Acme.eu-1"];
    assert_eq!(limit.headroom().all(), std::time::Duration::from_millis(7));
}

#[test]
fn what_a_command_was_told_counts_above_variables() {
    let files = Files::new(&[&format!("{GOOD}[limits.x]\nrate = \"400/1s\"\n")]);
    let extra = Extra {
        name: "the arguments".to_owned(),
        text: "[limits.x]\nrate = \"90/1s\"\n".to_owned(),
    };
    let variable = ("SLUICED__LIMITS__X__RATE", "100/1s");
    let variables = [variable].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let loaded = load_with(Needs::All, &files.paths, Some(extra), variables.into_iter());
    let limits = loaded.expect("it loads").settings.limits;
    assert!(limits["x"].policy_line().contains("rate=90/1s"));
}
