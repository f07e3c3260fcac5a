//! Verdicts that were reached, but whose copies were not confirmed before their session ended.
//!
//! The broker delivers such a message again. Within this process its verdict is still known: it is
//! applied, and its call is not repeated. A message is known again by all that it carries: an id is
//! not always there, and need not be its own. Only copies are kept, because an acknowledgement that was
//! applied to a message that only looks the same would lose it.
//!
//! A verdict that has not come back within [`AGE`] went to another replica. It is forgotten, or a message that
//! looks the same could die without a call weeks later.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};

use super::convert::{Original, copy_properties};
use super::topology::Target;
use crate::core::time::Mono;
use crate::ports::locks::lock;
use crate::ports::queue::HeaderPatch;

/// How long a verdict is kept. A broker may be away for a while.
const AGE: Duration = Duration::from_secs(3600);

/// A verdict that makes a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyVerdict {
    pub(super) target: Target,
    /// What it is counted as.
    pub(super) label: &'static str,
    pub(super) patch: HeaderPatch,
}

/// The same for messages with the same properties and body, which are interchangeable.
type Fingerprint = [u8; 32];

/// The verdicts of earlier sessions, and when they were kept.
#[derive(Debug, Default)]
pub(super) struct KeptVerdicts(Mutex<HashMap<Fingerprint, Vec<(Mono, CopyVerdict)>>>);

impl KeptVerdicts {
    /// Keeps those of a session that ended. What was kept before is forgotten where it is more than `most`.
    pub(super) fn keep(
        &self,
        verdicts: impl Iterator<Item = (Original, CopyVerdict)>,
        most: usize,
        now: Mono,
    ) {
        let mut kept = lock(&self.0);
        forget(&mut kept, now);
        if kept.values().map(Vec::len).sum::<usize>() > most {
            kept.clear();
        }
        for (original, verdict) in verdicts {
            let same = kept.entry(known_by(&original)).or_default();
            same.push((now, verdict));
        }
    }

    /// The verdict of a message that was delivered again.
    pub(super) fn take(&self, original: &Original, now: Mono) -> Option<CopyVerdict> {
        let mut kept = lock(&self.0);
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

fn forget(kept: &mut HashMap<Fingerprint, Vec<(Mono, CopyVerdict)>>, now: Mono) {
    kept.retain(|_, same| {
        same.retain(|(at, _)| now.since(*at) < AGE);
        !same.is_empty()
    });
}

/// Of all that a message carries, but not of what the broker counts on it.
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
mod tests {
    use super::*;
    use crate::queue::rabbit::convert::message;

    fn original() -> Original {
        let body = b"{}".to_vec();
        let delivery = lapin::message::Delivery::mock(7, "".into(), "sms".into(), true, body);
        message(delivery).1
    }

    #[test]
    fn a_verdict_is_applied_once_and_forgotten_in_the_end() {
        let kept = KeptVerdicts::default();
        let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
        let keep = |seconds| {
            let verdict = CopyVerdict {
                target: Target::Dead,
                label: "dead",
                patch: Vec::new(),
            };
            kept.keep([(original(), verdict)].into_iter(), 10, at(seconds));
        };
        keep(10);
        assert!(kept.take(&original(), at(20)).is_some());
        assert!(kept.take(&original(), at(20)).is_none(), "once");
        keep(30);
        keep(2000);
        let weeks = at(2000) + AGE;
        assert!(
            kept.take(&original(), at(30) + AGE).is_some(),
            "the later one"
        );
        assert!(kept.take(&original(), at(30) + AGE).is_none());
        keep(2000);
        assert!(kept.take(&original(), weeks).is_none());
    }
}
