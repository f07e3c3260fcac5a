//! What a command did to the letters of each queue, for people and as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use super::{SUFFIX, letters};
use crate::cli::text::in_a_line;

/// This many characters of names of queues are shown: AMQP allows 255 octets.
pub(super) const QUEUE: usize = 255;

/// What a command found out about each queue: written at once, or in the end as one list of JSON.
pub(super) struct QueueResults {
    json: bool,
    all: Vec<Value>,
}

impl QueueResults {
    pub(super) const fn new(json: bool) -> Self {
        Self {
            json,
            all: Vec::new(),
        }
    }

    /// What was found in a queue. Where there is no such queue, programs get `none`.
    pub(super) fn add<T: LetterCounts>(
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

    pub(super) fn end(self, out: &mut impl Write) -> io::Result<()> {
        match self.json {
            true => writeln!(out, "{:#}", Value::from(self.all)),
            false => Ok(()),
        }
    }
}

/// The letters of a queue by what a command did to them.
pub(super) trait LetterCounts: Serialize {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()>;
}

/// How many letters `--where` had no answer for, and why for the first of them. Programs get the number.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct UndecidedLetters {
    pub(super) count: u64,
    #[serde(skip)]
    pub(super) why: String,
}

impl UndecidedLetters {
    pub(super) fn add(&mut self, why: String) {
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
pub(super) struct ReplayCounts {
    pub(super) dry_run: bool,
    pub(super) before: u32,
    pub(super) looked_at: u64,
    pub(super) meant: u64,
    pub(super) replayed: u64,
    /// The queues that they went to.
    pub(super) to: BTreeSet<String>,
    pub(super) unreadable: u64,
    pub(super) unasked: UndecidedLetters,
    pub(super) without_timestamp: u64,
    /// Of the batch that failed: dead letters still, and perhaps in their work queue too.
    pub(super) unconfirmed: usize,
    pub(super) after: Option<u32>,
}

impl LetterCounts for ReplayCounts {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        let queues: Vec<_> = self.to.iter().map(String::as_str).collect();
        let to = match queues.is_empty() {
            true => String::new(),
            // The header of a letter names its queue.
            false => format!(" to {}", in_a_line(&queues.join(", "), QUEUE)),
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
pub(super) struct DropCounts {
    pub(super) before: u32,
    pub(super) meant: u64,
    pub(super) dropped: u64,
    pub(super) unasked: UndecidedLetters,
    /// `None`: it failed on the way.
    pub(super) after: Option<u32>,
}

impl LetterCounts for DropCounts {
    fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        match (self.meant, self.dropped) {
            (meant, dropped) if meant == dropped => writeln!(out, "  {dropped} dropped")?,
            (meant, 0) if self.after.is_some() => writeln!(out, "  {meant} would be dropped")?,
            // It failed on the way.
            (meant, dropped) => writeln!(out, "  {dropped} of {meant} dropped")?,
        }
        self.unasked.write(out)?;
        match self.after {
            Some(after) => writeln!(out, "  {} after", letters(after.into())),
            None => Ok(()),
        }
    }
}

/// A line about this many letters, if there are any.
fn note(count: u64, what: &str, out: &mut impl Write) -> io::Result<()> {
    match count {
        0 => Ok(()),
        count => writeln!(out, "  {count} {what}"),
    }
}

/// The text if there is no such queue.
pub(super) fn absent(queue: &str) -> String {
    format!(
        "{queue}: no dead letters, for there is no such queue; `sluiced run` declares it when it first consumes `{}`",
        queue.strip_suffix(SUFFIX).unwrap_or(queue)
    )
}
