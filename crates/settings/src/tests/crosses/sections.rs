//! The tables beside limits and routes, and servers that are missing.

use super::above;

#[test]
fn admin() {
    assert_eq!(
        above("[admin]\nlisten = \"9464\""),
        [
            "a.toml:2:10: admin.listen: `9464` is no address; write HOST:PORT, such as \"127.0.0.1:9464\" or \"[::]:9464\", or \"\" for no listener"
        ]
    );
}

#[test]
fn a_replica_has_a_short_name() {
    for wrong in ["", "web 1", "w\u{e9}b", &"w".repeat(65)] {
        assert_eq!(
            above(&format!("[service]\ninstance = \"{wrong}\"")),
            [
                "a.toml:2:12: service.instance: the name of a replica needs 1 to 64 visible ASCII characters; write one such as \"web-1:sms\""
            ]
        );
    }
}

#[test]
fn log() {
    assert_eq!(
        above("[log]\nlevel = \"inf\"\nformat = \"jsn\""),
        [
            "a.toml:2:9: log.level: `inf` is no level; did you mean \"info\"?",
            "a.toml:3:10: log.format: `jsn` is not possible; write \"auto\" or \"human\" or \"json\"; did you mean \"json\"?"
        ]
    );
}

#[test]
fn log_by_module() {
    assert_eq!(
        above("[log]\nlevel = \"info,sluiced=loud\""),
        [
            "a.toml:2:9: log.level: `loud` is no level; write a level (error, warn, info, debug, trace, off) or \"info,sluiced_amqp=debug\""
        ]
    );
}

#[test]
fn log_by_a_module_without_a_level() {
    let right =
        "write a level (error, warn, info, debug, trace, off) or \"info,sluiced_amqp=debug\"";
    for (level, part) in [
        ("info,sluiced_amqp", "sluiced_amqp"),
        ("info,", ""),
        ("", ""),
    ] {
        assert_eq!(
            above(&format!("[log]\nlevel = \"{level}\"")),
            [format!(
                "a.toml:2:9: log.level: `{part}` is no level; {right}"
            )]
        );
    }
}

#[test]
fn log_filter() {
    assert_eq!(
        above("[log]\nlevel = \"info,[=debug\""),
        [
            "a.toml:2:9: log.level: `info,[=debug` chooses spans, and there are none; write a level (error, warn, info, debug, trace, off) or \"info,sluiced_amqp=debug\""
        ]
    );
}

#[test]
fn grace_below_the_default_timeout() {
    assert_eq!(
        above("[service]\ngrace = \"5s\""),
        [
            "a.toml:10:13: routes.sms.downstream.timeout: 10s is longer than service.grace of 5s: a stop would cut calls off; write 5s or less, or a longer grace"
        ]
    );
}

#[test]
fn memory_limit() {
    assert_eq!(
        above("[backend]\nlimits = \"memory\""),
        [
            "a.toml:2:10: warning: backend.limits: the limit holds for each replica alone; write \"redis\" to share it"
        ]
    );
}

#[test]
fn embedded() {
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
fn rabbitmq() {
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
fn no_broker_wrong_redis() {
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
