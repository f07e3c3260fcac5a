//! What a running sluiced reports. `sluiced status`: the state of the fleet, once; any replica knows it. `sluiced
//! health`: whether it is ready, for container health checks: a slim image has no curl, and a check that needs it would
//! need a bigger image.

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
use rustix::termios::tcgetwinsize;

use super::exit::{Exit, Refusal, load_configuration, variables};
use super::limits::LimitsLocation;
use super::text::printable;
use super::view::view;
use sluiced_settings::Needs;
use sluiced_status::Fleet;

/// The width of the text without a terminal.
const WIDTH: usize = 120;

/// Where a replica listens by default, and the variable for another address.
const USUAL: &str = "127.0.0.1:9464";
const LISTEN: &str = "SLUICED__ADMIN__LISTEN";

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
pub struct AskedReplica {
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

/// Writes the state of the fleet to `out`, with `terminal` in its width and with colours.
pub(super) async fn status(
    args: &StatusArgs,
    out: &mut impl Write,
    terminal: bool,
) -> Result<Exit, Refusal> {
    let replica = args.replica.find(variables()).await?;
    if args.json {
        let text = replica.json().await.map_err(Refusal::Failed)?;
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
    /// The configured replica. If it does not answer, one that reported its address to the others: that may have come
    /// by a variable that is not set here.
    pub(super) async fn find(
        &self,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<AskedReplica, Refusal> {
        let asked = self.configured(env)?;
        if self.url.is_none()
            && !self.config.is_empty()
            && asked.text().await.is_err()
            && let Some(other) = self.reported().await
        {
            return Ok(other);
        }
        Ok(asked)
    }

    /// A replica that is found where it reported that it listens.
    async fn reported(&self) -> Option<AskedReplica> {
        let limits = LimitsLocation::of(self.config.clone()).open().await.ok()?;
        for replica in limits.replicas().await.ok()? {
            let Some(address) = &replica.admin else {
                continue;
            };
            let asked = AskedReplica::at(address);
            let fleet = asked.fleet().await;
            // An address of loopback may be that of another machine.
            if fleet.is_ok_and(|fleet| fleet.replica == replica.name) {
                return Some(asked);
            }
        }
        None
    }

    /// The replica of `--url`, or else of `admin.listen` in the files and in the variables `env`.
    fn configured(
        &self,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<AskedReplica, Refusal> {
        if let Some(url) = &self.url {
            return Ok(AskedReplica { url: url.clone() });
        }
        let configured = if self.config.is_empty() {
            let mut env = env;
            env.find_map(|(name, value)| (name == LISTEN).then_some(value))
        } else {
            let loaded = load_configuration(Needs::Nothing, &self.config, env)?;
            Some(loaded.settings.admin.listen)
        };
        let listen = configured.unwrap_or_else(|| USUAL.to_owned());
        if listen.is_empty() {
            return Err(Refusal::Failed(
                "`admin.listen` is empty, so this replica shows nothing; --url names another"
                    .to_owned(),
            ));
        }
        Ok(AskedReplica::at(&listen))
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

impl AskedReplica {
    /// The replica with this `admin.listen`.
    fn at(listen: &str) -> Self {
        Self {
            url: format!("http://{}", reached(listen)),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The fleet, as the replica knows it.
    pub(super) async fn fleet(&self) -> Result<Fleet, String> {
        self.fleet_of(&self.text().await?)
    }

    /// The answer itself, if it is one of sluiced.
    async fn json(&self) -> Result<String, String> {
        let text = self.text().await?;
        self.fleet_of(&text)?;
        Ok(text)
    }

    fn fleet_of(&self, text: &str) -> Result<Fleet, String> {
        serde_json::from_str(text)
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

/// Columns and rows of the terminal.
pub(super) fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Connecting, asking and reading the answer, together. Below every orchestrator's own timeout.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most of an answer that is read.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// This many characters of a refusal are shown: any program may answer.
const EXCERPT: usize = 16_000;

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
            writeln!(out, "{}", printable(body.trim_end()))?;
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
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        Ok(text)
    } else {
        let beginning: String = text.chars().take(EXCERPT).collect();
        Err(format!("{status}: {}", printable(&beginning)))
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
            args.configured(env).map(|asked| asked.url).ok()
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
