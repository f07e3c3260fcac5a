//! Which acknowledgements to write, and when.
//!
//! One frame can settle every delivery up to a tag, which is several times cheaper for the broker
//! than one frame each. Verdicts come out of order, so this keeps the tags of a channel in order
//! and settles the prefix in runs. A slow call at the head must not use up the prefetch: what is
//! settled behind it for too long, or in too large a number, is settled by frames of its own.
//!
//! The broker numbers a channel's deliveries without gaps. Where several consumers share the channel,
//! their deliveries reach us in another order, each at its own pace. A number that was not seen yet is
//! on its way: no frame may settle it along with others, or its message would be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::time::Mono;

/// Deliveries that may be on their way behind one that came first; more than prefetches allow.
const MOST: u64 = 1 << 20;

/// How a delivery leaves the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// `basic.ack`: the broker forgets it.
    Ack,
    /// `basic.nack` with requeue: back to its queue.
    Requeue,
}

/// One frame to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub fate: Fate,
    pub tag: u64,
    /// All outstanding deliveries up to `tag`, not `tag` alone.
    pub multiple: bool,
}

/// Frames to write in this order, and the labels of what they settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<L> {
    pub frames: Vec<Frame>,
    pub labels: Vec<L>,
}

/// A delivery with a fate that no frame has told yet.
#[derive(Clone, Copy, Debug)]
struct Settled<L> {
    fate: Fate,
    label: L,
    at: Mono,
}

/// The deliveries of one channel, by tag. Its size is that of what is unsettled and of what no frame was
/// written for, however long the oldest of them stays.
#[derive(Debug)]
pub struct Acks<L> {
    /// Above all tags that are known.
    next: u64,
    /// Below `next`, on their way to us: a delivery with a higher tag came first.
    unseen: BTreeSet<u64>,
    /// At the pipeline, or their copies are not confirmed yet.
    out: BTreeSet<u64>,
    settled: BTreeMap<u64, Settled<L>>,
    /// Settled since the last batch.
    fresh: usize,
    due: Option<Mono>,
    bounds: Bounds,
}

/// When frames are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At once when so many are settled.
    pub full: usize,
    /// Else so long after the first.
    pub linger: Duration,
    /// Behind an unsettled head: frames of their own after this long …
    pub patience: Duration,
    /// … or at once when so many are settled there.
    pub blocked: usize,
}

impl Bounds {
    /// The bounds for a channel with that prefetch.
    #[must_use]
    pub fn for_prefetch(prefetch: u16) -> Self {
        let prefetch = usize::from(prefetch);
        Self {
            full: (prefetch / 8).clamp(1, 50),
            linger: Duration::from_millis(5),
            patience: Duration::from_millis(50),
            blocked: (prefetch / 4).max(1),
        }
    }
}

impl<L: Copy> Acks<L> {
    /// No deliveries yet.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
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

    /// A delivery arrived. One that was there before, or whose tag is absurd, is not taken and
    /// answers `false`.
    pub fn delivered(&mut self, tag: u64) -> bool {
        if tag >= self.next {
            if tag - self.next > MOST {
                return false;
            }
            self.unseen.extend(self.next..tag);
            self.next = tag + 1;
        } else if !self.unseen.remove(&tag) {
            return false;
        }
        self.out.insert(tag)
    }

    /// A delivery has its fate. Answers `false` if it is not outstanding (settled before).
    pub fn settle(&mut self, tag: u64, fate: Fate, label: L, now: Mono) -> bool {
        if !self.out.remove(&tag) {
            return false;
        }
        let at = now;
        self.settled.insert(tag, Settled { fate, label, at });
        self.fresh += 1;
        let due = if self.fresh >= self.bounds.full {
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

    /// Deliveries without a fate.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// Deliveries with a fate whose frames were not taken yet.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.settled.len()
    }

    /// The frames that are worth writing now.
    pub fn take(&mut self, now: Mono) -> Batch<L> {
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

    /// Runs of one fate before the head, one frame each.
    fn collect_prefix(&mut self, batch: &mut Batch<L>) {
        let head = self.head();
        while let Some(entry) = self
            .settled
            .first_entry()
            .filter(|entry| *entry.key() < head)
        {
            let (tag, Settled { fate, label, .. }) = entry.remove_entry();
            batch.labels.push(label);
            match batch.frames.last_mut() {
                Some(frame) if frame.fate == fate => {
                    frame.tag = tag;
                    frame.multiple = true;
                }
                _ => batch.frames.push(Frame {
                    fate,
                    tag,
                    multiple: false,
                }),
            }
        }
    }

    /// What is settled behind an unsettled head and must not wait for it; all of it without `now`.
    fn collect_blocked(&mut self, batch: &mut Batch<L>, now: Option<Mono>) {
        let crowded = self.settled.len() >= self.bounds.blocked;
        let mut due: Option<Mono> = None;
        self.settled
            .retain(|&tag, &mut Settled { fate, label, at }| {
                let end = at + self.bounds.patience;
                let waits = !crowded && now.is_some_and(|now| end > now);
                if waits {
                    due = Some(due.map_or(end, |earlier| earlier.min(end)));
                } else {
                    batch.labels.push(label);
                    batch.frames.push(Frame {
                        fate,
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_micros(millis * 1000)
    }

    fn with(count: u64) -> Acks<()> {
        let mut acks = Acks::new(Bounds::for_prefetch(400));
        for tag in 1..=count {
            assert!(acks.delivered(tag));
        }
        acks
    }

    fn frame(fate: Fate, tag: u64, multiple: bool) -> Frame {
        Frame {
            fate,
            tag,
            multiple,
        }
    }

    #[test]
    fn a_prefix_takes_one_frame() {
        let mut acks = with(5);
        for tag in [2, 1, 3, 5] {
            assert!(acks.settle(tag, Fate::Ack, (), at(1)));
        }
        assert_eq!(acks.due(), Some(at(6)));
        let batch = acks.take(at(6));
        assert_eq!(batch.frames, [frame(Fate::Ack, 3, true)]);
        assert_eq!(batch.labels.len(), 3);
        assert_eq!(acks.outstanding(), 1);
        assert_eq!(acks.due(), Some(at(51)));
    }

    #[test]
    fn what_a_slow_head_blocks_goes_alone() {
        let mut acks = with(3);
        acks.settle(3, Fate::Ack, (), at(0));
        assert_eq!(acks.take(at(5)).frames, []);
        assert_eq!(acks.take(at(50)).frames, [frame(Fate::Ack, 3, false)]);
        assert_eq!(acks.due(), None);
        acks.settle(1, Fate::Ack, (), at(60));
        acks.settle(2, Fate::Ack, (), at(60));
        assert_eq!(acks.take(at(65)).frames, [frame(Fate::Ack, 2, true)]);
    }

    #[test]
    fn a_slow_head_cannot_use_up_the_prefetch() {
        let mut acks = with(101);
        for tag in 2..=101 {
            acks.settle(tag, Fate::Ack, (), at(1));
        }
        assert_eq!(acks.due(), Some(at(1)));
        assert_eq!(acks.take(at(1)).frames.len(), 100);
    }

    #[test]
    fn runs_of_a_fate_take_a_frame_each() {
        let mut acks = with(4);
        for (tag, fate) in [
            (1, Fate::Ack),
            (2, Fate::Requeue),
            (3, Fate::Requeue),
            (4, Fate::Ack),
        ] {
            acks.settle(tag, fate, (), at(0));
        }
        assert_eq!(
            acks.take(at(5)).frames,
            [
                frame(Fate::Ack, 1, false),
                frame(Fate::Requeue, 3, true),
                frame(Fate::Ack, 4, false)
            ]
        );
    }

    #[test]
    fn a_full_batch_is_due_at_once() {
        let mut acks = with(60);
        for tag in 1..=49 {
            acks.settle(tag, Fate::Ack, (), at(1));
        }
        assert_eq!(acks.due(), Some(at(6)));
        acks.settle(50, Fate::Ack, (), at(2));
        assert_eq!(acks.due(), Some(at(2)));
    }

    #[test]
    fn a_tag_settles_once() {
        let mut acks = with(2);
        assert!(acks.settle(1, Fate::Ack, (), at(0)));
        assert!(!acks.settle(1, Fate::Requeue, (), at(0)));
        assert!(!acks.settle(9, Fate::Ack, (), at(0)));
        acks.take(at(5));
        assert!(!acks.settle(1, Fate::Ack, (), at(9)));
    }

    #[test]
    fn what_was_not_seen_yet_is_not_settled_along_with_others() {
        let mut acks = Acks::new(Bounds::for_prefetch(400));
        for tag in [3, 1, 4] {
            assert!(acks.delivered(tag));
        }
        for tag in [1, 3, 4] {
            assert!(acks.settle(tag, Fate::Ack, (), at(0)));
        }
        assert!(!acks.settle(2, Fate::Ack, (), at(0)), "nobody has it");
        assert_eq!(acks.take(at(5)).frames, [frame(Fate::Ack, 1, false)]);
        let alone = [frame(Fate::Ack, 3, false), frame(Fate::Ack, 4, false)];
        assert_eq!(acks.take(at(50)).frames, alone);
        assert!(acks.delivered(2), "it comes late");
        assert!(!acks.delivered(2) && !acks.delivered(3) && !acks.delivered(1));
        assert!(acks.settle(2, Fate::Ack, (), at(60)));
        assert_eq!(acks.take(at(65)).frames, [frame(Fate::Ack, 2, false)]);
        assert!(!acks.delivered(u64::MAX) && acks.delivered(5));
    }

    /// The broker's side: which tags are outstanding, and what a frame does to them.
    fn apply(broker: &mut BTreeSet<u64>, frame: Frame) -> Vec<u64> {
        assert!(
            broker.contains(&frame.tag),
            "the broker closes a channel that names an unknown tag"
        );
        let hit: Vec<u64> = if frame.multiple {
            broker.range(..=frame.tag).copied().collect()
        } else {
            vec![frame.tag]
        };
        for tag in &hit {
            broker.remove(tag);
        }
        hit
    }

    proptest! {
        #[test]
        fn every_settled_tag_once_and_no_other(
            order in Just((1_u64..=120).collect::<Vec<_>>()).prop_shuffle(),
            // How much later than its turn a delivery reaches us.
            delays in prop::collection::vec(0_u64..40, 120),
            fates in prop::collection::vec(any::<bool>(), 120),
            settled in 0_usize..=120,
            pauses in prop::collection::vec(0_u64..30, 120),
            prefetch in 1_u16..400,
        ) {
            let mut acks = Acks::new(Bounds::for_prefetch(prefetch));
            let mut broker = BTreeSet::new();
            let mut coming: Vec<u64> = (1..=120).collect();
            coming.sort_by_key(|tag| tag + delays[*tag as usize - 1]);
            let mut coming = coming.into_iter();
            broker.extend(1..=120);
            let mut here = BTreeSet::new();
            let fate = |tag: u64| {
                if fates[tag as usize - 1] { Fate::Ack } else { Fate::Requeue }
            };
            let mut given = BTreeSet::new();
            let mut now = 0;
            let mut labels = 0;
            for &tag in &order[..settled] {
                while !here.contains(&tag) {
                    let next = coming.next().expect("it comes");
                    prop_assert!(acks.delivered(next));
                    here.insert(next);
                }
                prop_assert!(acks.settle(tag, fate(tag), (), at(now)));
                given.insert(tag);
                now += pauses[tag as usize - 1];
                if acks.due().is_some_and(|due| due <= at(now)) {
                    let batch = acks.take(at(now));
                    labels += batch.labels.len();
                    for frame in batch.frames {
                        for hit in apply(&mut broker, frame) {
                            prop_assert!(given.contains(&hit));
                            prop_assert_eq!(frame.fate, fate(hit));
                        }
                    }
                }
            }
            let batch = acks.take_all();
            labels += batch.labels.len();
            for frame in batch.frames {
                for hit in apply(&mut broker, frame) {
                    prop_assert!(given.contains(&hit));
                    prop_assert_eq!(frame.fate, fate(hit));
                }
            }
            prop_assert_eq!(broker.len(), 120 - settled);
            prop_assert_eq!(labels, settled);
            prop_assert_eq!(acks.outstanding(), here.len() - settled);
            prop_assert_eq!(acks.due(), None);
        }
    }
}
