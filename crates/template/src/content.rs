//! The body of a message as its publisher meant it.
//!
//! Problem: templates read JSON, and what comes is often JSON in a wrapping: compressed (`content_encoding`, or the
//! header `compression` of Celery), in sections of AMQP 1.0 (RabbitMQ hands them to clients of AMQP 0.9.1 with the type
//! `amqp-1.0`), in UTF-16. Each wrapping is undone, from the outside to the inside, and no
//! more than `max_body` is made of a message: a few bytes can become gigabytes.
//!
//! Names lie: Celery's `application/x-gzip` is zlib, and Spring writes `gzip:UTF-8`. So the first bytes decide between
//! gzip, zlib and zip, which no JSON begins with; a name is needed only for what has no mark of its own.
//!
//! A body that is something else is named in the reason of its dead letter (`looks_like`).

mod compressed;
mod sections;

use std::borrow::Cow;

pub use self::compressed::{DecodeEnd, gunzip, inflate, unbrotli};
use self::compressed::{is_gzip, is_zip, is_zlib, unzip};
use super::json::MARK;
use sluiced_ports::downstream::UnfitReason;
use sluiced_ports::message::{HeaderValue, Message};

/// Codings and sections around each other: no known publisher uses more.
const MOST_CODINGS: usize = 4;

/// The body without all that is around it, at most `most` bytes of it.
///
/// # Errors
/// When a wrapping cannot be undone. The reason has nothing of the body.
pub(crate) fn read(message: &Message, most: u64) -> Result<Cow<'_, [u8]>, UnfitReason> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let body = sectioned(message).map_err(wrong)?;
    let content = expanded(message, body, most).map_err(wrong)?;
    Ok(readable(content))
}

/// The body as it is passed on, and the name of its coding in HTTP. Sections of AMQP are taken off, because only
/// brokers know them.
///
/// # Errors
/// When the sections cannot be read.
pub fn passed_on(message: &Message) -> Result<(Cow<'_, [u8]>, Option<&'static str>), UnfitReason> {
    let body = sectioned(message).map_err(wrong)?;
    let named = match codings(message).as_slice() {
        // Some publishers call it by another name.
        [_] if is_gzip(&body) => Some("gzip"),
        [_] if is_zlib(&body) => Some("deflate"),
        [name] => match name.as_str() {
            "gzip" | "gz" => Some("gzip"),
            "deflate" | "zlib" => Some("deflate"),
            "br" | "brotli" => Some("br"),
            "zstd" | "zstandard" => Some("zstd"),
            _ => None,
        },
        // Of several only the outer one shows what it is.
        _ => None,
    };
    // A client or a proxy undid the coding and left its name on the message.
    let coding = named.filter(|_| !is_json(&body));
    Ok((body, coding))
}

fn wrong(why: String) -> UnfitReason {
    UnfitReason {
        what: "body".to_owned(),
        why,
    }
}

/// Without the sections of AMQP 1.0.
fn sectioned(message: &Message) -> Result<Cow<'_, [u8]>, String> {
    let is_marked = message.properties.kind.as_deref() == Some("amqp-1.0");
    match is_marked && sections::has_sections(&message.body) {
        true => sections::content(&message.body).map(Cow::Owned),
        false => Ok(Cow::Borrowed(&message.body)),
    }
}

/// The names of the codings of a body, in the order in which they were applied.
fn codings(message: &Message) -> Vec<String> {
    let encoding = message.properties.content_encoding.as_deref();
    let header = message.headers.get("compression");
    let compression = header.and_then(HeaderValue::as_text);
    let names = [encoding, compression].into_iter().flatten();
    names
        .flat_map(|text| text.split([',', ':']))
        .map(|name| name.trim().to_ascii_lowercase())
        .map(|name| {
            let bare = name.strip_prefix("application/").unwrap_or(&name);
            bare.strip_prefix("x-").unwrap_or(bare).to_owned()
        })
        .filter(|name| CODINGS.contains(&name.as_str()))
        .collect()
}

/// Names of codings. What else stands in `content_encoding` is a character set, or says that there is no coding.
const CODINGS: [&str; 17] = [
    "gzip",
    "gz",
    "deflate",
    "zlib",
    "zip",
    "br",
    "brotli",
    "zstd",
    "zstandard",
    "bz2",
    "bzip2",
    "lzma",
    "xz",
    "lz4",
    "snappy",
    "compress",
    "base64",
];

/// Without compression.
fn expanded<'a>(
    message: &Message,
    mut body: Cow<'a, [u8]>,
    most: usize,
) -> Result<Cow<'a, [u8]>, String> {
    let mut names = codings(message);
    for _ in 0..MOST_CODINGS {
        let name = names.pop();
        let undone = match name.as_deref() {
            _ if is_gzip(&body) => ("gzip", gunzip(&body, most)),
            _ if is_zlib(&body) => ("zlib", inflate(&body, most)),
            _ if is_zip(&body) => ("zip", unzip(&body, most)),
            Some("deflate") => ("deflate", inflate(&body, most)),
            Some("br" | "brotli") => ("br", unbrotli(&body, most)),
            // A client or a proxy undid the coding and left its name on the message.
            Some(_) if is_json(&body) => continue,
            Some(name @ ("gzip" | "gz" | "zlib" | "zip")) => {
                return Err(format!("is no {name}, as its publisher says"));
            }
            Some(name) => {
                return Err(format!(
                    "has the coding `{name}`, which cannot be undone; gzip, zlib, deflate, zip and br can"
                ));
            }
            None => return Ok(body),
        };
        body = match undone {
            (_, (whole, DecodeEnd::Whole)) => Cow::Owned(whole),
            (name, (_, DecodeEnd::Bound)) => {
                return Err(format!(
                    "its {name} makes more than the {most} bytes of max_body"
                ));
            }
            (_, (_, DecodeEnd::Broken)) if is_json(&body) => continue,
            (name, (_, DecodeEnd::Broken)) => return Err(format!("its {name} is cut or damaged")),
        };
    }
    match is_gzip(&body) || is_zlib(&body) || is_zip(&body) || !names.is_empty() {
        true => Err(format!("has more than {MOST_CODINGS} codings")),
        false => Ok(body),
    }
}

/// Whether a body begins like JSON.
fn is_json(body: &[u8]) -> bool {
    let text = body.strip_prefix(MARK).unwrap_or(body);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    first.is_some_and(|first| {
        matches!(
            first,
            b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
        )
    })
}

/// As UTF-8. UTF-16 shows itself by its byte order mark, or by a zero in the first character.
fn readable(body: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let wide = |body: &[u8], from: fn([u8; 2]) -> u16| {
        let pairs = body.chunks_exact(2);
        let units = pairs.map(|pair| from([pair[0], pair[1]]));
        let text: String = char::decode_utf16(units)
            .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        Cow::Owned(text.into_bytes())
    };
    match &*body {
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0, first, ..] if first.is_ascii_graphic() => wide(&body, u16::from_be_bytes),
        [first, 0, ..] if first.is_ascii_graphic() => wide(&body, u16::from_le_bytes),
        _ => body,
    }
}

/// What a body that is no JSON looks like, in words; `None`: it cannot be said.
pub(crate) fn looks_like(body: &[u8]) -> Option<&'static str> {
    const FORMS: [(&[u8], &str); 9] = [
        (b"\x28\xb5\x2f\xfd", "data compressed with zstd"),
        (b"BZh", "data compressed with bzip2"),
        (b"\xfd7zXZ", "data compressed with xz"),
        (b"\x04\x22\x4d\x18", "data compressed with lz4"),
        (b"\xac\xed\x00\x05", "a serialised object of Java"),
        (b"\x04\x08", "a marshalled object of Ruby"),
        (b"Obj\x01", "Avro"),
        (b"<", "XML or HTML"),
        (b"eyJ", "JSON in base64"),
    ];
    let text = body.trim_ascii_start();
    let form = FORMS.iter().find(|(mark, _)| text.starts_with(mark));
    match text {
        [] => Some("nothing at all"),
        _ if form.is_some() => form.map(|(_, name)| *name),
        [0x80, 2..=5, ..] => Some("a pickled object of Python"),
        [0x81..=0x8f | 0x90..=0x9f | 0xdc..=0xdf, ..] => Some("MessagePack"),
        _ if is_php(text) => Some("a serialised object of PHP"),
        [b'{' | b'[', b'\'', ..] => Some("an object of Python as str() shows it"),
        _ if std::str::from_utf8(body).is_err() => Some("no text in UTF-8"),
        _ => None,
    }
}

/// `O:36:"…`, `a:2:{…`, as serialize() of PHP writes it, also behind addslashes().
fn is_php(text: &[u8]) -> bool {
    let [b'O' | b'C' | b'a' | b's' | b'E', b':', rest @ ..] = text else {
        return false;
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0
        && matches!(
            rest.get(digits..digits + 2),
            Some([b':', b'"' | b'{' | b'\\'])
        )
}

#[cfg(test)]
mod tests;
