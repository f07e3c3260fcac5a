//! `sluiced dead drop`: letters are removed for good, once the operator has said so.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::filter::{Decision, Filter, FilterArgs};
use super::text::letters as count;
use super::{Console, Location, Refusal, absent};
use crate::ports::clock::Clock;
use crate::queue::rabbit::letters::{BATCH, Letter, Letters};

/// The arguments of `sluiced dead drop`.
#[derive(Args, Clone, Debug)]
pub struct DropArgs {
    #[command(flatten)]
    location: Location,
    #[command(flatten)]
    filter: FilterArgs,
    /// So many letters at most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Only say what would be dropped
    #[arg(long)]
    dry_run: bool,
}

/// What became of the letters of a queue.
#[derive(Default)]
struct Tally {
    before: u32,
    meant: u64,
    dropped: u64,
    unasked: Option<(u64, String)>,
    after: u32,
    /// Why nothing was dropped.
    refused: Option<Refusal>,
}

pub(super) async fn run(
    args: &DropArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<(), Refusal> {
    let filter = Filter::new(&args.filter)?;
    let place = args.location.place()?;
    let mut all = Vec::new();
    let mut left = args.limit.unwrap_or(u64::MAX);
    for queue in &place.queues {
        let Some(letters) = place.open(queue).await? else {
            if args.location.json {
                all.push(Tally::default().as_json(queue));
            } else {
                writeln!(console.out, "{}", absent(queue))?;
            }
            continue;
        };
        let tally = empty(args, queue, letters, &filter, left, console).await?;
        left -= tally.meant;
        if args.location.json {
            all.push(tally.as_json(queue));
        } else {
            tally.write(queue, console.out)?;
        }
        if let Some(refusal) = tally.refused {
            return Err(refusal);
        }
    }
    if args.location.json {
        writeln!(console.out, "{:#}", Value::from(all))?;
    }
    Ok(())
}

async fn empty(
    args: &DropArgs,
    queue: &str,
    mut letters: Letters,
    filter: &Filter,
    limit: u64,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<Tally, Refusal> {
    let now = Clock::start().store_time();
    let mut tally = Tally {
        before: letters.total(),
        ..Tally::default()
    };
    let mut meant: Vec<Letter> = Vec::new();
    while tally.meant < limit {
        let Some(letter) = letters.next().await? else {
            break;
        };
        match filter.decide(&letter.message, now) {
            Decision::Meant => {
                tally.meant += 1;
                if args.dry_run {
                    letters.leave(letter).await?;
                } else {
                    meant.push(letter);
                }
            }
            Decision::Other => letters.leave(letter).await?,
            Decision::Unasked(why) => {
                tally.unasked.get_or_insert((0, why)).0 += 1;
                letters.leave(letter).await?;
            }
        }
        if args.yes && meant.len() >= BATCH {
            tally.dropped += meant.len() as u64;
            letters.discard(std::mem::take(&mut meant)).await?;
        }
    }
    if !args.yes && !meant.is_empty() {
        tally.refused = agreed(queue, tally.meant, console)?.err();
    }
    if tally.refused.is_none() {
        tally.dropped += meant.len() as u64;
        letters.discard(meant).await?;
    } else {
        for letter in meant {
            letters.leave(letter).await?;
        }
    }
    tally.after = letters.close().await?;
    Ok(tally)
}

/// Whether the operator agrees: the number is to be typed.
fn agreed(
    queue: &str,
    meant: u64,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> io::Result<Result<(), Refusal>> {
    if !console.ask {
        return Ok(Err(Refusal::Arguments(format!(
            "{} of {queue} would be dropped for good; add --yes",
            count(meant)
        ))));
    }
    write!(
        console.err,
        "drop {} of {queue} for good? Type the number to do so: ",
        count(meant)
    )?;
    console.err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(match answer.trim() == meant.to_string() {
        true => Ok(()),
        false => Err(Refusal::Failed("nothing was dropped".to_owned())),
    })
}

impl Tally {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", count(self.before.into()))?;
        match self.meant == self.dropped {
            true => writeln!(out, "  {} dropped", self.dropped)?,
            false => writeln!(out, "  {} would be dropped", self.meant)?,
        }
        if let Some((n, why)) = &self.unasked {
            writeln!(
                out,
                "  {n} left, for --where could not be worked out: {why}"
            )?;
        }
        writeln!(out, "  {} after", count(self.after.into()))
    }

    fn as_json(&self, queue: &str) -> Value {
        json!({
            "queue": queue,
            "before": self.before,
            "meant": self.meant,
            "dropped": self.dropped,
            "unasked": self.unasked.as_ref().map_or(0, |(count, _)| *count),
            "after": self.after,
        })
    }
}
