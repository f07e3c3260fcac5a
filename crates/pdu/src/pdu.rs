//! PDUs: a header of four numbers, and fields in a fixed order behind it.
//!
//! A text ends with an octet of zero. A text that came with such an octet inside would end early, so it is refused
//! before anything is written.

use std::fmt;

use super::status::CommandStatus;

/// Length, command, status, sequence number (section 3.2).
const HEADER: usize = 16;
/// The bit that a response has in its command besides that of its request.
const RESPONSE: u32 = 0x8000_0000;
/// The version that this client speaks (section 5.2.4).
const VERSION: u8 = 0x34;

/// What a PDU is (section 5.1.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u32);

impl Command {
    /// The answer to a PDU that cannot be read or has an unknown command (section 4.3). It has no body.
    pub const GENERIC_NACK: Self = Self(RESPONSE);
    /// Opens a session for sending (section 4.1.1).
    pub const BIND_TRANSMITTER: Self = Self(0x02);
    /// A message to the centre (section 4.4.1).
    pub const SUBMIT_SM: Self = Self(0x04);
    /// A receipt or a message from the centre (section 4.6.1).
    pub const DELIVER_SM: Self = Self(0x05);
    /// Ends a session, from either side (section 4.2). It has no body.
    pub const UNBIND: Self = Self(0x06);
    /// Opens a session for both directions (section 4.1.5).
    pub const BIND_TRANSCEIVER: Self = Self(0x09);
    /// Asks whether the other side is there (section 4.11). It has no body.
    pub const ENQUIRE_LINK: Self = Self(0x15);
    /// Says that a phone can be reached again. The only request without a response (section 4.12.1).
    pub const ALERT_NOTIFICATION: Self = Self(0x102);
    /// A message in either direction, with its text in a parameter (section 4.7.1). Here it comes from the centre only.
    pub const DATA_SM: Self = Self(0x103);

    /// The command's response.
    #[must_use]
    pub const fn response(self) -> Self {
        Self(self.0 | RESPONSE)
    }

    /// Whether it answers a request of ours.
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.0 & RESPONSE != 0
    }
}

/// Why octets cannot be a PDU, or a field of one. Only [`Self::Length`] ends the connection: after the others the next
/// PDU can still be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The next PDU cannot be found: the connection is of no use any more. The length in the header (section 3.2) is
    /// less than the 16 octets of a header, or more than [`MAX_PDU`](super::MAX_PDU).
    #[error("a PDU of {0} octets")]
    Length(u32),
    /// A body that is read ends before its last field does, or a text of it has no zero at its end. Also for a text of
    /// a [`Bind`] that is no UTF-8.
    #[error("a PDU ends within a field")]
    Short,
    /// A text that is to be written would end early: an address, the service type, the validity, or a text of a
    /// [`Bind`].
    #[error("a text has an octet of zero")]
    Zero,
    /// A field that is to be written is too long, or the PDU as a whole: its octets, and the most that it may have.
    #[error("a text has {0} octets, and {1} is the most")]
    Long(usize, usize),
}

/// A PDU that was read; its body is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is. A command that is not known is no error.
    pub command: Command,
    /// Of a response: how the request ended. In a request it means nothing, and is 0 by the specification.
    pub status: CommandStatus,
    /// From 1 to [`LAST_SEQUENCE`](super::LAST_SEQUENCE) by the specification; not checked. A response has that of its
    /// request.
    pub sequence: u32,
    /// All octets behind the header; may be empty.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// How many octets it had.
    #[must_use]
    pub const fn length(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// The first PDU of what was received; `None`: not all of it is there.
///
/// # Errors
/// When its length makes no sense: the rest of the stream cannot be read.
pub fn frame(received: &[u8]) -> Result<Option<Frame<'_>>, Malformed> {
    let mut fields = FieldReader(received);
    let Ok(length) = fields.number() else {
        return Ok(None);
    };
    let whole = usize::try_from(length).unwrap_or(usize::MAX);
    if !(HEADER..=super::MAX_PDU).contains(&whole) {
        return Err(Malformed::Length(length));
    }
    if received.len() < whole {
        return Ok(None);
    }
    Ok(Some(Frame {
        command: Command(fields.number()?),
        status: CommandStatus(fields.number()?),
        sequence: fields.number()?,
        body: &received[HEADER..whole],
    }))
}

/// A PDU without a body: `enquire_link`, `unbind` and their responses, `generic_nack`.
#[must_use]
pub fn plain(command: Command, status: CommandStatus, sequence: u32) -> Vec<u8> {
    PduWriter::new(command, status, sequence).end()
}

/// A response to `command`, a bind, `submit_sm`, `deliver_sm` or `data_sm`: its body is one text. One that fails has no
/// body (section 4.4.2); a response to `deliver_sm` always has one (section 4.6.2).
#[must_use]
pub fn response(command: Command, status: CommandStatus, sequence: u32, text: &str) -> Vec<u8> {
    let mut pdu = PduWriter::new(command.response(), status, sequence);
    if status == CommandStatus::OK || command == Command::DELIVER_SM {
        pdu.0.extend(text.bytes().filter(|octet| *octet != 0));
        pdu.0.push(0);
    }
    pdu.end()
}

/// The text of a response: the message id of `submit_sm_resp`. A missing one is empty, and one without its end is taken
/// as it is.
#[must_use]
pub fn response_id(body: &[u8]) -> String {
    let end = body.iter().position(|octet| *octet == 0);
    String::from_utf8_lossy(&body[..end.unwrap_or(body.len())]).into_owned()
}

/// Writes another sequence number into a PDU that was made before.
pub fn set_sequence(pdu: &mut [u8], sequence: u32) {
    if let Some(place) = pdu.get_mut(12..HEADER) {
        place.copy_from_slice(&sequence.to_be_bytes());
    }
}

/// What a connection is used for after its bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindAs {
    /// For sending.
    Transmitter,
    /// For sending, and for what the message centre delivers.
    Transceiver,
}

impl BindAs {
    /// The bind that asks for it.
    #[must_use]
    pub const fn command(self) -> Command {
        match self {
            Self::Transmitter => Command::BIND_TRANSMITTER,
            Self::Transceiver => Command::BIND_TRANSCEIVER,
        }
    }
}

/// A bind (sections 4.1.1 and 4.1.5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
    /// Which command it is written with. One that is read with any other command is taken for a transmitter.
    pub bind_as: BindAs,
    /// At most 15 octets.
    pub system_id: &'a str,
    /// At most 8 octets by the specification; centres take more, so up to 64 are written.
    pub password: &'a str,
    /// At most 12 octets.
    pub system_type: &'a str,
}

impl fmt::Debug for Bind<'_> {
    /// Never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bind")
            .field("bind_as", &self.bind_as)
            .field("system_id", &self.system_id)
            .finish_non_exhaustive()
    }
}

impl<'a> Bind<'a> {
    /// As it is written.
    ///
    /// # Errors
    /// When a text is too long, or has an octet of zero.
    pub fn write(&self, sequence: u32) -> Result<Vec<u8>, Malformed> {
        let mut pdu = PduWriter::new(self.bind_as.command(), CommandStatus::OK, sequence);
        pdu.text(self.system_id.as_bytes(), 15)?;
        pdu.text(self.password.as_bytes(), 64)?;
        pdu.text(self.system_type.as_bytes(), 12)?;
        // No range of addresses, so their type and plan mean nothing.
        pdu.0.extend([VERSION, 0, 0, 0]);
        Ok(pdu.end())
    }

    /// Reads one of either kind.
    ///
    /// # Errors
    /// When it ends too early, or a text of it is no UTF-8.
    pub fn read(frame: &Frame<'a>) -> Result<Self, Malformed> {
        let mut fields = FieldReader(frame.body);
        let mut text = || std::str::from_utf8(fields.text()?).map_err(|_| Malformed::Short);
        Ok(Self {
            bind_as: match frame.command {
                Command::BIND_TRANSCEIVER => BindAs::Transceiver,
                _ => BindAs::Transmitter,
            },
            system_id: text()?,
            password: text()?,
            system_type: text()?,
        })
    }
}

/// Checks a length: at most `most` octets.
pub(super) fn within(octets: &[u8], most: usize) -> Result<usize, Malformed> {
    match octets.len() {
        length if length <= most => Ok(length),
        length => Err(Malformed::Long(length, most)),
    }
}

/// A PDU that is being written.
pub(super) struct PduWriter(pub(super) Vec<u8>);

impl PduWriter {
    pub(super) fn new(command: Command, status: CommandStatus, sequence: u32) -> Self {
        let header = [0, command.0, status.0, sequence];
        Self(header.into_iter().flat_map(u32::to_be_bytes).collect())
    }

    pub(super) fn text(&mut self, text: &[u8], most: usize) -> Result<(), Malformed> {
        within(text, most)?;
        if text.contains(&0) {
            return Err(Malformed::Zero);
        }
        self.0.extend(text);
        self.0.push(0);
        Ok(())
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        // Bounded by `MAX_PDU`, or by the fields of a fixed PDU.
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// The part of a body that was not read yet.
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(super) fn take(&mut self, octets: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(octets).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn octet(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn short(&mut self) -> Result<u16, Malformed> {
        let octets = self.take(2)?;
        Ok(u16::from_be_bytes([octets[0], octets[1]]))
    }

    pub(super) fn number(&mut self) -> Result<u32, Malformed> {
        let (high, low) = (self.short()?, self.short()?);
        Ok(u32::from(high) << 16 | u32::from(low))
    }

    pub(super) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|octet| *octet == 0);
        let text = self.take(end.ok_or(Malformed::Short)?)?;
        self.octet()?;
        Ok(text)
    }
}
