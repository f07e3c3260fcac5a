//! `sluiced dead drop`: removes letters for good, once the operator has confirmed it.

use std::io::{self, Write};

use clap::Args;

use super::counts::{DropCounts, QueueResults};
use super::letter::{Decision, Filter, FilterArgs};
use super::{Console, DeadQueues, LettersLocation, Refusal, letters};
use crate::cli::exit::agrees;
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_core::time::StoreTime;
use sluiced_ports::clock;
use sluiced_ports::message::{HeaderValue, Message, header};

/// The arguments of `sluiced dead drop`.
#[derive(Args, Clone, Debug)]
pub struct DropArgs {
    #[command(flatten)]
    location: LettersLocation,
    #[command(flatten)]
    filter: FilterArgs,
    /// This many letters at most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Only say what would be dropped
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(
    args: &DropArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<(), Refusal> {
    let dead = args.location.dead_queues()?;
    let filter = Filter::new(&args.filter, dead.route.as_deref())?;
    let mut report = QueueResults::new(args.location.json);
    let mut limit_left = args.limit.unwrap_or(u64::MAX);
    let drop_run = DropRun {
        args,
        dead: &dead,
        filter: &filter,
    };
    let mut failed = None;
    for queue in &dead.queues {
        // A queue that is read gives its letters back, which a quorum queue counts.
        if limit_left == 0 || failed.is_some() {
            break;
        }
        let mut counts = DropCounts::default();
        let result = drop_run
            .drop_letters(queue, limit_left, &mut counts, console)
            .await;
        // A queue that could not be opened has no counts.
        if result.is_ok() || counts.before > 0 {
            let found = *result.as_ref().unwrap_or(&true);
            let found = found.then_some(&counts);
            report.add(queue, found, &DropCounts::default(), console.out)?;
        }
        limit_left -= counts.meant;
        failed = result.err();
    }
    report.end(console.out)?;
    failed.map_or(Ok(()), Err)
}

/// What a command drops.
struct DropRun<'a> {
    args: &'a DropArgs,
    dead: &'a DeadQueues,
    filter: &'a Filter,
}

impl DropRun<'_> {
    /// One queue: its letters are counted first, and dropped in a second pass. So the operator may take any
    /// time to answer, while no letter is held and none is kept in memory. Returns whether there is such a queue; the
    /// counts are right even after an error.
    async fn drop_letters(
        &self,
        queue: &str,
        limit: u64,
        counts: &mut DropCounts,
        console: &mut Console<'_, impl Write + Send, impl Write + Send>,
    ) -> Result<bool, Refusal> {
        let mut pass = Pass {
            filter: self.filter,
            now: clock::store_time(),
            limit,
            drops: false,
            latest: i64::MAX,
        };
        if self.args.dry_run || !self.args.yes {
            let Some(all) = self.dead.open(queue).await? else {
                return Ok(false);
            };
            let latest = pass.over(all, counts).await?;
            if self.args.dry_run || counts.meant == 0 {
                return Ok(true);
            }
            agreed(queue, counts.meant, console)??;
            (pass.limit, pass.latest) = (counts.meant, latest);
        }
        pass.drops = true;
        let Some(all) = self.dead.open(queue).await? else {
            return Ok(false);
        };
        *counts = DropCounts::default();
        pass.over(all, counts).await?;
        Ok(true)
    }
}

/// One reading of a queue.
struct Pass<'a> {
    filter: &'a Filter,
    now: StoreTime,
    limit: u64,
    /// The letters that match are removed.
    drops: bool,
    /// When the last of the letters died that were counted: later ones came since.
    latest: i64,
}

impl Pass<'_> {
    /// Reads all letters. Returns when the last of those that match died.
    async fn over(&self, mut letters: Letters, counts: &mut DropCounts) -> Result<i64, Refusal> {
        let mut latest = i64::MIN;
        counts.before = letters.total();
        // A count reads all of them: letters that were fetched and not read would return behind the others, and
        // the second pass would drop others than these.
        while !self.drops || counts.meant < self.limit {
            let Some(letter) = letters.next().await? else {
                break;
            };
            let died = died(&letter.message);
            let is_dropped = match self.filter.decide(&letter.message, self.now) {
                _ if died > self.latest => false,
                Decision::Meant => {
                    latest = latest.max(died);
                    counts.meant = self.limit.min(counts.meant + 1);
                    self.drops
                }
                Decision::Other => false,
                Decision::Unasked(why) => {
                    counts.unasked.add(why);
                    false
                }
            };
            if is_dropped {
                letters.discard(letter).await?;
                counts.dropped += 1;
            } else {
                letters.leave(letter).await?;
            }
        }
        counts.after = Some(letters.close().await?);
        Ok(latest)
    }
}

/// When it became a dead letter, by the clock of Redis. What does not say it counts as old.
fn died(message: &Message) -> i64 {
    let died = message.headers.get(header::DIED);
    died.and_then(HeaderValue::as_int).unwrap_or(i64::MIN)
}

/// Whether the operator agrees, by typing the number.
fn agreed(
    queue: &str,
    meant: u64,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> io::Result<Result<(), Refusal>> {
    if !console.ask {
        return Ok(Err(Refusal::Arguments(format!(
            "{} of {queue} would be dropped for good; add --yes",
            letters(meant)
        ))));
    }
    let question = format!(
        "drop {} of {queue} for good? Type the number to do so: ",
        letters(meant)
    );
    Ok(match agrees(&question, &meant.to_string(), console.err)? {
        true => Ok(()),
        false => Err(Refusal::Failed(format!("nothing of {queue} was dropped"))),
    })
}
