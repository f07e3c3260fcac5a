//! Verdicts that outlive their session: those that waited for the confirm of a copy or of a result when it ended.
//!
//! The broker delivers such a message again. Within this process its verdict is still known: it is applied,
//! and its call is not repeated. A message is recognized by its whole content, because it may have no id and
//! an id need not be unique. A verdict is kept only with its copy or its result: an acknowledgement alone,
//! applied to another message that looks the same, would lose that message.
//!
//! A verdict whose message has not come back within [`AGE`] is forgotten: the message went to another replica.
//! Otherwise a message that looks the same could die without a call weeks later.
//!
//! A message that was set aside (`placeless`) carries a mark that no other one has, and is recognized by that. It may
//! wait behind a backlog, so its verdict is kept for [`MARKED_AGE`].

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::settling::{CopyVerdict, Reported};
use crate::core::time::Mono;
use crate::ports::lock;
use crate::ports::queue::Verdict;
use crate::queue::rabbit::convert::{Original, copy_properties};

/// How long a verdict is kept. A broker may be away for a while.
const AGE: Duration = Duration::from_secs(3600);
/// How long that of a message with a mark is kept.
const MARKED_AGE: Duration = Duration::from_secs(24 * 3600);

/// A verdict that outlives its session.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Copy(CopyVerdict),
    /// Its result comes first.
    Reported(Box<Reported>),
}

impl Kept {
    /// A message that is done is known again only by an id of its publisher or by a mark: otherwise another message
    /// that looks the same would be lost without a call.
    pub(super) fn may_be_kept(&self, original: &Original) -> bool {
        match self {
            Self::Copy(_) => true,
            Self::Reported(reported) => {
                let is_done = reported.verdict == Verdict::Done;
                !is_done || original.has_id() || original.mark().is_some()
            }
        }
    }
}

/// What a message is recognized by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Known {
    /// Equal for messages with the same properties and body, which are interchangeable.
    Content([u8; 32]),
    Mark(String),
}

impl Known {
    const fn age(&self) -> Duration {
        match self {
            Self::Content(_) => AGE,
            Self::Mark(_) => MARKED_AGE,
        }
    }
}

/// The verdicts of the earlier sessions of a queue, and when they were kept. Routes may share the queue.
#[derive(Debug, Default)]
pub(in crate::queue::rabbit) struct KeptVerdicts {
    kept: Mutex<HashMap<Known, Vec<(Mono, Kept)>>>,
    /// The most verdicts: older ones beyond it are forgotten.
    most: AtomicUsize,
}

impl KeptVerdicts {
    /// Another route consumes the queue, with this prefetch: the verdicts of a few sessions of all its routes
    /// are kept.
    pub(in crate::queue::rabbit) fn consumes(&self, prefetch: u16) {
        self.most
            .fetch_add(4 * usize::from(prefetch), Ordering::Relaxed);
    }

    /// Keeps those of a session that ended.
    pub(super) fn keep(&self, verdicts: impl Iterator<Item = (Original, Kept)>, now: Mono) {
        let mut kept = lock(&self.kept);
        forget(&mut kept, now);
        if kept.values().map(Vec::len).sum::<usize>() > self.most.load(Ordering::Relaxed) {
            // Those with a mark are bounded by themselves.
            kept.retain(|known, _| matches!(known, Known::Mark(_)));
        }
        for (original, verdict) in verdicts {
            let same = kept.entry(known_by(&original)).or_default();
            same.push((now, verdict));
        }
    }

    /// Keeps the verdict of one message that goes back to its queue.
    pub(super) fn keep_one(&self, original: &Original, verdict: Kept, now: Mono) {
        let mut kept = lock(&self.kept);
        kept.entry(known_by(original))
            .or_default()
            .push((now, verdict));
    }

    /// Keeps a verdict under a new mark; `None`: so many are kept already.
    pub(super) fn mark(&self, verdict: Kept, now: Mono) -> Option<String> {
        let mut kept = lock(&self.kept);
        forget(&mut kept, now);
        let marked = kept.keys().filter(|known| matches!(known, Known::Mark(_)));
        if marked.count() >= self.most.load(Ordering::Relaxed) {
            return None;
        }
        let mark = Uuid::new_v4().to_string();
        kept.insert(Known::Mark(mark.clone()), vec![(now, verdict)]);
        Some(mark)
    }

    /// Takes the verdict of a mark back.
    pub(super) fn unmark(&self, mark: &str) -> Option<Kept> {
        let known = Known::Mark(mark.to_owned());
        let (_, verdict) = lock(&self.kept).remove(&known)?.pop()?;
        Some(verdict)
    }

    /// The verdict of a message that was delivered again.
    pub(super) fn take(&self, original: &Original, now: Mono) -> Option<Kept> {
        let mut kept = lock(&self.kept);
        if kept.is_empty() {
            return None;
        }
        forget(&mut kept, now);
        let known = known_by(original);
        let same = kept.get_mut(&known)?;
        let verdict = same.pop();
        if same.is_empty() {
            kept.remove(&known);
        }
        verdict.map(|(_, verdict)| verdict)
    }
}

fn forget(kept: &mut HashMap<Known, Vec<(Mono, Kept)>>, now: Mono) {
    kept.retain(|known, same| {
        same.retain(|(at, _)| now.since(*at) < known.age());
        !same.is_empty()
    });
}

/// Its mark, or the fingerprint of all that a message carries, without the broker's own counts.
fn known_by(original: &Original) -> Known {
    if let Some(mark) = original.mark() {
        return Known::Mark(mark.to_owned());
    }
    let written = gen_properties(&copy_properties(original, []))(Vec::new().into());
    let written = written.map_or(Vec::new(), |written| written.into_inner().0);
    let mut hash = Sha256::new();
    hash.update((written.len() as u64).to_be_bytes());
    hash.update(written);
    hash.update(&original.body);
    Known::Content(hash.finalize().into())
}

#[cfg(test)]
mod tests;
