//! PDUs: a header of four numbers, fields in a fixed order, and optional parameters (TLV) behind them.
//!
//! A text ends with an octet of zero. A text that came with such an octet inside would end early, so it is refused
//! before anything is written.

use std::fmt;

use super::status::CommandStatus;

/// Length, command, status, sequence number (section 3.2).
const HEADER: usize = 16;
/// What a response has in its command besides that of its request.
const RESPONSE: u32 = 0x8000_0000;
/// The version that we speak (section 5.2.4).
const VERSION: u8 = 0x34;
/// The bit of `esm_class` that says that the text begins with a header of user data (section 5.2.12).
const UDHI: u8 = 0x40;

/// What a PDU is (section 5.1.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u32);

impl Command {
    pub const GENERIC_NACK: Self = Self(RESPONSE);
    pub const BIND_RECEIVER: Self = Self(0x01);
    pub const BIND_TRANSMITTER: Self = Self(0x02);
    pub const SUBMIT_SM: Self = Self(0x04);
    pub const DELIVER_SM: Self = Self(0x05);
    pub const UNBIND: Self = Self(0x06);
    pub const BIND_TRANSCEIVER: Self = Self(0x09);
    pub const ENQUIRE_LINK: Self = Self(0x15);

    /// Its response.
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

/// Tags of optional parameters (section 5.3.2).
pub mod tag {
    pub const MESSAGE_PAYLOAD: u16 = 0x0424;
    pub const RECEIPTED_MESSAGE_ID: u16 = 0x001e;
    pub const MESSAGE_STATE: u16 = 0x0427;
    pub const NETWORK_ERROR_CODE: u16 = 0x0423;
    pub const SC_INTERFACE_VERSION: u16 = 0x0210;
}

/// What cannot be a PDU, or a field of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Nothing behind it can be found: the connection is of no use any more.
    #[error("a PDU of {0} octets")]
    Length(u32),
    #[error("a PDU ends within a field")]
    Short,
    #[error("a text has an octet of zero")]
    Zero,
    #[error("a text has {0} octets, and {1} is the most")]
    Long(usize, usize),
}

/// A PDU that was read; its body is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub command: Command,
    pub status: CommandStatus,
    pub sequence: u32,
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
    let mut fields = Fields(received);
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
    Writing::new(command, status, sequence).end()
}

/// A response to `command` whose body is one text: of a bind, of `submit_sm`, of `deliver_sm`. One that fails has no
/// body (section 4.4.2).
#[must_use]
pub fn response(command: Command, status: CommandStatus, sequence: u32, text: &str) -> Vec<u8> {
    let mut pdu = Writing::new(command.response(), status, sequence);
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

/// A bind (sections 4.1.1 and 4.1.5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
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
        let command = match self.bind_as {
            BindAs::Transmitter => Command::BIND_TRANSMITTER,
            BindAs::Transceiver => Command::BIND_TRANSCEIVER,
        };
        let mut pdu = Writing::new(command, CommandStatus::OK, sequence);
        pdu.text(self.system_id.as_bytes(), 15)?;
        pdu.text(self.password.as_bytes(), 64)?;
        pdu.text(self.system_type.as_bytes(), 12)?;
        // No range of addresses, whose type and plan then mean nothing.
        pdu.0.extend([VERSION, 0, 0, 0]);
        Ok(pdu.end())
    }

    /// Reads one of either kind.
    ///
    /// # Errors
    /// When it ends too early, or a text of it is no UTF-8.
    pub fn read(frame: &Frame<'a>) -> Result<Self, Malformed> {
        let mut fields = Fields(frame.body);
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

/// A number or a name that messages come from or go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Type of number (section 5.2.5).
    pub ton: u8,
    /// Numbering plan (section 5.2.6).
    pub npi: u8,
    /// At most 20 octets.
    pub digits: Vec<u8>,
}

/// An optional parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    pub tag: u16,
    /// At most 65535 octets.
    pub value: Vec<u8>,
}

/// What `submit_sm` and `deliver_sm` carry: their fields are the same (sections 4.4.1 and 4.6.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// At most 5 octets.
    pub service_type: Vec<u8>,
    pub source: Address,
    pub destination: Address,
    pub esm_class: u8,
    /// Empty, or 16 octets (section 7.1.1).
    pub validity: Vec<u8>,
    pub registered_delivery: u8,
    pub data_coding: u8,
    /// At most 254 octets.
    pub text: Vec<u8>,
    pub tlvs: Vec<Tlv>,
}

impl Message {
    /// The text begins with a header that joins parts.
    #[must_use]
    pub fn with_header(self) -> Self {
        Self {
            esm_class: self.esm_class | UDHI,
            ..self
        }
    }

    /// Whether it does.
    #[must_use]
    pub const fn has_header(&self) -> bool {
        self.esm_class & UDHI != 0
    }

    /// An optional parameter of it.
    #[must_use]
    pub fn tlv(&self, tag: u16) -> Option<&[u8]> {
        let found = self.tlvs.iter().find(|tlv| tlv.tag == tag);
        found.map(|tlv| tlv.value.as_slice())
    }

    /// Its text, wherever it stands.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        self.tlv(tag::MESSAGE_PAYLOAD).unwrap_or(&self.text)
    }

    /// As it is written, as `submit_sm` or `deliver_sm`.
    ///
    /// # Errors
    /// When a field is too long, or a text has an octet of zero.
    pub fn write(&self, command: Command, sequence: u32) -> Result<Vec<u8>, Malformed> {
        let mut pdu = Writing::new(command, CommandStatus::OK, sequence);
        pdu.text(&self.service_type, 5)?;
        pdu.address(&self.source)?;
        pdu.address(&self.destination)?;
        // No protocol, no priority, sent at once.
        pdu.0.extend([self.esm_class, 0, 0, 0]);
        pdu.text(&self.validity, 16)?;
        // Nothing is replaced, and no text of the centre's own is sent.
        pdu.0
            .extend([self.registered_delivery, 0, self.data_coding, 0]);
        let length = within(&self.text, 254)?;
        pdu.0.push(length as u8);
        pdu.0.extend(&self.text);
        for Tlv { tag, value } in &self.tlvs {
            let length = within(value, usize::from(u16::MAX))?;
            pdu.0.extend(tag.to_be_bytes());
            pdu.0.extend((length as u16).to_be_bytes());
            pdu.0.extend(value);
        }
        match pdu.0.len() {
            length if length > super::MAX_PDU => Err(Malformed::Long(length, super::MAX_PDU)),
            _ => Ok(pdu.end()),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it ends too early.
    pub fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(body);
        let mut message = Self {
            service_type: fields.text()?.to_vec(),
            source: fields.address()?,
            destination: fields.address()?,
            ..Self::default()
        };
        message.esm_class = fields.octet()?;
        // The protocol and the priority, and when it was scheduled.
        fields.take(2)?;
        fields.text()?;
        message.validity = fields.text()?.to_vec();
        message.registered_delivery = fields.octet()?;
        fields.octet()?;
        message.data_coding = fields.octet()?;
        fields.octet()?;
        let length = fields.octet()?;
        message.text = fields.take(length.into())?.to_vec();
        while !fields.0.is_empty() {
            let tag = fields.short()?;
            let length = fields.short()?;
            let value = fields.take(length.into())?.to_vec();
            message.tlvs.push(Tlv { tag, value });
        }
        Ok(message)
    }
}

/// The length of what has room.
fn within(octets: &[u8], most: usize) -> Result<usize, Malformed> {
    match octets.len() {
        length if length <= most => Ok(length),
        length => Err(Malformed::Long(length, most)),
    }
}

struct Writing(Vec<u8>);

impl Writing {
    fn new(command: Command, status: CommandStatus, sequence: u32) -> Self {
        let header = [0, command.0, status.0, sequence];
        Self(header.into_iter().flat_map(u32::to_be_bytes).collect())
    }

    fn text(&mut self, text: &[u8], most: usize) -> Result<(), Malformed> {
        within(text, most)?;
        if text.contains(&0) {
            return Err(Malformed::Zero);
        }
        self.0.extend(text);
        self.0.push(0);
        Ok(())
    }

    fn address(&mut self, address: &Address) -> Result<(), Malformed> {
        self.0.extend([address.ton, address.npi]);
        self.text(&address.digits, 20)
    }

    fn end(mut self) -> Vec<u8> {
        // Bounded by `MAX_PDU`, or by the fields of a fixed PDU.
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, octets: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(octets).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn octet(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn short(&mut self) -> Result<u16, Malformed> {
        let octets = self.take(2)?;
        Ok(u16::from_be_bytes([octets[0], octets[1]]))
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        let (high, low) = (self.short()?, self.short()?);
        Ok(u32::from(high) << 16 | u32::from(low))
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|octet| *octet == 0);
        let text = self.take(end.ok_or(Malformed::Short)?)?;
        self.octet()?;
        Ok(text)
    }

    fn address(&mut self) -> Result<Address, Malformed> {
        Ok(Address {
            ton: self.octet()?,
            npi: self.octet()?,
            digits: self.text()?.to_vec(),
        })
    }
}
