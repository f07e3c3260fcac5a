//! Frames that the client cannot read are replaced, and all others pass as they are.

use std::sync::Arc;

use lapin::BasicProperties;
use lapin::protocol::AMQPClass;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::protocol::parse_class;
use lapin::types::{AMQPValue, FieldTable};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use sluiced_ports::message::header;

const LIMIT: u32 = 131_072;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, 0, 3][..], &size, payload, &[END]].concat()
}

/// A content header of a body of nine bytes.
fn content(properties: &[u8]) -> Vec<u8> {
    frame(
        HEADER,
        &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], properties].concat(),
    )
}

fn written(properties: &BasicProperties) -> Vec<u8> {
    gen_properties(properties)(Vec::new().into())
        .unwrap()
        .into_inner()
        .0
}

fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
    let short = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    let method = [0, 60, 0, 60];
    let tag = [0, 0, 0, 0, 0, 0, 0, 7, 1];
    frame(
        METHOD,
        &[
            &method[..],
            &short(b"ctag"),
            &tag,
            &short(exchange),
            &short(key),
        ]
        .concat(),
    )
}

/// The output when the bytes come in pieces of these sizes.
fn passed(input: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut frames = Frames::new(LIMIT, Arc::default());
    let mut out = Vec::new();
    let mut rest = input;
    let mut sizes = sizes.iter().copied().cycle();
    while !rest.is_empty() {
        frames.pass(
            split(&mut rest, sizes.next().unwrap_or(usize::MAX)),
            &mut out,
        );
    }
    out
}

/// The frames of a stream: kind and payload.
fn parse(mut stream: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while !stream.is_empty() {
        let size = size(stream);
        let frame = split(&mut stream, size + OVERHEAD);
        assert_eq!(frame.len(), size + OVERHEAD, "the frame is whole");
        assert!(frame.len() <= LIMIT as usize, "the client takes the frame");
        assert_eq!(frame.last(), Some(&END));
        all.push((frame[0], frame[PREFIX..frame.len() - 1].to_vec()));
    }
    all
}

/// The properties of a content header, read as the client does.
fn client_reads(payload: &[u8]) -> BasicProperties {
    let (rest, properties) = parse_properties(&payload[12..]).expect("the client can read it");
    assert!(rest.is_empty());
    properties
}

fn unreadable(properties: &BasicProperties) -> Option<String> {
    let table = properties.headers().clone()?;
    match table.inner().get(header::UNREADABLE)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// The one header that comes out for these properties.
fn header_of(properties: &[u8]) -> BasicProperties {
    let out = parse(&passed(&content(properties), &[usize::MAX]));
    assert_eq!(out.len(), 1);
    client_reads(&out[0].1)
}

/// One table within the other, this many times.
fn nested(count: usize) -> Vec<u8> {
    let mut value: Vec<u8> = Vec::new();
    for _ in 0..count {
        let size = u32::try_from(value.len()).unwrap().to_be_bytes();
        value = [&[1, b'k', b'F'][..], &size, &value].concat();
    }
    let size = u32::try_from(value.len()).unwrap().to_be_bytes();
    [&[0x20, 0][..], &size, &value].concat()
}

#[test]
fn what_the_client_can_read_passes_as_it_is() {
    let mut table = FieldTable::default();
    table.insert("bytes".into(), AMQPValue::LongString(vec![0xff].into()));
    let properties = BasicProperties::default()
        .with_correlation_id("é".into())
        .with_headers(table);
    let stream = [
        frame(METHOD, &[0, 10, 0, 30, 0, 1, 0, 2, 0, 0, 0, 10]),
        deliver(b"events", b"sms.de"),
        content(&written(&properties)),
        frame(3, b"{\"n\":123}"),
        frame(8, &[]),
        content(&nested(31)),
    ]
    .concat();
    assert_eq!(passed(&stream, &[usize::MAX]), stream);
    assert_eq!(passed(&stream, &[1]), stream);
}

#[test]
fn the_version_of_the_broker_and_the_name_of_its_cluster_are_seen() {
    let mut properties = Vec::new();
    for (name, value) in [
        ("product", "RabbitMQ"),
        ("cluster_name", "rabbit@mq1"),
        ("version", "4.1.0-rc.1"),
    ] {
        properties.extend([&[u8::try_from(name.len()).unwrap()], name.as_bytes(), b"S"].concat());
        properties.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
        properties.extend(value.as_bytes());
    }
    let size = u32::try_from(properties.len()).unwrap().to_be_bytes();
    let start = [
        &[0, 10, 0, 10, 0, 9][..],
        &size,
        &properties,
        &[0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let seen = Arc::default();
    let mut out = Vec::new();
    Frames::new(LIMIT, Arc::clone(&seen)).pass(&frame(METHOD, &start), &mut out);
    assert_eq!(out, frame(METHOD, &start));
    let greeting = Greeting {
        major: Some(4),
        cluster: Some("rabbit@mq1".to_owned()),
    };
    assert_eq!(seen.get(), Some(&greeting));
}

#[test]
fn a_text_of_raw_bytes_is_replaced_and_kept() {
    // correlation_id, and a header's name.
    for raw in [
        &[0x04, 0, 2, 0xff, 0xfe][..],
        &[0x20, 0, 0, 0, 0, 3, 1, 0xff, b'V'],
    ] {
        let properties = header_of(raw);
        assert!(unreadable(&properties).is_some());
        let headers = properties.headers().clone().unwrap_or_default();
        let kept = headers.inner().get(header::RAW_PROPERTIES).cloned();
        let kept = kept.and_then(|value| value.as_long_string().map(|text| text.to_string()));
        use base64::Engine as _;
        let kept = base64::engine::general_purpose::STANDARD.decode(kept.unwrap());
        assert_eq!(kept.unwrap(), raw);
        assert!(!headers.inner().contains_key(header::RAW_CUT));
    }
}

#[test]
fn deep_tables_are_replaced_without_following_them() {
    for depth in [33, 100, 18_000] {
        let why = unreadable(&header_of(&nested(depth))).expect("it is replaced");
        assert!(why.contains("nested"), "{why}");
    }
}

#[test]
fn a_header_above_the_frame_limit_is_replaced_and_cut() {
    let mut table = FieldTable::default();
    table.insert(
        "x".into(),
        AMQPValue::LongString("y".repeat(LIMIT as usize).as_str().into()),
    );
    let properties = written(&BasicProperties::default().with_headers(table));
    let out = parse(&passed(&content(&properties), &[4096]));
    let properties = client_reads(&out[0].1);
    assert!(unreadable(&properties).is_some_and(|why| why.contains("larger")));
    let headers = properties.headers().clone().unwrap_or_default();
    assert_eq!(
        headers.inner().get(header::RAW_CUT),
        Some(&AMQPValue::Boolean(true))
    );
    // The next frame is not affected.
    assert_eq!(out.len(), 1);
}

#[test]
fn the_limit_of_the_broker_counts_too() {
    let tune = frame(METHOD, &[0, 10, 0, 30, 0, 1, 0, 0, 0x20, 0, 0, 10]);
    let mut table = FieldTable::default();
    table.insert(
        "x".into(),
        AMQPValue::LongString("y".repeat(9000).as_str().into()),
    );
    let properties = written(&BasicProperties::default().with_headers(table));
    let out = parse(&passed(
        &[tune, content(&properties)].concat(),
        &[usize::MAX],
    ));
    assert!(unreadable(&client_reads(&out[1].1)).is_some());
    assert!(out[1].1.len() + OVERHEAD <= 8192);
}

#[test]
fn a_routing_key_of_raw_bytes_is_readable_and_marks_its_message() {
    let fine = written(&BasicProperties::default().with_message_id("m1".into()));
    let hostile = deliver(b"events", &[0xff; 255]);
    let stream = [
        hostile.clone(),
        content(&fine),
        deliver(b"e", b"k"),
        content(&fine),
    ]
    .concat();
    let out = parse(&passed(&stream, &[1000]));
    let (rest, method) = parse_class(&out[0].1[..]).expect("the client can read it");
    assert!(rest.is_empty());
    let AMQPClass::Basic(lapin::protocol::basic::AMQPMethod::Deliver(delivery)) = method else {
        panic!("a delivery")
    };
    assert_eq!(
        (delivery.exchange.as_str(), delivery.delivery_tag),
        ("events", 7)
    );
    assert_eq!(delivery.routing_key.as_str(), "\u{fffd}".repeat(85));
    let marked = client_reads(&out[1].1);
    assert!(unreadable(&marked).is_some_and(|why| why.contains("routing key")));
    let headers = marked.headers().clone().unwrap_or_default();
    assert!(headers.inner().contains_key(header::RAW_DELIVERY));
    // Only that one.
    assert_eq!(
        client_reads(&out[3].1),
        BasicProperties::default().with_message_id("m1".into())
    );
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let text = || {
        prop_oneof![
            vec(any::<u8>(), 0..20),
            "[a-zé]{0,9}".prop_map(String::into_bytes)
        ]
    };
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(|body| frame(3, &body)),
        (text(), text()).prop_map(|(exchange, key)| deliver(&exchange, &key)),
        vec(any::<u8>(), 0..200).prop_map(|noise| content(&noise)),
        any_table(3).prop_map(|table| {
            content(&written(&BasicProperties::default().with_headers(table)))
        }),
        // A valid header with one byte changed.
        (any_table(2), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(table, at, byte)| {
            let properties = BasicProperties::default().with_headers(table);
            let mut properties = written(&properties.with_message_id("m1".into()));
            let at = at.index(properties.len());
            properties[at] = byte;
            content(&properties)
        }),
    ]
}

fn any_table(depth: u32) -> impl Strategy<Value = FieldTable> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        Just(AMQPValue::Void),
    ];
    let value = leaf.prop_recursive(depth, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|all| AMQPValue::FieldArray(all.into())),
            table_of(inner).prop_map(AMQPValue::FieldTable),
        ]
    });
    table_of(value)
}

fn table_of(value: impl Strategy<Value = AMQPValue>) -> impl Strategy<Value = FieldTable> {
    vec(("[a-zé]{1,8}", value), 0..4).prop_map(|all| {
        let mut table = FieldTable::default();
        for (name, value) in all {
            table.insert(name.as_str().into(), value);
        }
        table
    })
}

proptest! {
    /// However the bytes are split: the client can read every frame, and frames that it could
    /// read anyway come out byte for byte.
    #[test]
    fn the_client_can_read_all_that_comes_out(
        frames in vec(any_frame(), 1..8),
        sizes in vec(1_usize..400, 1..6),
    ) {
        let out = parse(&passed(&frames.concat(), &sizes));
        prop_assert_eq!(out.len(), frames.len());
        let mut marked = false;
        for (before, (kind, after)) in frames.iter().zip(&out) {
            let payload = &before[PREFIX..before.len() - 1];
            let readable = match *kind {
                METHOD => {
                    prop_assert!(parse_class(&after[..]).is_ok_and(|(rest, _)| rest.is_empty()));
                    let readable = parse_class(payload).is_ok();
                    marked = !readable;
                    readable
                }
                HEADER => {
                    let properties = client_reads(after);
                    let readable = parse_properties(&payload[12..])
                        .is_ok_and(|(rest, _)| rest.is_empty());
                    let marked = std::mem::take(&mut marked);
                    let readable = readable && !marked;
                    if !readable {
                        prop_assert!(unreadable(&properties).is_some());
                    }
                    readable
                }
                _ => true,
            };
            if readable {
                prop_assert_eq!(payload, &after[..]);
            }
        }
    }
}
