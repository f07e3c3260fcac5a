//! Verdicts that were reached, but whose copies were not confirmed before their session ended.
//!
//! The broker delivers such a message again. Within this process its verdict is still known: it is
//! applied, and its call is not repeated. A message is known again by all that it carries. Only
//! copies are kept, because an acknowledgement that was applied to a message that only looks the
//! same would lose it.

use std::collections::HashMap;
use std::sync::Mutex;

use super::convert::{Original, copy_properties};
use super::fingerprint::{Fingerprint, fingerprint};
use super::topology::Target;
use crate::ports::locks::lock;
use crate::ports::queue::HeaderPatch;

/// A verdict that makes a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyVerdict {
    pub(super) target: Target,
    /// What it is counted as.
    pub(super) label: &'static str,
    pub(super) patch: HeaderPatch,
}

/// The verdicts of earlier sessions.
#[derive(Debug, Default)]
pub(super) struct KeptVerdicts(Mutex<HashMap<Fingerprint, Vec<CopyVerdict>>>);

impl KeptVerdicts {
    /// Keeps those of a session that ended. What was kept before and has not come back by now went
    /// to another replica: it is forgotten once there are more than `most`.
    pub(super) fn keep(
        &self,
        verdicts: impl Iterator<Item = (Original, CopyVerdict)>,
        most: usize,
    ) {
        let mut kept = lock(&self.0);
        if kept.len() > most {
            kept.clear();
        }
        for (original, verdict) in verdicts {
            kept.entry(known_by(&original)).or_default().push(verdict);
        }
    }

    /// The verdict of a message that was delivered again.
    pub(super) fn take(&self, original: &Original) -> Option<CopyVerdict> {
        let mut kept = lock(&self.0);
        if kept.is_empty() {
            return None;
        }
        let known = known_by(original);
        let same = kept.get_mut(&known)?;
        let verdict = same.pop();
        if same.is_empty() {
            kept.remove(&known);
        }
        verdict
    }
}

/// Of all that a message carries, but not of what the broker counts on it.
fn known_by(original: &Original) -> Fingerprint {
    fingerprint(&copy_properties(original, []), &original.body)
}
