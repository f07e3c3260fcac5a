//! The fixed sections but `[redis]`: URLs, the admin's address, the log filter, the embedded queue.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use tracing_subscriber::EnvFilter;
use url::Url;

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::schema::nearest;
use crate::settings::types::{LimitBackend, QueueBackend};

/// The words that a log level may be.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

impl Checks<'_, '_> {
    pub(super) fn sections(&mut self) {
        self.rabbitmq();
        self.redis();
        self.listen();
        self.log_level();
        self.backends();
    }

    fn rabbitmq(&mut self) {
        let rabbit = &self.settings.rabbitmq;
        let urls = KeyPath::of(&["rabbitmq", "urls"]);
        if rabbit.urls.is_empty() {
            self.error(
                std::slice::from_ref(&urls),
                "no URL; write one, such as [\"amqp://guest:guest@127.0.0.1:5672/%2f\"]",
            );
        }
        for (i, url) in rabbit.urls.iter().enumerate() {
            let at = urls.at(i);
            self.broker_url(
                &at,
                url.expose_secret(),
                &["amqp", "amqps"],
                "amqp://user@host:5672/%2f",
            );
        }
        let heartbeat = rabbit.heartbeat.get();
        if heartbeat < Duration::from_secs(1) || heartbeat > Duration::from_secs(3600) {
            self.error(
                &[KeyPath::of(&["rabbitmq", "heartbeat"])],
                "a heartbeat counts in seconds; write 1s to 1h, 10s is good",
            );
        }
        if self.settings.backend.queue == QueueBackend::Rabbitmq {
            let section = KeyPath::of(&["rabbitmq"]);
            self.secret_file(
                &section.join("password_file"),
                rabbit.password_file.as_deref(),
            );
            self.ca_file(&section.join("ca_file"), rabbit.ca_file.as_deref());
        }
    }

    /// The message never repeats the URL: it may hold a password.
    pub(super) fn broker_url(
        &mut self,
        path: &KeyPath,
        text: &str,
        schemes: &[&str],
        example: &str,
    ) {
        let known = schemes.join(":// or ");
        let message = match Url::parse(text) {
            Err(reason) => format!("this is no URL ({reason}); write one such as \"{example}\""),
            Ok(url) if !schemes.contains(&url.scheme()) => {
                format!("this URL must start with {known}://; write one such as \"{example}\"")
            }
            Ok(url) if url.host_str().is_none_or(str::is_empty) => {
                format!("this URL has no host; write one such as \"{example}\"")
            }
            Ok(_) => return,
        };
        self.hidden_error(std::slice::from_ref(path), message);
    }

    fn listen(&mut self) {
        let listen = &self.settings.admin.listen;
        if !listen.is_empty() && !is_address(listen) {
            let message = format!(
                "`{listen}` is no address; write HOST:PORT, such as \"127.0.0.1:9464\" or \"[::]:9464\", or \"\" for no listener"
            );
            self.error(&[KeyPath::of(&["admin", "listen"])], message);
        }
    }

    fn log_level(&mut self) {
        let level = &self.settings.log.level;
        let path = [KeyPath::of(&["log", "level"])];
        let right =
            "write a level (error, warn, info, debug, trace, off) or \"info,sluiced::queue=debug\"";
        for part in level.split(',') {
            let last = part.rsplit('=').next().unwrap_or_default().trim();
            let is_target = !part.contains('=') && part.contains("::");
            if is_target || LEVELS.contains(&last.to_lowercase().as_str()) {
                continue;
            }
            let hint = nearest(last, LEVELS).map_or_else(
                || right.to_owned(),
                |near| format!("did you mean \"{near}\"?"),
            );
            self.error(&path, format!("`{last}` is no level; {hint}"));
            return;
        }
        if let Err(reason) = EnvFilter::try_new(level) {
            self.error(&path, format!("`{level}` is no filter ({reason}); {right}"));
        }
    }

    fn backends(&mut self) {
        let backend = &self.settings.backend;
        let queue = KeyPath::of(&["backend", "queue"]);
        let limits = KeyPath::of(&["backend", "limits"]);
        if backend.queue == QueueBackend::Rabbitmq && backend.limits == LimitBackend::Memory {
            self.warning(
                &[limits, queue.clone()],
                "the limit holds for each replica alone; write \"redis\" to share it",
            );
        }
        if backend.queue != QueueBackend::Embedded {
            return;
        }
        let input = &self.settings.embedded.input;
        let path = KeyPath::of(&["embedded", "input"]);
        if input != Path::new("-") && !is_readable(input) {
            let message = format!(
                "there is no file `{}`; name one, or \"-\" for stdin",
                input.display()
            );
            self.error(&[path.clone(), queue.clone()], message);
        }
        let leftover = &self.settings.embedded.leftover;
        if leftover == input || leftover.as_os_str().is_empty() {
            self.error(
                &[KeyPath::of(&["embedded", "leftover"]), path],
                "name a file of its own for what was not delivered, such as \"leftover.ndjson\"",
            );
        }
        let routes = self.settings.routes.len();
        if routes > 1 {
            let message = format!(
                "the embedded queue feeds exactly one route, and there are {routes}; leave one"
            );
            self.error(&[queue, KeyPath::of(&["routes"])], message);
        }
    }
}

/// An IP address with its port, or the name of a host with one.
fn is_address(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.parse::<SocketAddr>().is_ok()
        || text.rsplit_once(':').is_some_and(|(host, port)| {
            let word = host.contains(|c: char| c.is_ascii_alphabetic()) && host.chars().all(fine);
            word && port.parse::<u16>().is_ok()
        })
}

/// A file, or something that reads like one: a named pipe, `/dev/stdin`.
fn is_readable(path: &Path) -> bool {
    path.metadata().is_ok_and(|facts| !facts.is_dir())
}
