//! `sluiced status`: how the fleet is, once. Any replica knows it of all.

use std::io::Write;

use clap::Args;

use super::exit::Exit;
use super::health::ask;
use super::refusal::Refusal;
use super::view::view;
use crate::status::Fleet;

/// How wide the text is where it goes to no terminal.
const WIDTH: usize = 120;

/// Which replica is asked.
#[derive(Args, Clone, Debug)]
pub struct ReplicaArgs {
    /// The address of a replica's `admin.listen`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    pub url: String,
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
    let replica = &args.replica;
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
