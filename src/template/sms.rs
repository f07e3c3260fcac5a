//! How many segments an SMS takes: what providers count and charge.
//!
//! A message of 140 octets holds 160 characters of the GSM alphabet at 7 bits, or 70 units of
//! UCS-2 (3GPP TS 23.038, sections 4 and 6.2). A longer text is sent in parts, each of which
//! begins with a header that joins them: 6 octets with a reference of 8 bits, 7 with one of 16
//! bits (TS 23.040, sections 9.2.3.24.1 and 9.2.3.24.8). So a part holds 153 or 152 characters,
//! or 67 or 66 units. What takes two places (an escaped character, a surrogate pair) stays in one
//! part, which can leave the last place of a part empty: parts are filled one after the other and
//! not counted by a division.
//!
//! One character outside of the GSM alphabet and its extension table turns the whole text into
//! UCS-2. National language shift tables are not considered: hardly any provider uses them.

use std::num::NonZeroU32;

/// How the text of an SMS is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The GSM 7 bit default alphabet with its extension table.
    Gsm7,
    /// UCS-2, in units of 16 bits; today in fact UTF-16.
    Ucs2,
}

/// The length of the number by which the parts of a text are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reference {
    /// 8 bits, as most senders use.
    #[default]
    Short,
    /// 16 bits.
    Long,
}

/// The GSM 7 bit default alphabet in its own order (TS 23.038, section 6.2.1) without the escape.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?\
                     ¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// Its extension table (section 6.2.1.1): two places each, for the escape comes first.
const EXTENSION: &str = "\u{c}^{}\\[~]|€";

/// The places that a character takes in the GSM alphabet; `None`: it is not in there.
fn septets(character: char) -> Option<u32> {
    // The alphabet keeps the place of nearly all printable ASCII, which most texts are made of.
    if character.is_ascii_alphanumeric() || BASIC.contains(character) {
        Some(1)
    } else {
        EXTENSION.contains(character).then_some(2)
    }
}

/// The shortest way to write a text: GSM if all of it can be.
#[must_use]
pub(super) fn encoding(text: &str) -> Encoding {
    if text.chars().all(|c| septets(c).is_some()) {
        Encoding::Gsm7
    } else {
        Encoding::Ucs2
    }
}

/// The segments of a text that is written in `encoding`; an empty one is one segment. A character that the GSM alphabet lacks
/// counts one place in it: senders that insist on that alphabet replace it by `?` or a similar
/// letter.
#[must_use]
pub(super) fn segments_as(text: &str, encoding: Encoding, reference: Reference) -> NonZeroU32 {
    let places = |c: char| match encoding {
        Encoding::Gsm7 => septets(c).unwrap_or(1),
        Encoding::Ucs2 => {
            if u32::from(c) > 0xffff {
                2
            } else {
                1
            }
        }
    };
    let (alone, joined) = match (encoding, reference) {
        (Encoding::Gsm7, Reference::Short) => (160, 153),
        (Encoding::Gsm7, Reference::Long) => (160, 152),
        (Encoding::Ucs2, Reference::Short) => (70, 67),
        (Encoding::Ucs2, Reference::Long) => (70, 66),
    };
    let all = text.chars().map(places).fold(0, u32::saturating_add);
    if all <= alone {
        return NonZeroU32::MIN;
    }
    let (mut parts, mut filled) = (NonZeroU32::MIN, 0);
    for places in text.chars().map(places) {
        if filled + places > joined {
            parts = parts.saturating_add(1);
            filled = 0;
        }
        filled += places;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// In its shortest encoding.
    fn segments(text: &str) -> NonZeroU32 {
        segments_as(text, encoding(text), Reference::Short)
    }

    #[test]
    fn the_alphabet_is_the_standards() {
        // 128 places, one of which is the escape; no character stands there twice.
        let mut all: Vec<char> = BASIC.chars().chain(EXTENSION.chars()).collect();
        assert_eq!(
            (BASIC.chars().count(), EXTENSION.chars().count()),
            (127, 10)
        );
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 137);
        // Places that the standard gives: 0x0A, 0x0D, 0x20, 0x30, 0x41, 0x61, 0x7F (the escape at
        // 0x1B is left out, which moves what follows it).
        let at = |place: usize| {
            BASIC
                .chars()
                .nth(if place > 0x1b { place - 1 } else { place })
        };
        for (place, character) in [
            (0x00, '@'),
            (0x09, 'Ç'),
            (0x0a, '\n'),
            (0x0d, '\r'),
            (0x10, 'Δ'),
            (0x1a, 'Ξ'),
            (0x1c, 'Æ'),
            (0x20, ' '),
            (0x24, '¤'),
            (0x30, '0'),
            (0x40, '¡'),
            (0x41, 'A'),
            (0x5f, '§'),
            (0x60, '¿'),
            (0x61, 'a'),
            (0x7f, 'à'),
        ] {
            assert_eq!(at(place), Some(character), "{place:#x}");
        }
    }

    #[test]
    fn texts_at_their_edges() {
        let gsm = |n: usize| "a".repeat(n);
        let ucs = |n: usize| "ж".repeat(n);
        for (text, count) in [
            (String::new(), 1),
            (gsm(160), 1),
            (gsm(161), 2),
            (gsm(306), 2),
            (gsm(307), 3),
            (gsm(459), 3),
            (gsm(460), 4),
            (ucs(70), 1),
            (ucs(71), 2),
            (ucs(134), 2),
            (ucs(135), 3),
            // A euro takes two places: 160 of them and not one more.
            ("€".repeat(80), 1),
            ("€".repeat(80) + "a", 2),
            // 153 is odd: a part holds 76 of them, and a place is left over.
            ("€".repeat(152), 2),
            ("€".repeat(153), 3),
            // The pair at the end of the first part moves into the second one.
            (gsm(152) + "€" + &gsm(151), 2),
            (gsm(152) + "€" + &gsm(152), 3),
            // A pair of surrogates takes two units: 35 in one message, 33 in a part.
            ("😀".repeat(35), 1),
            ("😀".repeat(36), 2),
            ("😀".repeat(66), 2),
            ("😀".repeat(67), 3),
            (ucs(66) + "😀" + &ucs(65), 2),
            (ucs(66) + "😀" + &ucs(66), 3),
            // One character decides for all of them.
            (gsm(69) + "ж", 1),
            (gsm(70) + "ж", 2),
            // The lower case cedilla is not in the alphabet, the upper case one is.
            (gsm(70) + "ç", 2),
            (gsm(159) + "Ç", 1),
            // A backtick is not in it either, nor is a tab.
            (gsm(70) + "`", 2),
            (gsm(70) + "\t", 2),
            ("\u{c}".repeat(80), 1),
        ] {
            assert_eq!(segments(&text).get(), count, "{text}");
        }
    }

    #[test]
    fn the_encoding_and_the_reference_can_be_given() {
        let as_given =
            |text: &str, encoding, reference| segments_as(text, encoding, reference).get();
        let text = "a".repeat(71);
        assert_eq!(as_given(&text, Encoding::Ucs2, Reference::Short), 2);
        assert_eq!(
            as_given(&"a".repeat(134), Encoding::Ucs2, Reference::Short),
            2
        );
        assert_eq!(
            as_given(&"a".repeat(134), Encoding::Ucs2, Reference::Long),
            3
        );
        assert_eq!(
            as_given(&"a".repeat(306), Encoding::Gsm7, Reference::Short),
            2
        );
        assert_eq!(
            as_given(&"a".repeat(306), Encoding::Gsm7, Reference::Long),
            3
        );
        assert_eq!(
            as_given(&"a".repeat(304), Encoding::Gsm7, Reference::Long),
            2
        );
        assert_eq!(as_given("ж", Encoding::Gsm7, Reference::Short), 1);
        assert_eq!(encoding("a€b"), Encoding::Gsm7);
        assert_eq!(encoding("aжb"), Encoding::Ucs2);
    }

    /// The fewest parts of `size` places: every way of cutting is tried, from the end on.
    fn fewest(places: &[usize], size: usize) -> u32 {
        let mut best = vec![0; places.len() + 1];
        for start in (0..places.len()).rev() {
            let mut filled = 0;
            let fits = places[start..].iter().take_while(|places| {
                filled += **places;
                filled <= size
            });
            let ends = start + 1..=start + fits.count();
            best[start] = 1 + ends.map(|end| best[end]).min().unwrap_or(u32::MAX - 1);
        }
        best[0]
    }

    proptest! {
        /// No other way to cut a text gives fewer parts, and none of ours is too large.
        #[test]
        fn parts_are_as_few_as_can_be(text in "[aéж€{😀\n]{0,400}", long in any::<bool>()) {
            let reference = if long { Reference::Long } else { Reference::Short };
            let gsm: Vec<usize> = text
                .chars()
                .map(|c| if "€{".contains(c) { 2 } else { 1 })
                .collect();
            let ucs: Vec<usize> = text.chars().map(char::len_utf16).collect();
            let cases = [
                (Encoding::Gsm7, gsm, 160, if long { 152 } else { 153 }),
                (Encoding::Ucs2, ucs, 70, if long { 66 } else { 67 }),
            ];
            for (encoding, places, alone, joined) in cases {
                let all: usize = places.iter().sum();
                let wanted = if all <= alone { 1 } else { fewest(&places, joined) };
                prop_assert_eq!(segments_as(&text, encoding, reference).get(), wanted);
            }
        }

        /// More text never takes fewer segments.
        #[test]
        fn more_text_is_never_less(text in "[a€ж😀]{0,300}", end in "[a€ж😀]{0,5}") {
            let longer = text.clone() + &end;
            prop_assert!(segments(&longer) >= segments(&text));
        }
    }
}
