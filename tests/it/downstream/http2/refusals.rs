//! Servers that take a part of the calls, and say which.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use tokio::time::timeout;

use super::*;
use crate::support::frames::{
    CANCEL, DATA, END_HEADERS, ENHANCE_YOUR_CALM, FrameServer, HEADERS, MAX_CONCURRENT_STREAMS,
    NO_ERROR, OK, Peer, REFUSED_STREAM,
};
use sluiced_core::judge::Silence;

const AGAIN: Outcome = Outcome::Held {
    wait: Duration::ZERO,
};

fn to(server: &FrameServer) -> HttpDownstream {
    downstream(&options2(&server.url()))
}

/// Certainly not taken, and no attempt.
fn is_untaken(judgement: &Judgement) -> bool {
    judgement.outcome == AGAIN
        && judgement.reply == Err(Silence::Connection)
        && !judgement.maybe_delivered
}

/// The peer allows three calls at a time, and answers them when no other one comes.
#[tokio::test]
async fn no_more_calls_are_under_way_than_the_peer_allows() {
    const MOST: usize = 3;
    static MOST_SEEN: AtomicUsize = AtomicUsize::new(0);
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[(MAX_CONCURRENT_STREAMS, MOST as u32)])
            .await;
        let mut held = Vec::new();
        loop {
            match timeout(Duration::from_millis(20), peer.call()).await {
                Ok(Some(call)) => held.push(call.stream),
                Ok(None) => return,
                Err(_) => {
                    for stream in held.drain(..) {
                        peer.answer(stream, OK).await;
                    }
                }
            }
            MOST_SEEN.fetch_max(held.len(), Ordering::SeqCst);
        }
    })
    .await;
    let downstream = to(&server);
    let judgements = all_at_once(&downstream, 10 * MOST).await;
    assert!(
        judgements.iter().all(|call| call.detail == "200 OK"),
        "{judgements:?}"
    );
    assert_eq!(server.seen(|seen| seen.bodies.len()), 10 * MOST);
    let connections = server.seen(|seen| seen.connections);
    println!("{connections} connections for {} calls", 10 * MOST);
    assert!(connections <= 10 * MOST, "{connections}");
    assert_eq!(MOST_SEEN.load(Ordering::SeqCst), MOST);
}

#[tokio::test]
async fn a_refused_stream_is_not_taken_and_spends_no_attempt() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        while let Some(call) = peer.call().await {
            match call.stream % 4 {
                1 => peer.reset(call.stream, REFUSED_STREAM).await,
                _ => peer.answer(call.stream, OK).await,
            }
        }
    })
    .await;
    let downstream = to(&server);
    let judgements = all_at_once(&downstream, 20).await;
    let refused = judgements.iter().filter(|call| is_untaken(call)).count();
    let taken = judgements.iter().filter(|call| call.detail == "200 OK");
    assert_eq!((refused, taken.count()), (10, 10));
    assert_eq!(server.seen(|seen| seen.connections), 1);
}

/// Nothing but refusals: the others must wait too, and still no attempt is spent.
#[tokio::test]
async fn a_peer_that_refuses_everything_is_not_called_without_a_pause() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        while let Some(call) = peer.call().await {
            peer.reset(call.stream, REFUSED_STREAM).await;
        }
    })
    .await;
    let downstream = to(&server);
    assert!(is_untaken(&call(&downstream).await));
    let wait = options2("").throttle_wait.get();
    let goes_on = async {
        while call(&downstream).await.outcome != (Outcome::Throttled { wait }) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(BOUND, "it is seen to go on", goes_on).await;
    let judgement = call(&downstream).await;
    assert!(!judgement.maybe_delivered);
    assert_eq!(
        judgement.detail,
        "the downstream refused the call unseen (REFUSED_STREAM)"
    );
}

/// It says goodbye after five calls, of which it has answered none.
#[tokio::test]
async fn calls_in_flight_are_finished_and_others_go_to_another_connection() {
    const EACH: usize = 5;
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        let mut held = Vec::new();
        while let Some(call) = peer.call().await {
            held.push(call.stream);
            if held.len() == EACH {
                peer.go_away(call.stream, NO_ERROR).await;
                for stream in held.drain(..) {
                    peer.answer(stream, OK).await;
                }
            }
        }
    })
    .await;
    let mut options = options2(&server.url());
    options.warm_connections = 1;
    let downstream = downstream(&options);
    downstream.warm(BOUND).await.unwrap();
    for round in 1..=4 {
        let judgements = all_at_once(&downstream, EACH).await;
        assert!(
            judgements.iter().all(|call| call.detail == "200 OK"),
            "{judgements:?}"
        );
        assert_eq!(server.seen(|seen| seen.bodies.len()), round * EACH);
        // Before the next call.
        let opened = || server.seen(|seen| seen.connections) == round + 1;
        eventually(BOUND, "another one is opened ahead", opened).await;
    }
    assert_eq!(server.seen(|seen| seen.heads), 4 * EACH, "each once");
}

#[tokio::test]
async fn calls_above_the_last_one_of_a_goodbye_are_not_taken() {
    for code in [NO_ERROR, ENHANCE_YOUR_CALM] {
        let server = FrameServer::start(move |mut peer: Peer, number| async move {
            peer.settings(&[]).await;
            let mut held = Vec::new();
            while let Some(call) = peer.call().await {
                held.push(call.stream);
                if number > 1 {
                    peer.answer(call.stream, OK).await;
                } else if held.len() == 10 {
                    held.sort_unstable();
                    peer.go_away(held[6], code).await;
                    for stream in &held[..7] {
                        peer.answer(*stream, OK).await;
                    }
                }
            }
        })
        .await;
        let downstream = to(&server);
        let judgements = all_at_once(&downstream, 10).await;
        let taken = judgements.iter().filter(|call| call.detail == "200 OK");
        let untaken = judgements.iter().filter(|call| is_untaken(call));
        assert_eq!((taken.count(), untaken.count()), (7, 3), "{judgements:?}");
        let again = all_at_once(&downstream, 3).await;
        assert!(
            again.iter().all(|call| call.detail == "200 OK"),
            "{again:?}"
        );
        assert_eq!(server.seen(|seen| seen.connections), 2);
    }
}

/// Also after a goodbye that named all of them: it may have taken what it did not answer.
#[tokio::test]
async fn what_was_written_may_have_been_taken() {
    const CALLS: usize = 6;
    for says_goodbye in [false, true] {
        let server = FrameServer::start(move |mut peer: Peer, number| async move {
            peer.settings(&[]).await;
            let mut last = 0;
            for _ in 0..CALLS {
                if number > 1 {
                    return peer.answer_all().await;
                }
                let Some(call) = peer.call().await else {
                    return;
                };
                last = call.stream.max(last);
            }
            if says_goodbye {
                peer.go_away(last, NO_ERROR).await;
            }
        })
        .await;
        let downstream = to(&server);
        let judgements = all_at_once(&downstream, CALLS).await;
        for judgement in judgements {
            assert_eq!(judgement.detail, "connection closed before the answer");
            assert_eq!(judgement.outcome, Outcome::TRANSIENT);
            assert!(judgement.maybe_delivered);
        }
        assert_eq!(server.seen(|seen| seen.heads), CALLS, "none is repeated");
        assert_eq!(call(&downstream).await.detail, "200 OK");
    }
}

#[tokio::test]
async fn other_resets_may_have_been_taken() {
    for code in [ENHANCE_YOUR_CALM, CANCEL, 2] {
        let server = FrameServer::start(move |mut peer: Peer, _| async move {
            peer.settings(&[]).await;
            while let Some(call) = peer.call().await {
                peer.reset(call.stream, code).await;
            }
        })
        .await;
        let judgement = call(&to(&server)).await;
        assert_eq!(judgement.outcome, Outcome::TRANSIENT);
        assert!(judgement.maybe_delivered);
        let why = "the downstream broke the call off";
        assert!(judgement.detail.starts_with(why), "{judgement:?}");
    }
}

/// As a proxy says that the server behind it broke off: the part that is missing may hold the refusal.
#[tokio::test]
async fn an_answer_that_is_broken_off_without_an_error_is_not_whole() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        while let Some(call) = peer.call().await {
            peer.write(HEADERS, END_HEADERS, call.stream, &[OK]).await;
            peer.write(DATA, 0, call.stream, b"{\"messages\": [").await;
            peer.reset(call.stream, NO_ERROR).await;
        }
    })
    .await;
    let mut options = options2(&server.url());
    options.outcomes.permanent_text = vec!["refused".to_owned()];
    let judgement = call(&downstream(&options)).await;
    assert_eq!(judgement.outcome, Outcome::TRANSIENT, "{judgement:?}");
    assert!(judgement.maybe_delivered);
}

/// One message is never answered. The others on its connection are.
#[tokio::test]
async fn a_call_that_takes_too_long_ends_alone() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        while let Some(call) = peer.call().await {
            if call.body != b"never" {
                peer.answer(call.stream, OK).await;
            }
        }
    })
    .await;
    let mut options = options2(&server.url());
    options.timeout = Length(Duration::from_secs(6));
    let downstream = downstream(&options);
    let never = saying("never");
    let (judgement, others) = tokio::join!(called(&downstream, &never, None), async {
        let mut others = Vec::new();
        while server.seen(|seen| seen.resets.is_empty()) {
            others.push(call(&downstream).await);
        }
        others
    });
    let judgement = judgement.unwrap();
    assert_eq!(judgement.detail, "no answer within 6s");
    assert_eq!(judgement.reply, Err(Silence::Timeout));
    assert!(judgement.maybe_delivered);
    assert!(others.iter().all(|call| call.detail == "200 OK"));
    assert_eq!(server.seen(|seen| seen.resets.clone()), [CANCEL]);
    assert_eq!(server.seen(|seen| seen.connections), 1);
    let none = join_all((0..10).map(|_| call(&downstream))).await;
    assert!(none.iter().all(|call| call.detail == "200 OK"));
}
