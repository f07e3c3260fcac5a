//! A configuration of the catalogue for the servers of the tests. It is used as it is, but for the addresses, the files
//! of secrets, the names of queues, the results, which are switched on, and waits that nothing says, which are short.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sluiced_provider::FleetTest;

use crate::support::daemon::file;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;

pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A configuration of the catalogue, for the servers of the tests.
pub(super) struct Adapted {
    pub(super) text: String,
    pub(super) queue: String,
    pub(super) results: String,
}

/// The value of a key that is a text, wherever it stands.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = text.find(&format!("{key} = \""))? + key.len() + 4;
    text[start..].split('"').next()
}

/// Writes the files of secrets that a configuration names.
fn secrets(text: &str, fleet: &FleetTest, dir: &Path) {
    for (key, secret) in &fleet.credentials {
        let named = key.strip_prefix("secret.").map(str::to_owned);
        let key = named.unwrap_or_else(|| format!("{key}_file"));
        let path = value(text, &key).unwrap_or_else(|| panic!("no {key}"));
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        let secret = match &**secret {
            "a private key of P-256" => {
                include_str!("../../../crates/http/src/credentials/tokens/oauth/key/p256.pem")
            }
            "a private key of RSA" => {
                include_str!("../../../crates/http/src/credentials/tokens/oauth/key/rfc7515.pem")
            }
            secret => secret,
        };
        let _path = file(dir, name, secret);
    }
}

/// The last of the lines that are switched off are the results: they are switched on.
fn with_results(text: &str, into: &str) -> String {
    let (head, results) = text.split_once("\n#[routes.").expect("results");
    let results = format!("#[routes.{results}");
    let lines = results.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    let results = lines.collect::<Vec<_>>().join("\n");
    let old = format!(
        "routing_key = \"{}\"",
        value(&results, "routing_key").unwrap()
    );
    let new = format!("routing_key = \"{into}\"");
    format!("{head}\n{}", results.replace(&old, &new))
}

/// Calls the double instead of the provider.
fn calling(text: &str, to: SocketAddr) -> String {
    let (begin, downstream) = text.split_once(".downstream]").unwrap();
    let url = downstream.find("\nurl = ").expect("a URL");
    let origin = &downstream[url + downstream[url..].find("https://").unwrap()..];
    let origin = &origin[..8 + origin[8..].find(['/', '"']).unwrap()];
    let downstream = downstream.replace(origin, &format!("http://{to}"));
    format!("{begin}.downstream]{downstream}")
}

/// Each line that begins with one of these keys has the value that stands beside it.
pub(super) fn with_values(text: &str, values: &[(&str, &str)]) -> String {
    let changed = text.lines().map(|line| {
        let key = line.split(" = ").next().unwrap_or_default();
        let value = values.iter().find(|(name, _)| *name == key);
        value.map_or_else(
            || line.to_owned(),
            |(key, value)| format!("{key} = {value}"),
        )
    });
    changed.collect::<Vec<_>>().join("\n")
}

pub(super) fn adapted(
    name: &str,
    queue: String,
    fleet: &FleetTest,
    to: SocketAddr,
    dir: &Path,
) -> Adapted {
    let text = fs::read_to_string(folder("config/providers").join(format!("{name}.toml"))).unwrap();
    secrets(&text, fleet, dir);
    let results = format!("{queue}.out");
    let text = calling(&with_results(&text, &results), to);
    let text = with_values(
        &text,
        &[
            ("throttle_wait", "\"1s\""),
            ("queue", &format!("{queue:?}")),
        ],
    )
    .replace(
        "amqp://guest:guest@127.0.0.1:5672/%2f",
        &Rabbit::shared().url(),
    )
    .replace("redis://127.0.0.1:6379/0", &RedisServer::shared().url())
    .replace(
        "#prefix = \"sluiced\"",
        &format!("prefix = \"{queue}\"\nresponse_timeout = \"5s\""),
    )
    .replace("/etc/sluiced/secrets", dir.to_str().unwrap())
    // Google's token server is not called: the double takes the claims that are signed.
    .replace(
        "\ntoken_url = \"https://oauth2.googleapis.com/token\"\n",
        "\n",
    );
    Adapted {
        text: format!("{text}\n[admin]\nlisten = \"127.0.0.1:0\"\n"),
        results,
        queue,
    }
}
