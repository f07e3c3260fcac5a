//! The configurations that a demo runs, as an operator would write them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::core::rate::{Rate, Span};

/// The name of the demo's route.
pub(super) const ROUTE: &str = "demo";
/// The name of the demo's limit.
pub(super) const LIMIT: &str = "provider";

/// What both kinds of demo configure.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) rate: Rate,
    pub(super) headroom: Duration,
    pub(super) latency: Duration,
    pub(super) provider: SocketAddr,
    /// The work queue.
    pub(super) queue: String,
}

/// The servers of a run on real ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Servers<'a> {
    pub(super) rabbitmq: &'a str,
    pub(super) redis: &'a str,
}

/// Everything in one process: the messages come from a file, the limit is kept in memory.
pub(super) fn embedded(common: &Common, input: &Path, leftover: &Path) -> String {
    format!(
        "[backend]\nqueue = \"embedded\"\nlimits = \"memory\"\n\n\
         [embedded]\ninput = {}\nleftover = {}\n\n\
         [admin]\nlisten = \"\"\n\n{}",
        quoted(&input.to_string_lossy()),
        quoted(&leftover.to_string_lossy()),
        common.limit_and_route(None),
    )
}

/// One of several replicas on real servers, which sends its name with each call.
pub(super) fn replica(common: &Common, servers: Servers<'_>, prefix: &str, name: &str) -> String {
    format!(
        "[rabbitmq]\nurls = [{}]\n\n\
         [redis]\nurl = {}\nprefix = {}\n\n\
         [admin]\nlisten = \"\"\n\n\
         [log]\nlevel = \"warn\"\nformat = \"human\"\n\n{}",
        quoted(servers.rabbitmq),
        quoted(servers.redis),
        quoted(prefix),
        common.limit_and_route(Some(name)),
    )
}

impl Common {
    fn limit_and_route(&self, caller: Option<&str>) -> String {
        let mut text = format!(
            "[limits.{LIMIT}]\nkind = \"paced\"\nrate = \"{}\"\nheadroom = \"{}\"\n\n\
             [routes.{ROUTE}]\nqueue = {}\nlimits = [\"{LIMIT}\"]\n\n\
             [routes.{ROUTE}.downstream]\nkind = \"http\"\nurl = \"http://{}/send\"\n\
             timeout = \"10s\"\nlatency = \"{}\"\n",
            self.rate,
            Span(self.headroom),
            quoted(&self.queue),
            self.provider,
            Span(self.latency.max(Duration::from_millis(10))),
        );
        if let Some(caller) = caller {
            writeln!(text, "headers = {{ x-caller = {} }}", quoted(caller))
                .expect("writing to a String cannot fail");
        }
        text
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The messages of a demo: small, each with an id that the provider reads.
pub(super) fn messages(count: u32) -> impl Iterator<Item = (String, String)> {
    (1..=count).map(move |number| {
        let id = message_id(number);
        let body = format!(
            r#"{{"id":"{id}","to":"+4915550{number:06}","text":"Message {number} of {count}"}}"#
        );
        (id, body)
    })
}

/// The id of a demo's message.
pub(super) fn message_id(number: u32) -> String {
    format!("demo-{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(headroom: u64) -> Common {
        Common {
            rate: "400/1s".parse().expect("a rate"),
            headroom: Duration::from_millis(headroom),
            latency: Duration::from_millis(20),
            provider: "127.0.0.1:9".parse().expect("an address"),
            queue: "sluiced-demo-1".to_owned(),
        }
    }

    #[test]
    fn what_is_odd_in_a_url_stays_as_it_is() {
        let servers = Servers {
            rabbitmq: r#"amqp://u:p"\w@h/%2f"#,
            redis: "redis://h/0",
        };
        let text = replica(&common(5), servers, "sluiced-demo-1", "replica 1");
        let table: toml::Table = text.parse().expect("TOML");
        let url = table["rabbitmq"]["urls"][0].as_str();
        assert_eq!(url, Some(r#"amqp://u:p"\w@h/%2f"#));
        let headers = &table["routes"][ROUTE]["downstream"]["headers"];
        assert_eq!(headers["x-caller"].as_str(), Some("replica 1"));
    }

    #[test]
    fn what_is_written_is_a_configuration_without_faults() {
        let directory = tempfile::tempdir().expect("a directory");
        let servers = Servers {
            rabbitmq: "amqp://guest:guest@127.0.0.1:5672/%2f",
            redis: "redis://127.0.0.1:6379/0",
        };
        let input = directory.path().join("messages.ndjson");
        std::fs::write(&input, "{}").expect("a file");
        let leftover = directory.path().join("leftover.ndjson");
        for (name, text) in [
            ("embedded", embedded(&common(5), &input, &leftover)),
            ("replica", replica(&common(100), servers, "p", "replica 1")),
        ] {
            let file = directory.path().join(name);
            std::fs::write(&file, &text).expect("a file");
            match crate::settings::load(&[file], std::iter::empty()) {
                Ok(loaded) => assert!(
                    loaded.warnings.all().is_empty(),
                    "{}",
                    loaded.warnings.render(false)
                ),
                Err(faults) => panic!("{}", faults.render(false)),
            }
        }
    }

    #[test]
    fn messages_are_json_with_an_id() {
        for (id, body) in messages(3) {
            let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(body["id"], id.as_str());
        }
    }
}
