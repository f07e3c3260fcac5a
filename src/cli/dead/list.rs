//! `sluiced dead list`: how many letters there are and why, and a table of the oldest.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::counts::{LetterCounts, QueueResults, UndecidedLetters};
use super::letter::{Decision, Filter, FilterArgs, LetterFacts, in_utc};
use super::{Console, LettersLocation, Refusal, letters};
use crate::cli::text::{age, in_a_line, or_dash, size, table};
use sluiced_amqp::rabbit::letters::{Letter, Letters};
use sluiced_core::time::StoreTime;
use sluiced_ports::clock;

/// A message id is shown up to here.
const ID: usize = 40;

/// The arguments of `sluiced dead list`.
#[derive(Args, Clone, Debug)]
pub struct ListLettersArgs {
    #[command(flatten)]
    location: LettersLocation,
    #[command(flatten)]
    filter: FilterArgs,
    /// This many letters of each queue are shown one by one, the first in the queue; all are counted
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// The progress is shown after this many letters.
const SAID: u64 = 100;

/// What was counted together: route, reason and last status.
type Group = (Option<String>, Option<String>, Option<i64>);

/// What a queue holds.
#[derive(Default, Serialize)]
struct LetterTotals {
    /// All letters, meant or not.
    total: u64,
    meant: u64,
    unasked: UndecidedLetters,
    #[serde(rename = "counts", serialize_with = "as_list")]
    kinds: BTreeMap<Group, u64>,
    #[serde(serialize_with = "in_utc")]
    oldest: Option<StoreTime>,
    #[serde(serialize_with = "in_utc")]
    newest: Option<StoreTime>,
    #[serde(serialize_with = "in_utc")]
    now: StoreTime,
    letters: Vec<Value>,
    #[serde(skip)]
    rows: Vec<[String; 7]>,
}

const HEAD: [&str; 7] = [
    "NO",
    "AGE",
    "REASON",
    "STATUS",
    "ATTEMPTS",
    "SIZE",
    "MESSAGE ID",
];

pub(super) async fn run(
    args: &ListLettersArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<(), Refusal> {
    let dead = args.location.dead_queues()?;
    let filter = Filter::new(&args.filter, dead.route.as_deref())?;
    let now = clock::store_time();
    let mut report = QueueResults::new(args.location.json);
    let list_run = ListRun {
        filter,
        limit: args.limit,
        now,
    };
    for (index, queue) in dead.queues.iter().enumerate() {
        let found = match dead.open(queue).await? {
            None => None,
            Some(letters) => Some(list_run.count(queue, letters, console).await?),
        };
        if index > 0 && !args.location.json {
            writeln!(console.out)?;
        }
        report.add(queue, found.as_ref(), &LetterTotals::at(now), console.out)?;
    }
    Ok(report.end(console.out)?)
}

/// What a command lists.
struct ListRun {
    filter: Filter,
    limit: usize,
    now: StoreTime,
}

impl ListRun {
    async fn count(
        &self,
        queue: &str,
        mut letters: Letters,
        console: &mut Console<'_, impl Write + Send, impl Write + Send>,
    ) -> Result<LetterTotals, Refusal> {
        let mut census = LetterTotals::at(self.now);
        let all = letters.total();
        while let Some(letter) = letters.next().await? {
            census.total += 1;
            if census.total.is_multiple_of(SAID) {
                console.progress(&format!("{queue}: looked at {} of {all}", census.total))?;
            }
            match self.filter.decide(&letter.message, self.now) {
                Decision::Meant => census.add(&letter, self.limit, self.now),
                Decision::Other => {}
                Decision::Unasked(why) => census.unasked.add(why),
            }
            letters.leave(letter).await?;
        }
        if census.total >= SAID {
            console.progress(&format!("{queue}: giving {all} letters back"))?;
        }
        letters.close().await?;
        console.progress("")?;
        Ok(census)
    }
}

impl LetterTotals {
    fn at(now: StoreTime) -> Self {
        Self {
            now,
            ..Self::default()
        }
    }

    fn add(&mut self, letter: &Letter, limit: usize, now: StoreTime) {
        let facts = LetterFacts::of(&letter.message);
        self.meant += 1;
        let kind = (
            facts.route.map(str::to_owned),
            facts.reason.map(str::to_owned),
            facts.last_status,
        );
        *self.kinds.entry(kind).or_default() += 1;
        if let Some(died) = facts.died {
            self.oldest = Some(self.oldest.map_or(died, |oldest| oldest.min(died)));
            self.newest = Some(self.newest.map_or(died, |newest| newest.max(died)));
        }
        if self.rows.len() < limit {
            self.rows.push(cells(letter, &facts, now));
            self.letters.push(facts.as_json(letter.number));
        }
    }
}

impl LetterCounts for LetterTotals {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        let span = match (self.oldest, self.newest) {
            (Some(_), Some(_)) => format!(
                ", the oldest died {} ago, the newest {} ago",
                age(self.oldest, self.now),
                age(self.newest, self.now)
            ),
            _ => String::new(),
        };
        let of = match self.meant == self.total {
            true => letters(self.total),
            false => format!("{} of {}", self.meant, letters(self.total)),
        };
        writeln!(out, "{queue}: {of}{span}")?;
        let UndecidedLetters { count, why } = &self.unasked;
        if *count > 0 {
            writeln!(out, "{count} could not be asked by --where: {why}")?;
        }
        if self.meant == 0 {
            return Ok(());
        }
        let kinds = self.kinds.iter().map(|((route, reason, status), count)| {
            let text =
                |text: &Option<String>| or_dash(text.as_ref().map(|text| in_a_line(text, ID)));
            [
                count.to_string(),
                text(route),
                text(reason),
                or_dash(*status),
            ]
        });
        writeln!(out)?;
        table(["COUNT", "ROUTE", "REASON", "STATUS"], &[0], kinds, out)?;
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        table(HEAD, &[0, 4, 5], self.rows.iter().cloned(), out)?;
        let unshown = self.meant - self.rows.len() as u64;
        if unshown > 0 {
            writeln!(out, "and {unshown} more; --limit shows more")?;
        }
        Ok(())
    }
}

/// The groups for programs.
fn as_list<S: Serializer>(kinds: &BTreeMap<Group, u64>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(kinds.iter().map(|((route, reason, status), count)| {
        json!({ "route": route, "reason": reason, "last_status": status, "count": count })
    }))
}

fn cells(letter: &Letter, facts: &LetterFacts<'_>, now: StoreTime) -> [String; 7] {
    [
        letter.number.to_string(),
        age(facts.died, now),
        or_dash(facts.reason.map(|text| in_a_line(text, ID))),
        or_dash(facts.last_status),
        or_dash(facts.attempts),
        size(letter.message.body.len()),
        or_dash(facts.message_id.map(|id| in_a_line(id, ID))),
    ]
}
