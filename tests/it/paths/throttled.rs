//! A refusal stops what it is about, and nothing else: one message, one key, or the account.
//!
//! The downstreams answer as documented by providers that refuse one recipient: Telegram (429 for one chat, with
//! `Retry-After`), Slack (429 for one channel), message centres (`ESME_RMSGQFUL` for one full mailbox).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sluiced_pdu::{Command, CommandStatus, Frame, Message as Sms, frame, plain, response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::{config, header, holds, numbered, queue, seconds, to};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::recorder::{Recorder, Reply, after_an_answer};
use crate::support::wait::{eventually, eventually_async};

const REFUSED: &str = "4999";
const KNOWN: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "the downstream throttles all messages of a key",
];

/// A provider that refuses one recipient.
async fn refuses_one(reply: fn() -> Reply) -> Recorder {
    Recorder::start(move |call| {
        if call.caller == REFUSED {
            reply()
        } else {
            Reply::status(202)
        }
    })
    .await
}

fn route(name: &str, downstream: &Recorder) -> Route {
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ body.to }}".to_owned();
    route
}

/// One message that is always refused, in front of others: they are called as if it were not there.
async fn beside_one(name: &str, replicas: usize, others: u64, reply: fn() -> Reply) {
    let broker = queue(name, "quorum").await;
    broker.publish(name, [to(1, REFUSED)]).await;
    let good = (2..=others + 1).map(|n| to(n, &format!("{n}")));
    broker.publish(name, good).await;
    let downstream = refuses_one(reply).await;
    let config = config(name, vec![route(name, &downstream)]);
    let mut daemons: Vec<_> = (0..replicas).map(|_| Daemon::start(&config)).collect();
    let all = || downstream.numbers().len() as u64 == others + 1;
    eventually(LONG, "all others were called", all).await;
    // Both numbers are of the same calls: the refused message is called again right behind the last of the others.
    let calls = downstream.calls();
    let refused = calls.iter().filter(|call| call.caller == REFUSED).count();
    assert!(refused <= 8, "called {refused} times");
    assert_eq!(calls.len() - refused, others as usize, "each once");
    for daemon in &mut daemons {
        let freezes = daemon.metric("sluiced_freezes_total{limit=\"provider\"}");
        assert_eq!(freezes.await, 0.0, "nothing was frozen for one message");
    }
    for daemon in daemons {
        daemon.stop(KNOWN).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_that_is_always_refused_stops_no_other() {
    beside_one("throttled-one", 1, 1500, || Reply::status(429)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_message_with_a_long_wait_stops_no_other_on_two_replicas() {
    let reply = || Reply::retry_after(429, "20");
    beside_one("throttled-long", 2, 600, reply).await;
}

/// All messages of one key are refused: those of the other key are called, and few of the first one. Once they are
/// accepted again, all of them are called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_key_stops_no_other() {
    let name = "throttled-key";
    let broker = queue(name, "quorum").await;
    // More than the replica holds.
    let (bad, good) = (150, 300);
    let messages = (0..bad).map(|n| to(n + 1, REFUSED));
    broker.publish(name, messages).await;
    let messages = (0..good).map(|n| to(bad + n + 1, &format!("{}", n % 3)));
    broker.publish(name, messages).await;
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&refuses);
    let downstream = Recorder::start(move |call| {
        if call.caller == REFUSED && asked.load(Ordering::SeqCst) {
            Reply::status(429)
        } else {
            Reply::status(202)
        }
    })
    .await;
    let mut route = route(name, &downstream);
    route.limits = vec!["provider", "channel"];
    route.keys = "prefetch = 60\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables = "[limits.channel]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 1000\nkey = \"{{ body.to }}\"\n".to_owned();
    let daemon = Daemon::start(&config);
    let others = || downstream.count_of(|call| call.caller != REFUSED) as u64;
    eventually(LONG, "all others were called", || others() >= good).await;
    let calls = downstream.calls();
    let refused = calls.into_iter().filter(|call| call.caller == REFUSED);
    let refused: Vec<_> = refused.collect();
    assert!(after_an_answer(&refused, LONG) <= 30, "called {refused:?}");
    refuses.store(false, Ordering::SeqCst);
    eventually(LONG, "the key passes again", || {
        downstream.numbers().len() as u64 == bad + good
    })
    .await;
    holds(&broker, name, 0).await;
    daemon.stop(&[KNOWN, &[THROTTLED]].concat()).await;
}

/// An account that is really frozen is not called by every message in turn, and nothing dies of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_account_is_called_once_for_each_wait() {
    let name = "throttled-all";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 400)).await;
    let frozen = seconds(6);
    let begun = Arc::new(Mutex::new(None::<Instant>));
    let begin = Arc::clone(&begun);
    let downstream = Recorder::start(move |call| {
        let mut begun = begin.lock().unwrap();
        if call.place >= 50 {
            let begun = *begun.get_or_insert(call.at);
            if call.at < begun + frozen {
                return Reply::retry_after(429, "1");
            }
        }
        Reply::status(202)
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_throttled = \"1s\"\n".to_owned();
    let config = config(name, vec![route]);
    let daemons = [(); 2].map(|()| Daemon::start(&config));
    eventually(LONG, "all were called", || {
        downstream.numbers().len() == 400
    })
    .await;
    holds(&broker, name, 0).await;
    let begun = begun.lock().unwrap().expect("it was frozen");
    let is_refused = |at: Instant| (begun..begun + frozen).contains(&at);
    let calls = downstream.calls().into_iter();
    let refused: Vec<_> = calls.filter(|call| is_refused(call.at)).collect();
    // Six waits; the other replica has a few calls under way when one of them begins.
    let came = after_an_answer(&refused, seconds(1));
    assert!(came <= 60, "{came} of {} came late", refused.len());
    for daemon in daemons {
        daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    }
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    assert_eq!(broker.counts(&format!("{name}.dead")).await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_refused_for_too_long_dies_of_it() {
    let name = "throttled-dead";
    let broker = queue(name, "quorum").await;
    broker.publish(name, [to(1, REFUSED)]).await;
    let downstream = refuses_one(|| Reply::status(429)).await;
    let mut route = route(name, &downstream);
    route.keys = "max_throttled = \"3s\"\n".to_owned();
    let daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "it is refused", || downstream.count() >= 1).await;
    // It dies only while others pass.
    let mut sent = 1;
    let dead = format!("{name}.dead");
    eventually_async(LONG, "it is dead", || {
        sent += 1;
        let (broker, dead, sent) = (&broker, dead.as_str(), sent);
        async move {
            broker.publish(name, [to(sent, "1")]).await;
            broker.counts(dead).await.map(|(ready, _)| ready) == Some(1)
        }
    })
    .await;
    let letter = broker.drain(&dead).await.remove(0);
    let says = |name| header(&letter.1, name);
    assert_eq!(says("x-sluiced-reason").as_deref(), Some("throttled"));
    assert_eq!(says("x-sluiced-attempts").as_deref(), Some("0"));
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}

/// How often a centre got a message for the full mailbox, and how often another one.
#[derive(Debug, Default)]
struct Mailboxes {
    full: AtomicUsize,
    others: AtomicUsize,
}

impl Mailboxes {
    /// `ESME_RMSGQFUL`: the message queue of this recipient is full (SMPP 3.4, section 5.1.3).
    fn answer(&self, pdu: &Frame<'_>) -> Option<Vec<u8>> {
        let (sequence, ok) = (pdu.sequence, CommandStatus::OK);
        match pdu.command {
            Command::BIND_TRANSMITTER => Some(response(pdu.command, ok, sequence, "centre")),
            Command::SUBMIT_SM => {
                let is_full = Sms::read(pdu.body).unwrap().text == b"full";
                let (count, status) = match is_full {
                    true => (&self.full, CommandStatus(0x14)),
                    false => (&self.others, ok),
                };
                count.fetch_add(1, Ordering::SeqCst);
                Some(response(pdu.command, status, sequence, "id"))
            }
            other if other.is_response() => None,
            other => Some(plain(other.response(), ok, sequence)),
        }
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut received = Vec::new();
        while stream
            .read_buf(&mut received)
            .await
            .is_ok_and(|count| count > 0)
        {
            let mut answers = Vec::new();
            while let Some(pdu) = frame(&received).unwrap() {
                answers.extend(self.answer(&pdu).unwrap_or_default());
                let length = pdu.length();
                received.drain(..length);
            }
            if stream.write_all(&answers).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_full_mailbox_of_a_message_centre_stops_no_other() {
    let name = "throttled-mailbox";
    let broker = queue(name, "quorum").await;
    let text = |n: u64, text: &str| {
        let body = format!("{{\"n\":{n},\"id\":\"m-{n}\",\"text\":\"{text}\"}}");
        (body.into_bytes(), lapin::BasicProperties::default())
    };
    broker.publish(name, [text(1, "full")]).await;
    broker
        .publish(name, (2..=601).map(|n| text(n, "good")))
        .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut route = Route::new(name, listener.local_addr().unwrap());
    let mailboxes = Arc::new(Mailboxes::default());
    let serving = Arc::clone(&mailboxes);
    let centre = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&serving).serve(stream));
        }
    });
    route.smpp = true;
    let mut daemon = Daemon::start(&config(name, vec![route]));
    let others = || mailboxes.others.load(Ordering::SeqCst) >= 600;
    eventually(LONG, "all others were sent", others).await;
    let full = mailboxes.full.load(Ordering::SeqCst);
    assert!((1..=8).contains(&full), "sent {full} times");
    let freezes = daemon.metric("sluiced_freezes_total{limit=\"provider\"}");
    assert_eq!(freezes.await, 0.0, "nothing was frozen for one message");
    daemon.stop(KNOWN).await;
    centre.abort();
}
