//! The fields of a `submit_sm`: as written, or made of the message by a template.

use std::time::Duration;

use super::address::address;
use super::undecodable;
use sluiced_core::rate::parse_duration;
use sluiced_net::dial::Misconfigured;
use sluiced_pdu::Address;
use sluiced_ports::downstream::UnfitReason;
use sluiced_settings::fixed_or_template::OctetText;
use sluiced_template::{Context, Template, Templates, is_template};

/// The longest time that a relative time of SMPP can name without counting months.
const MAX_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

/// A text, by its name in errors.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Fixed(String),
    Made(Template),
}

/// A number of one octet.
#[derive(Debug)]
pub(super) enum Octet {
    Fixed(u8),
    Made(Field),
}

/// The sender or the recipient.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) address: Field,
    pub(super) ton: Option<Octet>,
    pub(super) npi: Option<Octet>,
}

pub(super) struct Compiler(pub(super) Templates);

impl Compiler {
    pub(super) fn field(&mut self, name: &str, text: &str) -> Result<Field, Misconfigured> {
        let text = match is_template(text) {
            true => {
                let template = self.0.add(name, text);
                Text::Made(template.map_err(|wrong| Misconfigured::new(name, wrong))?)
            }
            false => Text::Fixed(text.to_owned()),
        };
        Ok(Field {
            name: name.to_owned(),
            text,
        })
    }

    pub(super) fn octet(
        &mut self,
        name: &str,
        octet: Option<&OctetText>,
    ) -> Result<Option<Octet>, Misconfigured> {
        Ok(match octet {
            None => None,
            Some(OctetText::Fixed(octet)) => Some(Octet::Fixed(octet.0)),
            Some(OctetText::Template(text)) => Some(Octet::Made(self.field(name, text.as_str())?)),
        })
    }
}

/// Makes the fields of one message.
pub(super) struct FieldMaker<'a> {
    pub(super) templates: &'a Templates,
    pub(super) context: Context,
}

impl FieldMaker<'_> {
    pub(super) fn text(&self, field: &Field) -> Result<String, UnfitReason> {
        match &field.text {
            Text::Fixed(text) => Ok(text.clone()),
            Text::Made(template) => self.templates.render(template, &self.context),
        }
    }

    pub(super) fn octet(&self, octet: &Octet) -> Result<u8, UnfitReason> {
        let field = match octet {
            Octet::Fixed(octet) => return Ok(*octet),
            Octet::Made(field) => field,
        };
        let number = self.text(field)?.trim().parse();
        number.map_err(|_| undecodable(&field.name, "is no whole number from 0 to 255".to_owned()))
    }

    fn optional(&self, octet: Option<&Octet>) -> Result<Option<u8>, UnfitReason> {
        octet.map(|octet| self.octet(octet)).transpose()
    }

    pub(super) fn party(&self, party: &Party) -> Result<Address, UnfitReason> {
        let text = self.text(&party.address)?;
        let ton = self.optional(party.ton.as_ref())?;
        let npi = self.optional(party.npi.as_ref())?;
        address(&text, ton, npi).map_err(|why| undecodable(&party.address.name, why.to_owned()))
    }
}

/// A time of SMPP (section 7.1.1), or nothing. A duration becomes a relative time.
pub(super) fn validity(name: &str, text: String) -> Result<Vec<u8>, UnfitReason> {
    /// YYMMDDhhmmsstnnp.
    const OCTETS: usize = 16;
    if text.is_empty() || text.len() == OCTETS {
        return Ok(text.into_bytes());
    }
    let wrong = || {
        let why = "is no duration up to 30 days, and no time of SMPP, which has 16 characters";
        undecodable(name, why.to_owned())
    };
    let length = parse_duration(&text).map_err(|_| wrong())?;
    if length > MAX_VALIDITY {
        return Err(wrong());
    }
    let seconds = length.as_secs().max(1);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (hours, minutes, seconds) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    Ok(format!("0000{days:02}{hours:02}{minutes:02}{seconds:02}000R").into_bytes())
}

/// The octets of an optional parameter.
pub(super) fn octets_of(name: &str, text: String) -> Result<Vec<u8>, UnfitReason> {
    let Some(digits) = text.strip_prefix("0x") else {
        return Ok(text.into_bytes());
    };
    hex::decode(digits).map_err(|_| undecodable(name, "is not hexadecimal behind 0x".to_owned()))
}
