//! Whether calls can have come in windows that each begin with a first call.
//!
//! Problem: the call that begins a window may be lost on its way, so the judge cannot know where the limit's
//! windows lie, and twice the units around an edge are allowed. But some windows must explain the calls: one
//! after another, each as long as the limit says and a headroom apart, and none with more than the units. For
//! each call this keeps
//! the earliest moment at which the window after it may begin, whichever windows held the calls so far. Where
//! there is none, something is over.

use std::collections::VecDeque;

/// The calls of one key that a window may still hold.
#[derive(Debug, Default)]
pub(super) struct Windows {
    calls: VecDeque<Placed>,
    /// From when on a window may begin that begins with the oldest of them.
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    at: u64,
    units: u64,
    /// From when on the next window may begin if one ends with this call.
    next: u64,
}

impl Windows {
    /// A call of so many units in a window of that length; `most` says what a window may hold whose calls came from then until now.
    /// Answers what is over, if something is: the units of the last `length`, and the most.
    pub(super) fn arrived(
        &mut self,
        (at, units): (u64, u64),
        (length, headroom): (u64, u64),
        most: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        while let Some(old) = self.calls.front().filter(|old| old.at + length <= at) {
            self.before = old.next;
            self.calls.pop_front();
        }
        self.calls.push_back(Placed { at, units, next: 0 });
        let (mut next, mut held) = (None, 0);
        for first in (0..self.calls.len()).rev() {
            held += self.calls[first].units;
            if held > most(self.calls[first].at) {
                break;
            }
            let free = match first {
                0 => self.before,
                later => self.calls[later - 1].next,
            };
            // Late enough to hold this call, and not before the window of the calls before is over.
            let start = free.max((at + 1).saturating_sub(length));
            if start <= self.calls[first].at {
                next = next.into_iter().chain([start + length + headroom]).min();
            }
        }
        let units = self.calls.iter().map(|call| call.units).sum();
        let most = most(at);
        let last = self.calls.back_mut()?;
        last.next = next.unwrap_or(at + length);
        next.is_none().then_some((units, most))
    }
}
