//! `sluiced status`: how the fleet is, once; any replica knows it of all. `sluiced top`: the same, again and again,
//! until `q` or Ctrl-C.
//!
//! Both draw the same lines (`view`), so there is one text to read, and no library for windows is needed.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt as _;

use super::exit::{Exit, Refusal, StopSignals};
use super::health::ask;
use super::view::view;
use crate::settings;
use crate::status::Fleet;

/// How wide the text is where it goes to no terminal.
const WIDTH: usize = 120;

/// Where a replica listens if nothing is said, and the variable that says otherwise.
const USUAL: &str = "127.0.0.1:9464";
const LISTEN: &str = "SLUICED__ADMIN__LISTEN";

/// How often it is drawn.
const EVERY: Duration = Duration::from_secs(1);
/// Another screen without a cursor, so that the one before comes back at the end.
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

/// Writes how the fleet is to `out`; `terminal` if that is one, with its width and with colours.
pub(super) async fn run(
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
            // What was shown stays, below the reason why it is old.
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

/// Waits for a `q`. Without a terminal to read from it never comes.
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
            // Without it `q` needs a return behind it; no more than that is lost.
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
