//! What a verdict becomes: an acknowledgement, or a copy that is published first.
//!
//! Some verdicts outlive their session ([`KeptVerdicts`]): those whose copies were not confirmed before it ended.
//! The broker delivers such a message again. Within this process its verdict is still known: it is applied, and
//! its call is not repeated. A message is recognized by all that it carries, because an id is not always there
//! and need not be unique. Only copies are kept: an acknowledgement that was applied to another message which
//! looks the same would lose that message.
//!
//! A verdict whose message has not come back within [`AGE`] is forgotten: the message went to another replica.
//! Otherwise a message that looks the same could die without a call weeks later.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};

use super::Session;
use crate::core::acks::{Acks, Bounds, Fate};
use crate::core::byte_budget::ByteBudget;
use crate::core::time::Mono;
use crate::ports::lock;
use crate::ports::message::{HeaderValue, header};
use crate::ports::queue::{HeaderPatch, Settlement, Verdict};
use crate::queue::rabbit::convert::{Original, copy_properties, returned_properties};
use crate::queue::rabbit::options::RouteOptions;
use crate::queue::rabbit::publisher::Republish;
use crate::queue::rabbit::topology::Target;

/// How long a verdict is kept. A broker may be away for a while.
const AGE: Duration = Duration::from_secs(3600);

/// The deliveries of a channel that are not settled or not acknowledged yet.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) acks: Acks<&'static str>,
    /// For the bodies of `delivered` and `copying`.
    pub(super) budget: ByteBudget,
    /// Without a verdict, by tag: what a copy would be made of.
    delivered: HashMap<u64, Original>,
    /// Their copies are not confirmed yet, by tag.
    copying: HashMap<u64, (Original, CopyVerdict)>,
}

/// A verdict that makes a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyVerdict {
    target: Target,
    /// What it is counted as.
    label: &'static str,
    patch: HeaderPatch,
}

impl Unsettled {
    /// None yet, of a channel whose consumers have so many messages together at most.
    pub(super) fn new(route: &RouteOptions, prefetches: u64) -> Self {
        Self {
            acks: Acks::new(Bounds::for_prefetch(route.prefetch)),
            budget: ByteBudget::for_prefetch(prefetches, route.settings.max_body.0),
            delivered: HashMap::new(),
            copying: HashMap::new(),
        }
    }

    pub(super) fn delivered(&mut self, tag: u64, original: Original) {
        self.delivered.insert(tag, original);
    }

    /// How many have no acknowledgement.
    pub(super) fn held(&self) -> usize {
        self.delivered.len() + self.copying.len()
    }

    /// How many copies are not confirmed.
    pub(super) fn copying(&self) -> usize {
        self.copying.len()
    }

    /// The deliveries whose copies are not confirmed.
    pub(super) fn take_copying(&mut self) -> impl Iterator<Item = (Original, CopyVerdict)> {
        self.copying.drain().map(|(_, copying)| copying)
    }
}

impl Session {
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement { tag, verdict } = settlement;
        let label = verdict.label();
        let (target, patch) = match verdict {
            Verdict::Done | Verdict::Dropped => return self.settle_as(tag, Fate::Ack, label),
            Verdict::GiveBack => return self.settle_as(tag, Fate::Requeue, label),
            Verdict::Later { delay, headers } => {
                (Target::Wait(self.context.ladder.rung(delay)), headers)
            }
            Verdict::Parked { space, headers } => {
                self.context.parked.add();
                (Target::Parked(space), headers)
            }
            Verdict::Dead { reason, headers } => {
                let route = &self.context.route;
                let mut patch: HeaderPatch = vec![
                    (header::REASON, HeaderValue::Text(reason.label().to_owned())),
                    (header::ROUTE, HeaderValue::Text(route.name.clone())),
                    (header::QUEUE, HeaderValue::Text(route.queue().to_owned())),
                ];
                patch.extend(headers);
                (Target::Dead, patch)
            }
        };
        let verdict = CopyVerdict {
            target,
            label,
            patch,
        };
        self.copy(tag, verdict);
    }

    /// The delivery is acknowledged or returned with the next frames.
    pub(super) fn settle_as(&mut self, tag: u64, fate: Fate, label: &'static str) {
        if let Some(original) = self.unsettled.delivered.remove(&tag) {
            self.unsettled.budget.settle(original.size());
        }
        let now = self.context.clock.now();
        self.unsettled.acks.settle(tag, fate, label, now);
    }

    /// Publishes the copy that a verdict makes.
    pub(super) fn copy(&mut self, tag: u64, verdict: CopyVerdict) {
        let Some(original) = self.unsettled.delivered.remove(&tag) else {
            return;
        };
        let properties = match verdict.target {
            // The broker shall go on to expire it.
            Target::Work => returned_properties(&original),
            _ => copy_properties(&original, verdict.patch.iter().cloned()),
        };
        self.publisher.publish(Republish {
            tag,
            target: verdict.target,
            properties,
            body: original.body.clone(),
        });
        self.unsettled.copying.insert(tag, (original, verdict));
    }

    /// The copy is safe: its original is acknowledged.
    pub(super) fn on_confirmed(&mut self, tag: u64) {
        if let Some((original, verdict)) = self.unsettled.copying.remove(&tag) {
            self.unsettled.budget.settle(original.size());
            self.settle_as(tag, Fate::Ack, verdict.label);
        }
    }
}

/// The message goes to the end of its queue, without the returns behind it.
pub(super) fn renewed() -> CopyVerdict {
    CopyVerdict {
        target: Target::Work,
        label: Verdict::GiveBack.label(),
        patch: Vec::new(),
    }
}

/// The same for messages with the same properties and body, which are interchangeable.
type Fingerprint = [u8; 32];

/// The verdicts of earlier sessions, and when they were kept.
#[derive(Debug, Default)]
pub(in crate::queue::rabbit) struct KeptVerdicts(
    Mutex<HashMap<Fingerprint, Vec<(Mono, CopyVerdict)>>>,
);

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
