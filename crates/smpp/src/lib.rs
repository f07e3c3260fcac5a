//! The SMPP downstream: a call is one or more `submit_sm` of SMPP 3.4, to a message centre.
//!
//! Problem: a text may be several parts, of which some are accepted; answers come in any order and receipts much later,
//! on connections that end at any time. A part that was accepted must not be sent again.
//!
//! `submission` makes the PDUs of a message before its slot. `link` keeps the connections: `centre` opens and binds
//! them, `session` writes on one of them and waits for the answers, `reading` takes what the centre sends, and
//! `delivery` reads what it delivers by itself. `judge` says what answers mean. `downstream` puts them together. The
//! crate `pdu` has the protocol, and `template::sms` cuts texts.
//!
//! **Public API**: [`SmppDownstream`] implements `ports::downstream::Downstream`. Its settings are
//! `settings::types::Smpp`. [`Submission`] is what a call would send, for an operator.
//!
//! **May know**: `core`, `net`, `ports`, `pdu`, values of `settings`, `telemetry`, `template`.

#![warn(missing_docs)]

mod centre;
mod delivery;
mod downstream;
mod judge;
mod link;
mod reading;
mod session;
mod submission;

pub use downstream::SmppDownstream;
pub use submission::Submission;
