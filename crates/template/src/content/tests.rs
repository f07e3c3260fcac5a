//! Bodies as publishers write them. Those of Celery 5.7.0, Dramatiq 2.2.1 and kombu 5.7.0 were taken from these
//! programs.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;

use super::*;
use sluiced_ports::message::Properties;

const MOST: u64 = 1 << 20;
const TEXT: &str = r#"{"to": "+4915550000001", "text": "Grüße 😀"}"#;
/// `send_sms.apply_async(kwargs=…, compression="gzip")`.
const CELERY: &[u8] = include_bytes!("celery.zlib");

fn message(body: &[u8], encoding: Option<&str>) -> Message {
    Message {
        body: body.to_vec().into(),
        properties: Properties {
            content_encoding: encoding.map(str::to_owned),
            ..Properties::default()
        },
        ..Message::default()
    }
}

fn compressed(body: &[u8], header: &str) -> Message {
    let mut message = message(body, Some("utf-8"));
    let value = HeaderValue::Text(header.to_owned());
    message.headers.insert("compression".to_owned(), value);
    message
}

fn sections(body: &[u8]) -> Message {
    let mut message = message(body, None);
    message.properties.kind = Some("amqp-1.0".to_owned());
    message
}

fn text(message: &Message) -> String {
    let body = read(message, MOST).expect("it is read");
    String::from_utf8(body.into_owned()).expect("UTF-8")
}

fn why(message: &Message) -> String {
    read(message, MOST).expect_err("it is not read").to_string()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).expect("to memory");
    encoder.finish().expect("to memory")
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).expect("to memory");
    encoder.finish().expect("to memory")
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).expect("to memory");
    encoder.finish().expect("to memory")
}

/// As `ZipOutputStream` of Java writes it: the lengths are behind the file.
fn zip(body: &[u8]) -> Vec<u8> {
    let mut archive = b"PK\x03\x04\x14\0\x08\x08\x08\0".to_vec();
    archive.extend([0; 16]);
    archive.extend([6, 0, 0, 0]);
    archive.extend(b"zipped");
    archive.extend(deflate(body));
    archive.extend(b"PK\x07\x08rest");
    archive
}

#[test]
fn every_coding_of_a_publisher_is_undone() {
    let body = TEXT.as_bytes();
    for (encoding, body) in [
        (None, body.to_vec()),
        (Some("utf-8"), body.to_vec()),
        (Some("binary"), body.to_vec()),
        (Some("gzip"), gzip(body)),
        (Some("X-GZIP"), gzip(body)),
        (Some("zlib"), zlib(body)),
        (Some("deflate"), zlib(body)),
        (Some("deflate"), deflate(body)),
        // Spring AMQP: GZipPostProcessor, DeflaterPostProcessor, ZipPostProcessor.
        (Some("gzip:UTF-8"), gzip(body)),
        (Some("gzip, UTF-8"), gzip(body)),
        (Some("deflate:UTF-8"), zlib(body)),
        (Some("zip:UTF-8"), zip(body)),
        (Some("gzip, gzip"), gzip(&gzip(body))),
        // Filled up behind its checksum.
        (Some("gzip"), [gzip(body), vec![0; 7]].concat()),
        // Of two members.
        (Some("gzip"), [gzip(&body[..3]), gzip(&body[3..])].concat()),
        // Nothing says it.
        (None, gzip(body)),
        (None, zlib(body)),
        // It was undone on the way.
        (Some("gzip"), body.to_vec()),
        (Some("deflate"), body.to_vec()),
        (Some("br"), body.to_vec()),
    ] {
        assert_eq!(text(&message(&body, encoding)), TEXT, "{encoding:?}");
    }
    let celery = r#"[[], {"to": "+4915550000001", "text": "Order 1"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]"#;
    assert_eq!(text(&compressed(CELERY, "application/x-gzip")), celery);
}

/// kombu calls it `application/x-brotli`. The bytes are those of the encoder of the reference implementation.
#[test]
fn brotli_is_undone() {
    const BROTLI: &[u8] = &[
        0x1b, 0x61, 0x00, 0x20, 0x1c, 0x07, 0x6e, 0xac, 0xcc, 0x4e, 0xd0, 0x70, 0xbb, 0x11, 0x2a,
        0xbd, 0x45, 0xb6, 0xf6, 0xfa, 0x26, 0x8b, 0x4e, 0x57, 0x80, 0x80, 0x43, 0x0e, 0xd8, 0x0f,
        0xd8, 0x02, 0x6a, 0x8b, 0xb4, 0x55, 0x15, 0x4d, 0x0f, 0x0a, 0x13, 0x11, 0x4f, 0x54, 0x66,
        0x16, 0x94, 0xf0, 0xe7, 0x1e, 0x7d,
    ];
    let read = text(&compressed(BROTLI, "application/x-brotli"));
    assert!(read.starts_with(r#"{"status": "refused""#), "{read}");
    assert_eq!(text(&message(BROTLI, Some("br"))), read);
    let cut = message(&BROTLI[..30], Some("br"));
    assert_eq!(why(&cut), "body: its br is cut or damaged");
}

#[test]
fn what_cannot_be_undone_is_named() {
    let body = TEXT.as_bytes();
    let cut = |mut body: Vec<u8>| {
        body.truncate(body.len() - 9);
        body
    };
    for (message, wanted) in [
        (
            message(b"\x28\xb5\x2f\xfd", Some("zstd")),
            "has the coding `zstd`, which cannot be undone; gzip, zlib, deflate, zip and br can",
        ),
        (
            compressed(b"BZh91AY", "application/x-bz2"),
            "has the coding `bz2`, which cannot be undone; gzip, zlib, deflate, zip and br can",
        ),
        (
            message(b"\xff\xfe", Some("gzip")),
            "is no gzip, as its publisher says",
        ),
        (
            message(&cut(gzip(body)), None),
            "its gzip is cut or damaged",
        ),
        (
            message(&cut(zlib(body)), None),
            "its zlib is cut or damaged",
        ),
        (
            message(b"\xff\xff", Some("deflate")),
            "its deflate is cut or damaged",
        ),
        (
            message(&gzip(&gzip(&gzip(&gzip(&gzip(body))))), None),
            "has more than 4 codings",
        ),
    ] {
        assert_eq!(why(&message), format!("body: {wanted}"));
    }
}

/// A few bytes never become more than the bound.
#[test]
fn a_bomb_stays_small() {
    let long = vec![b' '; 50_000_000];
    for (name, body) in [
        ("gzip", gzip(&long)),
        ("zlib", zlib(&long)),
        ("zip", zip(&long)),
        ("gzip", gzip(&gzip(&long))),
    ] {
        assert_eq!(
            why(&message(&body, None)),
            format!("body: its {name} makes more than the 1048576 bytes of max_body")
        );
    }
}

#[test]
fn utf_16_becomes_utf_8() {
    let wide = |from: fn(u16) -> [u8; 2]| TEXT.encode_utf16().flat_map(from).collect::<Vec<u8>>();
    for body in [
        TEXT.as_bytes().to_vec(),
        [&[0xfe, 0xff], &wide(u16::to_be_bytes)[..]].concat(),
        [&[0xff, 0xfe], &wide(u16::to_le_bytes)[..]].concat(),
        wide(u16::to_be_bytes),
        wide(u16::to_le_bytes),
        gzip(&wide(u16::to_be_bytes)),
    ] {
        assert_eq!(text(&message(&body, None)), TEXT);
    }
}

/// As `rabbitmq_amqp1_0` of RabbitMQ 3.10 and RabbitMQ 4 hand them to a client of AMQP 0.9.1 (`tests/it/paths`).
#[test]
fn sections_of_amqp_1_are_read() {
    let value = |value: &[u8]| [&[0, 0x53, 0x77], value].concat();
    let short = |code: u8, bytes: &[u8]| [&[code, bytes.len() as u8], bytes].concat();
    let map = |items: &[&[u8]]| {
        let inside = [&[items.len() as u8][..], &items.concat()].concat();
        short(0xc1, &inside)
    };
    let long = {
        let length = u32::try_from(TEXT.len()).expect("short").to_be_bytes();
        [&[0xb1], &length[..], TEXT.as_bytes()].concat()
    };
    for (body, wanted) in [
        (value(&short(0xa1, TEXT.as_bytes())), TEXT),
        (value(&long), TEXT),
        (value(&short(0xa0, &gzip(TEXT.as_bytes()))), TEXT),
        // Two data sections, and the long form of their code.
        (
            [
                &[0, 0x53, 0x75][..],
                &short(0xa0, b"{\"a\""),
                &[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75],
                &short(0xa0, b":1}"),
            ]
            .concat(),
            "{\"a\":1}",
        ),
        // A map of a text, a truth, a time, nothing and a fraction.
        (
            value(&map(&[
                &short(0xa1, b"to"),
                &short(0xa1, b"+491"),
                &short(0xa3, b"ok"),
                &[0x41],
                &short(0xa1, b"at"),
                &[0x83, 0, 0, 1, 0x8c, 0, 0, 0, 0],
                &short(0xa1, b"none"),
                &[0x40],
                &short(0xa1, b"half"),
                &[0x82, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0],
            ])),
            r#"{"at":1700807049216,"half":0.5,"none":null,"ok":true,"to":"+491"}"#,
        ),
        // A sequence: a list of small numbers and a nested one. An array of shorts.
        (
            [
                0, 0x53, 0x76, 0xc0, 8, 3, 0x43, 0x54, 0xff, 0xc0, 2, 1, 0x45,
            ]
            .to_vec(),
            "[0,-1,[[]]]",
        ),
        (value(&[0xe0, 6, 2, 0x61, 0, 1, 0xff, 0xff]), "[1,-1]"),
        // Two data sections as RabbitMQ 3 hands them over.
        (
            [
                &[0, 0x53, 0x75][..],
                &short(0xa0, b":1}"),
                &[0, 0x53, 0x75],
                &short(0xa0, b"{\"a\""),
            ]
            .concat(),
            "{\"a\":1}",
        ),
        // A described value, a UUID, a character.
        (
            value(&[&[0, 0xa3, 1, b'x', 0x98][..], &[0x11; 16]].concat()),
            "11111111-1111-1111-1111-111111111111",
        ),
        (value(&[0x73, 0, 0, 0, b'a']), "a"),
    ] {
        assert_eq!(text(&sections(&body)), wanted);
    }
    // Without the type it is not looked for, and one data section comes without any.
    assert_eq!(text(&sections(TEXT.as_bytes())), TEXT);
}

#[test]
fn sections_that_cannot_be_read_are_named() {
    let deep = [&[0, 0x53, 0x77][..], &[0, 0x40].repeat(200)].concat();
    let order = "are several, in an order that is not known: RabbitMQ 3 hands them over in reverse";
    for (body, wanted) in [
        (&b"\0\x53\x77\xa1\x05abc"[..], "are cut or damaged"),
        (b"\0\x53\x77", "are cut or damaged"),
        (b"\0\x53\x77\xa1\x01ax", "are cut or damaged"),
        // Four thousand million times nothing.
        (
            b"\0\x53\x77\xf0\0\0\0\x05\xff\xff\xff\xff\x40",
            "are cut or damaged",
        ),
        (
            b"\0\x53\x77\x94",
            "have a value of type 0x94, which is not known",
        ),
        (
            b"\0\x53\x77\xc0\x04\x01\xa0\x01\xff",
            "have bytes that are no text",
        ),
        (
            b"\0\x53\x77\xc1\x03\x02\x40\x40",
            "have a map with a key that is no text",
        ),
        (&deep, "nest deeper than 128"),
        (b"\0\x53\x76\x45\0\x53\x76\x45", order),
        (b"\0\x53\x75\xa0\x01a\0\x53\x75\xa0\x01b", order),
    ] {
        assert_eq!(
            why(&sections(body)),
            format!("body: its AMQP 1.0 sections {wanted}")
        );
    }
}

/// Dead letters say what they are. Bodies as the libraries write them.
#[test]
fn what_is_no_json_is_named() {
    for (body, wanted) in [
        (&b""[..], Some("nothing at all")),
        // Celery with `serializer="pickle"` and `"msgpack"`.
        (
            b"\x80\x04\x95^\0\0\0\0\0\0\0)}\x94(\x8c\x02to\x94",
            Some("a pickled object of Python"),
        ),
        (b"\x93\x90\x82\xa2to\xae+49", Some("MessagePack")),
        // Symfony Messenger, PhpSerializer: serialize(), then addslashes().
        (
            br#"O:36:\"Symfony\\Component\\Messenger\\Envelope\":2:{s:44:\"\0Symfony"#,
            Some("a serialised object of PHP"),
        ),
        (
            br#"O:8:"App\Sms":1:{s:2:"to";s:4:"+491";}"#,
            Some("a serialised object of PHP"),
        ),
        (
            br#"a:1:{s:2:"to";s:4:"+491";}"#,
            Some("a serialised object of PHP"),
        ),
        (b"\xac\xed\0\x05sr", Some("a serialised object of Java")),
        (b"<sms/>", Some("XML or HTML")),
        (b"eyJ0byI6ICIrNDkxIn0=", Some("JSON in base64")),
        (
            b"{'to': '+491'}",
            Some("an object of Python as str() shows it"),
        ),
        (b"BZh91AY", Some("data compressed with bzip2")),
        (b"\xff\xfa", Some("no text in UTF-8")),
        (b"to=%2B491", None),
        (b"O: no", None),
    ] {
        assert_eq!(looks_like(body), wanted, "{body:?}");
    }
}

proptest! {
    /// Any bytes under any name: nothing panics, and no more is made than the bound.
    #[test]
    fn rubbish_is_bounded(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        coding in prop::sample::select(vec!["", "gzip", "zlib", "deflate", "zip", "br", "zstd", "gzip, br"]),
        start in prop::sample::select(vec![&b""[..], b"\x1f\x8b\x08", b"\x78\x9c", b"PK\x03\x04", b"\0\x53\x77", b"\0\x53\x76\xd0", b"\xff\xfe"]),
    ) {
        let body = [start, &body].concat();
        let mut message = sections(&body);
        message.properties.content_encoding = Some(coding.to_owned());
        if let Ok(read) = read(&message, 1_000) {
            prop_assert!(read.len() <= 16 * 1_000.max(body.len()));
        }
        drop(passed_on(&message));
        // In words, never with a part of the body.
        prop_assert!(looks_like(&body).is_none_or(|words| !words.is_empty()));
    }
}
