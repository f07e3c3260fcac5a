//! Whether the client can read a message's properties, and what replaces those that it cannot.
//!
//! First a walk of its own checks how deep tables and arrays are nested, down to a limit. Only
//! then the client's own parser is tried: what it cannot read is exactly what would end the
//! connection.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::{AMQPValue, FieldTable};

use sluiced_ports::message::header;

/// How deep tables and arrays may be nested.
const DEEPEST: usize = 32;
/// `class, weight, body size`, before the properties.
const FIXED: usize = 12;
/// Bytes that a copy for the dead-letter queue adds: reason, names of queue and route, and so on.
const OURS: usize = 4096;

/// Why the client cannot read a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Properties,
    Nesting,
    TooLarge,
    Address,
}

impl Unreadable {
    const fn text(self) -> &'static str {
        match self {
            Self::Properties => {
                "its properties cannot be read: text that is not UTF-8, or an unknown type"
            }
            Self::Nesting => "its headers are nested too deeply",
            Self::TooLarge => "its properties are larger than a frame may be",
            Self::Address => "its exchange or routing key is not UTF-8",
        }
    }
}

/// The fault of a content header, if the client cannot read it.
pub(super) fn fault(payload: &[u8]) -> Option<Unreadable> {
    let properties = payload.get(FIXED..)?;
    if let Err(why) = walk_properties(properties) {
        return Some(why);
    }
    let parsed = parse_properties(properties).is_ok_and(|(rest, _)| rest.is_empty());
    (!parsed).then_some(Unreadable::Properties)
}

/// A header for the same message with the reason, and with the original properties as text
/// (base64), which every client and every page can show. `method` is the original method of its
/// delivery, if that was repaired. `None` if there is no header at all.
pub(super) fn replacement(
    payload: &[u8],
    why: Unreadable,
    method: Option<&[u8]>,
    most: usize,
) -> Option<Vec<u8>> {
    let (fixed, raw) = payload.split_at_checked(FIXED)?;
    let mut headers = FieldTable::default();
    let mut set = |name: &str, value| {
        headers.insert(name.into(), value);
    };
    set(header::UNREADABLE, text(why.text()));
    set(header::FOUND_BY, text(found_by()));
    if let Some(method) = method {
        set(header::RAW_DELIVERY, text(&STANDARD.encode(method)));
    }
    // Four characters of base64 for three bytes.
    let room = most.saturating_sub(OURS).max(most / 4) / 4 * 3;
    let kept = &raw[..raw.len().min(room)];
    set(header::RAW_PROPERTIES, text(&STANDARD.encode(kept)));
    if kept.len() < raw.len() {
        set(header::RAW_CUT, AMQPValue::Boolean(true));
    }
    let properties = BasicProperties::default().with_headers(headers);
    let encoded = gen_properties(&properties)(Vec::new().into()).ok()?;
    Some([fixed, &encoded.into_inner().0].concat())
}

/// A secret of this process: a publisher that writes `header::UNREADABLE` does not know it.
pub(in crate::rabbit) fn found_by() -> &'static str {
    static SECRET: LazyLock<String> = LazyLock::new(|| format!("{:032x}", rand::random::<u128>()));
    &SECRET
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// The properties in their order, one bit of the flags each.
const FIELDS: [Field; 14] = [
    Field::Text,
    Field::Text,
    Field::Table,
    Field::Bytes(1),
    Field::Bytes(1),
    Field::Text,
    Field::Text,
    Field::Text,
    Field::Text,
    Field::Bytes(8),
    Field::Text,
    Field::Text,
    Field::Text,
    Field::Text,
];

#[derive(Clone, Copy)]
enum Field {
    Text,
    Table,
    Bytes(usize),
}

type Walk<T> = Result<T, Unreadable>;

fn walk_properties(mut input: &[u8]) -> Walk<()> {
    let octets = take(&mut input, 2)?;
    let flags = u16::from_be_bytes([octets[0], octets[1]]);
    for (place, field) in FIELDS.iter().enumerate() {
        if flags & (1 << (15 - place)) == 0 {
            continue;
        }
        match *field {
            Field::Text => walk_name(&mut input)?,
            Field::Table => walk_table(sized(&mut input)?, 1)?,
            Field::Bytes(count) => drop(take(&mut input, count)?),
        }
    }
    Ok(())
}

fn walk_table(mut input: &[u8], depth: usize) -> Walk<()> {
    while !input.is_empty() {
        walk_name(&mut input)?;
        walk_value(&mut input, depth)?;
    }
    Ok(())
}

fn walk_array(mut input: &[u8], depth: usize) -> Walk<()> {
    while !input.is_empty() {
        walk_value(&mut input, depth)?;
    }
    Ok(())
}

fn walk_value(input: &mut &[u8], depth: usize) -> Walk<()> {
    let kind = take(input, 1)?[0];
    let count = match kind {
        b'F' | b'A' if depth >= DEEPEST => return Err(Unreadable::Nesting),
        b'F' => return walk_table(sized(input)?, depth + 1),
        b'A' => return walk_array(sized(input)?, depth + 1),
        b'S' | b'x' => return sized(input).map(drop),
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'U' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        _ => return Err(Unreadable::Properties),
    };
    take(input, count).map(drop)
}

fn walk_name(input: &mut &[u8]) -> Walk<()> {
    let count = take(input, 1)?[0];
    take(input, count.into()).map(drop)
}

/// The bytes after a length of four bytes.
fn sized<'a>(input: &mut &'a [u8]) -> Walk<&'a [u8]> {
    let octets = take(input, 4)?;
    let count = u32::from_be_bytes([octets[0], octets[1], octets[2], octets[3]]);
    take(input, count as usize)
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Walk<&'a [u8]> {
    let (taken, behind) = input
        .split_at_checked(count)
        .ok_or(Unreadable::Properties)?;
    *input = behind;
    Ok(taken)
}
