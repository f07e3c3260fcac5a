//! Checks with another library what is written.

use sluiced_core::judge::Outcome;
use sluiced_ports::downstream::Downstream as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::BOUND;
use super::{Centre, call, downstream, judged};

/// Another library reads each field as it was written, and its answers are understood.
#[tokio::test]
async fn another_library_reads_what_is_written() {
    use rusmpp::pdus::{BindTransceiverResp, SubmitSmResp};
    use rusmpp::tokio_codec::CommandCodec;
    use rusmpp::types::COctetString;
    use rusmpp::values::{Npi, Ton};
    use rusmpp::{Command as Theirs, CommandStatus as TheirStatus, Pdu};
    use tokio_util::codec::{Decoder as _, Encoder as _};

    let centre = Centre::new().await;
    let keys = "bind = \"transceiver\"\nsystem_type = \"OTA\"\nregistered_delivery = 1\nvalidity = \"1h\"\n\
                service_type = \"CMT\"\ntlvs = { 0x1401 = \"17\" }\n[routes.sms.results]\nrouting_key = \"r\"\non = [\"receipt\"]";
    let downstream = downstream(&centre, keys);
    let serve = async {
        let (mut stream, _) = centre.0.accept().await.unwrap();
        let (mut codec, mut received) = (CommandCodec::new(), bytes::BytesMut::new());
        let mut seen = Vec::new();
        while seen.len() < 4 {
            let command = loop {
                if let Some(command) = codec.decode(&mut received).unwrap() {
                    break command;
                }
                assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
            };
            let sequence = command.sequence_number();
            let id = COctetString::from_static_slice(b"their-id\0").unwrap();
            let answer = match command.pdu() {
                Some(Pdu::BindTransceiver(_)) => Theirs::new(
                    TheirStatus::EsmeRok,
                    sequence,
                    BindTransceiverResp::builder().build(),
                ),
                _ => Theirs::new(
                    TheirStatus::EsmeRok,
                    sequence,
                    SubmitSmResp::builder().message_id(id).build(),
                ),
            };
            seen.push(command.pdu().cloned().unwrap());
            let mut written = bytes::BytesMut::new();
            codec.encode(&answer, &mut written).unwrap();
            stream.write_all(&written).await.unwrap();
        }
        seen
    };
    let calls = async {
        downstream.warm(BOUND).await.unwrap();
        let short = judged(call(&downstream, "Hi €")).await;
        let long = judged(call(&downstream, &"ж".repeat(100))).await;
        (short, long)
    };
    let (seen, (short, long)) = tokio::join!(serve, calls);
    for judgement in [short, long] {
        assert_eq!(judgement.outcome, Outcome::Accepted, "{judgement:?}");
        let body: serde_json::Value =
            serde_json::from_slice(&judgement.answer.unwrap().body).unwrap();
        assert_eq!(body["message_id"], "their-id");
    }
    let Pdu::BindTransceiver(bind) = &seen[0] else {
        panic!("{seen:?}");
    };
    assert_eq!(bind.system_id.as_str(), "account");
    assert_eq!(bind.password.as_str(), "secret");
    assert_eq!(bind.system_type.as_str(), "OTA");
    let submits: Vec<_> = seen[1..]
        .iter()
        .map(|pdu| match pdu {
            Pdu::SubmitSm(submit) => submit,
            other => panic!("{other:?}"),
        })
        .collect();
    let first = submits[0];
    assert_eq!(
        (first.source_addr_ton, first.source_addr_npi),
        (Ton::Alphanumeric, Npi::Unknown)
    );
    assert_eq!(first.source_addr.as_str(), "Test");
    assert_eq!(
        (first.dest_addr_ton, first.dest_addr_npi),
        (Ton::International, Npi::Isdn)
    );
    assert_eq!(first.destination_addr.as_str(), "4915112345678");
    assert_eq!(first.validity_period.as_str(), "000000010000000R");
    assert_eq!(u8::from(first.registered_delivery), 1);
    assert_eq!(u8::from(first.data_coding), 0);
    assert_eq!(first.short_message().as_ref(), &b"Hi \x1b\x65"[..]);
    assert_eq!(first.tlvs().len(), 1);
    for (number, part) in [(1, submits[1]), (2, submits[2])] {
        assert_eq!(u8::from(part.esm_class), 0x40);
        assert_eq!(u8::from(part.data_coding), 8);
        let text = part.short_message().as_ref();
        assert_eq!(
            (text[..3].to_vec(), &text[4..6]),
            (vec![5, 0, 3], &[2, number][..])
        );
    }
}
