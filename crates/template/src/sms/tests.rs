//! How a text is encoded and cut into segments.

use proptest::prelude::*;

use super::*;

/// In its shortest encoding.
fn cutting(encoding: Encoding, reference: Reference) -> Cutting {
    Cutting {
        encoding: Some(encoding),
        reference,
        transliterate: false,
    }
}

fn segments(text: &str) -> NonZeroU32 {
    Cutting::default().count(text)
}

#[test]
fn the_alphabet_is_the_standards() {
    // 128 places, one of which is the escape; no character is in it twice.
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
        // One character decides for the whole text.
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
fn octets_are_those_of_the_standard() {
    let gsm = |text| octets(text, Encoding::Gsm7);
    assert_eq!(
        gsm("Hi @£$¥èéùìòÇ"),
        b"Hi \x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"
    );
    assert_eq!(gsm("ΞÆß É¤Äà¿§"), b"\x1a\x1c\x1e \x1f\x24\x5b\x7f\x60\x5f");
    assert_eq!(
        gsm("\u{c}^{}\\[~]|€"),
        b"\x1b\x0a\x1b\x14\x1b\x28\x1b\x29\x1b\x2f\x1b\x3c\x1b\x3d\x1b\x3e\x1b\x40\x1b\x65"
    );
    // A character that the alphabet lacks.
    assert_eq!(gsm("aж"), b"a?");
    assert_eq!(
        octets("aж😀", Encoding::Ucs2),
        [0, 0x61, 4, 0x36, 0xd8, 0x3d, 0xde, 0]
    );
    assert_eq!(
        joining(0x1234, Reference::Short, 3, 2),
        [5, 0, 3, 0x34, 3, 2]
    );
    assert_eq!(
        joining(0x1234, Reference::Long, 3, 2),
        [6, 8, 4, 0x12, 0x34, 3, 2]
    );
}

#[test]
fn the_encoding_and_the_reference_can_be_given() {
    let as_given = |text: &str, encoding, reference| cutting(encoding, reference).count(text).get();
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
    assert_eq!(Cutting::default().write("a€b").encoding, Encoding::Gsm7);
    assert_eq!(Cutting::default().write("aжb").encoding, Encoding::Ucs2);
    let latin = "ç".repeat(140);
    for (text, reference, count) in [
        (latin.clone(), Reference::Short, 1),
        (latin.clone() + "é", Reference::Short, 2),
        ("ç".repeat(268), Reference::Short, 2),
        ("ç".repeat(269), Reference::Short, 3),
        ("ç".repeat(266), Reference::Long, 2),
        ("ç".repeat(267), Reference::Long, 3),
        ("ж".repeat(140), Reference::Short, 1),
    ] {
        assert_eq!(as_given(&text, Encoding::Latin1, reference), count);
    }
}

#[test]
fn octets_are_read_as_they_were_written() {
    let all: String = BASIC.chars().chain(EXTENSION.chars()).collect();
    assert_eq!(read(&octets(&all, Encoding::Gsm7), Encoding::Gsm7), all);
    assert_eq!(
        read(b"a\x1b\x01\xff\x1b", Encoding::Gsm7),
        "a\u{fffd}\u{fffd}"
    );
    assert_eq!(octets("Grüß ж", Encoding::Latin1), b"Gr\xfc\xdf ?");
    assert_eq!(read(b"Gr\xfc\xdf", Encoding::Latin1), "Grüß");
    assert_eq!(
        read(&octets("aж😀", Encoding::Ucs2), Encoding::Ucs2),
        "aж😀"
    );
}

/// The plain signs are taken before UCS-2 is, and only where they help.
#[test]
fn typographic_signs_may_be_written_plainly() {
    let written = |text: &'static str, encoding| {
        let cutting = Cutting {
            encoding,
            transliterate: true,
            ..Cutting::default()
        };
        let written = cutting.write(text);
        let count = cutting.count(text).get();
        assert_eq!(count as usize, written.parts().count(), "{text}");
        (written.text.into_owned(), written.encoding)
    };
    for (text, plain) in [
        ("It’s “fine” – really…", "It's \"fine\" - really..."),
        ("«a»\u{a0}—\u{2009}b\u{200b}\u{feff}", "\"a\" - b"),
        ("ＡＢＣ！ １２３", "ABC! 123"),
        ("plain [€] text", "plain [€] text"),
        ("a\tb `c`", "a b 'c'"),
    ] {
        let gsm = (plain.to_owned(), Encoding::Gsm7);
        assert_eq!(written(text, None), gsm);
        assert_eq!(written(text, Some(Encoding::Gsm7)), gsm);
    }
    // It becomes UCS-2 all the same: then nothing is changed. Letters never are.
    for text in ["“ж”", "l’été, ça, août", "😀…"] {
        assert_eq!(written(text, None), (text.to_owned(), Encoding::Ucs2));
        let ucs2 = written(text, Some(Encoding::Ucs2));
        assert_eq!(ucs2, (text.to_owned(), Encoding::Ucs2));
    }
    // Latin 1 has more signs of its own.
    assert_eq!(
        written("«ça» – l’été…", Some(Encoding::Latin1)),
        ("«ça» - l'été...".to_owned(), Encoding::Latin1)
    );
    assert_eq!(Cutting::default().write("It’s").encoding, Encoding::Ucs2);
}

/// No plain sign is outside of the GSM alphabet, and none that is in it is replaced.
#[test]
fn plain_signs_are_in_the_alphabet() {
    for place in 0..=u32::from(u16::MAX) {
        let Some(character) = char::from_u32(place) else {
            continue;
        };
        let text = character.to_string();
        let written = plain::written(&text, |c| has(c, Encoding::Gsm7));
        if written != text {
            assert!(!has(character, Encoding::Gsm7));
            assert!(written.chars().all(|c| has(c, Encoding::Gsm7)), "{text}");
        }
    }
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
            prop_assert_eq!(cutting(encoding, reference).count(&text).get(), wanted);
        }
    }

    /// What is counted is what is sent: the parts are the text again, none is too long, and there are as many.
    #[test]
    fn the_parts_are_the_text(text in "[aéж€{😀\n]{0,400}", long in any::<bool>()) {
        let reference = if long { Reference::Long } else { Reference::Short };
        for encoding in [Encoding::Gsm7, Encoding::Latin1, Encoding::Ucs2] {
            let written = cutting(encoding, reference).write(&text);
            let parts: Vec<&str> = written.parts().collect();
            prop_assert_eq!(parts.concat(), text.clone());
            prop_assert_eq!(parts.len(), cutting(encoding, reference).count(&text).get() as usize);
            let header = if parts.len() == 1 { 0 } else if long { 7 } else { 6 };
            for part in parts {
                let octets = octets(part, encoding);
                let most = match encoding {
                    Encoding::Gsm7 => (140 - header) * 8 / 7,
                    Encoding::Latin1 | Encoding::Ucs2 => 140 - header,
                };
                prop_assert!(octets.len() <= most, "{} of {}", octets.len(), most);
            }
        }
    }

    /// More text never takes fewer segments.
    #[test]
    fn more_text_is_never_less(text in "[a€ж😀]{0,300}", end in "[a€ж😀]{0,5}") {
        let longer = text.clone() + &end;
        prop_assert!(segments(&longer) >= segments(&text));
    }
}
