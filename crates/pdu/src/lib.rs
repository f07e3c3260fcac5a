//! SMPP 3.4 on the wire: the PDUs that a client of a message centre writes and reads, their statuses, and receipts.
//!
//! Problem: message centres differ from the specification and from each other, and one PDU that cannot be read must not
//! cost those behind it.
//!
//! Only what sending needs is here: bind, `submit_sm`, what the centre delivers (`deliver_sm`, `data_sm`),
//! `enquire_link`, unbind.
//! Writing follows the specification to the octet. Reading accepts more, because message centres differ: a
//! response without its body, a message id of any length and alphabet, an unknown parameter. A PDU that
//! cannot be read is an error, and the one behind it is still found, because each begins with its length.
//!
//! Section numbers are those of "Short Message Peer to Peer Protocol Specification v3.4", 1999.
//!
//! **Public API**: [`frame`] finds the first PDU in what was received; [`Message`], [`Bind`] and [`Receipt`] read a
//! body; [`Message::write`], [`Bind::write`], [`plain`] and [`response`] write one.
//!
//! **May know**: nothing of ours. No I/O, no clock.
//!
//! **Why not `rusmpp`**, with which tests read what is written here: its version 0.4 reads fields from all octets that
//! were received, and not from those of the PDU. A message id without its final zero takes octets of the next PDU; an
//! id of more than 64 octets, an address of more than 20, or a body where none is due leaves the stream in the middle
//! of a PDU. Nothing behind that can be read, so each message in flight would be called again. It adds nine crates.

#![warn(missing_docs)]

mod message;
mod pdu;
mod receipt;
mod status;

pub use message::{Address, Message, Tlv, tag};
pub use pdu::{
    Bind, BindAs, Command, Frame, Malformed, frame, plain, response, response_id, set_sequence,
};
pub use receipt::{Receipt, ReceiptState};
pub use status::{CommandStatus, NAMES, UnknownStatus};

/// The largest PDU that is read or written, in octets: a `message_payload` of 64 KiB and what is around it.
pub const MAX_PDU: usize = 70_000;
/// The largest sequence number (section 3.2); after it comes 1.
pub const LAST_SEQUENCE: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests;
