//! Verdicts that outlive their session: those that waited for the confirm of a copy or of a result when it ended.
//!
//! The broker delivers such a message again. Within this process its verdict is still known: it is applied,
//! and its call is not repeated. A message is recognized by its whole content, because it may have no id and
//! an id need not be unique. A verdict is kept only with its copy or its result: an acknowledgement alone,
//! applied to another message that looks the same, would lose that message.
//!
//! A verdict whose message has not come back within [`AGE`] is forgotten: the message went to another replica.
//! Otherwise a message that looks the same could die without a call weeks later.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};

use super::settling::{CopyVerdict, Reported};
use crate::core::time::Mono;
use crate::ports::lock;
use crate::queue::rabbit::convert::{Original, copy_properties};

/// How long a verdict is kept. A broker may be away for a while.
const AGE: Duration = Duration::from_secs(3600);

/// A verdict that outlives its session.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Copy(CopyVerdict),
    /// Its result comes first.
    Reported(Box<Reported>),
}

/// Equal for messages with the same properties and body, which are interchangeable.
type Fingerprint = [u8; 32];

/// The verdicts of the earlier sessions of a queue, and when they were kept. Routes may share the queue.
#[derive(Debug, Default)]
pub(in crate::queue::rabbit) struct KeptVerdicts {
    kept: Mutex<HashMap<Fingerprint, Vec<(Mono, Kept)>>>,
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
            kept.clear();
        }
        for (original, verdict) in verdicts {
            let same = kept.entry(known_by(&original)).or_default();
            same.push((now, verdict));
        }
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

fn forget(kept: &mut HashMap<Fingerprint, Vec<(Mono, Kept)>>, now: Mono) {
    kept.retain(|_, same| {
        same.retain(|(at, _)| now.since(*at) < AGE);
        !same.is_empty()
    });
}

/// The fingerprint of all that a message carries, without the broker's own counts.
fn known_by(original: &Original) -> Fingerprint {
    let written = gen_properties(&copy_properties(original, []))(Vec::new().into());
    let written = written.map_or(Vec::new(), |written| written.into_inner().0);
    let mut hash = Sha256::new();
    hash.update((written.len() as u64).to_be_bytes());
    hash.update(written);
    hash.update(&original.body);
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
