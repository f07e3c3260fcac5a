//! What happens to a schedule, in random order.

use proptest::prelude::*;

use super::FIELDS;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Ask(Asked),
    /// Asks with the turn of the last answer.
    Heed {
        pace: usize,
        want: u64,
        costs: [u64; 6],
    },
    Freeze(u64),
    DeleteKey,
    DeleteField(usize),
    SpoilField(usize),
    OtherRun,
    /// Moves all times in the state: time goes on (below zero) or the clock steps back.
    Shift(i64),
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) pace: usize,
    pub(super) want: u64,
    /// Of the first messages; zero ends them.
    pub(super) costs: [u64; 6],
    /// Relative to the last answer's time, as is the prediction.
    pub(super) turn: Option<(i64, u64, u64)>,
    pub(super) clock_view: Seen,
    pub(super) predicted: i64,
    /// How many generations ago it was known, or none that ever was.
    pub(super) generation: usize,
    pub(super) lead: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Young,
    Steady,
    Stepped,
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let near = prop_oneof![
        Just(0_i64),
        -200_000..200_000_i64,
        -10_000_000_000..10_000_000_000_i64
    ];
    let want = prop_oneof![0..3_u64, 0..300_u64, Just(1 << 52)];
    let turn = (
        near.clone(),
        0..500_u64,
        prop_oneof![Just(0_u64), 0..300_000_u64],
    );
    let seen = prop_oneof![
        1 => Just(Seen::Young),
        20 => Just(Seen::Steady),
        1 => Just(Seen::Stepped),
    ];
    let costs = prop_oneof![Just([0; 6]), prop::array::uniform6(0..12_u64)];
    let ask = (
        0..4_usize,
        (want.clone(), costs.clone()),
        prop::option::of(turn),
        seen,
        prop_oneof![8 => Just(0_i64), 1 => near],
        prop_oneof![8 => Just(0_usize), 1 => 1..4_usize],
        0..200_000_u64,
    )
        .prop_map(
            |(pace, (want, costs), turn, clock_view, predicted, generation, lead)| {
                Event::Ask(Asked {
                    pace,
                    want,
                    costs,
                    turn,
                    clock_view,
                    predicted,
                    generation,
                    lead,
                })
            },
        );
    prop_oneof![
        12 => ask,
        12 => (0..2_usize, want, costs).prop_map(|(pace, want, costs)| Event::Heed { pace, want, costs }),
        2 => prop_oneof![0..3_000_000_u64, Just(u64::MAX)].prop_map(Event::Freeze),
        1 => Just(Event::DeleteKey),
        1 => (0..FIELDS.len()).prop_map(Event::DeleteField),
        1 => (0..FIELDS.len()).prop_map(Event::SpoilField),
        1 => Just(Event::OtherRun),
        8 => prop_oneof![-200_000..0_i64, -3_000_000..3_000_000_i64, -10_000_000_000..10_000_000_000_i64]
            .prop_map(Event::Shift),
    ]
}
