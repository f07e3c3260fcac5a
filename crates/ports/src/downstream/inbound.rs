//! What a message centre delivers by itself: receipts, and messages from phones.

use tokio::sync::oneshot;

use sluiced_pdu::Receipt;

/// What a message centre delivers by itself, perhaps hours after a call.
#[derive(Debug)]
pub struct InboundEvent {
    /// A receipt, or a message from a phone.
    pub what: InboundKind,
    /// Of a receipt the recipient of the message, of a message the phone. Empty if the delivery cannot be read.
    pub source: String,
    /// Of a receipt the sender of the message, of a message the number that the phone wrote to. Empty if the delivery
    /// cannot be read.
    pub destination: String,
    /// Receives whether it is safe. Dropped, or `false`: the downstream keeps it.
    pub confirmed: oneshot::Sender<bool>,
}

/// What arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboundKind {
    /// What became of a message.
    Receipt(Receipt),
    /// A message from a phone.
    Inbound(Inbound),
}

/// A message from a phone, or a segment of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The text without the header of user data; of a segment, its own part of the text. It is read in the GSM alphabet
    /// for a `data_coding` of 0, as UCS-2 for 8, and otherwise as UTF-8 or, if it is not that, as Latin 1. What is no
    /// character becomes U+FFFD.
    pub text: String,
    /// How the text was written (SMPP 3.4, section 5.2.19).
    pub data_coding: u8,
    /// `None`: it is whole.
    pub segment: Option<Segment>,
}

/// Which segment of a longer message it is, as a header of user data (TS 23.040, section 9.2.3.24) or the `sar_`
/// parameters of SMPP say. Segments come in any order. The numbers are those that came: they are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// All segments of a message have the same. Phones use a reference again. With the shorter header it is at most
    /// 255.
    pub reference: u16,
    /// From 1.
    pub number: u8,
    /// How many segments the message has.
    pub of: u8,
}
