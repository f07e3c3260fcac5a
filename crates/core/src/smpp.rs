//! SMPP 3.4 on the wire: the PDUs that a client of a message centre writes and reads, and their status codes.
//!
//! Only what sending needs is here: bind, `submit_sm`, `deliver_sm` (receipts), `enquire_link`, unbind.
//! Writing follows the specification to the octet. Reading accepts more, because message centres differ: a
//! response without its body, a message id of any length and alphabet, an unknown parameter. A PDU that
//! cannot be read is an error, and the one behind it is still found, because each begins with its length.
//!
//! Section numbers are those of "Short Message Peer to Peer Protocol Specification v3.4", 1999.

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
