//! `sluiced dead`: shows the letters in the dead-letter queues, replays and drops them.
//!
//! A letter is read without being taken (`amqp::rabbit::letters`). It leaves its queue only when its
//! copy is safe in a work queue, or when the operator drops it. The only secret that is needed is
//! RabbitMQ's.
//!
//! The counts of a command are here, for people and as JSON.

mod drop;
mod letter;
mod list;
mod replay;
mod show;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Value, json};

use super::exit::{Exit, Refusal, loaded, named, only_one_of};
use super::shell;
use super::text::counted;
use crate::wire;
use sluiced_amqp::rabbit::RabbitOptions;
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_settings::Needs;
use sluiced_settings::types::{QueueBackend, Route, Settings};

pub(super) use list::{FoundLetters, find};

/// The suffix of every dead-letter queue.
const SUFFIX: &str = ".dead";

/// The arguments of `sluiced dead`.
#[derive(Args, Clone, Debug)]
pub struct DeadArgs {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// How many there are, by route, reason and status, and the oldest of them
    List(list::ListArgs),
    /// Everything about one letter; its body only with --body
    Show(show::ShowArgs),
    /// Send letters to their work queue again, where they start afresh
    Replay(replay::ReplayArgs),
    /// Remove letters for good
    Drop(drop::DropArgs),
}

/// Where the letters are.
#[derive(Args, Clone, Debug)]
pub struct Location {
    /// A configuration file, as for `sluiced run`; may repeat
    #[arg(
        long,
        env = "SLUICED_CONFIG",
        value_name = "FILE",
        required_unless_present = "rabbitmq"
    )]
    config: Vec<PathBuf>,
    /// Only the letters of this route; without it those of all routes
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rabbitmq", "queue"], add = shell::routes())]
    route: Option<String>,
    /// Without a configuration: `amqp://user:password@host:port/vhost`
    #[arg(long, value_name = "URL", requires = "queue")]
    rabbitmq: Option<SecretString>,
    /// The letters of this queue, such as `sms.dead`
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where a command writes, and how.
#[derive(Debug)]
pub struct Console<'a, O, E> {
    pub out: &'a mut O,
    pub err: &'a mut E,
    /// Whether `err` is a terminal, on which a line can be rewritten.
    pub progress: bool,
    /// Whether an operator can be asked.
    pub ask: bool,
}

impl<O, E: Write> Console<'_, O, E> {
    /// Rewrites the progress line. Empty: erases it.
    fn progress(&mut self, text: &str) -> io::Result<()> {
        if self.progress {
            write!(self.err, "\r{text}\x1b[K")?;
            self.err.flush()?;
        }
        Ok(())
    }
}

/// The broker and the dead-letter queues.
struct DeadQueues {
    options: RabbitOptions,
    /// `None`: only the broker is known.
    settings: Option<Settings>,
    queues: Vec<String>,
    /// Only the letters of this route are meant: it shares its queue with others.
    route: Option<String>,
}

/// Runs a command, and writes what it finds.
pub(super) async fn run(
    args: &DeadArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<Exit, Refusal> {
    match &args.command {
        Command::List(args) => list::run(args, console).await?,
        Command::Show(args) => show::run(args, console.out).await?,
        Command::Replay(args) => replay::run(args, console).await?,
        Command::Drop(args) => drop::run(args, console).await?,
    }
    Ok(Exit::Done)
}

impl Location {
    fn dead_queues(&self) -> Result<DeadQueues, Refusal> {
        only_one_of("--rabbitmq", self.rabbitmq.is_some(), &self.config)?;
        if let Some(queue) = &self.queue {
            is_dead_letter_queue(queue)?;
        }
        if let Some(url) = &self.rabbitmq {
            return Ok(DeadQueues {
                options: wire::rabbit_at(url.clone()),
                settings: None,
                queues: self.queue.iter().cloned().collect(),
                route: None,
            });
        }
        let needs = Needs::Section("rabbitmq");
        let loaded = loaded(needs, &self.config, std::env::vars())?;
        if loaded.settings.backend.queue == QueueBackend::Embedded {
            return Err(Refusal::Failed(format!(
                "with `backend.queue = \"embedded\"` there is no queue of dead letters: what was not delivered is in `{}`",
                loaded.settings.embedded.leftover.display()
            )));
        }
        let queues = match (&self.queue, &self.route) {
            (Some(queue), _) => vec![queue.clone()],
            (None, Some(route)) => vec![dead_of(named("route", route, &loaded.settings.routes)?.1)],
            // Routes may share a queue.
            (None, None) => {
                let all = loaded.settings.routes.values().map(dead_of);
                all.collect::<BTreeSet<_>>().into_iter().collect()
            }
        };
        let is_shared = |name: &String| {
            let own = loaded.settings.routes.get(name);
            own.is_some_and(|own| loaded.settings.of_queue(&own.queue).nth(1).is_some())
        };
        Ok(DeadQueues {
            options: wire::rabbit_of(&loaded)?,
            route: self.route.clone().filter(is_shared),
            settings: Some(loaded.settings),
            queues,
        })
    }
}

impl DeadQueues {
    async fn open(&self, queue: &str) -> Result<Option<Letters>, Refusal> {
        Ok(Letters::open(&self.options, queue).await?)
    }

    /// The `max_age` of the route that consumes a work queue. The outer `None`: it is not known.
    fn max_age(&self, work: &str) -> Option<Option<Duration>> {
        let mut routes = self.settings.as_ref()?.routes.values();
        let route = routes.find(|route| route.queue == work)?;
        Some(route.max_age.map(|age| age.get()))
    }
}

fn dead_of(route: &Route) -> String {
    format!("{}{SUFFIX}", route.queue)
}

/// Refuses a queue of messages that are still to be sent.
fn is_dead_letter_queue(queue: &str) -> Result<(), Refusal> {
    if queue.len() > SUFFIX.len() && queue.ends_with(SUFFIX) {
        return Ok(());
    }
    Err(Refusal::Arguments(format!(
        "`{queue}` is no queue of dead letters; did you mean `{queue}{SUFFIX}`?"
    )))
}

/// The text if there is no such queue.
fn absent(queue: &str) -> String {
    format!(
        "{queue}: no dead letters, for there is no such queue; `sluiced run` declares it when it first consumes `{}`",
        queue.strip_suffix(SUFFIX).unwrap_or(queue)
    )
}

/// `1 letter`, `2 letters`.
fn letters(count: u64) -> String {
    counted(count, "letter")
}

/// What a command found out about each queue: written at once, or in the end as one list of JSON.
struct QueueResults {
    json: bool,
    all: Vec<Value>,
}

impl QueueResults {
    const fn new(json: bool) -> Self {
        Self {
            json,
            all: Vec::new(),
        }
    }

    /// What was found in a queue. Where there is no such queue, programs get `none`.
    fn add<T: Counts>(
        &mut self,
        queue: &str,
        found: Option<&T>,
        none: &T,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if self.json {
            let mut counts = json!(found.unwrap_or(none));
            counts["queue"] = json!(queue);
            self.all.push(counts);
            return Ok(());
        }
        match found {
            Some(counts) => counts.write(queue, out),
            None => writeln!(out, "{}", absent(queue)),
        }
    }

    fn end(self, out: &mut impl Write) -> io::Result<()> {
        match self.json {
            true => writeln!(out, "{:#}", Value::from(self.all)),
            false => Ok(()),
        }
    }
}

/// The letters of a queue by what a command did to them.
trait Counts: Serialize {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()>;
}

/// How many letters `--where` had no answer for, and why for the first of them. Programs get the number.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
struct Unasked {
    count: u64,
    #[serde(skip)]
    why: String,
}

impl Unasked {
    fn add(&mut self, why: String) {
        if self.count == 0 {
            self.why = why;
        }
        self.count += 1;
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let why = &self.why;
        let text = format!("left, for --where could not be worked out: {why}");
        note(self.count, &text, out)
    }
}

/// What `sluiced dead replay` did to the letters of a queue.
#[derive(Debug, Default, Serialize)]
struct ReplayCounts {
    dry_run: bool,
    before: u32,
    looked_at: u64,
    meant: u64,
    replayed: u64,
    /// The queues that they went to.
    to: BTreeSet<String>,
    unreadable: u64,
    unasked: Unasked,
    without_timestamp: u64,
    /// Of the batch that failed: dead letters still, and perhaps in their work queue too.
    unconfirmed: usize,
    after: Option<u32>,
}

impl Counts for ReplayCounts {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        let queues: Vec<_> = self.to.iter().map(String::as_str).collect();
        let to = match queues.is_empty() {
            true => String::new(),
            false => format!(" to {}", queues.join(", ")),
        };
        if self.dry_run {
            writeln!(out, "  {} would be replayed{to}", self.meant)?;
        } else {
            writeln!(out, "  {} replayed{to}", self.replayed)?;
        }
        note(
            self.without_timestamp,
            "of these without their timestamp: by it they are too old, and would be dead at once",
            out,
        )?;
        note(
            self.unreadable,
            "left, for their properties cannot be read; --unreadable replays their bodies alone",
            out,
        )?;
        self.unasked.write(out)?;
        note(
            self.unconfirmed as u64,
            "not confirmed: they are dead letters still, and may be in their work queue too",
            out,
        )?;
        if let Some(after) = self.after {
            let expected = u64::from(self.before).saturating_sub(self.replayed);
            let new = match u64::from(after).saturating_sub(expected) {
                0 => String::new(),
                new => format!(", {new} of them new"),
            };
            writeln!(out, "  {} after{new}", letters(after.into()))?;
        }
        Ok(())
    }
}

/// What `sluiced dead drop` did to the letters of a queue.
#[derive(Default, Serialize)]
struct DropCounts {
    before: u32,
    meant: u64,
    dropped: u64,
    unasked: Unasked,
    after: u32,
    /// Why nothing was dropped.
    #[serde(skip)]
    refused: Option<Refusal>,
}

impl Counts for DropCounts {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        match self.meant == self.dropped {
            true => writeln!(out, "  {} dropped", self.dropped)?,
            false => writeln!(out, "  {} would be dropped", self.meant)?,
        }
        self.unasked.write(out)?;
        writeln!(out, "  {} after", letters(self.after.into()))
    }
}

/// A line about so many letters, if there are any.
fn note(count: u64, what: &str, out: &mut impl Write) -> io::Result<()> {
    match count {
        0 => Ok(()),
        count => writeln!(out, "  {count} {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queues_of_dead_letters_are_touched() {
        for wrong in ["sms", ".dead", "sms.deads", "sms.wait.4s"] {
            assert!(is_dead_letter_queue(wrong).is_err(), "{wrong}");
        }
        assert!(is_dead_letter_queue("sms.dead").is_ok());
    }
}
