//! How Redis is reached: one URL or several, Sentinels, users and certificates.

use super::above;

/// The messages about a section `[redis]`.
fn redis(text: &str) -> Vec<String> {
    above(&format!("[redis]\n{text}"))
}

#[test]
fn url_and_urls() {
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
fn sentinels() {
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
fn a_database_is_a_number() {
    let said =
        "this URL names a database that is no number; write one such as \"redis://host:6379/0\"";
    for (path, wrong) in [
        ("", false),
        ("/", false),
        ("/15", false),
        ("/zero", true),
        ("/-1", true),
        ("/0/1", true),
    ] {
        let expected = wrong.then(|| format!("a.toml:2:1: redis.url: {said}"));
        let found = redis(&format!("url = \"redis://a{path}\""));
        assert_eq!(found, Vec::from_iter(expected), "{path}");
    }
}

#[test]
fn urls_that_disagree() {
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
fn users_and_certificates() {
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
