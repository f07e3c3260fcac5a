//! Whether a route consumes: the decision for its tap.
//!
//! Where a route must wait for longer than its messages may be held, it stops consuming, and its backlog stays in its
//! queue. It consumes again shortly before the wait is over. A route may also send away what it holds (`on_denied`).

use std::time::Duration;

use super::{Gate, SendRule, ShutReason};
use crate::leases::Availability;
use crate::time::Mono;

/// Whether new deliveries are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// Consume.
    Open,
    /// Cancel the consumer, keep what is held.
    Closed,
}

/// When the tap of a route closes.
#[derive(Clone, Copy, Debug)]
pub struct TapRule {
    /// The longest wait during which the route goes on consuming.
    pub max_hold: Duration,
    /// The longest time that one message may be held.
    pub ack_margin: Duration,
    /// What happens to messages that would wait for longer than `max_hold`.
    pub on_denied: OnDenied,
}

/// What a route does when its limit says "not before T" and T is further away than it holds messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDenied {
    /// Consuming stops until T. Messages of one key go to a wait queue.
    Hold,
    /// Each message goes to a wait queue until T.
    Delay,
    /// Consuming stops, and each message goes back to its queue at once.
    Nack,
    /// Each message goes to the dead-letter queue.
    DeadLetter,
    /// Messages of callers, which have no queue: a message waits for its turn. As soon as it is known that the turn
    /// comes after its deadline, its caller gets T.
    TellCaller,
}

impl OnDenied {
    /// Messages that are held leave.
    const fn sends_away(self) -> bool {
        !matches!(self, Self::Hold)
    }

    /// No more messages are taken.
    const fn closes(self) -> bool {
        matches!(self, Self::Hold | Self::Nack)
    }
}

/// What the tap does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapDecision {
    /// How the tap stood before this decision.
    pub was: Tap,
    /// How the tap stands now.
    pub is: Tap,
    /// Why the route itself is shut. `None`: its paced limit decided.
    pub shut: Option<ShutReason>,
    /// The held messages must be sent away: the limit grants nothing for this long.
    pub denied: Option<Duration>,
    /// The latest time to decide again.
    pub look: Option<Mono>,
}

impl Gate {
    /// Decides whether the route consumes.
    pub fn decide_tap(
        &mut self,
        availability: Availability,
        rule: &TapRule,
        now: Mono,
    ) -> TapDecision {
        let decision = match self.shut(rule, now) {
            Some((why, look)) => TapDecision {
                was: self.tap,
                is: Tap::Closed,
                shut: Some(why),
                denied: None,
                look: Some(look),
            },
            None => by_availability(self.tap, availability, rule, now),
        };
        self.tap = decision.is;
        decision
    }

    /// Closes the tap.
    pub const fn close_tap(&mut self) {
        self.tap = Tap::Closed;
    }

    /// Whether the gate itself keeps the tap closed, why, and until when. `None` too if the opening is so near that
    /// the limit decides.
    fn shut(&self, rule: &TapRule, now: Mono) -> Option<(ShutReason, Mono)> {
        let opening = self.sends.opening().max(self.used_up_until)?;
        let why = match self.sends {
            SendRule::Nothing(_, why) => why,
            SendRule::All(_) | SendRule::OnlyPermitted { .. } => ShutReason::Limit,
        };
        let hold = rule.max_hold.min(rule.ack_margin);
        let near = threshold(self.tap, hold);
        (opening.since(now) > near).then(|| (why, opening - hold / 2))
    }
}

/// A tap that is closed opens for a shorter wait than the one that closed it, so that it does not open and close again
/// and again.
fn threshold(was: Tap, hold: Duration) -> Duration {
    match was {
        Tap::Open => hold,
        Tap::Closed => hold / 2,
    }
}

fn by_availability(was: Tap, availability: Availability, rule: &TapRule, now: Mono) -> TapDecision {
    let wait = match availability {
        Availability::Open => Some(Duration::ZERO),
        Availability::Until(at, _) => Some(at.since(now)),
        Availability::OutOfReach(since) if now.since(since) <= rule.max_hold => {
            Some(Duration::ZERO)
        }
        // It is not known for how long.
        Availability::NotKnownYet | Availability::OutOfReach(_) => None,
    };
    let too_long = wait.is_none_or(|wait| wait > threshold(was, rule.max_hold));
    let denied = wait.filter(|_| too_long && rule.on_denied.sends_away());
    let stays = denied.is_some() && !rule.on_denied.closes();
    TapDecision {
        was,
        is: if too_long && !stays {
            Tap::Closed
        } else {
            Tap::Open
        },
        shut: None,
        denied,
        look: wait
            .filter(|wait| !wait.is_zero())
            .map(|wait| now + wait.saturating_sub(rule.max_hold / 2)),
    }
}
