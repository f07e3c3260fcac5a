//! `sluiced run` and `sluiced provider` as processes of their own.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::watched::Watched;

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sluiced"))
}

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Daemon<'a> {
    pub rabbitmq: &'a str,
    pub redis: &'a str,
    pub queue: &'a str,
    pub url: &'a str,
    pub rate: &'a str,
    pub prefetch: u16,
    /// Further limits of the route: a name and the lines of its table.
    pub more: &'a [(&'a str, &'a str)],
    /// The queue of the results of the route; `None`: it publishes none.
    pub results: Option<&'a str>,
}

impl Daemon<'_> {
    /// Starts one; `name` names its files in `dir`.
    pub fn start(&self, dir: &Path, name: &str) -> Watched {
        let config = dir.join(format!("{name}.toml"));
        std::fs::write(&config, self.text()).expect("a configuration");
        let config = config.to_str().expect("a path in UTF-8");
        let output = dir.join(format!("{name}.log"));
        Watched::start(program(), &["run", "--config", config], &[], output)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        write!(
            text,
            "[rabbitmq]\nurls = [\"{}\"]\n[redis]\nurl = \"{}\"\n[admin]\nlisten = \"\"\n\
             [log]\nlevel = \"warn\"\n\
             [limits.provider]\nkind = \"paced\"\nrate = \"{}\"\n\
             [routes.bench]\nqueue = \"{}\"\nlimits = [{}]\nprefetch = {}\n\
             [routes.bench.downstream]\nkind = \"http\"\nurl = \"{}\"\n",
            self.rabbitmq,
            self.redis,
            self.rate,
            self.queue,
            self.limits(),
            self.prefetch,
            self.url
        )
        .expect("writing to a String cannot fail");
        if let Some(queue) = self.results {
            write!(text, "[routes.bench.results]\nrouting_key = \"{queue}\"\n")
                .expect("writing to a String cannot fail");
        }
        for (name, lines) in self.more {
            write!(text, "[limits.{name}]\n{lines}\n").expect("writing to a String cannot fail");
        }
        text
    }

    fn limits(&self) -> String {
        let more = self.more.iter().map(|(name, _)| *name);
        let names = std::iter::once("provider").chain(more);
        names
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A provider in a process of its own.
#[derive(Debug)]
pub struct RemoteProvider {
    process: Watched,
    address: String,
}

impl RemoteProvider {
    pub fn start(dir: &Path, rate: &str) -> Self {
        let output = dir.join("provider.log");
        let process = Watched::start(program(), &["provider", "--rate", rate], &[], output);
        let address = process.first_line();
        Self { process, address }
    }

    /// Where calls go.
    pub fn url(&self) -> String {
        format!("http://{}/send", self.address)
    }

    /// Its report since the start or the last reset.
    pub fn report(&self) -> serde_json::Value {
        let answer = self.ask("GET", "/report");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).expect("a report in JSON")
    }

    /// Forgets all calls.
    pub fn reset(&self) {
        self.ask("POST", "/reset");
    }

    /// Ends it.
    pub fn stop(self) {
        self.process.stop();
    }

    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the provider answers");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: provider\r\nconnection: close\r\n\
             content-length: 0\r\n\r\n"
        )
        .expect("the provider listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}
