//! What limits need to know of a message.
//!
//! It is determined once, before any limit is asked.

use std::fmt;

use crate::downstream::UnfitReason;
use sluiced_core::limits::admission;
use sluiced_core::zone::Zone;

/// The text of the key that is counted; `None`: the limit counts all messages together.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(pub Option<Box<str>>);

/// What the limits of a route need to know of a message.
#[derive(Clone, PartialEq, Eq)]
pub struct LimitInputs {
    /// A charge for each limit of the route, in its order, with a cost that the limit can grant; `None`: the limit does
    /// not count the message.
    pub charges: Box<[Option<admission::Charge<(), KeyText>>]>,
    /// The tenant that the message belongs to, on a route that shares fairly.
    pub tenant: Option<Box<str>>,
    /// The priority that the message has for itself, from 0 to 9, on a route with a template for it; the error says why
    /// there is none.
    pub priority: Option<Result<u8, UnfitReason>>,
    /// The zone by whose clock the message may be sent, on a route with a template for it.
    pub zone: Option<Zone>,
}

impl fmt::Debug for KeyText {
    /// Does not show the key, which is often a phone number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "KeyText(..)"
        } else {
            "KeyText(None)"
        })
    }
}

impl fmt::Debug for LimitInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitInputs")
            .field("charges", &self.charges)
            .finish_non_exhaustive()
    }
}
