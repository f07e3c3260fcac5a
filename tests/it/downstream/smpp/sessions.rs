//! How binds are opened, kept and ended, and what happens to deliveries of the centre.

use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_pdu::{Bind, Command, CommandStatus, Frame, Message as Sms, plain, response};
use sluiced_ports::downstream::Downstream as _;

use super::super::BOUND;
use super::{Centre, Session, call, downstream, judged, ready};
use crate::support::authority::Authority;
use crate::support::secure_front::acceptor;
use crate::support::wait::within;

#[tokio::test]
async fn a_bind_that_is_refused_is_named_and_no_message_may_have_arrived() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let refused = async {
        let mut session = centre.accepted().await;
        let got = session.next().await.unwrap();
        let bind = Frame {
            command: got.command,
            status: got.status,
            sequence: got.sequence,
            body: &got.body,
        };
        assert_eq!(Bind::read(&bind).unwrap().password, "secret");
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
    let judgement = judged(call(&downstream, "1")).await;
    assert_eq!(judgement.reply, Err(Silence::Connection));
    assert!(!judgement.maybe_delivered);
    assert_eq!(
        judgement.detail,
        "the centre refused the bind: ESME_RINVPASWD (0x0e)"
    );
}

/// Only the response to the bind says that it stands.
#[tokio::test]
async fn a_bind_that_is_not_answered_by_its_response_does_not_stand() {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let refused = async {
        let mut session = centre.accepted().await;
        let got = session.next().await.unwrap();
        let other = Command::ENQUIRE_LINK.response();
        for command in [other, Command::GENERIC_NACK] {
            let answer = plain(command, CommandStatus::OK, got.sequence);
            session.write(&answer).await;
        }
        session.next().await;
    };
    let (warm, ()) = tokio::join!(downstream.warm(BOUND), refused);
    assert_eq!(
        warm.unwrap_err(),
        "0 of 1 binds: the centre could not read the bind: generic_nack, ESME_ROK (0x00)"
    );
}

/// A centre that accepts each bind and ends the session at once, for this long. The time is the fault itself.
async fn binds_in_three_seconds(unbinds: bool) -> usize {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, "");
    let mut binds = 0;
    let storm = async {
        loop {
            let mut session = centre.bound().await;
            binds += 1;
            if unbinds {
                session.request(Command::UNBIND, 1).await;
            }
        }
    };
    let warming = downstream.warm(BOUND);
    let both = async { tokio::join!(warming, storm) };
    drop(tokio::time::timeout(Duration::from_secs(3), both).await);
    binds
}

/// 0.1, 0.2, 0.4, 0.8 and 1.6 s at least lie between them.
#[tokio::test]
async fn a_centre_that_ends_each_session_at_once_is_bound_less_and_less_often() {
    for unbinds in [false, true] {
        let binds = binds_in_three_seconds(unbinds).await;
        assert!((1..=6).contains(&binds), "{binds} binds");
    }
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
    // The next attempt is not answered, so this state is still shown.
    let judgement = judged(call(&downstream, "1")).await;
    assert_eq!(judgement.detail, "no SMPP is spoken there");
    assert!(!judgement.maybe_delivered);
}

#[tokio::test]
async fn a_silent_centre_is_asked_and_then_given_up() {
    let (centre, _downstream, mut session) =
        ready("enquire_link = \"100ms\"\ntimeout = \"2s\"\nlatency = \"10ms\"").await;
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
    let mut got = session.request(Command::ENQUIRE_LINK, 77).await;
    while got.command != Command::ENQUIRE_LINK.response() {
        got = session.next().await.expect("an answer");
    }
    assert_eq!(got.sequence, 77);
    // Nothing is answered any more: the connection ends, and another one is bound.
    while session.next().await.is_some() {}
    centre.bound().await;
}

/// The centre ends a session: it still answers the messages that it has, and new messages take the next
/// connection.
#[tokio::test]
async fn an_unbind_waits_for_the_answers() {
    let (centre, downstream, mut session) = ready("").await;
    let called = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    let unbind = plain(Command::UNBIND, CommandStatus::OK, 5);
    session.write(&unbind).await;
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(judged(called).await.outcome, Outcome::Accepted);
    let got = session.next().await.expect("an answer");
    assert_eq!((got.command, got.sequence), (Command::UNBIND.response(), 5));
    let mut session = centre.bound().await;
    // The new session is known a moment after its bind was answered.
    within(BOUND, "the bind stands", async {
        while downstream.warm(BOUND).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let called = call(&downstream, "2");
    let (sequence, _) = session.submitted().await;
    session.answer(sequence, CommandStatus::OK, "2").await;
    assert_eq!(judged(called).await.outcome, Outcome::Accepted);
}

#[tokio::test]
async fn the_end_of_the_downstream_unbinds() {
    let (_centre, downstream, mut session) = ready("").await;
    drop(downstream);
    let got = session.next().await.expect("an unbind");
    assert_eq!(got.command, Command::UNBIND);
}

/// A stop waits until the centre has answered, so that the process does not end before.
#[tokio::test]
async fn a_close_waits_for_the_centre() {
    let (_centre, downstream, mut session) = ready("").await;
    let closing = downstream.close();
    let answering = async {
        let got = session.next().await.expect("an unbind");
        assert_eq!(got.command, Command::UNBIND);
        let answer = plain(got.command.response(), CommandStatus::OK, got.sequence);
        session.write(&answer).await;
        assert!(session.next().await.is_none(), "then it ends");
    };
    tokio::join!(closing, answering);
    let judgement = judged(call(&downstream, "1")).await;
    assert!(!judgement.maybe_delivered);
}

/// A receipt that nothing accepts stays with the centre, and an unknown command is refused.
#[tokio::test]
async fn what_nothing_takes_is_refused() {
    let (_centre, _downstream, mut session) = ready("").await;
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
    // submit_multi, which a centre never sends.
    let got = session.request(Command(0x21), 10).await;
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
        why.starts_with("0 of 1 binds: TLS refused: the server's certificate is from an authority"),
        "{why}"
    );
    drop(stranger);
    let downstream = trusting(&authority);
    let serve = async {
        // An attempt of the downstream before may have been under way.
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
    assert_eq!(judged(called).await.outcome, Outcome::Accepted);
}
