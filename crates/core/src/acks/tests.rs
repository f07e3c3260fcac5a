//! Deliveries are acknowledged in few frames, each tag once.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Mono {
    Mono::from_micros(millis * 1000)
}

fn with(count: u64) -> Acks<()> {
    let mut acks = Acks::new(AckBounds::for_prefetch(400));
    for tag in 1..=count {
        assert!(acks.note_delivery(tag));
    }
    acks
}

fn frame(kind: AckKind, tag: u64, multiple: bool) -> Frame {
    Frame {
        kind,
        tag,
        multiple,
    }
}

#[test]
fn a_prefix_takes_one_frame() {
    let mut acks = with(5);
    for tag in [2, 1, 3, 5] {
        assert!(acks.settle(tag, AckKind::Ack, (), at(1)));
    }
    assert_eq!(acks.due(), Some(at(6)));
    let batch = acks.frames_due(at(6));
    assert_eq!(batch.frames, [frame(AckKind::Ack, 3, true)]);
    assert_eq!(batch.labels.len(), 3);
    assert_eq!(acks.outstanding(), 1);
    assert_eq!(acks.due(), Some(at(51)));
}

#[test]
fn what_a_slow_head_blocks_goes_alone() {
    let mut acks = with(3);
    acks.settle(3, AckKind::Ack, (), at(0));
    assert_eq!(acks.frames_due(at(5)).frames, []);
    assert_eq!(
        acks.frames_due(at(50)).frames,
        [frame(AckKind::Ack, 3, false)]
    );
    assert_eq!(acks.due(), None);
    acks.settle(1, AckKind::Ack, (), at(60));
    acks.settle(2, AckKind::Ack, (), at(60));
    assert_eq!(
        acks.frames_due(at(65)).frames,
        [frame(AckKind::Ack, 2, true)]
    );
}

#[test]
fn a_slow_head_cannot_use_up_the_prefetch() {
    let mut acks = with(101);
    for tag in 2..=101 {
        acks.settle(tag, AckKind::Ack, (), at(1));
    }
    assert_eq!(acks.due(), Some(at(1)));
    assert_eq!(acks.frames_due(at(1)).frames.len(), 100);
}

#[test]
fn runs_of_a_fate_take_a_frame_each() {
    let mut acks = with(4);
    for (tag, kind) in [
        (1, AckKind::Ack),
        (2, AckKind::Requeue),
        (3, AckKind::Requeue),
        (4, AckKind::Ack),
    ] {
        acks.settle(tag, kind, (), at(0));
    }
    assert_eq!(
        acks.frames_due(at(5)).frames,
        [
            frame(AckKind::Ack, 1, false),
            frame(AckKind::Requeue, 3, true),
            frame(AckKind::Ack, 4, false)
        ]
    );
}

#[test]
fn a_full_batch_is_due_at_once() {
    let mut acks = with(60);
    for tag in 1..=49 {
        acks.settle(tag, AckKind::Ack, (), at(1));
    }
    assert_eq!(acks.due(), Some(at(6)));
    acks.settle(50, AckKind::Ack, (), at(2));
    assert_eq!(acks.due(), Some(at(2)));
}

#[test]
fn a_tag_settles_once() {
    let mut acks = with(2);
    assert!(acks.settle(1, AckKind::Ack, (), at(0)));
    assert!(!acks.settle(1, AckKind::Requeue, (), at(0)));
    assert!(!acks.settle(9, AckKind::Ack, (), at(0)));
    acks.frames_due(at(5));
    assert!(!acks.settle(1, AckKind::Ack, (), at(9)));
}

#[test]
fn what_was_not_seen_yet_is_not_settled_along_with_others() {
    let mut acks = Acks::new(AckBounds::for_prefetch(400));
    for tag in [3, 1, 4] {
        assert!(acks.note_delivery(tag));
    }
    for tag in [1, 3, 4] {
        assert!(acks.settle(tag, AckKind::Ack, (), at(0)));
    }
    assert!(!acks.settle(2, AckKind::Ack, (), at(0)), "it is not open");
    assert_eq!(
        acks.frames_due(at(5)).frames,
        [frame(AckKind::Ack, 1, false)]
    );
    let alone = [frame(AckKind::Ack, 3, false), frame(AckKind::Ack, 4, false)];
    assert_eq!(acks.frames_due(at(50)).frames, alone);
    assert!(acks.note_delivery(2), "it comes late");
    assert!(!acks.note_delivery(2) && !acks.note_delivery(3) && !acks.note_delivery(1));
    assert!(acks.settle(2, AckKind::Ack, (), at(60)));
    assert_eq!(
        acks.frames_due(at(65)).frames,
        [frame(AckKind::Ack, 2, false)]
    );
    assert!(!acks.note_delivery(u64::MAX) && acks.note_delivery(5));
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
        let mut acks = Acks::new(AckBounds::for_prefetch(prefetch));
        let mut broker = BTreeSet::new();
        let mut coming: Vec<u64> = (1..=120).collect();
        coming.sort_by_key(|tag| tag + delays[*tag as usize - 1]);
        let mut coming = coming.into_iter();
        broker.extend(1..=120);
        let mut here = BTreeSet::new();
        let kind = |tag: u64| {
            if fates[tag as usize - 1] { AckKind::Ack } else { AckKind::Requeue }
        };
        let mut given = BTreeSet::new();
        let mut now = 0;
        let mut labels = 0;
        for &tag in &order[..settled] {
            while !here.contains(&tag) {
                let next = coming.next().expect("it comes");
                prop_assert!(acks.note_delivery(next));
                here.insert(next);
            }
            prop_assert!(acks.settle(tag, kind(tag), (), at(now)));
            given.insert(tag);
            now += pauses[tag as usize - 1];
            if acks.due().is_some_and(|due| due <= at(now)) {
                let batch = acks.frames_due(at(now));
                labels += batch.labels.len();
                for frame in batch.frames {
                    for hit in apply(&mut broker, frame) {
                        prop_assert!(given.contains(&hit));
                        prop_assert_eq!(frame.kind, kind(hit));
                    }
                }
            }
        }
        let batch = acks.take_all();
        labels += batch.labels.len();
        for frame in batch.frames {
            for hit in apply(&mut broker, frame) {
                prop_assert!(given.contains(&hit));
                prop_assert_eq!(frame.kind, kind(hit));
            }
        }
        prop_assert_eq!(broker.len(), 120 - settled);
        prop_assert_eq!(labels, settled);
        prop_assert_eq!(acks.outstanding(), here.len() - settled);
        prop_assert_eq!(acks.due(), None);
    }
}
