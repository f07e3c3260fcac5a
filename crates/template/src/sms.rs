//! The text of an SMS: how it is written, how many segments it takes, and the segments themselves. The count
//! (`sms_segments` of the templates) and the segments sent over SMPP are both made here, so they cannot
//! differ.
//!
//! An SMS of 140 octets holds 160 characters of the GSM alphabet at 7 bits, or 70 units of UCS-2
//! (3GPP TS 23.038, sections 4 and 6.2). A longer text is sent in parts, each of which begins
//! with a header that joins them: 6 octets with a reference of 8 bits, 7 with one of 16 bits (TS
//! 23.040, sections 9.2.3.24.1 and 9.2.3.24.8). So a part holds 153 or 152 characters, or 67 or
//! 66 units. A character of two places (an escaped character, a surrogate pair) stays in one
//! part, which can leave the last place of a part empty: so parts are filled one after the other
//! and not counted by a division.
//!
//! One character outside of the GSM alphabet and its extension table turns the whole text into
//! UCS-2, unless it may be written with a plain sign (`sms::plain`). National language shift tables are not considered:
//! hardly any provider uses them. Latin 1 has 140 characters, 134 or 133 in a part.

use std::borrow::Cow;
use std::num::NonZeroU32;

mod plain;

/// How the text of an SMS is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The GSM 7 bit default alphabet with its extension table.
    Gsm7,
    /// ISO 8859-1, one octet a character.
    Latin1,
    /// UCS-2, in units of 16 bits; today in fact UTF-16.
    Ucs2,
}

/// The length of the number by which the parts of a text are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reference {
    /// 8 bits, as most senders use.
    #[default]
    Short,
    /// 16 bits.
    Long,
}

/// The GSM 7 bit default alphabet in its own order (TS 23.038, section 6.2.1) without the escape.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?\
                     ¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// The extension table of that alphabet (section 6.2.1.1): two places each, because the escape comes first.
const EXTENSION: &str = "\u{c}^{}\\[~]|€";
/// The places of the characters of `EXTENSION` in the extension table.
const EXTENDED: [u8; 10] = [0x0a, 0x14, 0x28, 0x29, 0x2f, 0x3c, 0x3d, 0x3e, 0x40, 0x65];
/// The escape, which is a place of the alphabet.
const ESCAPE: u8 = 0x1b;

/// The places that a character takes in the GSM alphabet; `None`: it is not in there.
fn septets(character: char) -> Option<u32> {
    // Nearly all printable ASCII, of which most texts consist, is in the alphabet.
    if character.is_ascii_alphanumeric() || BASIC.contains(character) {
        Some(1)
    } else {
        EXTENSION.contains(character).then_some(2)
    }
}

/// Whether an alphabet has a character.
fn has(character: char, encoding: Encoding) -> bool {
    match encoding {
        Encoding::Gsm7 => septets(character).is_some(),
        Encoding::Latin1 => u32::from(character) <= 0xff,
        Encoding::Ucs2 => true,
    }
}

/// The places of a character. One that an alphabet lacks counts one place in it: it is replaced by `?`.
fn places(character: char, encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Gsm7 => septets(character).unwrap_or(1),
        Encoding::Latin1 => 1,
        Encoding::Ucs2 => {
            if u32::from(character) > 0xffff {
                2
            } else {
                1
            }
        }
    }
}

/// How texts are written and cut into segments. The one place that decides it, for what is counted and for what is
/// sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cutting {
    /// `None`: the GSM alphabet if all of a text can be written in it, else UCS-2.
    pub encoding: Option<Encoding>,
    /// How long the reference in the header of each part is. A longer one leaves less room for text.
    pub reference: Reference,
    /// What the alphabet lacks is written with plain signs, where there are some: `"` for `“`.
    pub transliterate: bool,
}

/// A text as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedText<'a> {
    /// All of the text, with plain signs where they were put. A character that `encoding` lacks is still in it.
    pub text: Cow<'a, str>,
    /// The alphabet of all its parts.
    pub encoding: Encoding,
    reference: Reference,
}

impl Cutting {
    /// How this text is written. Where it becomes UCS-2 all the same, it keeps its signs.
    #[must_use]
    pub fn write(self, text: &str) -> EncodedText<'_> {
        let alphabet = self.encoding.unwrap_or(Encoding::Gsm7);
        let plain = match self.transliterate {
            true => plain::written(text, |character| has(character, alphabet)),
            false => Cow::Borrowed(text),
        };
        let fits = plain.chars().all(|character| has(character, alphabet));
        let (text, encoding) = match self.encoding {
            None if !fits => (Cow::Borrowed(text), Encoding::Ucs2),
            _ => (plain, alphabet),
        };
        EncodedText {
            text,
            encoding,
            reference: self.reference,
        }
    }

    /// How many segments it takes.
    #[must_use]
    pub fn count(self, text: &str) -> NonZeroU32 {
        let written = self.write(text);
        let further_parts = written.parts().skip(1);
        further_parts.fold(NonZeroU32::MIN, |count, _| count.saturating_add(1))
    }
}

impl EncodedText<'_> {
    /// The text's segments, one or more, in their order. An empty text is one segment.
    pub fn parts(&self) -> impl Iterator<Item = &str> + Clone {
        parts(&self.text, self.encoding, self.reference)
    }
}

/// The segments of a text that is written in `encoding`.
fn parts(
    text: &str,
    encoding: Encoding,
    reference: Reference,
) -> impl Iterator<Item = &str> + Clone {
    let (alone, joined) = match (encoding, reference) {
        (Encoding::Gsm7, Reference::Short) => (160, 153),
        (Encoding::Gsm7, Reference::Long) => (160, 152),
        (Encoding::Latin1, Reference::Short) => (140, 134),
        (Encoding::Latin1, Reference::Long) => (140, 133),
        (Encoding::Ucs2, Reference::Short) => (70, 67),
        (Encoding::Ucs2, Reference::Long) => (70, 66),
    };
    let all = text
        .chars()
        .map(|c| places(c, encoding))
        .fold(0, u32::saturating_add);
    let most = if all <= alone { alone } else { joined };
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut filled = 0;
        let end = text.char_indices().find(|(_, c)| {
            filled += places(*c, encoding);
            filled > most
        });
        let (part, after) = text.split_at(end.map_or(text.len(), |(at, _)| at));
        rest = end.map(|_| after);
        Some(part)
    })
}

/// A part as it is sent: the GSM alphabet with one character an octet, as SMPP usually carries it, Latin 1, or UCS-2
/// with the high octet first.
#[must_use]
pub fn octets(part: &str, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Ucs2 => part.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        Encoding::Latin1 => {
            let octets = part.chars().map(|c| u8::try_from(c).unwrap_or(b'?'));
            octets.collect()
        }
        Encoding::Gsm7 => {
            let mut octets = Vec::with_capacity(part.len());
            for character in part.chars() {
                if let Some(place) = BASIC.chars().position(|listed| listed == character) {
                    let place = place as u8;
                    octets.push(if place < ESCAPE { place } else { place + 1 });
                } else if let Some(at) = EXTENSION.chars().position(|listed| listed == character) {
                    octets.extend([ESCAPE, EXTENDED[at]]);
                } else {
                    octets.push(b'?');
                }
            }
            octets
        }
    }
}

/// The text of octets as [`octets`] writes them. What is no character becomes `\u{fffd}`.
#[must_use]
pub fn read(octets: &[u8], encoding: Encoding) -> String {
    match encoding {
        Encoding::Ucs2 => {
            let pairs = octets.chunks_exact(2);
            let units: Vec<u16> = pairs
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                .collect();
            String::from_utf16_lossy(&units)
        }
        Encoding::Latin1 => octets.iter().map(|octet| char::from(*octet)).collect(),
        Encoding::Gsm7 => read_gsm7(octets),
    }
}

fn read_gsm7(octets: &[u8]) -> String {
    let basic: Vec<char> = BASIC.chars().collect();
    let mut octets = octets.iter().copied();
    let mut next = || {
        let octet = octets.next()?;
        let place = usize::from(octet);
        let character = match octet {
            ESCAPE => {
                let escaped = octets.next()?;
                let at = EXTENDED.iter().position(|listed| *listed == escaped);
                at.and_then(|at| EXTENSION.chars().nth(at))
            }
            _ if octet > ESCAPE => basic.get(place - 1).copied(),
            _ => basic.get(place).copied(),
        };
        Some(character.unwrap_or(char::REPLACEMENT_CHARACTER))
    };
    std::iter::from_fn(&mut next).collect()
}

/// The header before part `number` (from 1) of `all`, which joins it to the others (TS 23.040, sections
/// 9.2.3.24.1 and 9.2.3.24.8). A short reference takes the low eight bits.
#[must_use]
pub fn joining(id: u16, reference: Reference, all: u8, number: u8) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    match reference {
        Reference::Short => vec![5, 0, 3, low, all, number],
        Reference::Long => vec![6, 8, 4, high, low, all, number],
    }
}

#[cfg(test)]
mod tests;
