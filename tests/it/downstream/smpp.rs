//! SMPP against centres that a test writes: what is written, what answers and their absence come to, and how binds are
//! kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use sluiced::core::judge::Outcome;
use sluiced::core::smpp::{Bind, Command, CommandStatus, Message as Sms, frame, plain, response};
use sluiced::downstream::{SmppCredentials, SmppDownstream};
use sluiced::ports::clock::Clock;
use sluiced::ports::connect::Secret;
use sluiced::ports::downstream::{
    Downstream as _, Facts, Gate, Judgement, Silence, Status, TooLate,
};
use sluiced::ports::message::Message;
use sluiced::settings::types::{Downstream, Smpp};
use sluiced::settings::{Extra, load_with};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::BOUND;
use crate::support::authority::Authority;
use crate::support::machine;
use crate::support::secure_front::acceptor;

/// A listener that a test answers for.
struct Centre(TcpListener);

impl Centre {
    async fn new() -> Self {
        machine::share();
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// The next connection, bound.
    async fn bound(&self) -> Session<TcpStream> {
        let mut session = self.accepted().await;
        session.bind(CommandStatus::OK).await;
        session
    }

    async fn accepted(&self) -> Session<TcpStream> {
        let (stream, _) = timeout(BOUND, self.0.accept()).await.unwrap().unwrap();
        Session {
            stream,
            received: Vec::new(),
        }
    }
}

struct Session<T> {
    stream: T,
    received: Vec<u8>,
}

/// A PDU that came.
#[derive(Debug)]
struct Got {
    command: Command,
    status: CommandStatus,
    sequence: u32,
    body: Vec<u8>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Session<T> {
    /// The next PDU; `None`: the connection has ended.
    async fn next(&mut self) -> Option<Got> {
        loop {
            if let Some(pdu) = frame(&self.received).unwrap() {
                let got = Got {
                    command: pdu.command,
                    status: pdu.status,
                    sequence: pdu.sequence,
                    body: pdu.body.to_vec(),
                };
                self.received.drain(..16 + got.body.len());
                return Some(got);
            }
            let read = timeout(BOUND, self.stream.read_buf(&mut self.received));
            match read.await.expect("a PDU in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn write(&mut self, pdu: &[u8]) {
        self.stream.write_all(pdu).await.unwrap();
    }

    async fn bind(&mut self, status: CommandStatus) {
        let got = self.next().await.expect("a bind");
        self.write(&response(got.command, status, got.sequence, "centre"))
            .await;
    }

    /// A `submit_sm`, which is not answered yet.
    async fn submitted(&mut self) -> (u32, Sms) {
        let got = self.next().await.expect("a submit_sm");
        assert_eq!(got.command, Command::SUBMIT_SM, "{got:?}");
        (got.sequence, Sms::read(&got.body).unwrap())
    }

    async fn answer(&mut self, sequence: u32, status: CommandStatus, id: &str) {
        self.write(&response(Command::SUBMIT_SM, status, sequence, id))
            .await;
    }

    /// Nothing came, and nothing comes for a moment.
    async fn is_quiet(&mut self) -> bool {
        self.received.is_empty()
            && timeout(Duration::from_millis(100), self.next())
                .await
                .is_err()
    }
}

fn smpp(address: SocketAddr, keys: &str) -> Smpp {
    let scheme = if keys.contains("ca_file") {
        "smpps"
    } else {
        "smpp"
    };
    let text = format!(
        "limits.account.rate = \"1/1s\"\nservice.grace = \"1m\"\n[routes.sms]\nqueue = \"sms\"\nlimits = [\"account\"]\n\
         [routes.sms.downstream]\nkind = \"smpp\"\nurl = \"{scheme}://{address}\"\nsystem_id = \"account\"\n\
         password = \"secret\"\nsource = \"Test\"\ndestination = \"+4915112345678\"\ntext = \"{{{{ body.text }}}}\"\n\
         connect_timeout = \"10s\"\n{keys}\n"
    );
    let extra = Extra {
        name: "a test".to_owned(),
        text,
    };
    let loaded = load_with(None, &[], Some(extra), std::iter::empty());
    let mut routes = loaded
        .unwrap_or_else(|faults| panic!("{faults}"))
        .settings
        .routes;
    match routes.remove("sms").unwrap().downstream {
        Downstream::Smpp(smpp) => *smpp,
        Downstream::Http(_) => panic!("another kind"),
    }
}

fn downstream(centre: &Centre, keys: &str) -> Arc<SmppDownstream> {
    let smpp = smpp(centre.address(), keys);
    let password = smpp.password.clone().unwrap();
    let credentials = SmppCredentials {
        password: Secret::from(password),
        certificate: None,
    };
    Arc::new(SmppDownstream::new(&smpp, credentials, true, None).unwrap())
}

fn message(text: &str) -> Message {
    Message {
        body: serde_json::json!({ "text": text }).to_string().into(),
        made_id: Some("m-1".to_owned()),
        ..Message::default()
    }
}

/// A call that may leave for so long.
fn call_within(
    downstream: &Arc<SmppDownstream>,
    text: &str,
    open: Duration,
) -> JoinHandle<Result<Judgement, TooLate>> {
    let facts = Facts {
        route: "sms",
        attempt: 1,
    };
    let call = downstream.prepare(&message(text), facts).unwrap();
    let clock = Clock::start();
    let gate = Gate::new(clock, clock.now() + open);
    tokio::spawn(async move { timeout(BOUND * 2, call.send(gate)).await.expect("it ends") })
}

/// A call with all the time that it needs.
fn call(downstream: &Arc<SmppDownstream>, text: &str) -> JoinHandle<Result<Judgement, TooLate>> {
    call_within(downstream, text, BOUND)
}

async fn warmed(downstream: &Arc<SmppDownstream>, centre: &Centre) -> Session<TcpStream> {
    let (warm, session) = tokio::join!(downstream.warm(BOUND), centre.bound());
    warm.unwrap();
    session
}

/// What is written is what another library reads, field by field, and its answers are understood.
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
        let short = call(&downstream, "Hi €").await.unwrap().unwrap();
        let long = call(&downstream, &"ж".repeat(100)).await.unwrap().unwrap();
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

/// The last look at the clock is taken before the first octet: a call that is too late has written nothing.
#[tokio::test]
async fn nothing_is_written_once_the_gate_is_closed() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let facts = Facts {
        route: "sms",
        attempt: 1,
    };
    let late = downstream.prepare(&message("late"), facts).unwrap();
    let clock = Clock::start();
    let gate = Gate::new(clock, clock.now());
    while !gate.is_closed() {}
    assert_eq!(late.send(gate).await, Err(TooLate));
    assert!(session.is_quiet().await);
    let taken = call(&downstream, "in time");
    let (sequence, sms) = session.submitted().await;
    assert_eq!(sms.text, b"in time");
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(taken.await.unwrap().unwrap().outcome, Outcome::Accepted);
}

#[tokio::test]
async fn a_window_that_is_full_takes_nothing_until_an_answer_makes_room() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "window = 2");
    let mut session = warmed(&downstream, &centre).await;
    let first = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    // Two segments have no room beside the one.
    let short = Duration::from_millis(50);
    let late = call_within(&downstream, &"a".repeat(200), short);
    assert_eq!(late.await.unwrap(), Err(TooLate));
    let second = call(&downstream, &"a".repeat(200));
    assert!(session.is_quiet().await);
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(first.await.unwrap().unwrap().outcome, Outcome::Accepted);
    for number in 1..=2 {
        let (sequence, sms) = session.submitted().await;
        assert_eq!(sms.text[4..6], [2, number]);
        session.answer(sequence, CommandStatus::OK, "2").await;
    }
    assert_eq!(second.await.unwrap().unwrap().outcome, Outcome::Accepted);
}

/// A message of several segments has one outcome.
#[tokio::test]
async fn segments_are_judged_together() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let texts = "a".repeat(400);
    for (statuses, outcome, detail) in [
        (
            [0, 0x58, 0x08],
            Outcome::Throttled {
                wait: Duration::from_secs(1),
            },
            "1 of 3 segments taken; segment 2: ESME_RTHROTTLED (0x58); segment 3: ESME_RSYSERR (0x08)",
        ),
        (
            [0, 0, 0x0b],
            Outcome::Permanent,
            "2 of 3 segments taken; segment 3: ESME_RINVDSTADR (0x0b)",
        ),
        ([0, 0, 0], Outcome::Accepted, "3 of 3 segments taken"),
    ] {
        let called = call(&downstream, &texts);
        let mut sequences = Vec::new();
        for _ in 0..3 {
            sequences.push(session.submitted().await.0);
        }
        // The order of the answers means nothing.
        for (sequence, status) in sequences.into_iter().zip(statuses).rev() {
            session.answer(sequence, CommandStatus(status), "id").await;
        }
        let judgement = called.await.unwrap().unwrap();
        assert_eq!(
            (judgement.outcome, judgement.detail.as_str()),
            (outcome, detail)
        );
        assert!(judgement.maybe_delivered);
    }
}

#[tokio::test]
async fn a_bind_that_is_refused_is_named_and_no_message_may_have_arrived() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let refused = async {
        let mut session = centre.accepted().await;
        let got = session.next().await.unwrap();
        let frame = sluiced::core::smpp::Frame {
            command: got.command,
            status: got.status,
            sequence: got.sequence,
            body: &got.body,
        };
        assert_eq!(Bind::read(&frame).unwrap().password, "secret");
        let status = CommandStatus::INVALID_PASSWORD;
        session
            .write(&response(got.command, status, got.sequence, ""))
            .await;
    };
    let (warm, ()) = tokio::join!(downstream.warm(BOUND), refused);
    assert_eq!(
        warm.unwrap_err(),
        "0 of 1 binds: the centre refused the bind: ESME_RINVPASWD (0x0e)"
    );
    let judgement = call(&downstream, "1").await.unwrap().unwrap();
    assert_eq!(judgement.reply, Err(Silence::Connection));
    assert!(!judgement.maybe_delivered);
    assert_eq!(
        judgement.detail,
        "the centre refused the bind: ESME_RINVPASWD (0x0e)"
    );
}

#[tokio::test]
async fn what_is_no_centre_is_named() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let http = async {
        let mut session = centre.accepted().await;
        session.write(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        session.next().await;
    };
    let (warm, ()) = tokio::join!(downstream.warm(BOUND), http);
    assert_eq!(warm.unwrap_err(), "0 of 1 binds: no SMPP is spoken there");
    drop(centre.0);
    let why = call(&downstream, "1").await.unwrap().unwrap().detail;
    assert!(!why.is_empty());
}

/// Without an answer the message may be there, and its place in the window is free again.
#[tokio::test]
async fn no_answer_makes_room_and_may_have_been_delivered() {
    let centre = Centre::new().await;
    let downstream = downstream(
        &centre,
        "window = 1\ntimeout = \"300ms\"\nlatency = \"10ms\"",
    );
    let mut session = warmed(&downstream, &centre).await;
    let judgement = call(&downstream, "1").await.unwrap().unwrap();
    assert_eq!(judgement.reply, Err(Silence::Timeout));
    assert_eq!(judgement.outcome, Outcome::Transient);
    assert!(judgement.maybe_delivered);
    let (late, _) = session.submitted().await;
    let next = call(&downstream, "2");
    let (sequence, _) = session.submitted().await;
    // The late answer is no answer to the next call.
    session.answer(late, CommandStatus(0x0b), "").await;
    session.answer(sequence, CommandStatus::OK, "2").await;
    let judgement = next.await.unwrap().unwrap();
    assert_eq!(judgement.reply, Ok(Status::Smpp(CommandStatus::OK)));
}

/// A nack without a body answers what it names.
#[tokio::test]
async fn a_generic_nack_is_an_answer() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let called = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    session
        .write(&plain(Command::GENERIC_NACK, CommandStatus(0x02), sequence))
        .await;
    let judgement = called.await.unwrap().unwrap();
    assert_eq!(judgement.outcome, Outcome::Permanent);
}

#[tokio::test]
async fn a_silent_centre_is_asked_and_then_given_up() {
    let centre = Centre::new().await;
    let downstream = downstream(
        &centre,
        "enquire_link = \"100ms\"\ntimeout = \"2s\"\nlatency = \"10ms\"",
    );
    let mut session = warmed(&downstream, &centre).await;
    for _ in 0..3 {
        let asked = session.next().await.expect("an enquire_link");
        assert_eq!(asked.command, Command::ENQUIRE_LINK);
        let answer = plain(
            Command::ENQUIRE_LINK.response(),
            CommandStatus::OK,
            asked.sequence,
        );
        session.write(&answer).await;
    }
    // Ours is answered, too.
    session
        .write(&plain(Command::ENQUIRE_LINK, CommandStatus::OK, 77))
        .await;
    loop {
        let got = session.next().await.expect("an answer");
        if got.command == Command::ENQUIRE_LINK.response() {
            assert_eq!(got.sequence, 77);
            break;
        }
    }
    // Nothing is answered any more: the connection ends, and another one is bound.
    while session.next().await.is_some() {}
    centre.bound().await;
}

/// The centre ends a session: what it has is still answered, and new messages take the next connection.
#[tokio::test]
async fn an_unbind_waits_for_the_answers() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let called = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    session
        .write(&plain(Command::UNBIND, CommandStatus::OK, 5))
        .await;
    let got = session.next().await.expect("an answer");
    assert_eq!((got.command, got.sequence), (Command::UNBIND.response(), 5));
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(called.await.unwrap().unwrap().outcome, Outcome::Accepted);
    let mut session = centre.bound().await;
    let called = loop {
        let called = call(&downstream, "2");
        if timeout(Duration::from_millis(20), session.stream.readable())
            .await
            .is_ok()
        {
            break called;
        }
        // The new session is known a moment after its bind was answered.
        drop(called);
    };
    let (sequence, _) = session.submitted().await;
    session.answer(sequence, CommandStatus::OK, "2").await;
    drop(called);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_its_calls_without_an_answer() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let called = call(&downstream, "1");
    session.submitted().await;
    drop(session);
    let judgement = called.await.unwrap().unwrap();
    assert_eq!(judgement.reply, Err(Silence::Connection));
    assert!(judgement.maybe_delivered);
    centre.bound().await;
}

#[tokio::test]
async fn the_end_of_the_downstream_unbinds() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    drop(downstream);
    let got = session.next().await.expect("an unbind");
    assert_eq!(got.command, Command::UNBIND);
}

/// A stop waits until the centre has answered, so that the process does not end before.
#[tokio::test]
async fn a_close_waits_for_the_centre() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let closing = downstream.close();
    let answering = async {
        let got = session.next().await.expect("an unbind");
        assert_eq!(got.command, Command::UNBIND);
        let answer = plain(got.command.response(), CommandStatus::OK, got.sequence);
        session.write(&answer).await;
        assert!(session.next().await.is_none(), "then it ends");
    };
    tokio::join!(closing, answering);
    let judgement = call(&downstream, "1").await.unwrap().unwrap();
    assert!(!judgement.maybe_delivered);
}

/// What is no receipt, and a receipt that nothing takes, stays with the centre.
#[tokio::test]
async fn deliveries_that_nothing_takes_stay_with_the_centre() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut session = warmed(&downstream, &centre).await;
    let receipt = Sms {
        esm_class: 4,
        text: b"id:1 stat:DELIVRD".to_vec(),
        ..Sms::default()
    };
    session
        .write(&receipt.write(Command::DELIVER_SM, 9).unwrap())
        .await;
    let got = session.next().await.expect("an answer");
    assert_eq!(
        (got.command, got.sequence),
        (Command::DELIVER_SM.response(), 9)
    );
    assert_eq!(got.status, CommandStatus::TRY_LATER);
    session
        .write(&plain(Command(0x103), CommandStatus::OK, 10))
        .await;
    let got = session.next().await.expect("an answer");
    assert_eq!((got.command, got.sequence), (Command::GENERIC_NACK, 10));
}

#[tokio::test]
async fn tls_is_verified() {
    let authority = Authority::new();
    let signed = authority.server();
    let tls = acceptor(&signed, WebPkiClientVerifier::no_client_auth());
    let centre = Centre::new().await;
    let trusting = |authority: &Authority| {
        downstream(
            &centre,
            &format!("ca_file = {:?}", authority.file("ca.pem")),
        )
    };
    let stranger = trusting(&Authority::new());
    let refused = async {
        let (stream, _) = centre.0.accept().await.unwrap();
        assert!(tls.accept(stream).await.is_err());
    };
    let (warm, ()) = tokio::join!(stranger.warm(BOUND), refused);
    let why = warm.unwrap_err();
    assert!(
        why.starts_with("0 of 1 binds: TLS refused: invalid peer certificate"),
        "{why}"
    );
    drop(stranger);
    let downstream = trusting(&authority);
    let serve = async {
        // An attempt of the stranger may have been under way.
        loop {
            let (stream, _) = centre.0.accept().await.unwrap();
            if let Ok(stream) = tls.accept(stream).await {
                let mut session = Session {
                    stream,
                    received: Vec::new(),
                };
                session.bind(CommandStatus::OK).await;
                return session;
            }
        }
    };
    let (warm, mut session) = tokio::join!(downstream.warm(BOUND), serve);
    warm.unwrap();
    let called = call(&downstream, "1");
    let (sequence, sms) = session.submitted().await;
    assert_eq!(sms.text, b"1");
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(called.await.unwrap().unwrap().outcome, Outcome::Accepted);
}
