//! Checks with another library what is written.

use bytes::BytesMut;
use rusmpp::pdus::{BindTransceiverResp, SubmitSm, SubmitSmResp};
use rusmpp::tokio_codec::CommandCodec;
use rusmpp::types::COctetString;
use rusmpp::values::{Npi, Ton};
use rusmpp::{Command as Theirs, CommandStatus as TheirStatus, Pdu};
use sluiced_core::judge::Outcome;
use sluiced_ports::downstream::{Downstream as _, Judgement};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::codec::{Decoder as _, Encoder as _};

use super::super::BOUND;
use super::{Centre, call, downstream, judged};

/// Another library reads each field as it was written, and its answers are understood.
#[tokio::test]
async fn another_library_reads_what_is_written() {
    let centre = Centre::new().await;
    let keys = "bind = \"transceiver\"\nsystem_type = \"OTA\"\nregistered_delivery = 1\nvalidity = \"1h\"\n\
                service_type = \"CMT\"\ntlvs = { 0x1401 = \"17\" }\n[routes.sms.results]\nrouting_key = \"r\"\non = [\"receipt\"]";
    let downstream = downstream(&centre, keys);
    let calls = async {
        downstream.warm(BOUND).await.unwrap();
        let short = judged(call(&downstream, "Hi €")).await;
        let long = judged(call(&downstream, &"ж".repeat(100))).await;
        [short, long]
    };
    let (seen, judgements) = tokio::join!(serve_by_the_library(&centre, 4), calls);
    for judgement in judgements {
        assert_was_accepted_with_their_id(judgement);
    }
    assert_the_bind_is_as_configured(&seen[0]);
    let submits: Vec<_> = seen[1..]
        .iter()
        .map(|pdu| match pdu {
            Pdu::SubmitSm(submit) => submit,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_the_short_message_is_as_configured(submits[0]);
    for (number, part) in [(1, submits[1]), (2, submits[2])] {
        assert_is_a_part_of_two(part, number);
    }
}

/// Answers this many commands, and returns them.
async fn serve_by_the_library(centre: &Centre, count: usize) -> Vec<Pdu> {
    let (mut stream, _) = centre.0.accept().await.unwrap();
    let (mut codec, mut received) = (CommandCodec::new(), BytesMut::new());
    let mut seen = Vec::new();
    while seen.len() < count {
        let command = loop {
            if let Some(command) = codec.decode(&mut received).unwrap() {
                break command;
            }
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        };
        let mut written = BytesMut::new();
        codec.encode(&answer(&command), &mut written).unwrap();
        seen.push(command.pdu().cloned().unwrap());
        stream.write_all(&written).await.unwrap();
    }
    seen
}

fn answer(command: &Theirs) -> Theirs {
    let sequence = command.sequence_number();
    let id = COctetString::from_static_slice(b"their-id\0").unwrap();
    match command.pdu() {
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
    }
}

fn assert_was_accepted_with_their_id(judgement: Judgement) {
    assert_eq!(judgement.outcome, Outcome::Accepted, "{judgement:?}");
    let body: serde_json::Value = serde_json::from_slice(&judgement.answer.unwrap().body).unwrap();
    assert_eq!(body["message_id"], "their-id");
}

fn assert_the_bind_is_as_configured(pdu: &Pdu) {
    let Pdu::BindTransceiver(bind) = pdu else {
        panic!("{pdu:?}");
    };
    assert_eq!(bind.system_id.as_str(), "account");
    assert_eq!(bind.password.as_str(), "secret");
    assert_eq!(bind.system_type.as_str(), "OTA");
}

fn assert_the_short_message_is_as_configured(submit: &SubmitSm) {
    assert_eq!(
        (submit.source_addr_ton, submit.source_addr_npi),
        (Ton::Alphanumeric, Npi::Unknown)
    );
    assert_eq!(submit.source_addr.as_str(), "Test");
    assert_eq!(
        (submit.dest_addr_ton, submit.dest_addr_npi),
        (Ton::International, Npi::Isdn)
    );
    assert_eq!(submit.destination_addr.as_str(), "4915112345678");
    assert_eq!(submit.validity_period.as_str(), "000000010000000R");
    assert_eq!(u8::from(submit.registered_delivery), 1);
    assert_eq!(u8::from(submit.data_coding), 0);
    assert_eq!(submit.short_message().as_ref(), &b"Hi \x1b\x65"[..]);
    assert_eq!(submit.tlvs().len(), 1);
}

fn assert_is_a_part_of_two(part: &SubmitSm, number: u8) {
    assert_eq!(u8::from(part.esm_class), 0x40);
    assert_eq!(u8::from(part.data_coding), 8);
    let text = part.short_message().as_ref();
    assert_eq!(
        (text[..3].to_vec(), &text[4..6]),
        (vec![5, 0, 3], &[2, number][..])
    );
}
