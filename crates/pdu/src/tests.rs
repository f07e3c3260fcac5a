//! PDUs are written as the specification shows, and read as centres write them.

use proptest::prelude::*;

use super::*;

#[test]
fn a_bind_is_written_as_the_specification_shows_it() {
    let bind = Bind {
        bind_as: BindAs::Transmitter,
        system_id: "SMPP3TEST",
        password: "secret08",
        system_type: "SUBMIT1",
    };
    // The example of section 3.2.2, except the version and the range of addresses.
    let mut wanted =
        b"\0\0\0\x2f\0\0\0\x02\0\0\0\0\0\0\0\x01SMPP3TEST\0secret08\0SUBMIT1\0".to_vec();
    wanted.extend([0x34, 0, 0, 0]);
    let written = bind.write(1).expect("it fits");
    assert_eq!(written, wanted);
    let read = frame(&written).expect("a PDU").expect("all of it");
    assert_eq!(
        (read.command, read.sequence),
        (Command::BIND_TRANSMITTER, 1)
    );
    let read = Bind::read(&read).expect("a bind");
    assert_eq!((read.system_id, read.password), ("SMPP3TEST", "secret08"));
    let long = Bind {
        system_id: "sixteen letters.",
        ..bind
    };
    assert_eq!(long.write(1), Err(Malformed::Long(16, 15)));
}

#[test]
fn a_message_is_written_field_by_field() {
    let message = Message {
        service_type: b"OTP".to_vec(),
        source: Address {
            ton: 5,
            npi: 0,
            digits: b"Bank".to_vec(),
        },
        destination: Address {
            ton: 1,
            npi: 1,
            digits: b"4915112345678".to_vec(),
        },
        validity: b"000001000000000R".to_vec(),
        registered_delivery: 1,
        data_coding: 8,
        text: vec![4, 0x36],
        tlvs: vec![Tlv {
            tag: 0x1400,
            value: b"12\0".to_vec(),
        }],
        ..Message::default()
    };
    let message = message.with_header();
    let written = message.write(Command::SUBMIT_SM, 7).expect("it fits");
    let body = [
        &b"OTP\0\x05\0Bank\0\x01\x01"[..],
        b"4915112345678\0\x40\0\0\0",
        b"000001000000000R\0\x01\0\x08\0",
        b"\x02\x04\x36\x14\0\0\x03",
        b"12\0",
    ]
    .concat();
    assert_eq!(written[16..], body[..]);
    assert_eq!(
        written[..16],
        [
            0,
            0,
            0,
            written.len() as u8,
            0,
            0,
            0,
            4,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            7
        ]
    );
    assert_eq!(Message::read(&written[16..]), Ok(message));
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_written() {
    let write = |change: fn(&mut Message)| {
        let mut message = Message::default();
        change(&mut message);
        message.write(Command::SUBMIT_SM, 1).err()
    };
    assert_eq!(write(|m| m.text = vec![1; 254]), None);
    assert_eq!(
        write(|m| m.text = vec![1; 255]),
        Some(Malformed::Long(255, 254))
    );
    assert_eq!(
        write(|m| m.destination.digits = vec![b'1'; 21]),
        Some(Malformed::Long(21, 20))
    );
    // It would end the address, and the rest would be read as other fields.
    assert_eq!(
        write(|m| m.source.digits = b"1\x002".to_vec()),
        Some(Malformed::Zero)
    );
}

#[test]
fn responses_are_read_as_centres_write_them() {
    let whole = response(Command::SUBMIT_SM, CommandStatus::OK, 9, "id-1");
    let read = frame(&whole).expect("a PDU").expect("all of it");
    assert_eq!(read.command, Command::SUBMIT_SM.response());
    assert!(read.command.is_response());
    assert_eq!(response_id(read.body), "id-1");
    let refused = response(Command::SUBMIT_SM, CommandStatus::THROTTLED, 9, "id-1");
    let read = frame(&refused).expect("a PDU").expect("all of it");
    assert_eq!(
        (read.status, read.body),
        (CommandStatus::THROTTLED, &b""[..])
    );
    assert_eq!(response_id(b"without its end"), "without its end");
    assert_eq!(response_id(b"caf\xe9\0rest"), "caf\u{fffd}");
}

#[test]
fn a_length_that_makes_no_sense_ends_the_stream() {
    assert_eq!(frame(b"\0\0\0"), Ok(None));
    assert_eq!(
        frame(b"\0\0\0\x0f0123456789abcdef"),
        Err(Malformed::Length(15))
    );
    assert_eq!(frame(b"HTTP/1.1"), Err(Malformed::Length(0x4854_5450)));
    let two = [
        plain(Command::ENQUIRE_LINK, CommandStatus::OK, 1),
        plain(Command::UNBIND, CommandStatus::OK, 2),
    ]
    .concat();
    let first = frame(&two).expect("a PDU").expect("all of it");
    let second = frame(&two[first.length()..])
        .expect("a PDU")
        .expect("all of it");
    assert_eq!((first.sequence, second.command), (1, Command::UNBIND));
    let mut later = two.clone();
    set_sequence(&mut later, 0x0102_0304);
    assert_eq!(later[12..16], [1, 2, 3, 4]);
}

#[test]
fn statuses_are_known_by_name_and_number() {
    for text in [
        "ESME_RTHROTTLED",
        "RTHROTTLED",
        "esme_rthrottled",
        "0x58",
        "0X58",
        "88",
    ] {
        assert_eq!(text.parse(), Ok(CommandStatus::THROTTLED), "{text}");
    }
    assert_eq!("1027".parse(), Ok(CommandStatus(0x403)));
    for text in ["", "ESME_", "0x", "5xx", "-1", "4294967296"] {
        assert!(text.parse::<CommandStatus>().is_err(), "{text}");
    }
    assert!(NAMES.is_sorted());
    assert_eq!(
        CommandStatus::THROTTLED.to_string(),
        "ESME_RTHROTTLED (0x58)"
    );
    assert_eq!(CommandStatus(0x403).to_string(), "status 0x403");
    assert_eq!(CommandStatus(0x403).label(), "vendor");
    assert_eq!(CommandStatus(0x0b).label(), "refused");
    assert_eq!(CommandStatus(0x45).label(), "failed");
    assert_eq!(CommandStatus::SYSTEM_ERROR.label(), "away");
}

fn octets(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1..=255_u8, 0..=most)
}

prop_compose! {
    fn address()(ton in any::<u8>(), npi in any::<u8>(), digits in octets(20)) -> Address {
        Address { ton, npi, digits }
    }
}

prop_compose! {
    fn message()(
        service_type in octets(5),
        source in address(),
        destination in address(),
        numbers in any::<[u8; 3]>(),
        validity in octets(16),
        text in proptest::collection::vec(any::<u8>(), 0..=254),
        tlvs in proptest::collection::vec((any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..4),
    ) -> Message {
        let [esm_class, registered_delivery, data_coding] = numbers;
        let tlvs = tlvs.into_iter().map(|(tag, value)| Tlv { tag, value }).collect();
        Message { service_type, source, destination, esm_class, validity, registered_delivery, data_coding, text, tlvs }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in message(), sequence in 1..=LAST_SEQUENCE) {
        let written = message.write(Command::DELIVER_SM, sequence).expect("it fits");
        let read = frame(&written).expect("a PDU").expect("all of it");
        prop_assert_eq!((read.sequence, read.length()), (sequence, written.len()));
        prop_assert_eq!(Message::read(read.body).expect("a message"), message);
        prop_assert_eq!(frame(&written[..written.len() - 1]), Ok(None));
    }

    /// With any input, nothing panics, and nothing is read past its end.
    #[test]
    fn rubbish_is_refused(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(frame(&octets).map_or(true, |frame| frame.is_none_or(|frame| frame.length() <= octets.len())));
        if let Ok(message) = Message::read(&octets) {
            drop(Receipt::of(&message));
        }
        drop(response_id(&octets));
    }
}

/// Whatever one PDU says of its own fields, the one behind it is found, and nothing of it is taken.
#[test]
fn a_pdu_never_reaches_into_the_next() {
    let next = response(Command::SUBMIT_SM, CommandStatus::OK, 2, "second");
    let pdu = |command: Command, body: &[u8]| {
        let mut pdu = plain(command, CommandStatus::OK, 1);
        pdu.extend(body);
        let length = pdu.len() as u32;
        pdu[..4].copy_from_slice(&length.to_be_bytes());
        pdu
    };
    let submit_resp = Command::SUBMIT_SM.response();
    let long_id = [&[b'a'; 80][..], &[0]].concat();
    for (command, body, id) in [
        (submit_resp, &b"first"[..], "first"),
        (submit_resp, b"", ""),
        (submit_resp, &long_id, &"a".repeat(80)),
        (submit_resp, b"id\0\x04\x24\xff\xff\x01", "id"),
        (Command::ENQUIRE_LINK.response(), b"xx", "xx"),
        (Command::GENERIC_NACK, b"\0", ""),
    ] {
        let received = [pdu(command, body), next.clone()].concat();
        let first = frame(&received).expect("a PDU").expect("all of it");
        assert_eq!(response_id(first.body), id);
        let second = frame(&received[first.length()..]).expect("a PDU");
        let second = second.expect("all of it");
        assert_eq!(
            (second.sequence, response_id(second.body)),
            (2, "second".to_owned())
        );
    }
    // A text that is longer than its PDU, and an address without its end.
    let fields = b"\0\0\0src\0\0\0dst\0\0\0\0\0\0\0\0\0\0";
    for body in [[&fields[..], b"\xc8short"].concat(), b"\0\0\0src".to_vec()] {
        let received = [pdu(Command::DELIVER_SM, &body), next.clone()].concat();
        let first = frame(&received).expect("a PDU").expect("all of it");
        assert_eq!(Message::read(first.body), Err(Malformed::Short));
    }
    for length in [0_u32, 15, 70_001, u32::MAX] {
        let received = [&length.to_be_bytes()[..], &[0; 12]].concat();
        assert_eq!(frame(&received), Err(Malformed::Length(length)));
    }
}
