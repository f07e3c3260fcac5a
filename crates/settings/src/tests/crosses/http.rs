//! Downstreams: times, templates, headers, secrets, outcomes.

use super::below;
use crate::tests::{GOOD, changed, lines};

#[test]
fn times_and_method() {
    assert_eq!(
        below("timeout = \"1m\"\nmethod = \"post\"\nlatency = \"2m\"\nconnect_timeout = \"2m\""),
        [
            "a.toml:4:9: warning: routes.sms.prefetch: the default of 10000 messages do not keep 400/1s busy at a latency of 2m: one replica alone needs 48000 or more; write 48000, or run more replicas",
            "a.toml:11:11: routes.sms.downstream.timeout: 1m is longer than service.grace of 20s: a stop would cut calls off; write 20s or less, or a longer grace",
            "a.toml:12:10: routes.sms.downstream.method: `post` is no method; write \"POST\"",
            "a.toml:13:11: routes.sms.downstream.latency: 2m is longer than timeout of 1m; write 1m or less",
            "a.toml:14:19: routes.sms.downstream.connect_timeout: 2m is longer than timeout of 1m; write 1m or less"
        ]
    );
}

#[test]
fn throttle_and_templates() {
    assert_eq!(
        below("method = \"P T\"\nbody = \"{{ body.x \"\nthrottle_wait = \"2h\""),
        [
            "a.toml:11:10: routes.sms.downstream.method: `P T` is no method; write \"POST\"",
            "a.toml:12:1: routes.sms.downstream.body: this template is wrong in line 1: unexpected end of input, expected end of variable block; write {{ body.field }} for a value",
            "a.toml:13:17: routes.sms.downstream.throttle_wait: 2h is longer than max_throttle_wait of 1h; write 1h or less"
        ]
    );
}

#[test]
fn unknown_variables() {
    assert_eq!(
        below(
            "body = \"{{ bdy.x }}{% for i in range(3) %}{{ i }}{% endfor %}\"\nca_file = \"/dev/null\""
        ),
        [
            "a.toml:11:1: routes.sms.downstream.body: templates know no `bdy`; did you mean `body`?",
            "a.toml:12:11: routes.sms.downstream.ca_file: `/dev/null` holds no certificate; a PEM file with `-----BEGIN CERTIFICATE-----` is needed"
        ]
    );
}

#[test]
fn a_proxy_and_its_user() {
    assert_eq!(
        below("proxy = \"http://app:s3cret@proxy:3128\""),
        [
            "a.toml:11:1: routes.sms.downstream.proxy: write the password into a file, and its name into proxy_password_file"
        ]
    );
    assert_eq!(
        below("proxy = \"https://proxy:3128\""),
        [
            "a.toml:11:1: routes.sms.downstream.proxy: proxies are asked over http:// only (calls to https:// are encrypted all the way); write one such as \"http://proxy.example:3128\""
        ]
    );
    assert_eq!(
        below("proxy = \"http://app@proxy:3128\""),
        [
            "a.toml:11:1: routes.sms.downstream.proxy: the proxy's user has no password; write proxy_password_file"
        ]
    );
    assert_eq!(
        below("proxy = \"http://proxy:3128\"\nproxy_password_file = \"/dev/null\""),
        [
            "a.toml:12:23: routes.sms.downstream.proxy_password_file: the password belongs to no user; write one into proxy, such as \"http://user@proxy.example:3128\""
        ]
    );
}

#[test]
fn hosts_without_a_proxy() {
    let right = "write a name (\"internal.example\", with all names below it), an address, or a network (\"10.0.0.0/8\")";
    let wrong = ["*.example", "host:8080", "10.0.0.0/33", "http://host", ""];
    let fine = [
        "internal.example",
        ".example",
        "10.0.0.0/8",
        "::1",
        "fd00::/8",
    ];
    for (hosts, faults) in [(&wrong[..], wrong.len()), (&fine[..], 0)] {
        let told = below(&format!(
            "proxy = \"http://proxy:3128\"\nno_proxy = {hosts:?}"
        ));
        assert_eq!(told.len(), faults, "{told:?}");
        assert!(told.iter().all(|fault| fault.ends_with(right)), "{told:?}");
    }
}

/// Other programs on the host go through that proxy, and an operator may expect the same.
#[test]
fn a_proxy_of_the_environment_is_named_as_ignored() {
    let env = [("https_proxy", "http://proxy:3128"), ("HTTP_PROXY", "")];
    let away = GOOD.replace("http://127.0.0.1:8080", "https://api.example");
    let told = lines(&[&away], &env);
    assert_eq!(
        told,
        [
            "a.toml:10:1: warning: routes.sms.downstream.url: https_proxy is set, and is not read; where calls need a proxy, write it as proxy = \"http://proxy.example:3128\", for all of them in [defaults.downstream]"
        ]
    );
    let none: [&str; 0] = [];
    let written = format!("{away}proxy = \"http://proxy:3128\"\n");
    assert_eq!(lines(&[&written], &env), none);
    // A downstream on this host needs none.
    assert_eq!(lines(&[GOOD], &env), none);
}

#[test]
fn headers_of_the_connection_in_both_versions() {
    let headers = "headers = { Keep-Alive = \"timeout=5\", TE = \"trailers\", Upgrade = \"h2c\" }";
    let why = "this header belongs to the connection; take it out";
    for version in ["1.1", "2"] {
        assert_eq!(
            below(&format!("http = \"{version}\"\n{headers}")),
            [
                format!("a.toml:12:13: routes.sms.downstream.headers.Keep-Alive: {why}"),
                format!("a.toml:12:39: routes.sms.downstream.headers.TE: {why}"),
                format!("a.toml:12:56: routes.sms.downstream.headers.Upgrade: {why}"),
            ]
        );
    }
    assert_eq!(
        below("http = \"3\""),
        ["a.toml:11:8: routes.sms.downstream.http: `3` is not possible; write \"1.1\" or \"2\""]
    );
}

#[test]
fn headers() {
    assert_eq!(
        below(
            "headers = { \"a b\" = \"x\", Content-Length = \"5\", authorization = \"{{ body.x }}\", wrong = \"{{ x\", ok = \"a\\nb\" }\nauth = { kind = \"bearer\" }"
        ),
        [
            "a.toml:11:13: routes.sms.downstream.headers.\"a b\": this is no name of a header; write letters, digits and `-`",
            "a.toml:11:26: routes.sms.downstream.headers.Content-Length: this header belongs to the connection; take it out",
            "a.toml:11:48: routes.sms.downstream.headers.authorization: auth sets this header already; take one of them out",
            "a.toml:11:80: routes.sms.downstream.headers.wrong: this template is wrong in line 1: unexpected end of input, expected end of variable block; write {{ body.field }} for a value",
            "a.toml:11:96: routes.sms.downstream.headers.ok: a header's value must be visible ASCII on one line",
            "a.toml:12:1: routes.sms.downstream.auth: no token; write token_file or token"
        ]
    );
}

#[test]
fn two_passwords() {
    assert_eq!(
        below(
            "auth = { kind = \"basic\", user = \"u:v\", password = \"p\", password_file = \"/nowhere\" }"
        ),
        [
            "a.toml:11:33: routes.sms.downstream.auth.user: a user's name must not hold a colon; take it out",
            "a.toml:11:72: routes.sms.downstream.auth.password_file: `password` stands beside it; leave one of the two, better password_file"
        ]
    );
}

#[test]
fn an_unreadable_token() {
    assert_eq!(
        below("auth = { kind = \"bearer\", token_file = \"/nowhere\" }"),
        [
            "a.toml:11:40: routes.sms.downstream.auth.token_file: `/nowhere` cannot be read: No such file or directory (os error 2)"
        ]
    );
}

#[test]
fn credentials_of_aws() {
    let aws = |more: &str| {
        below(&format!(
            "auth = {{ kind = \"aws_sigv4\", region = \"r\", service = \"s\", {more} }}"
        ))
    };
    let none: [&str; 0] = [];
    for fine in [
        "credentials = \"environment\"",
        "credentials = \"container\"",
        "credentials = \"instance\", metadata_url = \"http://[fd00:ec2::254]\"",
    ] {
        assert_eq!(aws(fine), none);
    }
    assert_eq!(
        aws("credentials = \"container\", metadata_url = \"http://localhost\""),
        [
            "a.toml:11:86: routes.sms.downstream.auth.metadata_url: only credentials = \"instance\" asks there; take it out, or write that"
        ]
    );
    assert_eq!(
        aws("credentials = \"environment\", credentials_file = \"/nowhere\", profile = \"p\""),
        [
            "a.toml:11:107: routes.sms.downstream.auth.credentials_file: only credentials = \"file\" reads it; take it out, or write that",
            "a.toml:11:129: routes.sms.downstream.auth.profile: only credentials = \"file\" reads it; take it out, or write that"
        ]
    );
    assert_eq!(
        aws("profile = \"p\""),
        [
            "a.toml:11:1: routes.sms.downstream.auth: no credentials_file; write one such as \"credential:aws\", or say with credentials where else they are"
        ]
    );
    assert_eq!(
        aws("credentials_file = \"/nowhere\""),
        [
            "a.toml:11:78: routes.sms.downstream.auth.credentials_file: `/nowhere` cannot be read: No such file or directory (os error 2)"
        ]
    );
}

#[test]
fn an_unknown_auth() {
    assert_eq!(
        below("auth = { kind = \"digest\", user = \"u\" }"),
        [
            "a.toml:11:17: routes.sms.downstream.auth.kind: `digest` is no kind; write \"basic\" or \"bearer\" or \"hmac\" or \"oauth2\" or \"jwt\" or \"aws_sigv4\""
        ]
    );
}

#[test]
fn templates_of_a_signature() {
    assert_eq!(
        below(
            "auth = { kind = \"hmac\", secret = \"s\", algorithm = \"md5\", signed = \"{{ tmestamp }}{{ signature_hex }}\", headers = { x = \"{{ signature }}\", Content-Length = \"1\" } }"
        ),
        [
            "a.toml:11:51: routes.sms.downstream.auth.algorithm: `md5` is not possible; write \"sha1\" or \"sha256\" or \"sha512\"",
            "a.toml:11:58: routes.sms.downstream.auth.signed: templates know no `signature_hex`; known: body, headers, properties, routing_key, exchange, message_id, route, attempt, secret, timestamp, request_method, request_path, request_body; templates know no `tmestamp`; did you mean `timestamp`?",
            "a.toml:11:116: routes.sms.downstream.auth.headers.x: templates know no `signature`; did you mean `signature_hex`?",
            "a.toml:11:139: routes.sms.downstream.auth.headers.Content-Length: this header belongs to the connection; take it out"
        ]
    );
}

#[test]
fn a_signature() {
    assert_eq!(
        below(
            "headers = { X-Sig = \"1\" }\nauth = { kind = \"hmac\", signed = \"{{ timestamp }}\", headers = { x-sig = \"{{ timestamp }}\" } }"
        ),
        [
            "a.toml:11:13: routes.sms.downstream.headers.X-Sig: auth sets this header already; take one of them out",
            "a.toml:12:1: routes.sms.downstream.auth: no secret; write secret_file or secret",
            "a.toml:12:53: routes.sms.downstream.auth.headers: no header has the signature; write one such as x-signature = \"{{ signature_hex }}\""
        ]
    );
    assert_eq!(
        below(
            "auth = { kind = \"hmac\", secret_file = \"/nowhere\", signed = \"x\", headers = { x-sig = \"{{ signature_hex }}\" } }"
        ),
        [
            "a.toml:11:39: routes.sms.downstream.auth.secret_file: `/nowhere` cannot be read: No such file or directory (os error 2)"
        ]
    );
}

#[test]
fn outcomes() {
    assert_eq!(
        below(
            "outcomes = { accepted = [\"200\", \"6xx\", \"timeout\"], permanent = [\"200\", \"99\", \"4xx\"], transient = [409] }"
        ),
        [
            "a.toml:11:33: routes.sms.downstream.outcomes.accepted[1]: `6xx` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\", \"connection\" or \"unreadable\"",
            "a.toml:11:40: routes.sms.downstream.outcomes.accepted[2]: `timeout` is no answer, so nothing can have been accepted; take it out",
            "a.toml:11:65: routes.sms.downstream.outcomes.permanent[0]: `200` stands in `accepted` already; leave it in one list",
            "a.toml:11:72: routes.sms.downstream.outcomes.permanent[1]: `99` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\", \"connection\" or \"unreadable\"",
            "a.toml:11:99: routes.sms.downstream.outcomes.transient[0]: a number where a text is needed; write it in quotes"
        ]
    );
}

#[test]
fn a_host_from_a_message() {
    for url in [
        "{{ body.url }}",
        "http://{{ body.host }}/x",
        "http://h{{ body.x }}",
    ] {
        assert_eq!(
            changed("http://127.0.0.1:8080/send", url),
            [
                "a.toml:10:1: routes.sms.downstream.url: the host comes from a message, which could lead a call anywhere; write the hosts that it may name into allowed_hosts, such as [\"*.example.com\"]"
            ]
        );
    }
    let with = |more: &str| {
        let url = GOOD.replace("http://127.0.0.1:8080/send", "{{ body.url }}");
        lines(&[&format!("{url}{more}\n")], &[])
    };
    let nothing: [&str; 0] = [];
    assert_eq!(
        with("allowed_hosts = [\"*.a.example\", \"b.example:8443\", \"10.0.0.5\", \"[::1]:80\"]"),
        nothing
    );
    assert_eq!(
        with(
            "allowed_hosts = [\"*\"]\nauth = { kind = \"hmac\", secret = \"s\", signed = \"x\", headers = { x = \"{{ signature_hex }}\" } }"
        ),
        nothing
    );
    for (more, fault) in [
        (
            "allowed_hosts = [\"*\"]\nauth = { kind = \"bearer\", token = \"t\" }",
            "routes.sms.downstream.auth: any host that a message names would be shown these credentials",
        ),
        (
            "allowed_hosts = [\"*:8443\"]\nheaders = { x = \"{{ secret.k }}\" }\n[secrets]\nk = \"/dev/null\"",
            "routes.sms.downstream.headers.x: any host that a message names would be shown these credentials",
        ),
        (
            "allowed_hosts = [\"a.example\"]\nbreaker = { failures = 3 }",
            "routes.sms.downstream.breaker: it has no effect where hosts differ",
        ),
        (
            "allowed_hosts = [\"a.example\"]\nproxy = \"http://p:3128\"",
            "routes.sms.downstream.proxy: the proxy looks these names up",
        ),
        (
            "allowed_hosts = [\"a.example\"]\nproxy = \"http://p:3128\"\nno_proxy = [\"a.example\"]",
            "routes.sms.downstream.no_proxy: behind a proxy no address is looked at",
        ),
        (
            "allowed_hosts = [\"A.example\"]",
            "write a host in small letters",
        ),
        (
            "allowed_hosts = [\"http://a.example\"]",
            "write a host in small letters",
        ),
        (
            "allowed_hosts = [\"a.example:0\"]",
            "write a host in small letters",
        ),
        (
            "allowed_hosts = [\"*a.example\"]",
            "write a host in small letters",
        ),
    ] {
        let said = with(more).join("\n");
        assert!(said.contains(fault), "{more}: {said}");
    }
    let fixed = lines(&[&format!("{GOOD}allowed_hosts = [\"a.example\"]\n")], &[]);
    assert!(fixed[0].contains("the URL has a fixed host"), "{fixed:?}");
}

#[test]
fn no_host() {
    assert_eq!(
        changed("http://127.0.0.1:8080/send", "http://"),
        [
            "a.toml:10:1: routes.sms.downstream.url: this is no URL (empty host); write one such as \"http://127.0.0.1:8080/send\""
        ]
    );
}

#[test]
fn credentials_in_the_url() {
    assert_eq!(
        changed("http://127", "http://me:x@127"),
        [
            "a.toml:10:1: routes.sms.downstream.url: credentials in this URL are not used; write them as a table auth beside it"
        ]
    );
}

#[test]
fn throttles() {
    assert_eq!(
        below("throttles = \"provder\""),
        [
            "a.toml:11:13: routes.sms.downstream.throttles: the route has no limit `provder`; did you mean \"provider\"?"
        ]
    );
    let scope = "{{ 'provider' if answer.headers['x-scope'] }}";
    for good in ["provider", scope] {
        let none: [&str; 0] = [];
        assert_eq!(below(&format!("throttles = \"{good}\"")), none);
    }
}

#[test]
fn quotas() {
    assert_eq!(
        below(
            "quota.provider = { format = \"github\", remaining = \"{{ answer.status }}\" }\nquota.provder = { spare = 3 }\nquota.b = { format = \"github\", reset = \"1\" }"
        ),
        [
            "a.toml:11:51: routes.sms.downstream.quota.provider.remaining: format names the headers already; take one of the two out",
            "a.toml:12:7: routes.sms.downstream.quota.provder: the route has no limit `provder`; did you mean \"provider\"?",
            "a.toml:12:7: routes.sms.downstream.quota.provder: nothing says where answers have what is left; write format = \"ietf\", or remaining = \"{{ answer.headers['x-left'] }}\"",
            "a.toml:13:7: routes.sms.downstream.quota.b: the route has no limit `b`; name one of its limits",
            "a.toml:13:40: routes.sms.downstream.quota.b.reset: format names the header of the reset already; take reset out"
        ]
    );
    assert_eq!(
        below("quota.provider.remaining = \"{{ anser.status }}\""),
        [
            "a.toml:11:28: routes.sms.downstream.quota.provider.remaining: templates know no `anser`; did you mean `answer`?"
        ]
    );
}

#[test]
fn a_downstream_counts_no_calls_in_flight_and_no_repeats() {
    for (limit, counts) in [
        (
            "kind = \"concurrency\"\nlimit = 3",
            "counts calls in flight",
        ),
        (
            "kind = \"once\"\nkey = \"{{ message_id }}\"",
            "calls each message once",
        ),
    ] {
        let text = GOOD.replace("[\"provider\"]", "[\"provider\", \"x\"]");
        let text = format!("{text}quota.x = {{ format = \"ietf\" }}\n[limits.x]\n{limit}\n");
        let said = lines(&[&text], &[]).join("\n");
        assert!(
            said.contains(&format!("`x` {counts}, and a downstream says")),
            "{said}"
        );
    }
}
