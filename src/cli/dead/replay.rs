//! `sluiced dead replay`: letters go back to their work queue and start afresh.
//!
//! Letters lie in the order in which they died. Those of a higher priority go first here, and then those that were
//! published first, as if they came anew. A queue may hold more letters than fit in memory, so this order is kept
//! within parts of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::counts::{QUEUE, QueueResults, ReplayCounts};
use super::letter::{Decision, Filter, FilterArgs, LetterFacts, queue_name};
use super::pace::ReplayPace;
use super::{Console, DeadQueues, LettersLocation, Refusal, SUFFIX};
use crate::cli::exit::StopSignals;
use crate::cli::text::in_a_line;
use sluiced_amqp::rabbit::letters::{BATCH_BYTES, Letter, Letters, Replay};
use sluiced_core::judge::DeadReason;
use sluiced_core::rate::Rate;
use sluiced_core::time::StoreTime;
use sluiced_ports::clock;
use sluiced_ports::message::Message;

/// At most this many letters are put in order together.
const ORDERED: usize = 10_000;
/// At most this many bytes of bodies are put in order together; a larger letter is alone.
const ORDERED_BYTES: usize = 64 * 1024 * 1024;
/// At most what goes in this time at the pace is put in order together: a broker may close a channel that keeps letters
/// for longer.
const ORDERED_TIME: Duration = Duration::from_secs(600);

/// The arguments of `sluiced dead replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    #[command(flatten)]
    location: LettersLocation,
    #[command(flatten)]
    filter: FilterArgs,
    /// This many letters at most, those of the highest priority first
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// To this queue instead of the one that each came from
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    to: Option<String>,
    /// At this pace, such as 50/1s; without it as fast as the broker takes them
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Also letters whose properties cannot be read: their bodies, without any properties
    #[arg(long)]
    unreadable: bool,
    /// Only say what would be replayed
    #[arg(long)]
    dry_run: bool,
}

/// What a replay needs at every letter.
struct ReplayRun<'a> {
    args: &'a ReplayArgs,
    dead: &'a DeadQueues,
    filter: Filter,
    pace: ReplayPace,
    stop: CancellationToken,
}

pub(super) async fn run(
    args: &ReplayArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<(), Refusal> {
    if let Some(to) = args.to.as_ref().filter(|to| to.ends_with(SUFFIX)) {
        return Err(Refusal::Arguments(format!(
            "`--to {to}` is a queue of dead letters; name a work queue"
        )));
    }
    let dead = args.location.dead_queues()?;
    let filter = Filter::new(&args.filter, dead.route.as_deref())?;
    let mut replaying = ReplayRun {
        args,
        dead: &dead,
        filter,
        pace: ReplayPace::of(args.rate),
        stop: stop_on_signals()?,
    };
    let failed = replaying.queues(console).await?;
    match failed {
        Some(refusal) => Err(refusal),
        None if replaying.stop.is_cancelled() => Err(Refusal::Failed(
            "stopped; what was not replayed is a dead letter still".to_owned(),
        )),
        None => Ok(()),
    }
}

impl ReplayRun<'_> {
    /// All queues, until one fails. Returns why it did.
    async fn queues(
        &mut self,
        console: &mut Console<'_, impl Write + Send, impl Write + Send>,
    ) -> Result<Option<Refusal>, Refusal> {
        let (mut report, mut failed) = (QueueResults::new(self.args.location.json), None);
        let mut limit_left = self.args.limit.unwrap_or(u64::MAX);
        for queue in &self.dead.queues {
            if self.stop.is_cancelled() || failed.is_some() || limit_left == 0 {
                break;
            }
            let mut counts = ReplayCounts {
                dry_run: self.args.dry_run,
                ..ReplayCounts::default()
            };
            let letters = match self.dead.open(queue).await {
                Ok(Some(letters)) => letters,
                Ok(None) => {
                    report.add(queue, None, &counts, console.out)?;
                    continue;
                }
                Err(refusal) => {
                    failed = Some(refusal);
                    break;
                }
            };
            let result = self
                .queue(queue, letters, limit_left, &mut counts, console)
                .await;
            limit_left -= counts.meant;
            failed = result.err();
            report.add(queue, Some(&counts), &counts, console.out)?;
        }
        report.end(console.out)?;
        Ok(failed)
    }

    /// All letters of one queue. The counts are right even after an error.
    async fn queue(
        &mut self,
        queue: &str,
        mut letters: Letters,
        limit: u64,
        counts: &mut ReplayCounts,
        console: &mut Console<'_, impl Write + Send, impl Write + Send>,
    ) -> Result<(), Refusal> {
        counts.before = letters.total();
        let mut result = self
            .letters(queue, &mut letters, limit, counts, console)
            .await;
        // Without the terminal there is no line to erase.
        console.progress("").ok();
        match letters.close().await {
            Ok(after) => counts.after = Some(after),
            Err(error) => result = result.and(Err(error.into())),
        }
        result
    }

    async fn letters(
        &mut self,
        queue: &str,
        letters: &mut Letters,
        limit: u64,
        counts: &mut ReplayCounts,
        console: &mut Console<'_, impl Write + Send, impl Write + Send>,
    ) -> Result<(), Refusal> {
        while !self.stop.is_cancelled() && counts.meant < limit {
            let mut ordered = self.read(letters, counts).await?;
            if ordered.is_empty() {
                break;
            }
            ordered.sort_by_key(|letter| urgency(&letter.message));
            let wanted = usize::try_from(limit - counts.meant).unwrap_or(usize::MAX);
            let unwanted = ordered.split_off(wanted.min(ordered.len()));
            let mut remaining = ordered.into_iter();
            while remaining.len() > 0 {
                self.pace.wait(&self.stop).await;
                if self.stop.is_cancelled() {
                    break;
                }
                let batch = self.batch(queue, &mut remaining, counts);
                self.send(letters, batch, counts).await?;
                show_progress(queue, counts, console)?;
            }
            for letter in remaining.chain(unwanted) {
                letters.leave(letter).await?;
            }
        }
        Ok(())
    }

    /// The next letters that are meant.
    async fn read(
        &self,
        letters: &mut Letters,
        counts: &mut ReplayCounts,
    ) -> Result<Vec<Letter>, Refusal> {
        let (mut ordered, mut bytes) = (Vec::new(), 0);
        let most = self.pace.within(ORDERED_TIME).min(ORDERED);
        while ordered.len() < most && bytes < ORDERED_BYTES && !self.stop.is_cancelled() {
            let Some(letter) = letters.next().await? else {
                break;
            };
            counts.looked_at += 1;
            if self.is_meant(&letter, counts) {
                bytes += letter.message.body.len();
                ordered.push(letter);
            } else {
                letters.leave(letter).await?;
            }
        }
        Ok(ordered)
    }

    /// The replays of the next letters, which go together.
    fn batch(
        &self,
        queue: &str,
        ordered: &mut impl Iterator<Item = Letter>,
        counts: &mut ReplayCounts,
    ) -> Vec<Replay> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < self.pace.batch && bytes < BATCH_BYTES {
            let Some(letter) = ordered.next() else {
                break;
            };
            counts.meant += 1;
            bytes += letter.message.body.len();
            let replay = self.replay(queue, letter, counts);
            counts.to.insert(replay.queue.clone());
            batch.push(replay);
        }
        batch
    }

    fn is_meant(&self, letter: &Letter, counts: &mut ReplayCounts) -> bool {
        match self.filter.decide(&letter.message, clock::store_time()) {
            Decision::Other => false,
            Decision::Unasked(why) => {
                counts.unasked.add(why);
                false
            }
            Decision::Meant => {
                let facts = LetterFacts::of(&letter.message);
                let skipped = facts.unreadable.is_some() && !self.args.unreadable;
                counts.unreadable += u64::from(skipped);
                !skipped
            }
        }
    }

    fn replay(&self, dead: &str, letter: Letter, counts: &mut ReplayCounts) -> Replay {
        let facts = LetterFacts::of(&letter.message);
        let from = dead.strip_suffix(SUFFIX).unwrap_or(dead);
        let named = self.args.to.as_deref().or(facts.queue);
        let queue = named.unwrap_or(from).to_owned();
        let keeps_timestamp = keeps_timestamp(
            letter.message.properties.timestamp,
            self.dead.max_age(&queue),
            facts.reason,
            clock::store_time(),
        );
        counts.without_timestamp += u64::from(!keeps_timestamp);
        Replay {
            letter,
            queue,
            keeps_timestamp,
        }
    }

    async fn send(
        &mut self,
        letters: &mut Letters,
        batch: Vec<Replay>,
        counts: &mut ReplayCounts,
    ) -> Result<(), Refusal> {
        if self.args.dry_run {
            for replay in batch {
                letters.leave(replay.letter).await?;
            }
            return Ok(());
        }
        let queues: BTreeSet<String> = batch.iter().map(|replay| replay.queue.clone()).collect();
        for queue in queues {
            if !letters.can_go_to(&queue).await? {
                let queue = in_a_line(&queue, QUEUE);
                return Err(Refusal::Failed(format!(
                    "queue `{queue}` does not exist, and nothing more was replayed; declare it, or name another with --to"
                )));
            }
        }
        let count = batch.len();
        if count == 0 {
            return Ok(());
        }
        let begun = Instant::now();
        let moved = letters.replay(batch).await;
        self.pace.note_sent(count, begun);
        counts.replayed += moved.taken as u64;
        if let Some(fault) = moved.fault {
            counts.unconfirmed = count - moved.taken;
            return Err(fault.into());
        }
        Ok(())
    }
}

/// Letters go in the order of this: those of a high priority first, then those that were published first, as far as
/// that is known. Others stay as they lie.
fn urgency(message: &Message) -> (Reverse<u8>, u64) {
    let facts = LetterFacts::of(message);
    let seconds = message.properties.timestamp;
    let published =
        seconds.map(|seconds| StoreTime::from_micros(seconds.saturating_mul(1_000_000)));
    let since = published.or(facts.first_seen).or(facts.died);
    let since_micros = since.map_or(u64::MAX, StoreTime::as_micros);
    (Reverse(message.properties.priority), since_micros)
}

/// Whether a letter may keep its publisher's time of publishing. If that is older than `max_age`, the
/// message would be dead at once. The outer `None`: the route is not known; then the reason decides.
fn keeps_timestamp(
    published: Option<u64>,
    max_age: Option<Option<Duration>>,
    reason: Option<&str>,
    now: StoreTime,
) -> bool {
    let Some(published) = published else {
        return true;
    };
    let published_at = StoreTime::from_micros(published.saturating_mul(1_000_000));
    match max_age {
        None => reason != Some(DeadReason::Expired.label()),
        Some(max_age) => max_age.is_none_or(|age| published_at + age > now),
    }
}

/// Cancelled at the first signal: the batch under way is finished, and the counts are written.
fn stop_on_signals() -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut signals = StopSignals::new()?;
    let cancelled = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancelled.cancel();
    });
    Ok(stop)
}

fn show_progress(
    queue: &str,
    counts: &ReplayCounts,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> io::Result<()> {
    let (replayed, looked, before) = (counts.replayed, counts.looked_at, counts.before);
    console.progress(&format!(
        "{queue}: {replayed} replayed, looked at {looked} of {before}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_stays_unless_it_would_kill_the_message_at_once() {
        let now = StoreTime::from_micros(1_700_000_000_000_000);
        let published = Some(1_700_000_000 - 3600);
        let hours = |n: u64| Some(Some(Duration::from_secs(3600 * n)));
        let keeps = |max_age, reason| keeps_timestamp(published, max_age, Some(reason), now);
        assert!(keeps(hours(2), "rejected"));
        assert!(!keeps(hours(1), "rejected"));
        assert!(!keeps(hours(1), "expired"));
        assert!(keeps(Some(None), "expired"), "the route knows no age");
        assert!(keeps(None, "rejected"), "without a configuration");
        assert!(!keeps(None, "expired"));
        assert!(keeps_timestamp(None, hours(1), Some("expired"), now));
    }

    #[test]
    fn letters_go_by_priority_and_then_by_age() {
        let letter = |priority, timestamp| {
            let mut message = Message::default();
            message.properties.priority = priority;
            message.properties.timestamp = timestamp;
            message
        };
        let mut letters = [
            (0, Some(5)),
            (9, None),
            (5, Some(8)),
            (9, Some(7)),
            (5, Some(2)),
        ];
        letters.sort_by_key(|(priority, timestamp)| urgency(&letter(*priority, *timestamp)));
        let order = [
            (9, Some(7)),
            (9, None),
            (5, Some(2)),
            (5, Some(8)),
            (0, Some(5)),
        ];
        assert_eq!(letters, order);
    }
}
