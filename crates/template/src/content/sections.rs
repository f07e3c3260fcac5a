//! Sections of AMQP 1.0, as RabbitMQ hands them to a client of AMQP 0.9.1.
//!
//! A message with one data section comes as its bytes. Any other body comes as it was encoded, section after section,
//! with the type `amqp-1.0` (README of `rabbitmq_amqp1_0`). AMQP 1.0, part 3, section 3.2: data are bytes, a value is
//! anything, a sequence is a list. A text in a value is the body; everything else becomes JSON.
//!
//! **Several sections.** RabbitMQ 3 hands them over in reverse (its plugin gives a list of sections to code that takes
//! a list as reversed), later versions as they were sent. So of several data sections that order counts in which they
//! are JSON, and several sequences cannot be read: both orders are lists.
//!
//! Lengths and counts are the publisher's: nothing is taken beyond the end, nesting is bounded, and no array makes more
//! items than the body has bytes (an item of an array may have none).

use serde::de::IgnoredAny;
use serde_json::{Map, Number, Value};

/// How deep lists and maps may nest, as in JSON (`serde_json`).
const DEPTH: usize = 128;

/// Codes of sections that are a body (section 3.2.6 to 3.2.8).
const DATA: u64 = 0x75;
const SEQUENCE: u64 = 0x76;
const VALUE: u64 = 0x77;

/// Whether bytes begin with a section of a body.
pub(super) fn has_sections(body: &[u8]) -> bool {
    matches!(
        body,
        [0, 0x53, 0x75..=0x77, ..] | [0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75..=0x77, ..]
    )
}

/// The body that sections have.
///
/// # Errors
/// When they are cut, or have what JSON cannot hold.
pub(super) fn content(body: &[u8]) -> Result<Vec<u8>, String> {
    read(body).map_err(|wrong| match wrong {
        Wrong::Cut => "its AMQP 1.0 sections are cut or damaged".to_owned(),
        Wrong::Type(code) => {
            format!("its AMQP 1.0 sections have a value of type {code:#04x}, which is not known")
        }
        Wrong::Bytes => "its AMQP 1.0 sections have bytes that are no text".to_owned(),
        Wrong::Key => "its AMQP 1.0 sections have a map with a key that is no text".to_owned(),
        Wrong::Deep => format!("its AMQP 1.0 sections nest deeper than {DEPTH}"),
        Wrong::Order => "its AMQP 1.0 sections are several, in an order that is not known: RabbitMQ 3 hands them over in reverse".to_owned(),
    })
}

enum Wrong {
    Cut,
    Type(u8),
    Bytes,
    Key,
    Deep,
    Order,
}

fn read(body: &[u8]) -> Result<Vec<u8>, Wrong> {
    let mut rest = SectionReader {
        rest: body,
        items: body.len(),
    };
    let (mut data, mut sequence, mut value) = (Vec::new(), None, None);
    while !rest.rest.is_empty() {
        if rest.octet()? != 0 {
            return Err(Wrong::Cut);
        }
        match rest.value(DEPTH)? {
            Value::Number(code) if code.as_u64() == Some(DATA) => {
                data.push(rest.binary()?);
            }
            Value::Number(code) if code.as_u64() == Some(SEQUENCE) => {
                if sequence.replace(rest.value(DEPTH)?).is_some() {
                    return Err(Wrong::Order);
                }
            }
            Value::Number(code) if code.as_u64() == Some(VALUE) => {
                // Bytes that are no text may be compressed.
                match rest.rest.first() {
                    Some(0xa0 | 0xb0) => data.push(rest.binary()?),
                    _ => value = Some(rest.value(DEPTH)?),
                }
            }
            // A footer, for example.
            _ => drop(rest.value(DEPTH)?),
        }
    }
    match value.or(sequence) {
        Some(Value::String(text)) => Ok(text.into_bytes()),
        Some(value) => Ok(value.to_string().into_bytes()),
        None => joined(data),
    }
}

/// Data sections in the order in which they are JSON.
fn joined(mut data: Vec<&[u8]>) -> Result<Vec<u8>, Wrong> {
    let is_json = |data: &[u8]| serde_json::from_slice::<IgnoredAny>(data).is_ok();
    let forward = data.concat();
    if data.len() == 1 || is_json(&forward) {
        return Ok(forward);
    }
    data.reverse();
    let backward = data.concat();
    is_json(&backward).then_some(backward).ok_or(Wrong::Order)
}

struct SectionReader<'a> {
    rest: &'a [u8],
    /// This many items may still be made.
    items: usize,
}

impl<'a> SectionReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Wrong::Cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn octet(&mut self) -> Result<u8, Wrong> {
        Ok(self.take(1)?[0])
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        self.take(N)?.try_into().map_err(|_| Wrong::Cut)
    }

    /// A length or a count of one octet or of four.
    fn count(&mut self, is_wide: bool) -> Result<usize, Wrong> {
        Ok(match is_wide {
            true => usize::try_from(u32::from_be_bytes(self.fixed()?)).map_err(|_| Wrong::Cut)?,
            false => self.octet()?.into(),
        })
    }

    fn binary(&mut self) -> Result<&'a [u8], Wrong> {
        let code = self.octet()?;
        self.bytes(code)
    }

    fn bytes(&mut self, code: u8) -> Result<&'a [u8], Wrong> {
        match code {
            0xa0 | 0xa1 | 0xa3 | 0xb0 | 0xb1 | 0xb3 => {
                let length = self.count(code >= 0xb0)?;
                self.take(length)
            }
            other => Err(Wrong::Type(other)),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Wrong> {
        let code = self.octet()?;
        self.of_type(code, depth)
    }

    /// A value of a type (part 1, section 1.6).
    fn of_type(&mut self, code: u8, depth: usize) -> Result<Value, Wrong> {
        let depth = depth.checked_sub(1).ok_or(Wrong::Deep)?;
        Ok(match code {
            // A described value: what it is called is left out.
            0x00 => {
                self.value(depth)?;
                self.value(depth)?
            }
            0x40 => Value::Null,
            0x41 => true.into(),
            0x42 => false.into(),
            0x56 => (self.octet()? != 0).into(),
            0x43 | 0x44 => 0.into(),
            0x50 | 0x52 | 0x53 => self.octet()?.into(),
            0x51 | 0x54 | 0x55 => i8::from_be_bytes(self.fixed()?).into(),
            0x60 => u16::from_be_bytes(self.fixed()?).into(),
            0x61 => i16::from_be_bytes(self.fixed()?).into(),
            0x70 => u32::from_be_bytes(self.fixed()?).into(),
            0x71 => i32::from_be_bytes(self.fixed()?).into(),
            0x80 => u64::from_be_bytes(self.fixed()?).into(),
            // The second is a time, in milliseconds since 1970.
            0x81 | 0x83 => i64::from_be_bytes(self.fixed()?).into(),
            0x72 => number(f32::from_be_bytes(self.fixed()?).into()),
            0x82 => number(f64::from_be_bytes(self.fixed()?)),
            0x73 => {
                let character = char::from_u32(u32::from_be_bytes(self.fixed()?));
                character.ok_or(Wrong::Bytes)?.to_string().into()
            }
            0x98 => uuid(self.fixed()?).into(),
            0xa0 | 0xa1 | 0xa3 | 0xb0 | 0xb1 | 0xb3 => {
                let text = std::str::from_utf8(self.bytes(code)?);
                text.map_err(|_| Wrong::Bytes)?.into()
            }
            0x45 => Value::Array(Vec::new()),
            0xc0 | 0xc1 | 0xd0 | 0xd1 | 0xe0 | 0xf0 => {
                let is_wide = code & 0x10 != 0;
                let length = self.count(is_wide)?;
                let mut inside = SectionReader {
                    rest: self.take(length)?,
                    items: self.items,
                };
                let made = inside.compound(code, is_wide, depth)?;
                self.items = inside.items;
                made
            }
            other => return Err(Wrong::Type(other)),
        })
    }

    /// A list, a map or an array, of which this is all.
    fn compound(&mut self, code: u8, is_wide: bool, depth: usize) -> Result<Value, Wrong> {
        let count = self.count(is_wide)?;
        self.items = self.items.checked_sub(count).ok_or(Wrong::Cut)?;
        match code & 0xf {
            _ if code >= 0xe0 => {
                let mut of = self.octet()?;
                if of == 0 {
                    self.value(depth)?;
                    of = self.octet()?;
                }
                let items = (0..count).map(|_| self.of_type(of, depth));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            0 => {
                let items = (0..count).map(|_| self.value(depth));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            _ => {
                let mut map = Map::new();
                for _ in 0..count / 2 {
                    let key = match self.value(depth)? {
                        Value::String(key) => key,
                        Value::Number(key) => key.to_string(),
                        _ => return Err(Wrong::Key),
                    };
                    map.insert(key, self.value(depth)?);
                }
                Ok(Value::Object(map))
            }
        }
    }
}

/// JSON has neither infinities nor what is no number.
fn number(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// As it is usually written.
fn uuid(octets: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(octets));
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
}
