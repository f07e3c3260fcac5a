//! Messages that leave without a call.
//!
//! | module | which messages |
//! |---|---|
//! | `sent_away` | messages that a keyed limit denied or can never grant, and messages that must not be called twice |
//! | `overdue` | denied messages of a route that does not hold them, expired ones, those whose ack timeout at the broker is near |
//! | `no_turn` | messages that have no turn before their deadline, on a route whose messages wait for a known time |

pub(super) mod no_turn;
pub(super) mod overdue;
pub(super) mod sent_away;
