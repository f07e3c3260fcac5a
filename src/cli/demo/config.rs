//! The input of a demo: configurations as an operator would write them, messages, and a directory for both,
//! readable only by its user, because configurations have passwords.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluiced_core::rate::{Rate, Span};
use sluiced_settings::text::HeadroomText;

/// The name of the demo's route.
pub(super) const ROUTE: &str = "demo";
/// The name of the demo's limit.
pub(super) const LIMIT: &str = "provider";

/// The settings of both kinds of demo.
#[derive(Clone, Debug)]
pub(super) struct CommonSettings {
    pub(super) rate: Rate,
    pub(super) headroom: HeadroomText,
    pub(super) latency: Duration,
    pub(super) provider: SocketAddr,
    /// The provider is called over SMPP.
    pub(super) smpp: bool,
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
pub(super) fn embedded(common: &CommonSettings, input: &Path, leftover: &Path) -> String {
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
pub(super) fn replica(
    common: &CommonSettings,
    servers: Servers<'_>,
    prefix: &str,
    name: &str,
) -> String {
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

impl CommonSettings {
    fn limit_and_route(&self, caller: Option<&str>) -> String {
        // Over SMPP a message may take several slots, and the texts of the demo take one.
        let (downstream, most) = match self.smpp {
            false => (self.http(caller), ""),
            true => (self.message_centre(caller), "max_cost = 1\n"),
        };
        format!(
            "[limits.{LIMIT}]\nkind = \"paced\"\nrate = \"{}\"\nheadroom = \"{}\"\n{most}\n\
             [routes.{ROUTE}]\nqueue = {}\nlimits = [\"{LIMIT}\"]\n\n\
             [routes.{ROUTE}.downstream]\ntimeout = \"10s\"\nlatency = \"{}\"\n{downstream}",
            self.rate,
            self.headroom,
            quoted(&self.queue),
            Span(self.latency.max(Duration::from_millis(10))),
        )
    }

    fn http(&self, caller: Option<&str>) -> String {
        let mut text = format!("kind = \"http\"\nurl = \"http://{}/send\"\n", self.provider);
        if let Some(caller) = caller {
            writeln!(text, "headers = {{ x-caller = {} }}", quoted(caller))
                .expect("writing to a String cannot fail");
        }
        text
    }

    /// Two binds, each with a window for all calls of one replica. The optional parameter identifies a
    /// message to the provider.
    fn message_centre(&self, caller: Option<&str>) -> String {
        let in_flight = self.rate.per_second() * self.latency.as_secs_f64();
        let window = in_flight.ceil().clamp(50.0, 10_000.0);
        format!(
            "kind = \"smpp\"\nurl = \"smpp://{}\"\nsystem_id = {}\npassword = \"demo\"\n\
             binds = 2\nwindow = {window}\nsource = \"Demo\"\ndestination = \"{{{{ body.to }}}}\"\n\
             text = \"{{{{ body.text }}}}\"\ntlvs = {{ 0x1403 = \"{{{{ body.id }}}}\" }}\n",
            self.provider,
            quoted(caller.unwrap_or(ROUTE)),
        )
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

/// The directory of one run; removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a directory of the name `name` among the temporary files.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        made.map_err(named)?;
        Ok(Self { path })
    }

    /// A path inside.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file.
    pub(super) fn write(&self, name: &str, text: &[u8]) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// An empty file to write to, open.
    pub(super) fn create(&self, name: &str) -> io::Result<(PathBuf, File)> {
        let path = self.path(name);
        let file = File::create(&path)?;
        Ok((path, file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a temporary directory stays");
        }
    }
}

/// The last lines of a file, at most `lines`; empty if it cannot be read.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use sluiced_settings::text::Length;

    fn common(headroom: u64) -> CommonSettings {
        CommonSettings {
            rate: "400/1s".parse().expect("a rate"),
            headroom: HeadroomText::Fixed(Length(Duration::from_millis(headroom))),
            latency: Duration::from_millis(20),
            provider: "127.0.0.1:9".parse().expect("an address"),
            smpp: false,
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
        fs::write(&input, "{}").expect("a file");
        let leftover = directory.path().join("leftover.ndjson");
        let smpp = CommonSettings {
            smpp: true,
            ..common(5)
        };
        for (name, text) in [
            ("embedded", embedded(&common(5), &input, &leftover)),
            ("replica", replica(&common(100), servers, "p", "replica 1")),
            ("smpp", replica(&smpp, servers, "p", "replica 1")),
        ] {
            let file = directory.path().join(name);
            fs::write(&file, &text).expect("a file");
            let ours = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&file, ours).expect("our file");
            match sluiced_settings::load(&[file], std::iter::empty()) {
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

    #[test]
    fn it_is_private_and_goes_away() {
        let name = format!("sluiced-scratch-test-{}", uuid::Uuid::new_v4().simple());
        let scratch = Scratch::new(&name).expect("a directory");
        let file = scratch.write("a", b"1\n2\n3").expect("a file");
        let mode = fs::metadata(&scratch.path).expect("its mode").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        assert_eq!(tail(&file, 2), "2\n3");
        drop(scratch);
        assert!(!file.exists());
        assert_eq!(tail(&file, 2), "");
    }
}
