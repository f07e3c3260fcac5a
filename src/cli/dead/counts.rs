//! What a command did to the letters of a queue, for people and as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Refusal, letters};

/// What `sluiced dead replay` did to the letters of a queue.
#[derive(Debug, Default)]
pub(super) struct ReplayCounts {
    pub(super) before: u32,
    pub(super) looked: u64,
    pub(super) meant: u64,
    pub(super) replayed: u64,
    pub(super) queues: BTreeSet<String>,
    pub(super) unreadable: u64,
    pub(super) unasked: Option<(u64, String)>,
    pub(super) timeless: u64,
    /// Of the batch that failed: dead letters still, and perhaps in their work queue too.
    pub(super) unsure: usize,
    pub(super) after: Option<u32>,
}

impl ReplayCounts {
    pub(super) fn write(&self, queue: &str, dry_run: bool, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        let queues: Vec<_> = self.queues.iter().map(String::as_str).collect();
        let to = match queues.is_empty() {
            true => String::new(),
            false => format!(" to {}", queues.join(", ")),
        };
        if dry_run {
            writeln!(out, "  {} would be replayed{to}", self.meant)?;
        } else {
            writeln!(out, "  {} replayed{to}", self.replayed)?;
        }
        note(
            self.timeless,
            "of these without their timestamp: by it they are too old, and would be dead at once",
            out,
        )?;
        note(
            self.unreadable,
            "left, for their properties cannot be read; --unreadable replays their bodies alone",
            out,
        )?;
        unasked(&self.unasked, out)?;
        note(
            self.unsure as u64,
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

    pub(super) fn as_json(&self, queue: &str, dry_run: bool) -> Value {
        json!({
            "queue": queue,
            "dry_run": dry_run,
            "before": self.before,
            "looked_at": self.looked,
            "meant": self.meant,
            "replayed": self.replayed,
            "to": self.queues,
            "without_timestamp": self.timeless,
            "unreadable": self.unreadable,
            "unasked": self.unasked.as_ref().map_or(0, |(count, _)| *count),
            "unconfirmed": self.unsure,
            "after": self.after,
        })
    }
}

/// What `sluiced dead drop` did to the letters of a queue.
#[derive(Default)]
pub(super) struct DropCounts {
    pub(super) before: u32,
    pub(super) meant: u64,
    pub(super) dropped: u64,
    pub(super) unasked: Option<(u64, String)>,
    pub(super) after: u32,
    /// Why nothing was dropped.
    pub(super) refused: Option<Refusal>,
}

impl DropCounts {
    pub(super) fn write(&self, queue: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{queue}: {} before", letters(self.before.into()))?;
        match self.meant == self.dropped {
            true => writeln!(out, "  {} dropped", self.dropped)?,
            false => writeln!(out, "  {} would be dropped", self.meant)?,
        }
        unasked(&self.unasked, out)?;
        writeln!(out, "  {} after", letters(self.after.into()))
    }

    pub(super) fn as_json(&self, queue: &str) -> Value {
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

/// A line about so many letters, if there are any.
fn note(count: u64, what: &str, out: &mut impl Write) -> io::Result<()> {
    match count {
        0 => Ok(()),
        count => writeln!(out, "  {count} {what}"),
    }
}

/// The letters for which `--where` had no answer.
fn unasked(unasked: &Option<(u64, String)>, out: &mut impl Write) -> io::Result<()> {
    let Some((count, why)) = unasked else {
        return Ok(());
    };
    note(
        *count,
        &format!("left, for --where could not be worked out: {why}"),
        out,
    )
}
