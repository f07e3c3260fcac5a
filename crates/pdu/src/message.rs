//! What `submit_sm`, `deliver_sm` and `data_sm` carry: addresses, a text, and optional parameters (TLV) behind the
//! other fields.

use super::pdu::{Command, FieldReader, Malformed, PduWriter, within};
use super::status::CommandStatus;

/// The bit of `esm_class` that says that the text begins with a header of user data (section 5.2.12).
const UDHI: u8 = 0x40;

/// Tags of optional parameters (section 5.3.2).
pub mod tag {
    /// `message_payload`: a text that stands here instead of in its field, up to 65535 octets.
    pub const MESSAGE_PAYLOAD: u16 = 0x0424;
    /// `receipted_message_id`, in a receipt: the id that the centre gave the message; a text.
    pub const RECEIPTED_MESSAGE_ID: u16 = 0x001e;
    /// `message_state`, in a receipt: one octet, a state of section 5.2.28.
    pub const MESSAGE_STATE: u16 = 0x0427;
    /// `network_error_code`: one octet for the kind of network, two for the error.
    pub const NETWORK_ERROR_CODE: u16 = 0x0423;
    /// `sar_msg_ref_num`: two octets, the same in all segments of a message.
    pub const SAR_MSG_REF_NUM: u16 = 0x020c;
    /// `sar_total_segments`: one octet, how many segments the message has.
    pub const SAR_TOTAL_SEGMENTS: u16 = 0x020e;
    /// `sar_segment_seqnum`: one octet, which segment it is, from 1.
    pub const SAR_SEGMENT_SEQNUM: u16 = 0x020f;
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

impl Address {
    fn write(&self, pdu: &mut PduWriter) -> Result<(), Malformed> {
        pdu.0.extend([self.ton, self.npi]);
        pdu.text(&self.digits, 20)
    }

    fn read(fields: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            ton: fields.octet()?,
            npi: fields.octet()?,
            digits: fields.text()?.to_vec(),
        })
    }
}

/// An optional parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    /// Which parameter it is (section 5.3.2; some are in [`tag`](mod@tag)). 0x1400 to 0x3fff are those of message
    /// centres.
    pub tag: u16,
    /// At most 65535 octets.
    pub value: Vec<u8>,
}

/// What `submit_sm` and `deliver_sm` carry: their fields are the same (sections 4.4.1 and 4.6.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// At most 5 octets.
    pub service_type: Vec<u8>,
    /// Of a submission the sender. Of a delivery the phone; in a receipt, the recipient of the message.
    pub source: Address,
    /// Of a submission the recipient. Of a delivery the number that the phone wrote to; in a receipt, the sender of the
    /// message.
    pub destination: Address,
    /// Bits that say of what kind the message is, and whether its text begins with a header of user data (section
    /// 5.2.12).
    pub esm_class: u8,
    /// Until when the centre tries to deliver: empty, or a time of 16 octets (section 7.1.1).
    pub validity: Vec<u8>,
    /// Which receipts the sender asks for; 0: none (section 5.2.17).
    pub registered_delivery: u8,
    /// The alphabet of the text: 0 is that of the centre, 3 Latin 1, 8 UCS-2 (section 5.2.19).
    pub data_coding: u8,
    /// At most 254 octets. A longer text stands in [`tag::MESSAGE_PAYLOAD`]; [`Self::content`] finds either.
    pub text: Vec<u8>,
    /// The optional parameters in their order. Of those with one tag the first counts.
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

    /// Whether the text begins with a header.
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

    /// The message's text, wherever it stands.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        let payload = self.tlv(tag::MESSAGE_PAYLOAD);
        payload
            .filter(|payload| !payload.is_empty())
            .unwrap_or(&self.text)
    }

    /// The message's text without the header before it.
    #[must_use]
    pub fn user_text(&self) -> &[u8] {
        let content = self.content();
        match content.split_first() {
            Some((length, rest)) if self.has_header() => {
                rest.get(usize::from(*length)..).unwrap_or(content)
            }
            _ => content,
        }
    }

    /// As it is written, as `submit_sm` or `deliver_sm`.
    ///
    /// # Errors
    /// When a field is too long, or a text has an octet of zero.
    pub fn write(&self, command: Command, sequence: u32) -> Result<Vec<u8>, Malformed> {
        let mut pdu = PduWriter::new(command, CommandStatus::OK, sequence);
        pdu.text(&self.service_type, 5)?;
        self.source.write(&mut pdu)?;
        self.destination.write(&mut pdu)?;
        // No protocol, no priority, sent at once.
        pdu.0.extend([self.esm_class, 0, 0, 0]);
        pdu.text(&self.validity, 16)?;
        // Nothing is replaced, and no text of the centre is used.
        pdu.0
            .extend([self.registered_delivery, 0, self.data_coding, 0]);
        let text_length = within(&self.text, 254)?;
        pdu.0.push(text_length as u8);
        pdu.0.extend(&self.text);
        for Tlv { tag, value } in &self.tlvs {
            let value_length = within(value, usize::from(u16::MAX))?;
            pdu.0.extend(tag.to_be_bytes());
            pdu.0.extend((value_length as u16).to_be_bytes());
            pdu.0.extend(value);
        }
        match pdu.0.len() {
            length if length > super::MAX_PDU => Err(Malformed::Long(length, super::MAX_PDU)),
            _ => Ok(pdu.end()),
        }
    }

    /// Reads the body of a `submit_sm` or `deliver_sm`.
    ///
    /// # Errors
    /// When it ends too early.
    pub fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = FieldReader(body);
        let mut message = Self {
            service_type: fields.text()?.to_vec(),
            source: Address::read(&mut fields)?,
            destination: Address::read(&mut fields)?,
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
        message.tlvs = tlvs(fields);
        Ok(message)
    }

    /// Reads the body of a `data_sm` (section 4.7.1): its text is a parameter.
    ///
    /// # Errors
    /// When it ends too early.
    pub fn read_data(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = FieldReader(body);
        let mut message = Self {
            service_type: fields.text()?.to_vec(),
            source: Address::read(&mut fields)?,
            destination: Address::read(&mut fields)?,
            ..Self::default()
        };
        message.esm_class = fields.octet()?;
        message.registered_delivery = fields.octet()?;
        message.data_coding = fields.octet()?;
        message.tlvs = tlvs(fields);
        Ok(message)
    }
}

/// The parameters at the end of a body. Some centres write an octet too many, or a wrong length: what cannot be read is
/// left out, and the fields before it are used.
fn tlvs(mut fields: FieldReader<'_>) -> Vec<Tlv> {
    let mut next = || -> Result<Tlv, Malformed> {
        let tag = fields.short()?;
        let length = fields.short()?;
        let value = fields.take(length.into())?.to_vec();
        Ok(Tlv { tag, value })
    };
    std::iter::from_fn(|| next().ok()).collect()
}
