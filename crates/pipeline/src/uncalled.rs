//! Messages that leave without a call.
//!
//! | module | which messages |
//! |---|---|
//! | `sent_away` | those that their keyed limits denied, can never let pass, or that must not be called twice |
//! | `overdue` | denied ones of a route that does not hold them, expired ones, those that the broker would soon want back |
//! | `no_turn` | those that have no turn before their end, on a route whose messages wait for a known time |

pub(super) mod no_turn;
pub(super) mod overdue;
pub(super) mod sent_away;
