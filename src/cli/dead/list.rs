//! `sluiced dead list`: how many letters there are and why, and a table of the oldest. For `sluiced find`: whether a
//! message is among the dead letters.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::letter::{Decision, Filter, FilterArgs, LetterFacts};
use super::show::{LABELS, Sought, in_short, seek};
use super::{Console, Location, Refusal, absent, letters};
use crate::cli::text::{age, facts, in_a_line, or_dash, size, table, utc_of};
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::message::Message;
use crate::queue::rabbit::letters::{Letter, Letters};

/// A message id is shown up to here.
const ID: usize = 40;

/// The arguments of `sluiced dead list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    location: Location,
    #[command(flatten)]
    filter: FilterArgs,
    /// So many letters of each queue are shown one by one, the first in the queue; all are counted
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// The progress is shown after so many letters.
const SAID: u64 = 100;

/// What was counted together: route, reason and last status.
type Group = (Option<String>, Option<String>, Option<i64>);

/// What a queue holds.
#[derive(Default)]
struct Census {
    /// All letters, meant or not.
    total: u64,
    meant: u64,
    kinds: BTreeMap<Group, u64>,
    oldest: Option<StoreTime>,
    newest: Option<StoreTime>,
    shown: Vec<LetterRow>,
    unasked: Option<(u64, String)>,
}

struct LetterRow {
    cells: [String; 7],
    json: Value,
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
    args: &ListArgs,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<(), Refusal> {
    let dead = args.location.dead_queues()?;
    let filter = Filter::new(&args.filter, dead.route.as_deref())?;
    let now = Clock::start().store_time();
    let mut all = Vec::new();
    for (index, queue) in dead.queues.iter().enumerate() {
        let census = match dead.open(queue).await? {
            None => None,
            Some(letters) => Some(count(queue, letters, &filter, args.limit, now, console).await?),
        };
        if args.location.json {
            all.push(census.unwrap_or_default().as_json(queue, now));
            continue;
        }
        if index > 0 {
            writeln!(console.out)?;
        }
        match census {
            None => writeln!(console.out, "{}", absent(queue))?,
            Some(census) => census.write(queue, now, console.out)?,
        }
    }
    if args.location.json {
        writeln!(console.out, "{:#}", Value::from(all))?;
    }
    Ok(())
}

async fn count(
    queue: &str,
    mut letters: Letters,
    filter: &Filter,
    limit: usize,
    now: StoreTime,
    console: &mut Console<'_, impl Write + Send, impl Write + Send>,
) -> Result<Census, Refusal> {
    let mut census = Census::default();
    let all = letters.total();
    while let Some(letter) = letters.next().await? {
        census.total += 1;
        if census.total.is_multiple_of(SAID) {
            console.progress(&format!("{queue}: looked at {} of {all}", census.total))?;
        }
        match filter.decide(&letter.message, now) {
            Decision::Meant => census.add(&letter, limit, now),
            Decision::Other => {}
            Decision::Unasked(why) => census.unasked.get_or_insert((0, why)).0 += 1,
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

impl Census {
    fn add(&mut self, letter: &Letter, limit: usize, now: StoreTime) {
        let facts = LetterFacts(&letter.message);
        self.meant += 1;
        let kind = (
            facts.route().map(str::to_owned),
            facts.reason().map(str::to_owned),
            facts.status(),
        );
        *self.kinds.entry(kind).or_default() += 1;
        if let Some(died) = facts.died() {
            self.oldest = Some(self.oldest.map_or(died, |oldest| oldest.min(died)));
            self.newest = Some(self.newest.map_or(died, |newest| newest.max(died)));
        }
        if self.shown.len() < limit {
            self.shown.push(LetterRow {
                cells: cells(letter.number, &letter.message, now),
                json: facts.as_json(letter.number),
            });
        }
    }

    fn write(&self, queue: &str, now: StoreTime, out: &mut impl Write) -> Result<(), Refusal> {
        let span = match (self.oldest, self.newest) {
            (Some(_), Some(_)) => format!(
                ", the oldest died {} ago, the newest {} ago",
                age(self.oldest, now),
                age(self.newest, now)
            ),
            _ => String::new(),
        };
        let of = match self.meant == self.total {
            true => letters(self.total),
            false => format!("{} of {}", self.meant, letters(self.total)),
        };
        writeln!(out, "{queue}: {of}{span}")?;
        if let Some((count, why)) = &self.unasked {
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
        if self.shown.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let rows = self.shown.iter().map(|row| row.cells.clone());
        table(HEAD, &[0, 4, 5], rows, out)?;
        let more = self.meant - self.shown.len() as u64;
        if more > 0 {
            writeln!(out, "and {more} more; --limit shows more")?;
        }
        Ok(())
    }

    fn as_json(&self, queue: &str, now: StoreTime) -> Value {
        let kinds = self.kinds.iter().map(|((route, reason, status), count)| {
            json!({ "route": route, "reason": reason, "last_status": status, "count": count })
        });
        json!({
            "queue": queue,
            "total": self.total,
            "meant": self.meant,
            "unasked": self.unasked.as_ref().map_or(0, |(count, _)| *count),
            "counts": kinds.collect::<Vec<_>>(),
            "oldest": self.oldest.map(utc_of),
            "newest": self.newest.map(utc_of),
            "now": utc_of(now),
            "letters": self.shown.iter().map(|row| row.json.clone()).collect::<Vec<_>>(),
        })
    }
}

fn cells(number: u64, message: &Message, now: StoreTime) -> [String; 7] {
    let facts = LetterFacts(message);
    [
        number.to_string(),
        age(facts.died(), now),
        or_dash(facts.reason().map(|text| in_a_line(text, ID))),
        or_dash(facts.status()),
        or_dash(facts.attempts()),
        size(message.body.len()),
        or_dash(facts.id().map(|id| in_a_line(id, ID))),
    ]
}

/// The dead letters of one message.
pub(in crate::cli) struct FoundLetters {
    letters: Vec<FoundLetter>,
    /// The content of the queues that do not have it.
    missing: Vec<String>,
}

struct FoundLetter {
    title: String,
    facts: Vec<(String, String)>,
    json: Value,
}

/// Looks for a message by its id, among the letters of a route or of all.
pub(in crate::cli) async fn find(
    config: &[PathBuf],
    route: Option<&str>,
    id: &str,
) -> Result<FoundLetters, Refusal> {
    let location = Location {
        config: config.to_vec(),
        route: route.map(str::to_owned),
        rabbitmq: None,
        queue: None,
        json: false,
    };
    let dead = location.dead_queues()?;
    let mut found = FoundLetters {
        letters: Vec::new(),
        missing: Vec::new(),
    };
    for queue in &dead.queues {
        let see = |letter: &_| Ok(in_short(queue, letter));
        match seek(&dead, queue, (None, id), see).await? {
            Sought::Missing(why) => found.missing.push(why),
            Sought::Found((facts, json)) => found.letters.push(FoundLetter {
                title: format!("letter {} of {queue}", json["number"]),
                facts,
                json,
            }),
        }
    }
    Ok(found)
}

impl FoundLetters {
    pub(in crate::cli) fn write(&self, out: &mut impl Write) -> Result<(), Refusal> {
        if self.letters.is_empty() {
            writeln!(out, "it is no dead letter: {}", self.missing.join("; "))?;
        }
        for (index, letter) in self.letters.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            writeln!(out, "{}", letter.title)?;
            facts(LABELS, &letter.facts, out)?;
        }
        Ok(())
    }

    pub(in crate::cli) fn as_json(&self) -> Value {
        let letters = self.letters.iter().map(|letter| &letter.json);
        json!(letters.collect::<Vec<_>>())
    }
}
