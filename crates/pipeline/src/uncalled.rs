//! Messages that leave without a call, because they should not be held any longer.
//!
//! | module | which messages |
//! |---|---|
//! | `overdue` | denied ones of a route that does not hold them, expired ones, those that the broker would soon want back |
//! | `refused` | those that have no turn before their end, on a route whose messages wait for a known time |

pub(super) mod overdue;
pub(super) mod refused;
