//! What a route may send now, and how its messages wait while it may not.
//!
//! Problem: a route that sends nothing still holds messages: ready, permitted, delayed, or being asked about. All of
//! them wait for the same time, and go at once if the route opens before it. So [`SendRule::defer_in`] and
//! [`GateChange::defer_in`] tell the scheduler.

use std::time::Duration;

use crate::hours::Stretch;
use crate::message::Queued;
use crate::scheduler::Scheduler;
use crate::time::Mono;

/// Added to the end of a breaker's pause: messages are held until the store answers, not until the pause is over.
const FOR_LONG: Duration = Duration::from_secs(3600);

/// What a route may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRule {
    /// Everything, before this time (`None`: without an end).
    All(Option<Mono>),
    /// Only messages that are permitted: its limits grant no more before `opening`. Nothing at all from
    /// `end` on.
    OnlyPermitted {
        /// When its limits are asked again: [`ASKED_AGAIN`](crate::scheduler::ASKED_AGAIN) after their answer at the
        /// latest.
        opening: Mono,
        /// From then on nothing is sent; `None`: without an end.
        end: Option<Mono>,
    },
    /// Nothing before this time.
    Nothing(Mono, ShutReason),
}

/// Why a route sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutReason {
    /// The route is outside its opening hours.
    Hours,
    /// An operator paused it, or it is not known yet that none did.
    Paused,
    /// A keyed limit grants nothing.
    Limit,
    /// The breaker of the route is open. Only an answer of the store ends that.
    Away,
}

impl SendRule {
    /// The last moment at which a call with this `leave_by` may leave; `None` if it may not.
    #[must_use]
    pub fn leave_by(self, leave_by: Mono) -> Option<Mono> {
        match self {
            Self::All(end) | Self::OnlyPermitted { end, .. } => {
                let last = end.map(|end| end - Duration::from_micros(1));
                Some(last.map_or(leave_by, |last| last.min(leave_by)))
            }
            Self::Nothing(..) => None,
        }
    }

    /// When more messages may pass, if none may now.
    #[must_use]
    pub const fn opening(self) -> Option<Mono> {
        match self {
            Self::All(_) => None,
            Self::Nothing(opening, _) | Self::OnlyPermitted { opening, .. } => Some(opening),
        }
    }

    /// Until when messages are held, unless something happens before.
    #[must_use]
    pub fn held_until(self) -> Option<Mono> {
        match self {
            Self::Nothing(opening, ShutReason::Away) => Some(opening + FOR_LONG),
            other => other.opening(),
        }
    }

    /// Holds the messages of the route in `scheduler` as long as they may not be sent now. Messages that
    /// its limits are being asked about come back later, and must be held then.
    pub fn defer_in<T: Queued>(self, scheduler: &mut Scheduler<T>, of_route: impl Fn(&T) -> bool) {
        match (self, self.held_until()) {
            // Permitted messages give their permits back.
            (Self::Nothing(..), Some(until)) => scheduler.defer(until, of_route),
            (_, Some(until)) => scheduler.hold_back(until, of_route),
            (_, None) => {}
        }
    }
}

/// What changed at a [`Gate::review`](super::Gate::review).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateChange {
    /// What the route sent before.
    pub was: SendRule,
    /// What it sends now.
    pub is: SendRule,
    /// The hours of the route began or ended, or are known for the first time.
    pub hours: Option<Stretch>,
}

impl GateChange {
    /// Holds the messages of the route in `scheduler` as long as they may not be sent now. Returns the messages
    /// that were held until now and need not be held that long any more.
    #[must_use]
    pub fn defer_in<T: Queued>(
        &self,
        scheduler: &mut Scheduler<T>,
        of_route: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        self.is.defer_in(scheduler, &of_route);
        if self.is.held_until() < self.was.held_until() {
            scheduler.take_delayed(of_route)
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_at_or_after_the_closing_time() {
        let us = Mono::from_micros;
        let open = SendRule::All(Some(us(100)));
        assert_eq!(open.leave_by(us(50)), Some(us(50)));
        assert_eq!(open.leave_by(us(100)), Some(us(99)));
        assert_eq!(SendRule::All(None).leave_by(us(100)), Some(us(100)));
        let shut = SendRule::Nothing(us(200), ShutReason::Hours);
        assert_eq!(shut.leave_by(us(50)), None);
    }
}
