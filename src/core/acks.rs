//! Which acknowledgements to write, and when.
//!
//! One frame can settle every delivery up to a tag, which is several times cheaper for the broker
//! than one frame each. Verdicts come out of order, so this keeps the tags of a channel in order
//! and settles the prefix in runs. A slow call at the head must not use up the prefetch: what is
//! settled behind it for too long, or in too large a number, is settled by frames of its own.

use std::collections::VecDeque;
use std::time::Duration;

use super::time::Mono;

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

#[derive(Clone, Copy, Debug)]
enum Slot<L> {
    /// At the pipeline, or its copy is not confirmed yet.
    Out,
    Settled {
        fate: Fate,
        label: L,
        at: Mono,
    },
    /// A frame settled it.
    Gone,
}

/// The deliveries of one channel, by tag.
#[derive(Debug)]
pub struct Acks<L> {
    /// The tag of the first slot.
    head: u64,
    slots: VecDeque<Slot<L>>,
    /// Settled since the last batch.
    fresh: usize,
    out: usize,
    settled: usize,
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
            head: 1,
            slots: VecDeque::new(),
            fresh: 0,
            out: 0,
            settled: 0,
            due: None,
            bounds,
        }
    }

    /// A delivery arrived. Tags rise; one that does not is not taken and answers `false`.
    pub fn delivered(&mut self, tag: u64) -> bool {
        let next = self.head + self.slots.len() as u64;
        if tag < next {
            return false;
        }
        if self.slots.is_empty() {
            self.head = tag;
        } else {
            self.slots.extend((next..tag).map(|_| Slot::Gone));
        }
        self.slots.push_back(Slot::Out);
        self.out += 1;
        true
    }

    /// A delivery has its fate. Answers `false` if it is not outstanding (settled before).
    pub fn settle(&mut self, tag: u64, fate: Fate, label: L, now: Mono) -> bool {
        let slot = tag
            .checked_sub(self.head)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.slots.get_mut(index));
        let Some(slot @ Slot::Out) = slot else {
            return false;
        };
        *slot = Slot::Settled {
            fate,
            label,
            at: now,
        };
        self.out -= 1;
        self.settled += 1;
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
    pub const fn outstanding(&self) -> usize {
        self.out
    }

    /// Deliveries with a fate whose frames were not taken yet.
    #[must_use]
    pub const fn settled(&self) -> usize {
        self.settled
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
            labels: Vec::with_capacity(self.settled),
        };
        self.collect_prefix(&mut batch);
        self.fresh = 0;
        self.due = None;
        if self.settled > 0 {
            self.collect_blocked(&mut batch, now);
        }
        batch
    }

    /// Runs of one fate from the head on, one frame each.
    fn collect_prefix(&mut self, batch: &mut Batch<L>) {
        while let Some(slot) = self.slots.front() {
            match *slot {
                Slot::Out => break,
                Slot::Gone => {}
                Slot::Settled { fate, label, .. } => {
                    self.settled -= 1;
                    batch.labels.push(label);
                    match batch.frames.last_mut() {
                        Some(frame) if frame.fate == fate => {
                            frame.tag = self.head;
                            frame.multiple = true;
                        }
                        _ => batch.frames.push(Frame {
                            fate,
                            tag: self.head,
                            multiple: false,
                        }),
                    }
                }
            }
            self.slots.pop_front();
            self.head += 1;
        }
    }

    /// What is settled behind an unsettled head and must not wait for it; all of it without `now`.
    fn collect_blocked(&mut self, batch: &mut Batch<L>, now: Option<Mono>) {
        let crowded = self.settled >= self.bounds.blocked;
        let mut due: Option<Mono> = None;
        for (tag, slot) in (self.head..).zip(self.slots.iter_mut()) {
            let Slot::Settled { fate, label, at } = *slot else {
                continue;
            };
            let end = at + self.bounds.patience;
            if crowded || now.is_none_or(|now| end <= now) {
                *slot = Slot::Gone;
                self.settled -= 1;
                batch.labels.push(label);
                batch.frames.push(Frame {
                    fate,
                    tag,
                    multiple: false,
                });
            } else {
                due = Some(due.map_or(end, |earlier| earlier.min(end)));
            }
        }
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
            fates in prop::collection::vec(any::<bool>(), 120),
            settled in 0_usize..=120,
            pauses in prop::collection::vec(0_u64..30, 120),
            prefetch in 1_u16..400,
        ) {
            let mut acks = Acks::new(Bounds::for_prefetch(prefetch));
            let mut broker = BTreeSet::new();
            for tag in 1..=120 {
                prop_assert!(acks.delivered(tag));
                broker.insert(tag);
            }
            let fate = |tag: u64| {
                if fates[tag as usize - 1] { Fate::Ack } else { Fate::Requeue }
            };
            let mut given = BTreeSet::new();
            let mut now = 0;
            let mut labels = 0;
            for &tag in &order[..settled] {
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
            prop_assert_eq!(acks.outstanding(), 120 - settled);
            prop_assert_eq!(acks.due(), None);
        }
    }
}
