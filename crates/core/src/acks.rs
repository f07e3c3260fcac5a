//! Which acknowledgements of a channel to write, and when.
//!
//! Problem: one frame can settle every delivery up to a tag, which is several times cheaper for the broker than one
//! frame for each. But verdicts come out of order, and one slow call at the head must not use up the prefetch. So the
//! tags of a channel are kept in order, and the settled ones at the front are written in runs. A tag that is settled
//! behind an open one for too long, or one of too many, gets a frame of its own.
//!
//! The broker numbers the deliveries of a channel without gaps. Where several consumers share the
//! channel, their deliveries arrive in another order. A number that has not arrived yet is on its
//! way: no frame may settle it along with others, or its message would be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::time::Mono;

/// A tag further ahead of the highest known one than this is absurd: no prefetch lets this many be on their way.
const TAG_GAP_MAX: u64 = 1 << 20;

/// How a delivery leaves the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckKind {
    /// `basic.ack`: the broker forgets it.
    Ack,
    /// `basic.nack` with requeue (RabbitMQ's extension of AMQP 0-9-1): back to its queue.
    Requeue,
}

/// One frame to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the broker does with the deliveries that the frame settles.
    pub kind: AckKind,
    /// The delivery tag: AMQP 0-9-1 counts the deliveries of a channel from 1. Never zero, which would mean all.
    pub tag: u64,
    /// All outstanding deliveries up to `tag`, not `tag` alone.
    pub multiple: bool,
}

/// Frames to write in this order, and the labels of what they settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<L> {
    /// To write in this order: the frames up to the oldest open delivery, then a frame for each delivery behind it.
    pub frames: Vec<Frame>,
    /// A label for each delivery that the frames settle, in the order of the tags.
    pub labels: Vec<L>,
}

/// A delivery that is settled, but in no frame yet.
#[derive(Clone, Debug)]
struct PendingSettlement<L> {
    kind: AckKind,
    label: L,
    at: Mono,
}

/// The deliveries of one channel, by tag: AMQP 0-9-1 counts them from 1. Its size is the number of deliveries that are
/// unsettled or in no frame yet, however long the oldest of them stays.
#[derive(Debug)]
pub struct Acks<L> {
    /// Higher than all known tags.
    next: u64,
    /// Below `next`, on their way to us: a delivery with a higher tag came first.
    unseen: BTreeSet<u64>,
    /// In the pipeline, or with copies that are not confirmed yet.
    out: BTreeSet<u64>,
    settled: BTreeMap<u64, PendingSettlement<L>>,
    /// Settled since the last batch.
    fresh: usize,
    due: Option<Mono>,
    bounds: AckBounds,
}

/// When frames are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckBounds {
    /// At once when this many deliveries were settled since the last batch.
    pub max_batch: usize,
    /// Otherwise this long after the first.
    pub linger: Duration,
    /// A delivery that was settled behind an unsettled one gets a frame of its own after this.
    pub blocked_linger: Duration,
    /// The same at once when this many are settled there.
    pub max_blocked: usize,
}

impl AckBounds {
    /// The bounds for a channel with that prefetch.
    #[must_use]
    pub fn for_prefetch(prefetch: u16) -> Self {
        let prefetch = usize::from(prefetch);
        Self {
            max_batch: (prefetch / 8).clamp(1, 50),
            linger: Duration::from_millis(5),
            blocked_linger: Duration::from_millis(50),
            max_blocked: (prefetch / 4).max(1),
        }
    }
}

impl<L: Clone> Acks<L> {
    /// No deliveries yet.
    #[must_use]
    pub const fn new(bounds: AckBounds) -> Self {
        Self {
            next: 1,
            unseen: BTreeSet::new(),
            out: BTreeSet::new(),
            settled: BTreeMap::new(),
            fresh: 0,
            due: None,
            bounds,
        }
    }

    /// A delivery arrived. Returns `false`, and does not take it, if its tag is known already, zero, or more than 2^20
    /// above the highest known one.
    pub fn note_delivery(&mut self, tag: u64) -> bool {
        if tag >= self.next {
            if tag - self.next > TAG_GAP_MAX {
                return false;
            }
            self.unseen.extend(self.next..tag);
            self.next = tag + 1;
        } else if !self.unseen.remove(&tag) {
            return false;
        }
        self.out.insert(tag)
    }

    /// It is decided how a delivery is settled. Returns `false` if it is not outstanding (settled before).
    pub fn settle(&mut self, tag: u64, kind: AckKind, label: L, now: Mono) -> bool {
        if !self.out.remove(&tag) {
            return false;
        }
        let at = now;
        self.settled
            .insert(tag, PendingSettlement { kind, label, at });
        self.fresh += 1;
        let due = if self.fresh >= self.bounds.max_batch {
            now
        } else {
            now + self.bounds.linger
        };
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        true
    }

    /// When the next batch is due; `None` while nothing is settled.
    #[must_use]
    pub const fn due(&self) -> Option<Mono> {
        self.due
    }

    /// Deliveries that are not settled yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// Deliveries that are settled, but in no frame yet.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.settled.len()
    }

    /// The frames that are worth writing now.
    pub fn frames_due(&mut self, now: Mono) -> Batch<L> {
        self.collect(Some(now))
    }

    /// The frames for everything that is settled.
    pub fn take_all(&mut self) -> Batch<L> {
        self.collect(None)
    }

    fn collect(&mut self, now: Option<Mono>) -> Batch<L> {
        let mut batch = Batch {
            frames: Vec::new(),
            labels: Vec::with_capacity(self.settled.len()),
        };
        self.collect_prefix(&mut batch);
        self.fresh = 0;
        self.due = None;
        if !self.settled.is_empty() {
            self.collect_blocked(&mut batch, now);
        }
        batch
    }

    /// The oldest delivery that must not be settled.
    fn head(&self) -> u64 {
        let oldest = [self.out.first(), self.unseen.first()];
        oldest
            .into_iter()
            .flatten()
            .min()
            .map_or(self.next, |tag| *tag)
    }

    /// Runs of one kind before the head, one frame each.
    fn collect_prefix(&mut self, batch: &mut Batch<L>) {
        let head = self.head();
        while let Some(entry) = self
            .settled
            .first_entry()
            .filter(|entry| *entry.key() < head)
        {
            let (tag, PendingSettlement { kind, label, .. }) = entry.remove_entry();
            batch.labels.push(label);
            match batch.frames.last_mut() {
                Some(frame) if frame.kind == kind => {
                    frame.tag = tag;
                    frame.multiple = true;
                }
                _ => batch.frames.push(Frame {
                    kind,
                    tag,
                    multiple: false,
                }),
            }
        }
    }

    /// The deliveries that are settled behind an unsettled head and must not wait for it; all of them without
    /// `now`.
    fn collect_blocked(&mut self, batch: &mut Batch<L>, now: Option<Mono>) {
        let crowded = self.settled.len() >= self.bounds.max_blocked;
        let mut due: Option<Mono> = None;
        self.settled
            .retain(|&tag, PendingSettlement { kind, label, at }| {
                let (kind, end) = (*kind, *at + self.bounds.blocked_linger);
                let waits = !crowded && now.is_some_and(|now| end > now);
                if waits {
                    due = Some(due.map_or(end, |earlier| earlier.min(end)));
                } else {
                    batch.labels.push(label.clone());
                    batch.frames.push(Frame {
                        kind,
                        tag,
                        multiple: false,
                    });
                }
                waits
            });
        self.due = due;
    }
}

#[cfg(test)]
mod tests;
