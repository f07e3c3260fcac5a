//! Receipts as centres write them. Each form names where it was published.

use proptest::prelude::*;

use super::super::Tlv;
use super::*;

const RECEIPT: u8 = 0x04;

fn delivered(esm_class: u8, text: &[u8]) -> Message {
    Message {
        esm_class,
        text: text.to_vec(),
        ..Message::default()
    }
}

fn parameter_of(tag: u16, value: &[u8]) -> Tlv {
    Tlv {
        tag,
        value: value.to_vec(),
    }
}

/// Id, state, error, submitted and done; what is missing is empty.
fn read(receipt: &Receipt) -> [&str; 5] {
    [
        receipt.message_id.as_deref(),
        receipt.state.as_ref().map(ReceiptState::name),
        receipt.error.as_deref(),
        receipt.submitted.as_deref(),
        receipt.done.as_deref(),
    ]
    .map(Option::unwrap_or_default)
}

/// The forms of the text.
#[rustfmt::skip]
const FORMS: &[(&str, [&str; 5])] = &[
    // SMPP 3.4, appendix B; SMPPSim writes `Text:`, too.
    ("id:4bc1 sub:001 dlvrd:001 submit date:2611250930 done date:2611250931 stat:DELIVRD err:000 Text:stat:EXPIRED err:5",
     ["4bc1", "delivered", "000", "2611250930", "2611250931"]),
    // Vonage, "How to read an SMPP delivery receipt".
    ("id:0000000012345678 sub:001 dlvrd:001 submit date:1601010100 done date:1601010101 stat:DELIVRD err:000 text:none",
     ["0000000012345678", "delivered", "000", "1601010100", "1601010101"]),
    // 8x8, "SMPP delivery receipts": one digit of an error.
    ("id:d4f5a1 sub:001 dlvrd:000 submit date:2301010100 done date:2301010101 stat:REJECTD err:1 Text:",
     ["d4f5a1", "rejected", "1", "2301010100", "2301010101"]),
    // Melrose Labs, "Delivery receipts": the states of SMPP 5.0.
    ("id:bf3b1dbd sub:001 dlvrd:000 submit date:2301010100 done date:2301010101 stat:SCHEDLD err:000 text:",
     ["bf3b1dbd", "scheduled", "000", "2301010100", "2301010101"]),
    ("id:bf3b1dbd sub:001 dlvrd:000 submit date:2301010100 done date:2301010101 stat:SKIPPED err:000 text:",
     ["bf3b1dbd", "skipped", "000", "2301010100", "2301010101"]),
    // Clickatell (jasmin, issue 70): dates with seconds.
    ("id:a29f6845555647139e5c8f3b817f2c9a sub:001 dlvrd:001 submit date:141023215253 done date:141023215259 stat:DELIVRD err:000 text:",
     ["a29f6845555647139e5c8f3b817f2c9a", "delivered", "000", "141023215253", "141023215259"]),
    // cloudhopper-smpp, DeliveryReceiptTest: dates with the century, neither sub nor dlvrd, no text.
    ("id:2E179B310EDE971B2760C72B7F026E1B submit date:20110314181534 done date:20110314181741 stat:DELIVRD err:0",
     ["2E179B310EDE971B2760C72B7F026E1B", "delivered", "0", "20110314181534", "20110314181741"]),
    // The same: the fields in another order.
    ("sub:001 id:74e02ee1-4e2f-4a6e-a78b-4b247d756a22 err:000 dlvrd:001 done date:110206193110 submit date:110206193041 stat:DELIVRD text:",
     ["74e02ee1-4e2f-4a6e-a78b-4b247d756a22", "delivered", "000", "110206193041", "110206193110"]),
    // The same, as it writes what it does not know: no date has nothing but zeros.
    ("id:0123456789 sub:000 dlvrd:000 submit date:0000000000 done date:0000000000 stat:BADSTAT err:000 text:",
     ["0123456789", "badstat", "000", "", ""]),
    // jSMPP, issue 62.
    ("id:1526758174 submit date:1701240904 done date:1701240904 stat:DELIVRD err:000 text:hellow",
     ["1526758174", "delivered", "000", "1701240904", "1701240904"]),
    // jasmin, issue 447: a word of the centre's own (vumi, pull request 897, has it, too).
    ("id:1216080510463401720 sub:001 dlvrd:001 submit date:1608051046 done date:0000000000 stat:FAILED err:002 Text:",
     ["1216080510463401720", "failed", "002", "1608051046", ""]),
    // smppex, issue 46: times of SMPP as dates.
    ("id:rdwjwxns18krxr9936ey96ymcw sub:000 dlvrd:000 submit date:180711070003912+ done date:180711070000012+ stat:UNDELIV err:000",
     ["rdwjwxns18krxr9936ey96ymcw", "undeliverable", "000", "180711070003912+", "180711070000012+"]),
    // go-smpp, smpptest: seconds since 1970.
    ("id:17 sub:001 dlvrd:001 submit date:1590075164 done date:1590075164 stat:DELIVRD err:000 Text:1",
     ["17", "delivered", "000", "1590075164", "1590075164"]),
    // php-smpp, issue 29: a space behind the colon; issue 70: four digits of an error.
    ("id:117062714244798261 sub:001 dlvrd:001 submit date:1706271624 done date:1706271624 stat: DELIVRD err: 0 text:",
     ["117062714244798261", "delivered", "0", "1706271624", "1706271624"]),
    ("id:117062714244798261 sub:001 dlvrd:001 submit date:1706271624 done date:1706271624 stat:DELIVRD err:0000 text:Hllo world",
     ["117062714244798261", "delivered", "0000", "1706271624", "1706271624"]),
    // vumi, TestDeliveryYo: one digit of a count, and a number as a state (section 5.2.28).
    ("id:1e93 sub:1   dlvrd:1   submit date:120315  done date:120315 stat:2 err:0 text:",
     ["1e93", "delivered", "0", "120315", "120315"]),
    // sms-gateway of somleng: the whole word.
    ("id:5f sub:001 dlvrd:001 submit date:2301010100 done date:2301010101 stat:DELIVERED err:000 text:",
     ["5f", "delivered", "000", "2301010100", "2301010101"]),
    // A gateway for CMPP, SMGP and SMPP: empty dates, and no space before the next field.
    ("id:9001 sub:001 dlvrd:001 submit date:done date:stat:DELIVRD err:000",
     ["9001", "delivered", "000", "", ""]),
    // A bridge to HTTP: names without a space, values without one behind them.
    ("id:1 sub:001 dlvrd:001 submitdate:2101010000donedate:2101010001 stat:DELIVRD err:000 Text:dlr",
     ["1", "delivered", "000", "2101010000", "2101010001"]),
    // A lookup of numbers over Kannel: fields of the centre's own, some of them empty.
    ("id:40072910491419819 sub:001 dlvrd:001 submit date:1007291049 done date:1007291049 stat:UNDELIV err: IMSI: MSC: ORN:VipNet MCCMNC:",
     ["40072910491419819", "undeliverable", "", "1007291049", "1007291049"]),
    ("id:40072910491419819 sub:001 dlvrd:001 submit date:1007291049 done date:1007291049 stat:UNDELIV err:001 IMSI: MSC:",
     ["40072910491419819", "undeliverable", "001", "1007291049", "1007291049"]),
    // Names in capitals, and commas between the fields.
    ("Id:77, Sub:001, Dlvrd:001, Submit Date:2611250930, Done Date:2611250931, Stat:DELIVRD, Err:000, Text:",
     ["77", "delivered", "000", "2611250930", "2611250931"]),
    ("ID:77 STAT:EXPIRED DONE DATE:2026-11-25 09:31:00 ERR:010",
     ["77", "expired", "010", "", "2026-11-25 09:31:00"]),
];

#[test]
fn every_form_is_read_with_and_without_the_class() {
    for (text, wanted) in FORMS {
        for esm_class in [RECEIPT, 0x20, 0] {
            let receipt = Receipt::of(&delivered(esm_class, text.as_bytes()));
            let receipt = receipt.unwrap_or_else(|| panic!("no receipt: {text}"));
            assert_eq!(read(&receipt), *wanted, "{text}");
            assert_eq!(receipt.text, *text);
        }
    }
}

/// vumi, pull request 635: an operator writes its receipts in UCS-2. node-smpp, issue 68, and go-smpp, issue 14: the
/// class of the text is that of the message, and the receipt is ASCII all the same.
#[test]
fn a_receipt_is_read_in_whichever_way_it_is_written() {
    for (text, wanted) in FORMS {
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let marked = [&[0xfe, 0xff], big.as_slice()].concat();
        for octets in [text.as_bytes(), &big, &little, &marked] {
            for (esm_class, data_coding) in [(RECEIPT, 8), (RECEIPT, 0), (0, 8), (0, 0), (0, 3)] {
                let delivery = Message {
                    data_coding,
                    tlvs: vec![parameter_of(tag::MESSAGE_PAYLOAD, octets)],
                    ..delivered(esm_class, b"")
                };
                let receipt = Receipt::of(&delivery).expect("a receipt");
                assert_eq!(read(&receipt), *wanted, "{data_coding} {text}");
            }
        }
    }
    // go-smpp, issue 14: only the text behind `Text:` is in UCS-2.
    let mixed = [&b"id:5 stat:DELIVRD err:000 Text:"[..], &[4, 0x36, 4, 0x37]].concat();
    let receipt = Receipt::of(&Message {
        data_coding: 8,
        ..delivered(0, &mixed)
    });
    let receipt = receipt.expect("a receipt");
    assert_eq!(read(&receipt), ["5", "delivered", "000", "", ""]);
    // A header before the text, as a part of a longer one has.
    let part = [&[5, 0, 3, 1, 1, 1][..], b"id:5 stat:DELIVRD"].concat();
    let receipt = Receipt::of(&delivered(0x44, &part)).expect("a receipt");
    assert_eq!(read(&receipt)[..2], ["5", "delivered"]);
}

#[test]
fn parameters_have_precedence_and_are_enough() {
    // cloudhopper-smpp, DeliveryReceiptTest: the id of the text is decimal, that of the parameter hexadecimal.
    let text =
        b"id:0059113978 sub:001 dlvrd:001 submit date:1002101730 done date:1002101731 stat:EXPIRED err:000 text:";
    let both = Message {
        tlvs: vec![
            parameter_of(0x000e, &[1]),
            parameter_of(tag::RECEIPTED_MESSAGE_ID, b"38601fa\0"),
            parameter_of(tag::MESSAGE_STATE, &[2]),
        ],
        ..delivered(RECEIPT, text)
    };
    let receipt = Receipt::of(&both).expect("a receipt");
    let wanted = ["38601fa", "delivered", "000", "1002101730", "1002101731"];
    assert_eq!(read(&receipt), wanted);
    // Sinch, "Message state information", and Melrose Labs: with a network's own error. No text, no class.
    for id in [&b"38601fa"[..], b"38601fa\0", b"38601fa \0\0\0"] {
        let alone = Message {
            tlvs: vec![
                parameter_of(tag::RECEIPTED_MESSAGE_ID, id),
                parameter_of(tag::MESSAGE_STATE, &[5]),
                parameter_of(tag::NETWORK_ERROR_CODE, &[3, 1, 4]),
            ],
            ..delivered(0, b"")
        };
        let receipt = Receipt::of(&alone).expect("a receipt");
        assert_eq!(read(&receipt), ["38601fa", "undeliverable", "260", "", ""]);
        assert_eq!(receipt.label(), "undeliverable");
    }
    // An empty parameter says nothing, an unknown number no state.
    let empty = Message {
        tlvs: vec![
            parameter_of(tag::RECEIPTED_MESSAGE_ID, b"\0"),
            parameter_of(tag::MESSAGE_STATE, &[77]),
        ],
        ..delivered(RECEIPT, text)
    };
    let receipt = Receipt::of(&empty).expect("a receipt");
    assert_eq!(read(&receipt)[..2], ["0059113978", "expired"]);
}

/// What cannot be read keeps its text.
#[test]
fn a_receipt_that_cannot_be_read_is_one() {
    for text in [
        "",
        // Vodafone (a mail to the developers of Kannel, "new DLR format"): by position.
        "00,0210021543,0210021500,,447887123456,10110200000000,we2345678i9o03er45ty67u",
        // node-smpp, issue 140.
        "message text:9 sub:001 dlvrd:0 submit date:210101 done date: stat:ACCEPTD err:000",
        // smpp-pdu, DeliveryAcknowledgement: no id.
        "id: sub:001 dlvrd:001 submit date:7001010000 done date:7001010000 stat:UNKNOWN err:000 text:none",
    ] {
        let receipt = Receipt::of(&delivered(RECEIPT, text.as_bytes())).expect("a receipt");
        assert!(receipt.is_unread(), "{receipt:?}");
        assert_eq!(receipt.label(), "unread");
        assert_eq!(receipt.text, text);
    }
    let broken = Receipt::unreadable(b"\0\x01\x01447887123456\xff");
    assert!(broken.is_unread() && broken.text.contains("447887123456"));
}

#[test]
fn what_a_phone_sends_is_no_receipt() {
    for text in [
        "",
        "STOP",
        "id:5 is my number",
        "stat:DELIVRD",
        "my id:5 and stat:1",
        "paid:5 stat:DELIVRD",
    ] {
        assert_eq!(Receipt::of(&delivered(0, text.as_bytes())), None, "{text}");
        // An answer of a phone to a message (section 5.2.12).
        assert_eq!(
            Receipt::of(&delivered(0x08, text.as_bytes())),
            None,
            "{text}"
        );
    }
}

proptest! {
    /// With any text nothing panics, and what is found is in the text.
    #[test]
    fn what_is_found_is_in_the_text(
        parts in proptest::collection::vec("(id|stat|err|submit date|done date|text|sub|x)? ?:? ?[a-zé0-9:,; ]{0,6}", 0..12),
        octets in proptest::collection::vec(any::<u8>(), 0..80),
        esm_class in any::<u8>(),
        data_coding in any::<u8>(),
    ) {
        let text = parts.concat();
        for octets in [text.as_bytes(), &octets] {
            let delivery = Message { data_coding, ..delivered(esm_class, octets) };
            if let Some(receipt) = Receipt::of(&delivery) {
                for field in [receipt.message_id, receipt.error, receipt.submitted, receipt.done].into_iter().flatten() {
                    prop_assert!(!field.is_empty() && receipt.text.contains(&field));
                }
            }
        }
    }
}
