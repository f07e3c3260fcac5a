//! What a call writes and when, and the outcome of answers and of no answer.

use std::time::Duration;

use sluiced_core::judge::{Outcome, Silence};
use sluiced_pdu::{Command, CommandStatus, plain};
use sluiced_ports::clock;
use sluiced_ports::downstream::{Downstream as _, LeaveBy, NotSent, Status};

use super::{FACTS, call, call_within, judged, message, ready};

/// The last look at the clock is taken before the first octet: a call that is too late has written nothing.
#[tokio::test]
async fn nothing_is_written_once_it_is_too_late() {
    let (_centre, downstream, mut session) = ready("").await;
    let late = downstream.prepare(&message("late"), FACTS).unwrap();
    let leave_by = LeaveBy::new(clock::now());
    while !leave_by.has_passed() {}
    assert_eq!(late.send(leave_by).await, Err(NotSent::TooLate));
    assert!(session.is_quiet().await);
    let taken = call(&downstream, "in time");
    let (sequence, sms) = session.submitted().await;
    assert_eq!(sms.text, b"in time");
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(judged(taken).await.outcome, Outcome::Accepted);
}

#[tokio::test]
async fn a_window_that_is_full_takes_nothing_until_an_answer_makes_room() {
    let (_centre, downstream, mut session) = ready("window = 2").await;
    let first = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    // Two segments do not fit beside the one.
    let short = Duration::from_millis(50);
    let late = call_within(&downstream, &"a".repeat(200), short);
    assert_eq!(late.await.unwrap(), Err(NotSent::NotReady));
    let second = call(&downstream, &"a".repeat(200));
    assert!(session.is_quiet().await);
    session.answer(sequence, CommandStatus::OK, "1").await;
    assert_eq!(judged(first).await.outcome, Outcome::Accepted);
    for number in 1..=2 {
        let (sequence, sms) = session.submitted().await;
        assert_eq!(sms.text[4..6], [2, number]);
        session.answer(sequence, CommandStatus::OK, "2").await;
    }
    assert_eq!(judged(second).await.outcome, Outcome::Accepted);
}

/// A message of several segments has one outcome.
#[tokio::test]
async fn segments_are_judged_together() {
    let (_centre, downstream, mut session) = ready("").await;
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
        // The order of the answers does not matter.
        for (sequence, status) in sequences.into_iter().zip(statuses).rev() {
            session.answer(sequence, CommandStatus(status), "id").await;
        }
        let judgement = judged(called).await;
        assert_eq!(
            (judgement.outcome, judgement.detail.as_str()),
            (outcome, detail)
        );
        assert!(judgement.maybe_delivered);
        let rest = judgement.rest.map(|rest| rest.left.len());
        let refused = statuses.iter().filter(|status| **status != 0).count();
        assert_eq!(rest, (refused > 0).then_some(refused));
    }
}

/// What was taken is not sent again: the next call sends the rest, with the same reference.
#[tokio::test]
async fn a_message_goes_on_at_the_segment_that_was_refused() {
    let (_centre, downstream, mut session) = ready("").await;
    let called = call(&downstream, &"a".repeat(400));
    let mut texts = Vec::new();
    for status in [0, 0x58, 0] {
        let (sequence, sms) = session.submitted().await;
        texts.push(sms.text);
        session
            .answer(sequence, CommandStatus(status), &format!("id-{sequence}"))
            .await;
    }
    let mut judgement = judged(called).await;
    for refused in 1..=2 {
        let rest = judgement.rest.take().expect("a rest");
        let next = downstream.go_on(&message("another"), FACTS, rest).unwrap();
        let next = tokio::spawn(next.send(LeaveBy::any_time()));
        let (sequence, sms) = session.submitted().await;
        assert_eq!(sms.text, texts[1], "the same segment");
        assert!(session.is_quiet().await, "and only that");
        let status = [0x14, 0][refused - 1];
        session
            .answer(sequence, CommandStatus(status), "late")
            .await;
        judgement = judged(next).await;
        if refused == 1 {
            assert_eq!(
                judgement.detail,
                "2 of 3 segments taken; segment 2: ESME_RMSGQFUL (0x14)"
            );
        }
    }
    assert_eq!(
        (judgement.outcome, judgement.rest),
        (Outcome::Accepted, None)
    );
    let answer = judgement.answer.expect("it is kept");
    let ids = r#"{"message_id":"id-2","message_ids":["id-2","late","id-4"]}"#;
    assert_eq!(answer.body, ids.as_bytes());
}

/// A segment without an answer may have been taken, whatever the answers to the others are.
#[tokio::test]
async fn a_silent_segment_beside_a_throttled_one_is_unknown() {
    let (_centre, downstream, mut session) = ready("timeout = \"300ms\"\nlatency = \"10ms\"").await;
    let called = call(&downstream, &"a".repeat(200));
    session.submitted().await;
    let (sequence, _) = session.submitted().await;
    session.answer(sequence, CommandStatus::THROTTLED, "").await;
    let judgement = judged(called).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert_eq!(judgement.reply, Err(Silence::Timeout));
    assert!(judgement.maybe_delivered);
    assert_eq!(
        judgement.detail,
        "0 of 2 segments taken; segment 1: no answer within 300ms; segment 2: ESME_RTHROTTLED (0x58)"
    );
}

/// Without an answer the message may be there, and its place in the window is free again.
#[tokio::test]
async fn no_answer_makes_room_and_may_have_been_delivered() {
    let (_centre, downstream, mut session) =
        ready("window = 1\ntimeout = \"300ms\"\nlatency = \"10ms\"").await;
    let judgement = judged(call(&downstream, "1")).await;
    assert_eq!(judgement.reply, Err(Silence::Timeout));
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert!(judgement.maybe_delivered);
    let (late, _) = session.submitted().await;
    let next = call(&downstream, "2");
    let (sequence, _) = session.submitted().await;
    // The late answer is no answer to the next call.
    session.answer(late, CommandStatus(0x0b), "").await;
    session.answer(sequence, CommandStatus::OK, "2").await;
    let judgement = judged(next).await;
    assert_eq!(judgement.reply, Ok(Status::Smpp(CommandStatus::OK)));
}

/// A nack without a body answers the request that it names.
#[tokio::test]
async fn a_generic_nack_is_an_answer() {
    let (_centre, downstream, mut session) = ready("").await;
    let called = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    session
        .write(&plain(Command::GENERIC_NACK, CommandStatus(0x02), sequence))
        .await;
    let judgement = judged(called).await;
    assert_eq!(judgement.outcome, Outcome::Permanent);
}

/// A nack is never acceptance, and no response to another command answers a message.
#[tokio::test]
async fn only_a_response_to_the_message_accepts_it() {
    let (_centre, downstream, mut session) = ready("timeout = \"1s\"\nlatency = \"10ms\"").await;
    let called = call(&downstream, "1");
    let (sequence, _) = session.submitted().await;
    let answer = |command| plain(command, CommandStatus::OK, sequence);
    session.write(&answer(Command::GENERIC_NACK)).await;
    let judgement = judged(called).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT);
    assert_eq!(judgement.reply, Err(Silence::Connection));
    assert!(judgement.maybe_delivered);
    assert_eq!(
        judgement.detail,
        "generic_nack with status 0, which accepts nothing"
    );
    let called = call(&downstream, "2");
    let (sequence, _) = session.submitted().await;
    // deliver_sm, enquire_link, query_sm, submit_multi, data_sm.
    for command in [0x05, 0x15, 0x03, 0x21, 0x103] {
        let answer = plain(Command(command).response(), CommandStatus::OK, sequence);
        session.write(&answer).await;
    }
    let judgement = judged(called).await;
    assert_eq!(judgement.reply, Err(Silence::Timeout));
    assert!(judgement.maybe_delivered);
    // The status accepts; some centres give no id.
    let called = call(&downstream, "3");
    let (sequence, _) = session.submitted().await;
    let bare = plain(Command::SUBMIT_SM.response(), CommandStatus::OK, sequence);
    session.write(&bare).await;
    assert_eq!(judged(called).await.outcome, Outcome::Accepted);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_its_calls_without_an_answer() {
    let (centre, downstream, mut session) = ready("").await;
    let called = call(&downstream, "1");
    session.submitted().await;
    drop(session);
    let judgement = judged(called).await;
    assert_eq!(judgement.reply, Err(Silence::Connection));
    assert!(judgement.maybe_delivered);
    centre.bound().await;
}
