//! Ways that handshakes do not see, under `headroom = "auto"`.
//!
//! A proxy or a balancer ends the connections nearby, and the way behind it varies. Providers also think before they
//! answer, so the times of answers say only by how much the way varies at most. The rule is `core::headroom`'s:
//! refusals though the limit was kept show that there is such a way, and then the answers count. What this simulates is
//! that rule over one schedule, with a provider that counts sliding windows: nothing comes too early once a refusal was
//! seen, as long as the way varies by no more than the part of the window that is kept for it, and beyond that it is
//! said.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use sluiced_core::headroom::{
    AutoHeadroom, Bounds, Headroom, LatencySamples, Lateness, Measured, is_refused,
    unmeasured_spread,
};
use sluiced_core::time::{Mono, micros};

use crate::dice::Dice;

const WINDOW: Duration = Duration::from_secs(1);
const UNITS: u64 = 100;
const SECOND: u64 = 1_000_000;
/// Less than a refusal is remembered.
const END: u64 = 280 * SECOND;
/// Answers that are measured are this far apart.
const ANSWERS_APART: u64 = 250_000;
/// From a refusal until all calls that were allowed before have arrived: the next look, and what a change takes.
const REACTS: u64 = 6 * SECOND;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What lies behind the end of the connections.
#[derive(Clone, Copy, Debug)]
struct Behind {
    /// By how much the way there varies, and the way back.
    varies: Duration,
    /// The provider thinks at least and at most for this long.
    thinks: (Duration, Duration),
}

#[derive(Debug, Default)]
struct HiddenRun {
    refused: u64,
    /// The first refusal, and those after everything had reacted to it.
    first: Option<u64>,
    late: u64,
    /// A replica says that the way may vary by more than handshakes show.
    said: bool,
    /// What is kept at the end.
    headroom: Duration,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AnswerEvent {
    Slot,
    Arrives { sent: u64 },
    Answered { sent: u64, refused: bool },
    Look,
}

struct MeasuringReplica {
    follow: AutoHeadroom,
    bounds: Bounds,
    headroom: Headroom,
    lateness: Lateness,
    handshakes: LatencySamples,
    answers: LatencySamples,
    refused: Option<Mono>,
}

impl MeasuringReplica {
    fn new() -> Self {
        let least = Headroom {
            late: Duration::from_micros(1_500),
            way: Duration::from_micros(500),
        };
        let headroom = Headroom::of(ms(5));
        Self {
            follow: AutoHeadroom::new(headroom, Mono::default()),
            bounds: Bounds::new(least, ms(250), WINDOW),
            headroom,
            lateness: Lateness::default(),
            handshakes: LatencySamples::default(),
            answers: LatencySamples::default(),
            refused: None,
        }
    }

    /// Returns whether it says that the way may vary by more than it sees.
    fn look(&mut self, now: Mono) -> bool {
        let hidden = self
            .answers
            .spread(now)
            .filter(|_| is_refused(self.refused, now))
            .map(|answers| unmeasured_spread(&answers, WINDOW));
        let near = self.handshakes.spread(now).map(|seen| seen.to_keep());
        let measured = Measured {
            late: self.lateness.allowed_lateness(WINDOW, now),
            way: near.max(hidden),
        };
        let says = hidden > Some(self.headroom.way);
        if let Some(wanted) = self.follow.wanted(measured, &self.bounds, now) {
            self.follow.note_current(wanted, now);
            self.headroom = wanted;
        }
        says
    }
}

fn run(behind: Behind, seed: u64) -> HiddenRun {
    let mut dice = Dice::new(seed);
    let mut replica = MeasuringReplica::new();
    let mut seen = HiddenRun::default();
    let mut window: VecDeque<u64> = VecDeque::new();
    let mut measured_at = 0;
    let mut events = BinaryHeap::from([
        Reverse((0, AnswerEvent::Slot)),
        Reverse((0, AnswerEvent::Look)),
    ]);
    while let Some(Reverse((at, event))) = events.pop() {
        if at > END {
            break;
        }
        let now = Mono::from_micros(at);
        let varies = micros(behind.varies);
        match event {
            AnswerEvent::Slot => {
                let late = dice.below(300);
                replica.lateness.record(Duration::from_micros(late), now);
                let arrives = at + late + 10_000 + dice.between(0, varies);
                events.push(Reverse((arrives, AnswerEvent::Arrives { sent: at + late })));
                let apart = micros(WINDOW + replica.headroom.all()).div_ceil(UNITS);
                events.push(Reverse((at + apart, AnswerEvent::Slot)));
            }
            AnswerEvent::Arrives { sent } => {
                while window.front().is_some_and(|first| first + SECOND <= at) {
                    window.pop_front();
                }
                let refused = window.len() as u64 >= UNITS;
                if !refused {
                    window.push_back(at);
                }
                let (least, most) = behind.thinks;
                let thinks = dice.between(micros(least), micros(most));
                let back = at + thinks + 10_000 + dice.between(0, varies);
                events.push(Reverse((back, AnswerEvent::Answered { sent, refused })));
            }
            AnswerEvent::Answered { sent, refused } => {
                if refused {
                    seen.refused += 1;
                    let first = *seen.first.get_or_insert(at);
                    seen.late += u64::from(at > first + REACTS);
                    replica.refused = Some(now);
                }
                if at >= measured_at + ANSWERS_APART {
                    measured_at = at;
                    replica
                        .answers
                        .record(Duration::from_micros(at - sent), now);
                }
            }
            AnswerEvent::Look => {
                let shake = Duration::from_micros(dice.between(200, 400));
                replica.handshakes.record(shake, now);
                seen.said |= replica.look(now);
                events.push(Reverse((at + SECOND, AnswerEvent::Look)));
            }
        }
    }
    seen.headroom = replica.headroom.all();
    seen
}

/// Thinks for no time, for the same time, for any time up to half a second.
const THINKS: [(Duration, Duration); 3] = [(ms(0), ms(0)), (ms(200), ms(200)), (ms(0), ms(500))];

#[test]
fn after_a_refusal_nothing_comes_too_early_behind_a_proxy() {
    println!("| way varies | thinks | refused | of these, after the first was seen | headroom |");
    println!("|---|---|---|---|---|");
    for varies in [5, 20, 45].map(ms) {
        for thinks in THINKS {
            for seed in 0..5 {
                let seen = run(Behind { varies, thinks }, seed);
                println!(
                    "| {varies:?} | {thinks:?} | {} | {} | {:?} |",
                    seen.refused, seen.late, seen.headroom
                );
                assert_eq!(seen.late, 0, "{varies:?} {thinks:?} {seen:?}");
                assert!(
                    seen.said == (seen.refused > 0),
                    "{varies:?} {thinks:?} {seen:?}"
                );
                // A way that varies by more than the first headroom cannot stay hidden.
                assert!(seen.refused > 0 || varies < ms(20), "{seen:?}");
            }
        }
    }
}

#[test]
fn a_provider_that_thinks_costs_nothing_while_it_refuses_nothing() {
    for thinks in THINKS {
        let varies = ms(0);
        let seen = run(Behind { varies, thinks }, 1);
        assert_eq!((seen.refused, seen.said), (0, false), "{thinks:?}");
        assert!(seen.headroom <= ms(5), "{thinks:?} {seen:?}");
    }
}

/// More than a twentieth of the window is not kept: it is said, and the provider goes on refusing.
#[test]
fn a_way_that_varies_by_more_than_is_kept_is_said() {
    for thinks in THINKS {
        let varies = ms(120);
        let seen = run(Behind { varies, thinks }, 1);
        assert!(seen.said && seen.refused > 0, "{thinks:?} {seen:?}");
    }
}
