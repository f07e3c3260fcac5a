//! Servers that read nothing, say nothing, or say what they must not. Each call ends, and once the server behaves,
//! calls pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

use super::*;
use crate::support::frames::{
    CONTINUATION, END_HEADERS, FrameServer, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS,
    OK, PING, PUSH_PROMISE, Peer, RST_STREAM, WINDOW_UPDATE,
};
use sluiced_core::judge::Silence;

/// One connection is full, and no other one is open yet. What was too late for its slot is not written afterwards,
/// either.
#[tokio::test]
async fn behind_a_peer_that_reads_nothing_no_call_leaves_late() {
    const SLACK: Duration = Duration::from_millis(10);
    const LATE: usize = 20;
    const SENT: usize = 50;
    let begun = Arc::new(Notify::new());
    let tell = Arc::clone(&begun);
    let (reads, told) = watch::channel(false);
    let server = FrameServer::start(move |mut peer: Peer, number| {
        let (begun, mut told) = (Arc::clone(&tell), told.clone());
        async move {
            if number == 1 {
                peer.settings(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]).await;
                let more = 0x7000_0000_u32.to_be_bytes();
                peer.write(WINDOW_UPDATE, 0, 0, &more).await;
                peer.head().await;
                begun.notify_one();
            }
            told.wait_for(|reads| *reads).await.unwrap();
            peer.settings(&[]).await;
            peer.answer_all().await;
        }
    })
    .await;
    let mut options = options2(&server.url());
    options.warm_connections = 1;
    options.timeout = Length(BOUND);
    let downstream = Arc::new(downstream(&options));
    downstream.warm(BOUND).await.unwrap();
    // More than the kernels of both sides keep.
    let large = saying(vec![b'x'; 64 << 20]);
    let first = Arc::clone(&downstream);
    let stuck = tokio::spawn(async move { called(&first, &large, None).await });
    within(BOUND, "the large one has begun", begun.notified()).await;
    for _ in 0..LATE {
        let late = called(&downstream, &saying("small"), Some(SLACK)).await;
        assert_eq!(late, Err(NotSent::NotReady));
    }
    reads.send_replace(true);
    for _ in 0..SENT {
        let judgement = called(&downstream, &saying("small"), None).await;
        assert_eq!(judgement.unwrap().detail, "200 OK");
    }
    let judgement = within(BOUND, "the large one ends", stuck).await.unwrap();
    assert_eq!(judgement.unwrap().detail, "200 OK");
    let heads = server.seen(|seen| seen.heads);
    assert_eq!(heads, 1 + SENT, "late calls were written");
}

/// A machine that is gone without a word. Calls find another connection before each of them would time out.
#[tokio::test]
async fn a_peer_that_gives_no_sign_of_life_takes_no_new_calls_and_ends() {
    let server = FrameServer::start(|mut peer: Peer, number| async move {
        peer.settings(&[]).await;
        peer.is_alive = number > 1;
        while let Some(call) = peer.call().await {
            if number > 1 {
                peer.answer(call.stream, OK).await;
            }
        }
    })
    .await;
    let mut options = options2(&server.url());
    options.warm_connections = 1;
    options.timeout = Length(BOUND);
    let downstream = Arc::new(downstream(&options));
    downstream.warm(BOUND).await.unwrap();
    let first = Arc::clone(&downstream);
    let stuck = tokio::spawn(async move { call(&first).await });
    let doubted = || server.seen(|seen| seen.connections) == 2;
    eventually(BOUND, "another connection is opened", doubted).await;
    assert!(!stuck.is_finished());
    assert_eq!(call(&downstream).await.detail, "200 OK");
    let judgement = stuck.await.unwrap();
    assert_eq!(judgement.detail, "connection closed before the answer");
    assert!(judgement.maybe_delivered);
    assert_eq!(server.seen(|seen| (seen.pings, seen.heads)), (1, 2));
}

/// Its answers take long, and it says that it is alive.
#[tokio::test]
async fn a_peer_that_is_slow_and_alive_keeps_its_connection() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[]).await;
        let Some(slow) = peer.call().await else {
            return;
        };
        // The end of the connection, if the client gave it up.
        let next = tokio::time::timeout(Duration::from_secs(7), peer.call()).await;
        assert!(next.is_err(), "{next:?}");
        peer.answer(slow.stream, OK).await;
        peer.answer_all().await;
    })
    .await;
    let downstream = downstream(&options2(&server.url()));
    assert_eq!(call(&downstream).await.detail, "200 OK");
    assert_eq!(server.seen(|seen| (seen.pings, seen.connections)), (1, 1));
}

/// No call is ever allowed, or not any more: connections are opened rarely, and no call hangs.
#[tokio::test]
async fn a_peer_that_allows_no_calls_is_not_connected_to_without_end() {
    for allowed_first in [false, true] {
        let server = FrameServer::start(move |mut peer: Peer, _| async move {
            if allowed_first {
                peer.settings(&[(MAX_CONCURRENT_STREAMS, 10)]).await;
            }
            peer.settings(&[(MAX_CONCURRENT_STREAMS, 0)]).await;
            while peer.call().await.is_some() {}
        })
        .await;
        let mut options = options2(&server.url());
        options.timeout = Length(Duration::from_millis(600));
        options.connect_timeout = Length(Duration::from_millis(200));
        let downstream = downstream(&options);
        for _ in 0..5 {
            let judgement = call(&downstream).await;
            assert!(
                judgement.reply == Err(Silence::Connection)
                    || judgement.reply == Err(Silence::Timeout)
            );
            if server.seen(|seen| seen.heads) == 0 {
                assert!(!judgement.maybe_delivered, "{judgement:?}");
            }
        }
        let connections = server.seen(|seen| seen.connections);
        assert!(connections <= 40, "{connections}");
    }
}

/// What a hostile server writes when it has read a call.
type Writes = fn(u32) -> Vec<(u8, u8, u32, Vec<u8>)>;

#[tokio::test]
async fn what_a_peer_must_not_write_ends_its_connection_and_nothing_else() {
    let cases: [(&str, Writes); 7] = [
        ("a head without an end", |stream| {
            let mut frames = vec![(HEADERS, 0, stream, vec![OK])];
            frames.extend(
                (0..5_000).map(|_| (CONTINUATION, 0, stream, vec![0x40, 1, b'a', 1, b'b'])),
            );
            frames
        }),
        ("an answer to no request", |stream| {
            vec![(HEADERS, END_HEADERS, stream + 100, vec![OK])]
        }),
        ("a pushed answer", |stream| {
            vec![(
                PUSH_PROMISE,
                END_HEADERS,
                stream,
                vec![0, 0, 0, 2, 0x82, 0x84, 0x87],
            )]
        }),
        ("resets of streams that were never opened", |stream| {
            (1..2_000)
                .map(|n| (RST_STREAM, 0, stream + 2 * n, vec![0, 0, 0, 8]))
                .collect()
        }),
        ("no frame of HTTP/2", |_| {
            vec![(0x45, 0x45, 0x7f7f_7f7f, vec![0x45; 40_000])]
        }),
        ("a head that cannot be decoded", |stream| {
            vec![(HEADERS, END_HEADERS, stream, vec![0xff; 20])]
        }),
        ("a window that is too large", |_| {
            vec![(WINDOW_UPDATE, 0, 0, vec![0x7f, 0xff, 0xff, 0xff])]
        }),
    ];
    for (what, writes) in cases {
        let behaves = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&behaves);
        let server = FrameServer::start(move |mut peer: Peer, _| {
            let behaves = Arc::clone(&told);
            async move {
                peer.settings(&[]).await;
                if behaves.load(Ordering::SeqCst) {
                    return peer.answer_all().await;
                }
                while let Some(call) = peer.call().await {
                    for (kind, flags, stream, payload) in writes(call.stream) {
                        peer.write(kind, flags, stream, &payload).await;
                    }
                }
            }
        })
        .await;
        let mut options = options2(&server.url());
        options.timeout = Length(Duration::from_secs(5));
        let downstream = downstream(&options);
        let judgement = call(&downstream).await;
        println!("{what}: {}", judgement.detail);
        assert_eq!(judgement.outcome, Outcome::TRANSIENT, "{what}");
        assert!(judgement.maybe_delivered, "{what}");
        behaves.store(true, Ordering::SeqCst);
        assert_eq!(call(&downstream).await.detail, "200 OK", "{what}");
    }
}

/// One byte at a time, and a flood of what must be answered.
#[tokio::test]
async fn tiny_windows_and_many_pings_only_take_time() {
    let server = FrameServer::start(|mut peer: Peer, _| async move {
        peer.settings(&[(INITIAL_WINDOW_SIZE, 1)]).await;
        for n in 0..2_000_u64 {
            peer.write(PING, 0, 0, &n.to_be_bytes()).await;
        }
        peer.answer_all().await;
    })
    .await;
    let downstream = downstream(&options2(&server.url()));
    let judgements = all_at_once(&downstream, 5).await;
    assert!(
        judgements.iter().all(|call| call.detail == "200 OK"),
        "{judgements:?}"
    );
    assert_eq!(call(&downstream).await.detail, "200 OK");
}
