//! Places in budgets, as they travel in the headers of a message that waits.
//!
//! A denied message owns a place at a later time. It goes to the wait ladder with that place in a
//! header, comes back a little early, and passes at its time without being denied again. The
//! ladder rounds waits to its steps, up to 3 % late; for a message with a place it must be early.

use std::time::Duration;

use crate::core::time::StoreTime;
use crate::ports::budget::{Booking, Claim, Epoch};
use crate::ports::message::{HeaderValue, Message, header};

/// A message with a place this near waits in memory: the shortest step of the ladder, and the way
/// through it, would be too long.
pub(super) const NEAR: Duration = Duration::from_secs(2);
/// What the way through a wait queue and back may take.
const WAY: Duration = Duration::from_millis(300);
/// The ladder takes a step that is longer than the wait by 3 %.
const ROUNDING: f64 = 0.97;

/// How long a message with a place may wait in the ladder, to be back before its time.
pub(super) fn early(wait: Duration) -> Duration {
    wait.saturating_sub(WAY).mul_f64(ROUNDING)
}

/// The places of a message as a header.
pub(super) fn written(claims: &[Claim]) -> HeaderValue {
    let places = claims.iter().filter_map(|claim| {
        let Booking { at, epoch } = claim.held?;
        let (limit, at) = (&claim.limit.name, at.as_micros());
        Some(format!("{limit}@{at}#{}", epoch.0))
    });
    HeaderValue::Text(places.collect::<Vec<_>>().join(","))
}

/// Whether a message brings places with it, used or not.
pub(super) fn has_places(message: &Message) -> bool {
    matches!(message.headers.get(header::BOOKED), Some(HeaderValue::Text(text)) if !text.is_empty())
}

/// Gives claims the places that their message brings.
pub(super) fn claim_places(message: &Message, claims: &mut [Claim]) {
    let Some(HeaderValue::Text(text)) = message.headers.get(header::BOOKED) else {
        return;
    };
    for (limit, booking) in text.split(',').filter_map(place) {
        if let Some(claim) = claims.iter_mut().find(|claim| *claim.limit.name == *limit) {
            claim.held = Some(booking);
        }
    }
}

/// `limit@microseconds#epoch`. What is no such thing counts as absent.
fn place(text: &str) -> Option<(&str, Booking)> {
    let (limit, rest) = text.split_once('@')?;
    let (at, epoch) = rest.split_once('#')?;
    let booking = Booking {
        at: StoreTime::from_micros(at.parse().ok()?),
        epoch: Epoch(epoch.parse().ok()?),
    };
    Some((limit, booking))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ladder::Ladder;

    #[test]
    fn places_are_read_as_they_were_written() {
        let booking = Booking {
            at: StoreTime::from_micros(1_763_000_000_123_456),
            epoch: Epoch(17),
        };
        assert_eq!(
            place("sender.eu@1763000000123456#17"),
            Some(("sender.eu", booking))
        );
        for text in ["", "sender", "sender@x#1", "sender@1", "sender@1#", "@#"] {
            assert_eq!(place(text), None, "{text}");
        }
    }

    #[test]
    fn who_has_a_place_comes_back_before_it_and_never_rotates_for_long() {
        let ladder = Ladder::up_to(Duration::from_secs(4096));
        for millis in (2_001..5_000_000).step_by(7_919) {
            let mut left = Duration::from_millis(millis);
            let mut rounds = 0;
            while left > NEAR {
                let step = ladder.step(early(left)).length();
                assert!(step + WAY <= left, "{step:?} of {left:?}");
                left -= step + WAY / 3;
                rounds += 1;
            }
            assert!(rounds <= 26, "{rounds} rounds for {millis} ms");
        }
    }
}
