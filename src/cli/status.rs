//! `sluiced status`: how the fleet is, once. Any replica knows it of all.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::exit::Exit;
use super::health::ask;
use super::refusal::Refusal;
use super::view::view;
use crate::settings;
use crate::status::Fleet;

/// How wide the text is where it goes to no terminal.
const WIDTH: usize = 120;

/// Where a replica listens if nothing is said, and the variable that says otherwise.
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
pub struct Asked {
    pub(super) url: String,
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

/// Writes how the fleet is to `out`.
pub(super) async fn run(
    args: &StatusArgs,
    out: &mut impl Write,
    width: Option<usize>,
) -> Result<Exit, Refusal> {
    let replica = args.replica.asked(std::env::vars())?;
    if args.json {
        let text = replica.text().await.map_err(Refusal::Failed)?;
        writeln!(out, "{}", text.trim_end())?;
        return Ok(Exit::Done);
    }
    let fleet = replica.fleet().await.map_err(Refusal::Failed)?;
    for line in view(&fleet, width.unwrap_or(WIDTH), width.is_some()) {
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Done)
}

impl ReplicaArgs {
    /// The replica of `--url`, or else of `admin.listen` in the files and in the variables `env`.
    pub(super) fn asked(
        &self,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Asked, Refusal> {
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

/// Where what listens there can be asked from this machine: on its own address, if it listens on all.
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
    /// What the replica knows of the fleet.
    pub(super) async fn fleet(&self) -> Result<Fleet, String> {
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
