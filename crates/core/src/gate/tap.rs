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
    pub denied: WhenDenied,
}

/// What a route does with messages that would wait for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDenied {
    /// The route keeps the messages that it holds and takes no more.
    Hold,
    /// The route sends the messages away, and takes more.
    SendAway,
    /// The route sends the messages away, and takes no more.
    SendAwayAndClose,
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

/// A tap that is closed opens for a shorter wait than the one that closed it, so that it does not flutter.
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
    let denied = wait.filter(|_| too_long && rule.denied != WhenDenied::Hold);
    let stays = denied.is_some() && rule.denied == WhenDenied::SendAway;
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
