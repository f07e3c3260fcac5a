//! How messages of phones that a centre delivers are read, and that what is none is kept.

use super::*;
use sluiced_pdu::Tlv;

fn read(delivery: &Message) -> InboundKind {
    let written = delivery.write(Command::DELIVER_SM, 1).expect("it fits");
    inbound_event(Command::DELIVER_SM, &written[16..], oneshot::channel().0).what
}

fn inbound_of(delivery: &Message) -> Inbound {
    match read(delivery) {
        InboundKind::Inbound(inbound) => inbound,
        InboundKind::Receipt(receipt) => panic!("{receipt:?}"),
    }
}

fn texted(data_coding: u8, text: &[u8]) -> Message {
    Message {
        data_coding,
        text: text.to_vec(),
        ..Message::default()
    }
}

#[test]
fn a_phones_text_is_read_in_its_alphabet() {
    for (data_coding, octets, text) in [
        (0, &b"STOP"[..], "STOP"),
        (0, b"Gr\x7e\x1e \x1b\x65 \x00\x11", "Grüß € @_"),
        (1, b"STOP_@", "STOP_@"),
        (3, b"Gr\xfc\xdf", "Grüß"),
        (8, &[4, 0x21, 4, 0x22, 4, 0x1e, 4, 0x1f], "СТОП"),
        (8, &[0xd8, 0x3d, 0xde, 0, 0], "😀"),
        // A text of class 0 ("flash"), and one about waiting messages.
        (0xf0, b"\x00\x11\x7b", "@_ä"),
        (0xc8, b"\x00", "@"),
        // Data of a message class: the octets as they are.
        (0xf5, b"\xff", "ÿ"),
    ] {
        let inbound = inbound_of(&texted(data_coding, octets));
        assert_eq!((inbound.text.as_str(), inbound.segment), (text, None));
        assert_eq!(inbound.data_coding, data_coding);
    }
}

#[test]
fn the_segments_of_a_longer_text_are_named() {
    let of = |header: &[u8]| {
        let text = [header, b"STOP"].concat();
        inbound_of(&texted(0, &text).with_header())
    };
    let segment = |reference, number, of| {
        Some(Segment {
            reference,
            number,
            of,
        })
    };
    let short = of(&[5, 0, 3, 7, 2, 1]);
    assert_eq!(
        (short.text.as_str(), short.segment),
        ("STOP", segment(7, 1, 2))
    );
    // Behind an element for a port.
    let long = of(&[12, 5, 4, 0, 80, 0, 80, 8, 4, 1, 7, 3, 2]);
    assert_eq!(
        (long.text.as_str(), long.segment),
        ("STOP", segment(0x107, 2, 3))
    );
    assert_eq!(of(&[4, 5, 2, 0, 80]).segment, None);
    // A length beyond the text.
    assert_eq!(of(&[200]).segment, None);
    let tlv = |tag, value: &[u8]| Tlv {
        tag,
        value: value.to_vec(),
    };
    let by_parameters = Message {
        tlvs: vec![
            tlv(tag::SAR_MSG_REF_NUM, &[1, 7]),
            tlv(tag::SAR_TOTAL_SEGMENTS, &[3]),
            tlv(tag::SAR_SEGMENT_SEQNUM, &[2]),
        ],
        ..texted(0, b"STOP")
    };
    assert_eq!(inbound_of(&by_parameters).segment, segment(0x107, 2, 3));
}

/// The text of a `data_sm` is a parameter, and its fields are fewer (section 4.7.1).
#[test]
fn a_data_sm_is_read() {
    let body = |text: &[u8]| {
        let head = b"\0\x01\x014915112345678\0\x05\0ACME\0\x04\0\0\x04\x24\0";
        [&head[..], &[text.len() as u8], text].concat()
    };
    let arrival = |body: &[u8]| inbound_event(Command::DATA_SM, body, oneshot::channel().0);
    let InboundEvent {
        what: InboundKind::Receipt(receipt),
        source,
        destination,
        ..
    } = arrival(&body(b"id:7 stat:DELIVRD"))
    else {
        panic!("no receipt");
    };
    assert_eq!(receipt.message_id.as_deref(), Some("7"));
    assert_eq!(
        (source.as_str(), destination.as_str()),
        ("4915112345678", "ACME")
    );
}

/// Nothing that comes is dropped.
#[test]
fn what_is_no_delivery_is_kept_as_it_is() {
    for body in [&b""[..], b"CMT", b"CMT\0\x01\x01447887123456"] {
        let arrival = inbound_event(Command::DELIVER_SM, body, oneshot::channel().0);
        let InboundKind::Receipt(receipt) = arrival.what else {
            panic!("{body:?}");
        };
        assert!(receipt.is_unread());
        assert_eq!(receipt.text, String::from_utf8_lossy(body));
    }
    // Rubbish behind the text, as some centres write it.
    let delivery = texted(0, b"id:7 stat:DELIVRD");
    let written = delivery.write(Command::DELIVER_SM, 1).expect("it fits");
    for rubbish in [&[0][..], &[0, 0x1e, 0, 9, b'1'], &[0; 5]] {
        let body = [&written[16..], rubbish].concat();
        let arrival = inbound_event(Command::DELIVER_SM, &body, oneshot::channel().0);
        let InboundKind::Receipt(receipt) = arrival.what else {
            panic!("{rubbish:?}");
        };
        assert_eq!(receipt.message_id.as_deref(), Some("7"));
    }
}
