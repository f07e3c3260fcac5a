//! How a replica notices that the store of keyed limits lost something, or that the store's clock stepped.
//!
//! Problem: the store itself notices neither. So a replica remembers the generation and the highest count of
//! grants that an answer showed, and maps the store's clock: an answer whose time does not fit its travel
//! time shows a step. Grants of such an answer are not used, and the next question reports the step
//! (`generation`). An answer to a question that left before the step was seen is not used either: the store
//! may have decided before the step or after it.
//!
//! A replica that starts cannot see a step of the store's clock from before its start, and waits until the
//! others must have reported it (`generation::STARTUP_LISTEN`). A replica that is alone has no other to wait for
//! (`askers`).

use std::time::Duration;

use super::generation::Memory;
use crate::time::{ClockMap, ClockStep, Direction, Mono, StoreTime};

/// A mapping of the clock that is wrong by no more than this is as good as any.
const FINE: Duration = Duration::from_millis(1);

/// The beginning of every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// The number of the generation that the question fell into.
    pub number: u64,
    /// Grants that the store has written so far ([`Generation::writes`](super::generation::Generation::writes)).
    pub writes: u64,
}

/// What the answers showed.
#[derive(Clone, Debug, Default)]
pub struct StoreWatch {
    /// The generation, and the highest count of grants in it.
    number: u64,
    writes: u64,
    clock: ClockMap,
    /// A step of the clock that no answered question has reported.
    unreported: Option<Unreported>,
    /// The last step, and when it was seen.
    seen: Option<(ClockStep, Mono)>,
}

/// A step that was seen in an answer of a generation.
#[derive(Clone, Copy, Debug)]
struct Unreported {
    direction: Direction,
    number: u64,
}

impl StoreWatch {
    /// What the next question reports.
    #[must_use]
    pub const fn memory(&self) -> Memory {
        Memory {
            number: self.number,
            writes: self.writes,
            // No `map`, so that this stays `const`.
            stepped: match self.unreported {
                Some(unreported) => Some(unreported.direction),
                None => None,
            },
        }
    }

    /// The store's time, as far as the answers show.
    #[must_use]
    pub fn store_time(&self, now: Mono) -> Option<StoreTime> {
        self.clock.to_store(now)
    }

    /// Learns from the answer to a question that reported `asked`. Returns the last step of the store's clock if the
    /// answer must not be used because of it: the answer shows the step, its question left before the step was
    /// seen, or did not report it.
    pub fn learn(
        &mut self,
        asked: Memory,
        entered: AnswerHead,
        sent: Mono,
        received: Mono,
    ) -> Option<ClockStep> {
        if self.unreported.is_some_and(|unreported| {
            asked.stepped >= Some(unreported.direction) && asked.number >= unreported.number
        }) {
            self.unreported = None;
        }
        if (entered.number, entered.writes) > (self.number, self.writes) {
            (self.number, self.writes) = (entered.number, entered.writes);
        }
        if let Some((step, at)) = self.seen
            && sent < at
        {
            return Some(step);
        }
        if let Some(step) = self
            .clock
            .learn_or_restart(sent, entered.now, received, FINE)
        {
            self.seen = Some((step, received));
            // Reported even if another replica reported a step and a newer generation began: the clock may
            // have stepped once more after that, and then no replica would report it.
            let before = self.unreported.map(|unreported| unreported.direction);
            self.unreported = Some(Unreported {
                direction: before.map_or(step.direction, |before| before.max(step.direction)),
                number: entered.number,
            });
        }
        let step = self.seen.map(|(step, _)| step);
        step.filter(|_| self.unreported.is_some())
    }
}

#[cfg(test)]
mod tests;
