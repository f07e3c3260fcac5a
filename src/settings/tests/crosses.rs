//! What depends on several keys, on files, or on a syntax of its own: exactly what is said.

use super::{GOOD, changed, lines};

/// What is said if this stands above the good configuration.
fn above(text: &str) -> Vec<String> {
    lines(&[&format!("{text}\n{GOOD}")], &[])
}

/// What is said if this stands at the end, within the downstream.
fn below(text: &str) -> Vec<String> {
    lines(&[&format!("{GOOD}{text}\n")], &[])
}

#[test]
fn sections_admin() {
    assert_eq!(
        above("[admin]\nlisten = \"9464\""),
        [
            "a.toml:2:10: admin.listen: `9464` is no address; write HOST:PORT, such as \"127.0.0.1:9464\" or \"[::]:9464\", or \"\" for no listener"
        ]
    );
}

#[test]
fn sections_log() {
    assert_eq!(
        above("[log]\nlevel = \"inf\"\nformat = \"jsn\""),
        [
            "a.toml:2:9: log.level: `inf` is no level; did you mean \"info\"?",
            "a.toml:3:10: log.format: `jsn` is not possible; write \"auto\" or \"human\" or \"json\"; did you mean \"json\"?"
        ]
    );
}

#[test]
fn sections_log_by_module() {
    assert_eq!(
        above("[log]\nlevel = \"info,sluiced=loud\""),
        [
            "a.toml:2:9: log.level: `loud` is no level; write a level (error, warn, info, debug, trace, off) or \"info,sluiced::queue=debug\""
        ]
    );
}

#[test]
fn sections_log_filter() {
    assert_eq!(
        above("[log]\nlevel = \"info,[=debug\""),
        [
            "a.toml:2:9: log.level: `info,[=debug` chooses spans, and there are none; write a level (error, warn, info, debug, trace, off) or \"info,sluiced::queue=debug\""
        ]
    );
}

#[test]
fn sections_grace_below_the_default_timeout() {
    assert_eq!(
        above("[service]\ngrace = \"5s\""),
        [
            "a.toml:10:13: routes.sms.downstream.timeout: 10s is longer than service.grace of 5s: a stop would cut calls off; write 5s or less, or a longer grace"
        ]
    );
}

#[test]
fn sections_memory_limit() {
    assert_eq!(
        above("[backend]\nlimits = \"memory\""),
        [
            "a.toml:2:10: warning: backend.limits: the limit holds for each replica alone; write \"redis\" to share it"
        ]
    );
}

#[test]
fn sections_embedded() {
    assert_eq!(
        above(
            "[backend]\nqueue = \"embedded\"\nlimits = \"memory\"\n[embedded]\ninput = \"/nowhere/x\"\n[routes.b]\nqueue = \"b\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }"
        ),
        [
            "a.toml:2:9: backend.queue: the embedded queue feeds exactly one route, and there are 2; leave one",
            "a.toml:5:9: embedded.input: there is no file `/nowhere/x`; name one, or \"-\" for stdin"
        ]
    );
}

#[test]
fn sections_rabbitmq() {
    assert_eq!(
        above(
            "[rabbitmq]\nurls = [\"http://h\", \"amqp:\", \"x\"]\nca_file = \"/nowhere/ca\"\npassword_file = \"credential:x\"\nheartbeat = \"5ms\"\nack_timeout = \"1s\""
        ),
        [
            "a.toml:2:9: rabbitmq.urls[0]: this URL must start with amqp:// or amqps://; write one such as \"amqp://user@host:5672/%2f\"",
            "a.toml:2:21: rabbitmq.urls[1]: this URL has no host; write one such as \"amqp://user@host:5672/%2f\"",
            "a.toml:2:30: rabbitmq.urls[2]: this is no URL (relative URL without a base); write one such as \"amqp://user@host:5672/%2f\"",
            "a.toml:3:11: rabbitmq.ca_file: `/nowhere/ca` cannot be read: No such file or directory (os error 2)",
            "a.toml:4:17: rabbitmq.password_file: `credential:x` names a systemd credential, but $CREDENTIALS_DIRECTORY is not set; add LoadCredential= to the unit, or write a path",
            "a.toml:5:13: rabbitmq.heartbeat: `5ms` is out of range; write 1s to 1h",
            "a.toml:10:9: routes.sms.prefetch: the default of 500 messages at 400/1s would be held for 1s, beyond half of the broker's ack timeout of 1s; write 200 or less",
            "a.toml:10:9: routes.sms.max_hold: 1s is half of the broker's ack timeout of 1s or more; write less than 500ms"
        ]
    );
}

#[test]
fn sections_no_broker_wrong_redis() {
    assert_eq!(
        above(
            "[rabbitmq]\nurls = []\n[redis]\nurl = \"http://h\"\nprefix = \"{a}\"\nca_file = \"/dev/null\""
        ),
        [
            "a.toml:2:1: rabbitmq.urls: no URL; write one, such as [\"amqp://guest:guest@127.0.0.1:5672/%2f\"]",
            "a.toml:4:1: redis.url: this URL must start with redis:// or rediss://; write one such as \"redis://host:6379/0\"",
            "a.toml:5:10: redis.prefix: a prefix needs visible ASCII characters and no braces; write one such as \"sluiced\"",
            "a.toml:6:11: redis.ca_file: `/dev/null` holds no certificate; a PEM file with `-----BEGIN CERTIFICATE-----` is needed"
        ]
    );
}

#[test]
fn limits_names_and_users() {
    assert_eq!(
        above(
            "[limits.\"a b\"]\nrate = \"1/1s\"\n[limits.unused]\nrate = \"4/1ms\"\nheadroom = \"1ms\""
        ),
        [
            "a.toml:1:9: limits.\"a b\": this name does not work; write letters, digits, `_`, `-` and `.`",
            "a.toml:1:9: warning: limits.\"a b\": no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:3:9: warning: limits.unused: no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:5:12: limits.unused.headroom: 1ms is half of the window of 1ms or more, and would cost as much of the rate; write less than 500us"
        ]
    );
}

#[test]
fn limits_thin_headroom_long_horizon() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/1s\"\nheadroom = \"1ms\"\nhorizon = \"2s\""
        ),
        [
            "a.toml:3:12: warning: limits.provider.headroom: 1ms is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good",
            "a.toml:4:11: limits.provider.horizon: `2s` is out of range; write 20ms to 1s"
        ]
    );
}

#[test]
fn limits_horizon_against_headroom() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/10s\"\nheadroom = \"100ms\""
        ),
        [
            "a.toml:1:9: limits.provider.horizon: 120ms is less than four times the headroom of 100ms; write 400ms or more"
        ]
    );
}

#[test]
fn limits_headroom_beyond_any_horizon() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/10s\"\nheadroom = \"1s\"\nhorizon = \"1s\""
        ),
        [
            "a.toml:4:11: limits.provider.horizon: 1s is less than four times the headroom of 1s; write a headroom of 250ms or less"
        ]
    );
}

#[test]
fn limits_headroom_against_window() {
    assert_eq!(
        changed(
            "rate = \"400/1s\"",
            "rate = \"400/1s\"\nheadroom = \"500ms\""
        ),
        [
            "a.toml:1:9: limits.provider.horizon: 120ms is less than four times the headroom of 500ms; write a headroom of 250ms or less",
            "a.toml:3:12: limits.provider.headroom: 500ms is half of the window of 1s or more, and would cost as much of the rate; write less than 500ms"
        ]
    );
}

#[test]
fn routes_a_limit_that_nobody_defined() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provder\"]"),
        [
            "a.toml:6:11: routes.sms.limits[0]: no limit has the name `provder`; did you mean \"provider\"?"
        ]
    );
}

#[test]
fn routes_two_limits() {
    assert_eq!(
        changed(
            "[\"provider\"]",
            "[\"provider\", \"b\"]\n[limits.b]\nrate = \"1/1s\""
        ),
        [
            "a.toml:6:10: routes.sms.limits: 2 paced limits (provider, b): a message waits for one slot, so a route takes at most one; write kind = \"gcra\" for the others"
        ]
    );
}

#[test]
fn routes_a_limit_twice() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provider\", \"provider\"]"),
        ["a.toml:6:23: routes.sms.limits[1]: `provider` is named twice; name it once"]
    );
}

#[test]
fn routes_no_limit() {
    assert_eq!(
        changed("[\"provider\"]", "[]"),
        [
            "a.toml:1:9: warning: limits.provider: no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:6:10: routes.sms.limits: no limit: nothing would hold the calls of this route back; write [\"NAME\"]"
        ]
    );
}

#[test]
fn routes_one_queue_twice() {
    assert_eq!(
        changed(
            "[routes.sms]",
            "[routes.b]\nqueue = \"sms\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }\n[routes.sms]"
        ),
        [
            "a.toml:9:9: routes.sms.queue: `routes.b` consumes this queue already; one queue, one route"
        ]
    );
}

#[test]
fn routes_a_small_prefetch() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provider\"]\nprefetch = 20"),
        [
            "a.toml:7:12: warning: routes.sms.prefetch: 20 messages do not keep 400/1s busy at a latency of 250ms: one replica alone needs 100 or more; leave it out for 500"
        ]
    );
}

#[test]
fn routes_a_prefetch_beyond_the_ack_timeout() {
    assert_eq!(
        changed(
            "400/1s\"\n\n[routes.sms]",
            "1/1s\"\n\n[routes.sms]\nprefetch = 1000"
        ),
        [
            "a.toml:5:12: routes.sms.prefetch: 1000 messages at 1/1s would be held for 16m40s, beyond half of the broker's ack timeout of 30m; write 900 or less"
        ]
    );
}

#[test]
fn routes_a_slow_rate_is_fine() {
    assert!(changed("400/1s", "4/1h").is_empty());
}

#[test]
fn routes_a_queue_of_the_broker() {
    assert_eq!(
        changed("\"sms\"\n", "\"amq.sms\"\n"),
        [
            "a.toml:5:9: routes.sms.queue: names that start with `amq.` belong to the broker; name a queue of your own"
        ]
    );
}

#[test]
fn http_times_and_method() {
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
fn http_throttle_and_templates() {
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
fn http_unknown_variables() {
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
fn http_headers() {
    assert_eq!(
        below(
            "headers = { \"a b\" = \"x\", Content-Length = \"5\", authorization = \"{{ body.x }}\", wrong = \"{{ x\", ok = \"a\\nb\" }\nauth = { kind = \"bearer\" }"
        ),
        [
            "a.toml:11:13: routes.sms.downstream.headers.\"a b\": this is no name of a header; write letters, digits and `-`",
            "a.toml:11:26: routes.sms.downstream.headers.Content-Length: sluiced sets this header itself; take it out",
            "a.toml:11:48: routes.sms.downstream.headers.authorization: auth sets this header already; take one of them out",
            "a.toml:11:80: routes.sms.downstream.headers.wrong: this template is wrong in line 1: unexpected end of input, expected end of variable block; write {{ body.field }} for a value",
            "a.toml:11:96: routes.sms.downstream.headers.ok: a header's value must be visible ASCII on one line",
            "a.toml:12:1: routes.sms.downstream.auth: no token; write token_file or token"
        ]
    );
}

#[test]
fn http_two_passwords() {
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
fn http_an_unreadable_token() {
    assert_eq!(
        below("auth = { kind = \"bearer\", token_file = \"/nowhere\" }"),
        [
            "a.toml:11:40: routes.sms.downstream.auth.token_file: `/nowhere` cannot be read: No such file or directory (os error 2)"
        ]
    );
}

#[test]
fn http_an_unknown_auth() {
    assert_eq!(
        below("auth = { kind = \"oauth\", user = \"u\" }"),
        [
            "a.toml:11:17: routes.sms.downstream.auth.kind: `oauth` is no kind; write \"basic\" or \"bearer\""
        ]
    );
}

#[test]
fn http_outcomes() {
    assert_eq!(
        below(
            "outcomes = { accepted = [\"200\", \"6xx\", \"timeout\"], permanent = [\"200\", \"99\", \"4xx\"], transient = [409] }"
        ),
        [
            "a.toml:11:33: routes.sms.downstream.outcomes.accepted[1]: `6xx` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\" or \"connection\"",
            "a.toml:11:40: routes.sms.downstream.outcomes.accepted[2]: `timeout` is no answer, so nothing can have been accepted; take it out",
            "a.toml:11:65: routes.sms.downstream.outcomes.permanent[0]: `200` stands in `accepted` already; leave it in one list",
            "a.toml:11:72: routes.sms.downstream.outcomes.permanent[1]: `99` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\" or \"connection\"",
            "a.toml:11:99: routes.sms.downstream.outcomes.transient[0]: a number where a text is needed; write it in quotes"
        ]
    );
}

#[test]
fn http_a_host_from_a_message() {
    assert_eq!(
        changed("http://127.0.0.1:8080/send", "http://{{ body.host }}/x"),
        [
            "a.toml:10:1: routes.sms.downstream.url: the host must not come from a template; write it out"
        ]
    );
}

#[test]
fn http_no_host() {
    assert_eq!(
        changed("http://127.0.0.1:8080/send", "http://"),
        [
            "a.toml:10:1: routes.sms.downstream.url: this is no URL (empty host); write one such as \"http://127.0.0.1:8080/send\""
        ]
    );
}

#[test]
fn http_credentials_in_the_url() {
    assert_eq!(
        changed("http://127", "http://me:x@127"),
        [
            "a.toml:10:1: routes.sms.downstream.url: credentials in this URL are not used; write them as a table auth beside it"
        ]
    );
}

/// What is said about a section `[redis]`.
fn redis(text: &str) -> Vec<String> {
    above(&format!("[redis]\n{text}"))
}

#[test]
fn redis_url_and_urls() {
    assert_eq!(
        redis("urls = [\"redis://a\", \"redis://b\"]"),
        [
            "a.toml:2:1: redis.urls: several URLs are for mode = \"sentinel\" or \"cluster\"; write url for one server"
        ]
    );
    assert_eq!(
        redis("mode = \"cluster\"\nurl = \"redis://a\"\nurls = [\"redis://b\"]"),
        ["a.toml:3:1: redis.url: `urls` stands beside it; leave one of the two, better urls"]
    );
    assert_eq!(
        redis("mode = \"cluster\""),
        [
            "a.toml:2:8: redis.mode: no address of a node; write urls = [\"redis://HOST:6379\", …] with some of them"
        ]
    );
    assert!(redis("mode = \"cluster\"\nurl = \"rediss://seed:7000\"").is_empty());
}

#[test]
fn redis_sentinels() {
    assert_eq!(
        redis("mode = \"sentinel\""),
        [
            "a.toml:2:8: redis.mode: no address of a Sentinel; write urls = [\"redis://HOST:26379\", …]",
            "a.toml:2:8: redis.mode: no name of the group; write sentinel_service, the word after `sentinel monitor`, often \"mymaster\""
        ]
    );
    assert_eq!(
        redis(
            "mode = \"sentinel\"\nurls = [\"redis://:x@a:26379\"]\nsentinel_service = \"m\"\nsentinel_user = \"u\""
        ),
        [
            "a.toml:3:9: redis.urls[0]: credentials of a Sentinel's URL are not used; write user and password_file for Redis, sentinel_user and sentinel_password_file for the Sentinels",
            "a.toml:5:17: redis.sentinel_user: a user needs a password; write sentinel_password_file"
        ]
    );
    assert_eq!(
        redis("sentinel_service = \"m\""),
        [
            "a.toml:2:20: redis.sentinel_service: this is for mode = \"sentinel\"; write that, or take this out"
        ]
    );
}

#[test]
fn redis_urls_that_disagree() {
    assert_eq!(
        redis(
            "mode = \"cluster\"\nurls = [\"redis://u:p@a/1\", \"redis://u:p@b:7000/1\", \"redis://u:q@c/1\"]"
        ),
        [
            "a.toml:3:9: redis.urls[0]: a cluster has no databases; write the URL without one",
            "a.toml:3:28: redis.urls[1]: a cluster has no databases; write the URL without one",
            "a.toml:3:52: redis.urls[2]: a cluster has no databases; write the URL without one",
            "a.toml:3:52: redis.urls[2]: this URL differs from the first one in more than host and port; write the same scheme, user, password and database in all"
        ]
    );
}

#[test]
fn redis_users_and_certificates() {
    assert_eq!(
        redis("user = \"u\"\nca_file = \"/nowhere/ca\"\ncert_file = \"/dev/null\""),
        [
            "a.toml:2:8: redis.user: a user needs a password; write password_file",
            "a.toml:3:11: redis.ca_file: certificates are for TLS; write rediss:// in the URL, or take this out",
            "a.toml:3:11: redis.ca_file: `/nowhere/ca` cannot be read: No such file or directory (os error 2)",
            "a.toml:4:13: redis.cert_file: certificates are for TLS; write rediss:// in the URL, or take this out",
            "a.toml:4:13: redis.cert_file: a certificate needs its key; write key_file",
            "a.toml:4:13: redis.cert_file: `/dev/null` holds no certificate; a PEM file with `-----BEGIN CERTIFICATE-----` is needed"
        ]
    );
}
