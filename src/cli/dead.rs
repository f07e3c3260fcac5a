//! `sluiced dead`: shows the letters in the dead-letter queues, replays and drops them.
//!
//! A letter is read without being taken (`amqp::rabbit::letters`). It leaves its queue only when its
//! copy is safe in a work queue, or when the operator drops it. The only secret that is needed is
//! RabbitMQ's.

mod counts;
mod drop;
mod found;
mod letter;
mod list;
mod pace;
mod replay;
mod show;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::SecretString;

use self::letter::queue_name;
use super::exit::{Exit, Refusal, find_named, load_configuration, only_one_of, variables};
use super::shell;
use super::text::counted;
use crate::wire;
use sluiced_amqp::rabbit::RabbitOptions;
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_settings::Needs;
use sluiced_settings::types::{QueueBackend, Route, Settings};

pub(super) use found::{FoundLetters, find};

/// The suffix of every dead-letter queue.
const SUFFIX: &str = ".dead";

/// The arguments of `sluiced dead`.
#[derive(Args, Clone, Debug)]
pub struct DeadArgs {
    #[command(subcommand)]
    pub command: DeadCommand,
}

/// What to do.
#[derive(Subcommand, Clone, Debug)]
pub enum DeadCommand {
    /// How many there are, by route, reason and status, and the oldest of them
    List(list::ListLettersArgs),
    /// Everything about one letter; its body only with --body
    Show(show::ShowLetterArgs),
    /// Send letters to their work queue again, where they start afresh
    Replay(replay::ReplayArgs),
    /// Remove letters for good
    Drop(drop::DropArgs),
}

/// Where the letters are.
#[derive(Args, Clone, Debug)]
pub struct LettersLocation {
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
    #[arg(long, value_name = "NAME", value_parser = queue_name)]
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
        DeadCommand::List(args) => list::run(args, console).await?,
        DeadCommand::Show(args) => show::run(args, console.out).await?,
        DeadCommand::Replay(args) => replay::run(args, console).await?,
        DeadCommand::Drop(args) => drop::run(args, console).await?,
    }
    Ok(Exit::Done)
}

impl LettersLocation {
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
        let loaded = load_configuration(needs, &self.config, variables())?;
        if loaded.settings.backend.queue == QueueBackend::Embedded {
            return Err(Refusal::Failed(format!(
                "with `backend.queue = \"embedded\"` there is no queue of dead letters: what was not delivered is in `{}`",
                loaded.settings.embedded.leftover.display()
            )));
        }
        let queues = match (&self.queue, &self.route) {
            (Some(queue), _) => vec![queue.clone()],
            (None, Some(route)) => vec![dead_of(
                find_named("route", route, &loaded.settings.routes)?.1,
            )],
            // Routes may share a queue.
            (None, None) => {
                let all = loaded.settings.routes.values().map(dead_of);
                all.collect::<BTreeSet<_>>().into_iter().collect()
            }
        };
        let is_shared = |name: &String| {
            let route = loaded.settings.routes.get(name);
            route.is_some_and(|route| loaded.settings.of_queue(&route.queue).nth(1).is_some())
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

/// `1 letter`, `2 letters`.
fn letters(count: u64) -> String {
    counted(count, "letter")
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
