//! The record of a run: a fingerprint of the events that judges see, and the last of them in words.

use std::collections::VecDeque;
use std::fmt;

use sluiced_core::time::StoreTime;

use crate::dice::mix;
use crate::watch::FleetEvent;

/// How many events are kept.
const MAX_EVENTS: usize = 4_000;

/// An event with its true time in microseconds and its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    pub at: u64,
    pub replica: u32,
    pub what: FleetEvent,
}

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    last: VecDeque<Traced>,
}

impl Trace {
    pub(super) fn note(&mut self, at: u64, replica: u32, what: FleetEvent) {
        if what.is_of_course() {
            return;
        }
        self.hash = mix(self.hash ^ mix(at ^ (u64::from(replica) << 44)) ^ what.digest());
        self.events += 1;
        if self.last.len() == MAX_EVENTS {
            self.last.pop_front();
        }
        self.last.push_back(Traced { at, replica, what });
    }

    /// Equal for two runs only if everything in them was equal.
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
    pub fn tail(&self, count: usize) -> impl Iterator<Item = &Traced> {
        self.last.iter().skip(self.last.len().saturating_sub(count))
    }
}

impl FleetEvent {
    /// Whether an event can be seen from other events, so that a trace may leave it out.
    const fn is_of_course(&self) -> bool {
        matches!(
            self,
            Self::Queued { .. }
                | Self::QueueEmpty
                | Self::Delivered { .. }
                | Self::Question { .. }
                | Self::Decided { .. }
                | Self::Accepted { .. }
                | Self::Settled { .. }
        )
    }

    /// A digest of the event besides its time.
    fn digest(self) -> u64 {
        match self {
            Self::Asked { want, .. } => want,
            Self::Leased { first, count, .. } => mix(first.as_micros()) ^ u64::from(count),
            Self::Denied { guarded, .. } => 1 << 40 | u64::from(guarded),
            Self::Called { message } => 2 << 40 | u64::from(message),
            Self::Arrived { message, .. } => 3 << 40 | u64::from(message),
            Self::Away { message, .. } => 4 << 40 | u64::from(message),
            Self::RanOut { message } => 5 << 40 | u64::from(message),
            Self::Admitted {
                granted, writes, ..
            } => mix(6 << 40 | granted) ^ writes,
            _ => 7 << 40,
        }
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at as f64 / 1e6;
        write!(f, "{seconds:>12.6} s  replica {:<4} ", self.replica)?;
        let guarded = |guarded| if guarded { " (guarded)" } else { "" };
        match self.what {
            FleetEvent::Asked {
                want,
                turn,
                stepped,
                ..
            } => {
                let stepped = if stepped { ", having seen a step" } else { "" };
                write!(f, "asks for {want}{stepped}{}", ShownTurn(turn))
            }
            FleetEvent::Leased {
                first,
                count,
                turn,
                guarded: guard,
            } => {
                let (first, guard) = (short(first), guarded(guard));
                write!(
                    f,
                    "is leased {count} from {first}{guard}{}",
                    ShownTurn(turn)
                )
            }
            FleetEvent::Denied {
                turn,
                guarded: guard,
                ..
            } => write!(f, "gets none{}{}", guarded(guard), ShownTurn(turn)),
            FleetEvent::Heard { trip } => write!(f, "hears the answer after {trip:?}"),
            FleetEvent::Called { message } => write!(f, "calls for message {message}"),
            FleetEvent::Arrived { message, .. } => write!(f, "call for message {message} arrives"),
            FleetEvent::TooLate { message } => {
                write!(f, "comes too late with message {message}; its slot is lost")
            }
            FleetEvent::Struck { fault, .. } => write!(f, "{fault:?}"),
            FleetEvent::Admitted {
                granted,
                looked_at,
                generation,
                writes,
            } => write!(
                f,
                "is granted {granted} of {looked_at} by the keyed limits (grant {writes} of generation {generation})"
            ),
            what => write!(f, "{what:?}"),
        }
    }
}

struct ShownTurn(Option<StoreTime>);

impl fmt::Display for ShownTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .map_or(Ok(()), |turn| write!(f, ", turn at {}", short(turn)))
    }
}

/// The store's clock without the digits that never change.
fn short(at: StoreTime) -> String {
    let micros = at.as_micros() % 1_000_000_000_000;
    format!("[{:.6}]", micros as f64 / 1e6)
}
