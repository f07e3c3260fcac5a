//! JSON as templates see it: no integer is rounded silently, and no member of a message stands there twice.
//!
//! Problem: of two members with one name most readers take the last one, others the first one. A key or a
//! price would be made of one of them, while the downstream, which gets the body as it came, acts on the
//! other. So a message with such a body cannot be read. An answer is read here only, and its last one counts.
//!
//! JavaScript cuts texts between the two halves of a character beyond 16 bits, and writes a half as `\ud83d` (ECMA-262,
//! `JSON.stringify`). A half stands for no character, so U+FFFD is read in its place.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::fault::TOO_LARGE;

/// Why a body cannot be read: where, and never a part of it but the name of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// The name that stands there twice; `None`: it is no JSON.
    pub(super) twice: Option<String>,
    /// From 1.
    pub(super) line: usize,
    /// From 1; 0: before the first character of the line.
    pub(super) column: usize,
}

/// The body of a message.
///
/// # Errors
/// When it is no JSON, or an object in it has two members with one name.
pub(super) fn message(body: &[u8]) -> Result<Value, Unread> {
    read(body, false)
}

/// The body of an answer: of members with one name the last one counts.
///
/// # Errors
/// When it is no JSON.
pub(super) fn answer(body: &[u8]) -> Result<Value, Unread> {
    read(body, true)
}

/// The byte order mark of UTF-8, which some programs write before a text. RFC 8259, section 8.1, allows to ignore it.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

fn read(body: &[u8], last_counts: bool) -> Result<Value, Unread> {
    let unmarked = body.strip_prefix(MARK).unwrap_or(body);
    let twice = RefCell::new(None);
    let exact = Exact {
        last_counts,
        twice: &twice,
    };
    let whole_text = without_halves(unmarked);
    let mut json = serde_json::Deserializer::from_slice(&whole_text);
    let value = exact.deserialize(&mut json);
    let whole = value.and_then(|value| json.end().map(|()| value));
    whole.map_err(|error| Unread {
        twice: twice.take(),
        line: error.line(),
        column: error.column(),
    })
}

/// The text with `\ufffd` for each half of a pair that is alone. It is as long as before, so places in it stay.
fn without_halves(body: &[u8]) -> Cow<'_, [u8]> {
    let half = |at: usize| -> Option<u16> {
        let digits = body.get(at..at + 6)?.strip_prefix(br"\u")?;
        let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        (0xd800..=0xdfff).contains(&unit).then_some(unit)
    };
    let mut written = Cow::Borrowed(body);
    let mut at = 0;
    while let Some(next) = body[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        let (first, second) = (half(at), half(at + 6));
        at += match (first, second) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(_), _) => {
                written.to_mut()[at..at + 6].copy_from_slice(br"\ufffd");
                6
            }
            // The backslash and what it escapes.
            (None, _) => 2.min(body.len() - at),
        };
    }
    written
}

/// Nesting is bounded by `serde_json` (128).
#[derive(Clone, Copy)]
struct Exact<'a> {
    last_counts: bool,
    /// Where a name is left that stands there twice: the error itself has only a text.
    twice: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Exact<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Exact<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// An integer arrives as a double only if 64 bits cannot hold it: then it may be rounded.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() >= EXACT {
            return Ok(Value::from(Error::new(
                ErrorKind::InvalidOperation,
                TOO_LARGE,
            )));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map: BTreeMap<String, Value> = BTreeMap::new();
        while let Some(name) = fields.next_key()? {
            match map.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(fields.next_value_seed(self)?);
                }
                Entry::Occupied(mut known) if self.last_counts => {
                    known.insert(fields.next_value_seed(self)?);
                }
                Entry::Occupied(known) => {
                    self.twice.replace(Some(known.remove_entry().0));
                    return Err(A::Error::custom("a member stands there twice"));
                }
            }
        }
        Ok(Value::from(map))
    }
}
