//! What a centre delivers (`deliver_sm`, `data_sm`): a receipt, or a message from a phone.
//!
//! Problem: a delivery that is not understood must not be lost, and must not hold up those behind it. So everything is
//! taken. What cannot be read at all is a receipt without an id, which has all that came as its text.
//!
//! The text of a phone is in the alphabet that `data_coding` names (section 5.2.19): 0 is the default alphabet of the
//! centre, which is the GSM alphabet nearly everywhere. A longer text comes in segments, joined by a header (TS 23.040,
//! section 9.2.3.24) or by parameters.

use tokio::sync::oneshot;

use sluiced_pdu::{Address, Command, Message, Receipt, tag};
use sluiced_ports::downstream::{Inbound, InboundEvent, InboundKind, Segment};
use sluiced_template::sms::{self, Encoding};

/// Reads a PDU that the centre delivered. `confirmed` hears whether its content is stored.
pub(super) fn inbound_event(
    command: Command,
    body: &[u8],
    confirmed: oneshot::Sender<bool>,
) -> InboundEvent {
    let read = match command {
        Command::DATA_SM => Message::read_data(body),
        _ => Message::read(body),
    };
    let digits = |address: &Address| String::from_utf8_lossy(&address.digits).into_owned();
    match read {
        Ok(delivery) => InboundEvent {
            source: digits(&delivery.source),
            destination: digits(&delivery.destination),
            what: match Receipt::of(&delivery) {
                Some(receipt) => InboundKind::Receipt(receipt),
                None => InboundKind::Inbound(inbound(&delivery)),
            },
            confirmed,
        },
        Err(_) => InboundEvent {
            source: String::new(),
            destination: String::new(),
            what: InboundKind::Receipt(Receipt::unreadable(body)),
            confirmed,
        },
    }
}

fn inbound(delivery: &Message) -> Inbound {
    let octets = delivery.user_text();
    let data_coding = delivery.data_coding;
    let text = match data_coding {
        coding if is_default_alphabet(coding) => sms::read(octets, Encoding::Gsm7),
        8 => sms::read(octets, Encoding::Ucs2),
        // Of the others, ASCII is UTF-8, and Latin 1 is hardly ever valid UTF-8.
        _ => match std::str::from_utf8(octets) {
            Ok(text) => text.to_owned(),
            Err(_) => octets.iter().map(|octet| char::from(*octet)).collect(),
        },
    };
    Inbound {
        text,
        data_coding,
        segment: segment(delivery),
    }
}

/// Whether a text is in the centre's default alphabet: by its coding, or as a text of a message class or about waiting
/// messages (SMPP 3.4, section 5.2.19; GSM 03.38, section 4: 110xxxxx, and 1111x0xx, where bit 2 means 8-bit data).
const fn is_default_alphabet(data_coding: u8) -> bool {
    data_coding == 0 || data_coding & 0xe0 == 0xc0 || data_coding & 0xf4 == 0xf0
}

fn segment(delivery: &Message) -> Option<Segment> {
    if delivery.has_header() {
        return joined(delivery.content());
    }
    let number = |tag| match delivery.tlv(tag) {
        Some([octet]) => Some(u16::from(*octet)),
        Some([high, low]) => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    };
    let octet = |tag| number(tag).and_then(|number| u8::try_from(number).ok());
    Some(Segment {
        reference: number(tag::SAR_MSG_REF_NUM)?,
        number: octet(tag::SAR_SEGMENT_SEQNUM)?,
        of: octet(tag::SAR_TOTAL_SEGMENTS)?,
    })
}

/// The element of a header that joins segments: 0 with a reference of 8 bits, 8 with one of 16.
fn joined(content: &[u8]) -> Option<Segment> {
    let (length, behind) = content.split_first()?;
    let mut elements = behind.get(..usize::from(*length))?;
    while let [element, length, values @ ..] = elements {
        let (value, following) = values.split_at_checked(usize::from(*length))?;
        match (element, value) {
            (0, [low, of, number]) => {
                return Some(Segment {
                    reference: u16::from(*low),
                    number: *number,
                    of: *of,
                });
            }
            (8, [high, low, of, number]) => {
                return Some(Segment {
                    reference: u16::from_be_bytes([*high, *low]),
                    number: *number,
                    of: *of,
                });
            }
            _ => elements = following,
        }
    }
    None
}

#[cfg(test)]
mod tests;
