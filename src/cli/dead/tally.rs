//! What a replay did to a queue of dead letters, for people and as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::text::letters as count;

/// What became of the letters of a queue.
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
        writeln!(out, "{queue}: {} before", count(self.before.into()))?;
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
        if self.timeless > 0 {
            let n = self.timeless;
            writeln!(
                out,
                "  {n} of these without their timestamp: by it they are too old, and would be dead at once"
            )?;
        }
        if self.unreadable > 0 {
            let n = self.unreadable;
            writeln!(
                out,
                "  {n} left, for their properties cannot be read; --unreadable replays their bodies alone"
            )?;
        }
        if let Some((n, why)) = &self.unasked {
            writeln!(
                out,
                "  {n} left, for --where could not be worked out: {why}"
            )?;
        }
        if self.unsure > 0 {
            let n = self.unsure;
            writeln!(
                out,
                "  {n} not confirmed: they are dead letters still, and may be in their work queue too"
            )?;
        }
        if let Some(after) = self.after {
            let expected = u64::from(self.before).saturating_sub(self.replayed);
            let new = match u64::from(after).saturating_sub(expected) {
                0 => String::new(),
                new => format!(", {new} of them new"),
            };
            writeln!(out, "  {} after{new}", count(after.into()))?;
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
