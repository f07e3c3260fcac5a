//! What a running sluiced reports. `sluiced status`: the state of the fleet, once; any replica knows it.
//! `sluiced top`: the same, again and again, until `q` or Ctrl-C. `sluiced health`: whether it is ready, for
//! container health checks.
//!
//! The first two draw the same lines (`view`), so there is one text to read, and no library for windows is needed. A slim
//! image has no curl, and a check that needs it would need a bigger image.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::Uri;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt as _;

use super::exit::{Exit, Refusal, StopSignals};
use super::view::view;
use crate::status::Fleet;
use sluiced_settings as settings;

/// The width of the text without a terminal.
const WIDTH: usize = 120;

/// Where a replica listens by default, and the variable for another address.
const USUAL: &str = "127.0.0.1:9464";
const LISTEN: &str = "SLUICED__ADMIN__LISTEN";

/// How often it is drawn.
const EVERY: Duration = Duration::from_secs(1);
/// A second screen without a cursor, so that the first one returns at the end.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Which replica is asked.
#[derive(Args, Clone, Debug)]
pub struct ReplicaArgs {
    /// The address of a replica's `admin.listen` [default: that of the configuration, else http://127.0.0.1:9464]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A configuration file, as for `sluiced run`, of a replica of this machine; may repeat
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE")]
    config: Vec<PathBuf>,
}

/// The replica that is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    url: String,
}

/// The arguments of `sluiced status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub replica: ReplicaArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `sluiced top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
}

/// Writes the state of the fleet to `out`, with `terminal` in its width and with colours.
pub(super) async fn status(
    args: &StatusArgs,
    out: &mut impl Write,
    terminal: bool,
) -> Result<Exit, Refusal> {
    let replica = args.replica.asked(std::env::vars())?;
    if args.json {
        let text = replica.text().await.map_err(Refusal::Failed)?;
        writeln!(out, "{}", text.trim_end())?;
        return Ok(Exit::Done);
    }
    let fleet = replica.fleet().await.map_err(Refusal::Failed)?;
    let width = if terminal { size().0 } else { WIDTH };
    for line in view(&fleet, width, terminal) {
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Done)
}

impl ReplicaArgs {
    /// The replica of `--url`, or else of `admin.listen` in the files and in the variables `env`.
    fn asked(&self, env: impl Iterator<Item = (String, String)>) -> Result<Asked, Refusal> {
        if let Some(url) = &self.url {
            return Ok(Asked { url: url.clone() });
        }
        let listen = if self.config.is_empty() {
            let mut env = env;
            env.find_map(|(name, value)| (name == LISTEN).then_some(value))
        } else {
            let loaded = settings::load_with(Some(settings::NO_SECTION), &self.config, None, env);
            let listen = loaded.map_err(Refusal::Faults)?.settings.admin.listen;
            Some(listen)
        };
        let listen = listen.unwrap_or_else(|| USUAL.to_owned());
        if listen.is_empty() {
            return Err(Refusal::Failed(
                "`admin.listen` is empty, so this replica shows nothing; --url names another"
                    .to_owned(),
            ));
        }
        Ok(Asked {
            url: format!("http://{}", reached(&listen)),
        })
    }
}

/// The address at which a listener can be reached from this machine: loopback, if it listens on all.
fn reached(listen: &str) -> String {
    let Ok(address) = listen.parse::<SocketAddr>() else {
        return listen.to_owned();
    };
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, address.port()).to_string()
}

impl Asked {
    /// The fleet, as the replica knows it.
    async fn fleet(&self) -> Result<Fleet, String> {
        let text = self.text().await?;
        serde_json::from_str(&text)
            .map_err(|why| format!("{} is no replica of sluiced: {why}", self.url))
    }

    async fn text(&self) -> Result<String, String> {
        let url = format!("{}/status.json", self.url.trim_end_matches('/'));
        let uri = url.parse().map_err(|_| {
            format!(
                "`{}` is no URL; write http://host:port, as in admin.listen",
                self.url
            )
        })?;
        ask(uri).await.map_err(|why| {
            format!("{url}: {why}; is there a replica with this admin.listen? --url names another")
        })
    }
}

/// `sluiced top`: draws to `out`, which must be a terminal.
///
/// # Errors
/// When the terminal cannot be written to.
pub(super) async fn top(
    args: &TopArgs,
    out: &mut impl Write,
    colour: bool,
) -> Result<Exit, Refusal> {
    let asked = args.replica.asked(std::env::vars())?;
    let mut signals = StopSignals::new()?;
    let keys = Keys::read();
    write!(out, "{ENTER}")?;
    let drawn = tokio::select! {
        drawn = draw(&asked, out, colour) => drawn,
        () = signals.next() => Ok(()),
        () = quit() => Ok(()),
    };
    drop(keys);
    write!(out, "{LEAVE}")?;
    out.flush()?;
    drawn?;
    Ok(Exit::Done)
}

async fn draw(asked: &Asked, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let mut lines = vec![format!("asking {} …", asked.url)];
    loop {
        let (width, height) = size();
        match asked.fleet().await {
            Ok(fleet) => lines = view(&fleet, width, colour),
            // The last lines stay, below the reason why they are old.
            Err(why) => {
                lines.retain(|line| !line.starts_with("NOT ANSWERED"));
                lines.insert(0, format!("NOT ANSWERED: {why}"));
            }
        }
        let mut screen = String::from("\x1b[H");
        for line in lines.iter().take(height.saturating_sub(1)) {
            screen.push_str(line);
            screen.push_str("\x1b[K\r\n");
        }
        screen.push_str("\x1b[J");
        out.write_all(screen.as_bytes())?;
        out.flush()?;
        tokio::time::sleep(EVERY).await;
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Waits for a `q`. Never ends without a terminal to read from.
async fn quit() {
    let mut input = tokio::io::stdin();
    loop {
        match input.read_u8().await {
            Ok(b'q' | b'Q') => return,
            Ok(_) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// Keys come at once and are not shown, until this is dropped.
struct Keys(Option<Termios>);

impl Keys {
    fn read() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // If this fails, `q` needs a return after it; nothing else is lost.
            tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok();
        }
        Self(before)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

/// Connecting, asking and reading the answer, together. Below every orchestrator's own timeout.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most of an answer that is read.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// The arguments of `sluiced health`.
#[derive(Args, Clone, Debug)]
pub struct HealthArgs {
    /// What to ask: /readyz (can it work?) or /healthz (does it live?); without a path /readyz
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:9464/readyz"
    )]
    pub url: Uri,
}

/// Asks and writes the answer to `out`. The exit code is 0 if the daemon is well, 1 if not.
///
/// # Errors
/// When `out` cannot be written.
pub async fn health(args: &HealthArgs, out: &mut dyn Write) -> io::Result<Exit> {
    let url = probed(&args.url);
    let heard = ask(url.clone()).await;
    match heard {
        Ok(body) => {
            writeln!(out, "{}", body.trim_end())?;
            Ok(Exit::Done)
        }
        Err(ill) => {
            writeln!(out, "{url}: {ill}")?;
            Ok(Exit::Failed)
        }
    }
}

/// `/` is the status page, which is always there: so `/readyz` is requested instead.
fn probed(url: &Uri) -> Uri {
    let mut parts = url.clone().into_parts();
    if parts.scheme.is_some() && url.path() == "/" {
        parts.path_and_query = Some(PathAndQuery::from_static("/readyz"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// Asks a running sluiced, within a few seconds.
async fn ask(url: Uri) -> Result<String, String> {
    tokio::time::timeout(TIMEOUT, get(url))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
}

async fn get(url: Uri) -> Result<String, String> {
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let answer = client.get(url).await.map_err(|error| chain(&error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BODY)
        .collect()
        .await
        .map_err(|e| e.to_string())?
        .to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        Ok(body)
    } else {
        Err(format!("{status}: {body}"))
    }
}

/// An error with its causes: the outermost alone says only that something failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_on_every_address_is_asked_on_that_of_this_machine() {
        for (listen, asked) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:9464", "[::1]:9464"),
            ("10.0.0.0:9464", "10.0.0.0:9464"),
            ("[fe80::]:9464", "[fe80::]:9464"),
            ("localhost:9464", "localhost:9464"),
        ] {
            assert_eq!(reached(listen), asked);
        }
    }

    #[test]
    fn the_address_is_that_of_the_arguments_the_files_or_the_environment() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sluiced.toml");
        let text = "[admin]\nlisten = \"10.0.0.0:1\"\n[limits.account]\nrate = \"1/1s\"\n\
            [routes.sms]\nqueue = \"sms\"\nlimits = [\"account\"]\n\
            downstream = { kind = \"http\", url = \"http://localhost\" }\n";
        std::fs::write(&file, text).expect("written");
        let asked = |url: Option<&str>, config: &[PathBuf], env: &[(&str, &str)]| {
            let args = ReplicaArgs {
                url: url.map(str::to_owned),
                config: config.to_vec(),
            };
            let env = env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            args.asked(env).map(|asked| asked.url).ok()
        };
        let (url, files) = (Some("http://other:9"), &[file][..]);
        let env = &[(LISTEN, "0.0.0.0:2")][..];
        assert_eq!(asked(url, files, env).as_deref(), url);
        let said = |config, env| asked(None, config, env).expect("an address");
        assert_eq!(said(&[], &[]), "http://127.0.0.1:9464");
        assert_eq!(said(&[], env), "http://127.0.0.1:2");
        assert_eq!(said(files, &[]), "http://10.0.0.0:1");
        assert_eq!(said(files, env), "http://127.0.0.1:2");
        assert_eq!(asked(None, &[], &[(LISTEN, "")]), None, "none listens");
    }
}
