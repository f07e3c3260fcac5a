//! What happened: a fingerprint of everything, and the last events in words.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use sluiced_core::time::StoreTime;

use super::dice::mix;
use super::scenario::Fault;

/// How many events are kept.
const KEPT: usize = 4_000;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Started,
    Gone,
    Asked {
        want: u64,
        turn: Option<StoreTime>,
        stepped: bool,
    },
    Leased {
        first: StoreTime,
        count: u32,
        turn: Option<StoreTime>,
        guarded: bool,
    },
    Denied {
        turn: Option<StoreTime>,
        guarded: bool,
    },
    AskFailed,
    /// The keyed limits decided.
    Admitted {
        granted: u64,
        looked_at: u64,
        generation: u64,
        writes: u64,
    },
    SawStep,
    Heard {
        trip: Duration,
    },
    Called {
        message: u32,
    },
    Arrived {
        message: u32,
    },
    TooLate {
        message: u32,
    },
    Throttled {
        message: u32,
    },
    GaveBack {
        count: u32,
        taken: bool,
    },
    Struck(Fault),
}

/// An event with its true time in microseconds and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: u64,
    pub replica: u32,
    pub what: What,
}

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    last: VecDeque<Event>,
}

impl Trace {
    pub(super) fn note(&mut self, at: u64, replica: u32, what: What) {
        self.hash = mix(self.hash ^ mix(at ^ (u64::from(replica) << 44)) ^ what.digest());
        self.events += 1;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(Event { at, replica, what });
    }

    /// The same for two runs only if everything in them was the same.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The last `count` events.
    pub fn tail(&self, count: usize) -> impl Iterator<Item = &Event> {
        self.last.iter().skip(self.last.len().saturating_sub(count))
    }
}

impl What {
    fn digest(self) -> u64 {
        let turn = |turn: Option<StoreTime>| turn.map_or(0, StoreTime::as_micros);
        match self {
            Self::Started => 1,
            Self::Gone => 2,
            Self::Asked {
                want,
                turn: at,
                stepped,
            } => mix(3 + want * 16 + u64::from(stepped) * 8) ^ turn(at),
            Self::Leased {
                first,
                count,
                turn: at,
                guarded,
            } => mix(first.as_micros() + u64::from(guarded)) ^ mix(u64::from(count)) ^ turn(at),
            Self::Denied { turn: at, guarded } => mix(5 + u64::from(guarded)) ^ turn(at),
            Self::AskFailed => 6,
            Self::Heard { .. } => 7,
            Self::Called { message } => mix(8 << 32 | u64::from(message)),
            Self::Arrived { message } => mix(9 << 32 | u64::from(message)),
            Self::TooLate { message } => mix(10 << 32 | u64::from(message)),
            Self::Throttled { message } => mix(11 << 32 | u64::from(message)),
            Self::GaveBack { count, .. } => mix(12 << 32 | u64::from(count)),
            Self::Struck(_) => 13,
            Self::Admitted {
                granted,
                looked_at,
                generation,
                writes,
            } => mix(14 + (granted << 32)) ^ mix(looked_at) ^ mix(generation) ^ writes,
            Self::SawStep => 15,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>12.6} s  replica {:<4} ",
            self.at as f64 / 1e6,
            self.replica
        )?;
        let turn = |f: &mut fmt::Formatter<'_>, turn: Option<StoreTime>| match turn {
            Some(turn) => write!(f, ", turn at {}", short(turn)),
            None => Ok(()),
        };
        match self.what {
            What::Asked {
                want,
                turn: at,
                stepped,
            } => {
                write!(
                    f,
                    "asks for {want}{}",
                    if stepped { ", having seen a step" } else { "" }
                )?;
                turn(f, at)
            }
            What::Leased {
                first,
                count,
                turn: at,
                guarded,
            } => {
                let guarded = if guarded { " (guarded)" } else { "" };
                write!(f, "is leased {count} from {}{guarded}", short(first))?;
                turn(f, at)
            }
            What::Denied { turn: at, guarded } => {
                f.write_str(if guarded {
                    "gets none (guarded)"
                } else {
                    "gets none"
                })?;
                turn(f, at)
            }
            What::Heard { trip } => write!(f, "hears the answer after {trip:?}"),
            What::Called { message } => write!(f, "calls for message {message}"),
            What::Arrived { message } => write!(f, "call for message {message} arrives"),
            What::TooLate { message } => {
                write!(f, "comes too late with message {message}; its slot is lost")
            }
            What::Throttled { message } => write!(f, "is throttled with message {message}"),
            What::GaveBack { count, taken } => {
                write!(
                    f,
                    "gives {count} slots back: {}",
                    if taken { "taken" } else { "lost" }
                )
            }
            What::Struck(fault) => write!(f, "{fault:?}"),
            What::Admitted {
                granted,
                looked_at,
                generation,
                writes,
            } => write!(
                f,
                "is granted {granted} of {looked_at} by the keyed limits (grant {writes} of generation {generation})"
            ),
            What::SawStep => f.write_str("sees that the store's clock stepped"),
            What::Started | What::Gone | What::AskFailed => write!(f, "{:?}", self.what),
        }
    }
}

/// The store's clock without the digits that never change.
fn short(at: StoreTime) -> String {
    let micros = at.as_micros() % 1_000_000_000_000;
    format!("[{:.6}]", micros as f64 / 1e6)
}
