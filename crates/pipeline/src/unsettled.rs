//! A message that has no verdict yet, with its history.
//!
//! Problem: a message can be dropped in many places: its task panics, its pacer has stopped, or the route to which it
//! moves is gone. A delivery that is dropped goes back to its queue as it came, and the calls that failed meanwhile
//! would be forgotten: the message could be called more often than `max_attempts`.
//!
//! So from its decoding to its verdict the delivery is here, beside what the message has been through. Dropped, it goes
//! back with that.

use std::time::Duration;

use sluiced_core::after_call::Tries;
use sluiced_ports::queue::{Delivery, Verdict};

use super::history::History;

/// A message with the duty to settle it, and what it has been through.
pub(super) struct UnsettledMessage {
    /// `None` once it is taken out.
    delivery: Option<Delivery>,
    pub(super) history: History,
    /// What its calls had done when it came: its headers say that.
    came_with: Tries,
}

impl UnsettledMessage {
    pub(super) const fn new(delivery: Delivery, history: History) -> Self {
        Self {
            delivery: Some(delivery),
            came_with: history.tries,
            history,
        }
    }

    /// The delivery of the message.
    pub(super) fn delivery(&self) -> &Delivery {
        self.delivery.as_ref().expect(TAKEN_ONCE)
    }

    /// The delivery, mutable.
    pub(super) fn delivery_mut(&mut self) -> &mut Delivery {
        self.delivery.as_mut().expect(TAKEN_ONCE)
    }

    /// Takes it apart, to settle it.
    pub(super) fn into_parts(mut self) -> (Delivery, History) {
        (self.delivery.take().expect(TAKEN_ONCE), self.history)
    }
}

/// The delivery is `None` only after `into_parts`, which consumes the message.
const TAKEN_ONCE: &str = "only into_parts takes the delivery out, and it consumes the message";

impl Drop for UnsettledMessage {
    fn drop(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            // The time of the store may be unknown here; a time that has passed makes the message wait no longer.
            let verdict = match self.history.tries == self.came_with {
                true => Verdict::GiveBack,
                false => self.history.back(Duration::ZERO, self.history.first_seen),
            };
            // If the session is gone, the broker delivers it again.
            delivery.settle(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::time::{Mono, StoreTime};
    use sluiced_ports::message::{HeaderValue, Message, header};
    use sluiced_ports::queue::SettlementSender;

    /// What becomes of a message that came after so many calls and is dropped after so many.
    fn dropped(came_after: u32, attempts: u32) -> Verdict {
        let (sink, mut settlements) = SettlementSender::new();
        let message = Message::default();
        let mut history = History::of(&message, StoreTime::from_micros(5));
        history.tries.attempts = came_after;
        let delivery = Delivery::new(message, Mono::default(), 7, "sms".into(), sink);
        let mut unsettled = UnsettledMessage::new(delivery, history);
        unsettled.history.tries.attempts = attempts;
        drop(unsettled);
        settlements.try_recv().expect("a verdict").verdict
    }

    #[test]
    fn a_message_that_is_dropped_keeps_the_calls_that_it_had() {
        assert_eq!(dropped(0, 0), Verdict::GiveBack);
        assert_eq!(dropped(2, 2), Verdict::GiveBack, "its headers say it");
        let Verdict::Later { delay, headers } = dropped(0, 2) else {
            panic!("it goes through the wait ladder");
        };
        assert_eq!(delay, Duration::ZERO);
        assert!(headers.contains(&(header::ATTEMPTS, HeaderValue::Int(2))));
    }
}
