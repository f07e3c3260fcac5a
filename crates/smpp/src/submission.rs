//! The `submit_sm` that are made from a message: its fields by templates, its text in segments.
//!
//! All of them are made before the message's slot. So a message from which none can be made costs no slot,
//! and when the slot comes only sequence numbers must be written.
//!
//! `template::sms` cuts the text, and the paced limit counts what it cuts (`template::limit_inputs`): a message takes
//! as many slots as it has segments. The reference that joins them follows from the message's id: when a message is
//! sent again, a phone puts a segment that comes twice in its place again, whichever replica sent it.

mod address;
mod fields;

use std::fmt;

use self::fields::{Compiler, Field, FieldMaker, Octet, Party, octets_of, validity};
use sluiced_net::dial::Misconfigured;
use sluiced_pdu::{Command, Malformed, Message as Sms, Tlv, tag};
use sluiced_ports::downstream::{Facts, UnfitReason};
use sluiced_ports::message::Message;
use sluiced_settings::types::{Smpp, SmppLong};
use sluiced_template::Templates;
use sluiced_template::sms::{self, Cutting, EncodedText, Encoding};

/// How messages become `submit_sm`. Compiled once.
#[derive(Debug)]
pub(super) struct SubmitTemplate {
    templates: Templates,
    source: Party,
    destination: Party,
    text: Field,
    cutting: Cutting,
    data_coding: Option<Octet>,
    long: SmppLong,
    registered_delivery: Octet,
    validity: Field,
    service_type: Field,
    tlvs: Vec<(u16, Field)>,
    /// A message of more segments than this fits no window.
    window: usize,
}

/// The PDUs of one message.
#[derive(Clone, PartialEq, Eq)]
pub struct Submission {
    /// How its text is written.
    pub encoding: Encoding,
    /// The message's text, as it is sent.
    pub text: String,
    /// The PDUs, one or more, in the order in which they are sent.
    pub parts: Vec<Sms>,
}

impl SubmitTemplate {
    pub(super) fn new(smpp: &Smpp) -> Result<Self, Misconfigured> {
        let mut compiler = Compiler(Templates::new());
        let mut tlvs = Vec::new();
        for (name, text) in &smpp.tlvs {
            let key = format!("tlvs.{name}");
            let number = match name.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16).ok(),
                None => name.parse().ok(),
            };
            let tag = number.ok_or_else(|| {
                let why = "is no tag; write a number such as \"0x1401\" or \"5121\"";
                Misconfigured::new(&key, why)
            })?;
            tlvs.push((tag, compiler.field(&key, text.as_str())?));
        }
        Ok(Self {
            source: Party {
                address: compiler.field("source", smpp.source.as_str())?,
                ton: compiler.octet("source_ton", smpp.source_ton.as_ref())?,
                npi: compiler.octet("source_npi", smpp.source_npi.as_ref())?,
            },
            destination: Party {
                address: compiler.field("destination", smpp.destination.as_str())?,
                ton: compiler.octet("dest_ton", smpp.dest_ton.as_ref())?,
                npi: compiler.octet("dest_npi", smpp.dest_npi.as_ref())?,
            },
            text: compiler.field("text", smpp.text.as_str())?,
            cutting: smpp.cutting(),
            data_coding: compiler.octet("data_coding", smpp.data_coding.as_ref())?,
            long: smpp.long,
            registered_delivery: compiler
                .octet("registered_delivery", Some(&smpp.registered_delivery))?
                .unwrap_or(Octet::Fixed(0)),
            validity: compiler.field("validity", smpp.validity.as_str())?,
            service_type: compiler.field("service_type", smpp.service_type.as_str())?,
            tlvs,
            window: smpp.window.get().into(),
            templates: compiler.0,
        })
    }

    /// Makes the PDUs of a message.
    pub(super) fn submission(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<Submission, UnfitReason> {
        let maker = FieldMaker {
            templates: &self.templates,
            context: self.templates.context(message, facts)?,
        };
        let text = maker.text(&self.text)?;
        let written = self.cutting.write(&text);
        let data_coding = match (&self.data_coding, written.encoding) {
            (Some(octet), _) => maker.octet(octet)?,
            (None, Encoding::Gsm7) => 0,
            (None, Encoding::Latin1) => 3,
            (None, Encoding::Ucs2) => 8,
        };
        let mut tlvs = Vec::new();
        for (tag, field) in &self.tlvs {
            let value = octets_of(&field.name, maker.text(field)?)?;
            if !value.is_empty() {
                tlvs.push(Tlv { tag: *tag, value });
            }
        }
        let common = Sms {
            service_type: maker.text(&self.service_type)?.into_bytes(),
            source: maker.party(&self.source)?,
            destination: maker.party(&self.destination)?,
            validity: validity(&self.validity.name, maker.text(&self.validity)?)?,
            registered_delivery: maker.octet(&self.registered_delivery)?,
            data_coding,
            tlvs,
            ..Sms::default()
        };
        let parts = self.parts(&written, common, reference(message))?;
        Ok(Submission {
            encoding: written.encoding,
            text: written.text.into_owned(),
            parts,
        })
    }

    /// The segments of the text, each with the fields that all have in common.
    fn parts(
        &self,
        written: &EncodedText<'_>,
        common: Sms,
        id: u16,
    ) -> Result<Vec<Sms>, UnfitReason> {
        let (text, encoding, parts) = (&written.text, written.encoding, written.parts());
        let all = parts.clone().count();
        if all == 1 {
            let text = sms::octets(text, encoding);
            return Ok(vec![Sms { text, ..common }]);
        }
        if self.long == SmppLong::Payload {
            let mut whole = common;
            whole.tlvs.push(Tlv {
                tag: tag::MESSAGE_PAYLOAD,
                value: sms::octets(text, encoding),
            });
            return Ok(vec![whole]);
        }
        let most = self.window.min(usize::from(u8::MAX));
        if all > most {
            let why = match most < self.window {
                true => format!("takes {all} segments, and a header can count {most} at most"),
                false => format!(
                    "takes {all} segments, which are sent together, and the window has room for {most}"
                ),
            };
            return Err(undecodable("text", why));
        }
        let numbered = parts.zip(1..=u8::MAX).map(|(part, number)| {
            let mut text = sms::joining(id, self.cutting.reference, all as u8, number);
            text.extend(sms::octets(part, encoding));
            let common = common.clone();
            Sms { text, ..common }.with_header()
        });
        Ok(numbered.collect())
    }
}

impl Submission {
    /// The PDUs. Their sequence numbers are written when they are sent.
    pub(super) fn pdus(&self) -> Result<Vec<Vec<u8>>, UnfitReason> {
        let pdus = self.parts.iter().map(|part| {
            part.write(Command::SUBMIT_SM, 0)
                .map_err(|wrong: Malformed| undecodable("submit_sm", wrong.to_string()))
        });
        pdus.collect()
    }
}

impl fmt::Debug for Submission {
    /// Shows nothing of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("encoding", &self.encoding)
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}

/// The number that joins the segments of a message: the same whenever it is sent again (FNV-1a).
fn reference(message: &Message) -> u16 {
    let id = message.id().unwrap_or_default();
    let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, octet| {
        (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193)
    });
    (hash ^ hash >> 16) as u16
}

fn undecodable(what: &str, why: String) -> UnfitReason {
    UnfitReason {
        what: what.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests;
