//! What limits need to know of a message. It is found out once, before anything is asked of a
//! limit.

use std::fmt;

use crate::core::limits::admission::Charge;

/// The text of the key that is counted; `None`: the limit counts all messages together.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(pub Option<Box<str>>);

/// What the limits of a route need to know of a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Label {
    /// One for each limit of the route, in its order, with a cost that the limit can grant; `None`: the limit does
    /// not count the message.
    pub charges: Box<[Option<Charge<(), KeyText>>]>,
    /// The tenant that the message belongs to, on a route that shares fairly.
    pub tenant: Option<Box<str>>,
}

impl fmt::Debug for KeyText {
    /// A key is a phone number more often than not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "KeyText(..)"
        } else {
            "KeyText(None)"
        })
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Label")
            .field("charges", &self.charges)
            .finish_non_exhaustive()
    }
}
