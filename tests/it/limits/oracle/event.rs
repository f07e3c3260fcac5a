//! What happens to the limits, in random order.

use std::ops::Range;

use proptest::prelude::*;
use sluiced_core::rate::Cost;

use super::world::{KEYS, KINDS, RULES};
use crate::limits::rules::cost;

/// One of the last grants.
type Index = prop::sample::Index;

#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Limit, key and cost.
    pub(super) charges: Vec<(usize, usize, u32)>,
    pub(super) was_denied: bool,
    pub(super) others_wait: bool,
    /// It asks again, with one of the last calls as its own.
    pub(super) again: Option<Index>,
    /// It became a dead letter this long ago.
    pub(super) died: Option<u64>,
    pub(super) slots: Cost,
}

/// One of the last grants, taken this much earlier or later, with another cost or not.
pub(super) type Back = (Index, i64, Option<u32>);

/// What an answer reports about a key.
#[derive(Clone, Debug)]
pub(super) enum Said {
    /// How much is left, and for how long.
    Quota(u64, u64),
    /// This many units of one of the last grants, taken this much earlier or later, were not used.
    Less(Index, i64, u32),
    /// This many units were used beyond a cost.
    More(u64),
    /// An operator forgives it.
    Forgiven,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Ask(Vec<Message>, u64),
    /// Answers report something about keys of one limit.
    Correct(usize, Vec<(usize, Said)>),
    /// Offers grants of one key back.
    Refund(Vec<Back>),
    /// Calls of one key.
    Renew(Vec<Index>),
    Release(Vec<Index>),
    Done(Vec<Index>),
    Delete(usize, usize),
    Spoil(usize, usize, String),
    Cut(usize, usize, usize),
    /// Another letter somewhere.
    Smear(usize, usize, usize, char),
    /// Time passes, or the clock goes back.
    Shift(i64),
    /// An operator sets another rule, of the same kind as a rule or not, and this replica gets a notice
    /// or does not.
    Policy {
        limit: usize,
        rule: usize,
        same: bool,
        heard: bool,
    },
    /// An operator pauses for this long (zero: resumes), and this replica gets a notice.
    Pause(usize, u64),
    /// The store lost something this long ago.
    Lose(u64),
    /// Its clock went back this long ago.
    Back(u64),
    /// It may have lost something: it waits for this long from now.
    Guard(u64),
    Open(usize),
    /// The limit became one of another kind this long ago.
    Remade(usize, u64),
}

/// What any event may be about: a limit of these kinds.
pub(super) fn event(kinds: Range<usize>) -> impl Strategy<Value = Event> {
    let limit = kinds;
    let key = 0..KEYS.len();
    let batch = (
        prop::collection::vec(message(limit.clone()), 0..10),
        prop_oneof![4 => Just(100_u64), 1 => 0..4_u64],
    );
    let index = any::<Index>;
    let moved = prop_oneof![5 => Just(0_i64), 1 => -20_000..20_000_i64];
    prop_oneof![
        28 => batch.prop_map(|(messages, wanted)| Event::Ask(messages, wanted)),
        8 => prop::collection::vec((index(), moved, prop::option::weighted(0.2, 1..9_u32)), 1..6)
            .prop_map(Event::Refund),
        8 => (limit.clone(), prop::collection::vec((key.clone(), said()), 1..5))
            .prop_map(|(limit, said)| Event::Correct(limit, said)),
        2 => prop::collection::vec(index(), 1..4).prop_map(Event::Renew),
        2 => prop::collection::vec(index(), 1..4).prop_map(Event::Release),
        5 => prop::collection::vec(index(), 1..4).prop_map(Event::Done),
        1 => (limit.clone(), key.clone()).prop_map(|(l, k)| Event::Delete(l, k)),
        1 => (limit.clone(), key.clone(), spoilt()).prop_map(|(l, k, t)| Event::Spoil(l, k, t)),
        1 => (limit.clone(), key.clone(), 0..80_usize).prop_map(|(l, k, n)| Event::Cut(l, k, n)),
        1 => (limit.clone(), key, 0..80_usize, "[0-9|p -]")
            .prop_map(|(l, k, n, by)| Event::Smear(l, k, n, by.chars().next().unwrap_or(' '))),
        12 => shift().prop_map(Event::Shift),
        4 => (limit.clone(), 0..RULES, prop::bool::weighted(0.9), prop::bool::weighted(0.8))
            .prop_map(|(limit, rule, same, heard)| Event::Policy { limit, rule, same, heard }),
        1 => (limit.clone(), prop_oneof![Just(0_u64), 0..3_u64, Just(3_600_000_000)])
            .prop_map(|(limit, length)| Event::Pause(limit, length)),
        1 => prop_oneof![0..3_000_000_u64, 0..4_000_000_000_u64].prop_map(Event::Lose),
        1 => (0..3_000_000_u64).prop_map(Event::Back),
        1 => prop_oneof![Just(0_u64), 0..1_900_000_u64].prop_map(Event::Guard),
        1 => limit.clone().prop_map(Event::Open),
        1 => (limit, 0..3_000_000_u64).prop_map(|(limit, ago)| Event::Remade(limit, ago)),
    ]
}

/// It counts at one key of each limit at most.
fn message(limit: Range<usize>) -> impl Strategy<Value = Message> {
    let costs = prop_oneof![
        16 => 1..4_u32,
        2 => 1..60_u32,
        1 => any::<u32>().prop_map(|cost| cost.max(1)),
    ];
    let message = (
        prop::collection::vec((limit, 0..KEYS.len(), costs), 1..4),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
        1..3_u64,
        prop::option::weighted(0.3, any::<Index>()),
        prop::option::weighted(0.1, 0..2_000_000_u64),
    );
    message.prop_map(
        |(mut charges, was_denied, others_wait, slots, again, died)| {
            let mut seen = Vec::new();
            charges.retain(|(limit, ..)| {
                let first = !seen.contains(limit);
                seen.push(*limit);
                first
            });
            for (limit, _, cost) in &mut charges {
                // A message is called once whatever it costs.
                *cost = if KINDS[5].contains(limit) { 1 } else { *cost };
            }
            Message {
                again,
                died,
                charges,
                was_denied,
                others_wait,
                slots: cost(slots as u32),
            }
        },
    )
}

/// States that no script writes.
fn spoilt() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[gtwlco]?[0-9]{0,20} [0-9]{0,20} [0-9-]{0,18}( [0-9a-f]{0,9}){0,3}(\\|[0-9]{0,17} [0-9]{0,5}(\\|[0-9]{0,4} [0-9]{0,17}(\\|[0-9]{0,4} [0-9]{0,17})?)?)?",
        ".{0,12}",
    ]
}

/// What an answer says of a key.
fn said() -> impl Strategy<Value = Said> {
    let index = any::<Index>;
    let length = prop_oneof![
        4 => 0..3_000_000_u64,
        1 => any::<u64>().prop_map(|length| length >> 12),
    ];
    let units = prop_oneof![
        8 => 1..9_u64,
        3 => 1..200_u64,
        1 => any::<u64>().prop_map(|units| (units >> 12).max(1)),
    ];
    prop_oneof![
        2 => (0..12_u64, length).prop_map(|(units, length)| Said::Quota(units, length)),
        3 => (index(), prop_oneof![5 => Just(0_i64), 1 => -20_000..20_000_i64], 1..4_u32)
            .prop_map(|(which, by, units)| Said::Less(which, by, units)),
        4 => units.prop_map(Said::More),
        1 => Just(Said::Forgiven),
    ]
}

/// By how many microseconds time moves, or the clock is set.
fn shift() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0..2_000_i64,
        4 => 0..300_000_i64,
        2 => -300_000..3_000_000_i64,
        1 => -10_000_000_000..10_000_000_000_i64,
        1 => Just(86_400_000_000 * 400)
    ]
}
