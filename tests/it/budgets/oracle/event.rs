//! What happens to the budgets, in random order.

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use sluiced::core::budget::admit::{IfLate, SOON};

use super::world::KEYS;

#[derive(Clone, Debug)]
pub(super) struct AskedFor {
    pub(super) limit: usize,
    pub(super) key: usize,
    pub(super) cost: u32,
    /// Comes with the last place in this budget, moved by so much and of an older epoch or not.
    pub(super) held: Option<(i64, bool)>,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Ask(Vec<(Vec<AskedFor>, Option<IfLate>)>),
    /// Offers the last grant or place back.
    Refund {
        limit: usize,
        key: usize,
        cost: u32,
    },
    /// Tells that the last grant was used, granted so much earlier or later.
    Made(usize, usize, i64),
    Renew,
    Release,
    Delete(usize, usize),
    Spoil(usize, usize, String),
    Cut(usize, usize, usize),
    /// Another letter somewhere.
    Smear(usize, usize, usize, char),
    /// Time passes, or the times in the states jump the other way.
    Shift(i64),
    /// An operator sets another rule, of the same kind as a rule or not, and this replica hears of it
    /// or does not.
    Terms {
        limit: usize,
        rule: usize,
        same: bool,
        heard: bool,
    },
    /// An operator pauses for so long (zero: resumes), and this replica hears of it.
    Pause(usize, u64),
    /// The era began so long ago, fresh or with a loss.
    Era(u64, bool),
}

pub(super) fn event(kinds: Range<usize>) -> impl Strategy<Value = Event> {
    let limit = kinds;
    let key = 0..KEYS.len();
    let costs =
        prop_oneof![8 => 1..4_u32, 2 => 1..60_u32, 1 => any::<u32>().prop_map(|c| c.max(1))];
    let moved = prop_oneof![4 => Just(0_i64), 2 => -20_000..20_000_i64];
    let held = prop::option::weighted(0.4, (moved, prop::bool::weighted(0.1)));
    let asked =
        (limit.clone(), key.clone(), costs.clone(), held).prop_map(|(limit, key, cost, held)| {
            AskedFor {
                limit,
                key,
                cost,
                held,
            }
        });
    let petition = (
        prop::collection::vec(asked, 1..4),
        prop::option::of(if_late()),
    );
    let place = (limit.clone(), key.clone());
    let spoilt = prop_oneof![
        Just(String::new()),
        "[gtwlc]?[0-9]{0,20} [0-9]{0,20} [0-9-]{0,18}( [0-9a-f]{0,9}){0,3}",
        ".{0,12}",
    ];
    prop_oneof![
        12 => prop::collection::vec(petition, 1..5).prop_map(Event::Ask),
        2 => (limit.clone(), key.clone(), 1..4_u32)
            .prop_map(|(limit, key, cost)| Event::Refund { limit, key, cost }),
        2 => (limit.clone(), key.clone(), prop_oneof![Just(0), -20_000..20_000_i64])
            .prop_map(|(limit, key, by)| Event::Made(limit, key, by)),
        1 => Just(Event::Renew),
        1 => Just(Event::Release),
        1 => place.clone().prop_map(|(l, k)| Event::Delete(l, k)),
        1 => (limit.clone(), key.clone(), spoilt).prop_map(|(l, k, t)| Event::Spoil(l, k, t)),
        1 => (limit.clone(), key.clone(), 0..80_usize).prop_map(|(l, k, n)| Event::Cut(l, k, n)),
        1 => (limit.clone(), key, 0..80_usize, "[0-9;|p -]")
            .prop_map(|(l, k, n, by)| Event::Smear(l, k, n, by.chars().next().unwrap_or(' '))),
        6 => prop_oneof![
            0..2_000_i64, 0..300_000_i64, -300_000..3_000_000_i64,
            -10_000_000_000..10_000_000_000_i64, Just(86_400_000_000 * 400)
        ].prop_map(Event::Shift),
        4 => (limit.clone(), 0..19_usize, prop::bool::weighted(0.9), prop::bool::weighted(0.8))
            .prop_map(|(limit, rule, same, heard)| Event::Terms { limit, rule, same, heard }),
        1 => (limit, prop_oneof![Just(0_u64), 0..3_u64, Just(3_600_000_000)])
            .prop_map(|(limit, length)| Event::Pause(limit, length)),
        1 => (prop_oneof![0..3_000_000_u64, 0..4_000_000_000_u64], any::<bool>())
            .prop_map(|(ago, lost)| Event::Era(ago, lost)),
    ]
}

fn if_late() -> impl Strategy<Value = IfLate> {
    let ahead = prop_oneof![
        1 => Just(SOON),
        4 => (0..10_000_u64).prop_map(Duration::from_micros),
        1 => (0..5_000_000_u64).prop_map(Duration::from_micros),
    ];
    prop_oneof![
        2 => Just(IfLate::Grant),
        3 => ahead.prop_map(|ahead| IfLate::Wait { ahead }),
    ]
}

/// Messages that two limits count, who come with their places in both, a little late, and are not always
/// sent.
pub(super) fn pair_event() -> impl Strategy<Value = Event> {
    let limit = || prop::sample::select(vec![0, 1, 4, 6, 7, 8, 9, 10, 12, 14, 15]);
    let key = 0..KEYS.len();
    let held = || prop::option::weighted(0.6, Just((0_i64, false)));
    let asked = |limit, key, cost, held| AskedFor {
        limit,
        key,
        cost,
        held,
    };
    let held = (held(), held());
    let pair = (limit(), limit(), key.clone(), 1..4_u32, held, if_late()).prop_map(
        move |(one, other, key, cost, (held, too), if_late)| {
            let mut pair = vec![asked(one, key, cost, held)];
            if one != other {
                pair.push(asked(other, 0, 1, too));
            }
            (pair, Some(if_late))
        },
    );
    let refund = (limit(), key.clone(), 1..4_u32);
    let made = (Just(8_usize), key, Just(0_i64));
    prop_oneof![
        8 => prop::collection::vec(pair, 1..6).prop_map(Event::Ask),
        3 => (0..400_000_i64).prop_map(Event::Shift),
        1 => (0..6_000_000_i64).prop_map(Event::Shift),
        2 => refund.prop_map(|(limit, key, cost)| Event::Refund { limit, key, cost }),
        4 => made.prop_map(|(limit, key, by)| Event::Made(limit, key, by)),
    ]
}
