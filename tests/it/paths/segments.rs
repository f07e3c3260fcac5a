//! Long messages to a message centre that refuses, or does not answer, one of their segments.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lapin::BasicProperties;
use serde_json::{Value, json};
use sluiced_pdu::{Command, CommandStatus, Frame, Message as Sms, frame, plain, response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{NO_BREAKER, config, header, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::wait::eventually;

/// The status of a segment, by its number and by how often it came before; `None`: no answer.
type Says = fn(u8, usize) -> Option<CommandStatus>;

/// A centre that answers each segment as the test says, on any connection.
struct Centre {
    address: SocketAddr,
    /// The numbers of the segments that came, in their order.
    came: Arc<Mutex<Vec<u8>>>,
}

impl Centre {
    async fn start(says: Says) -> Self {
        Self::counting(says, Arc::default()).await
    }

    /// One that counts segments together with others.
    async fn counting(says: Says, came: Arc<Mutex<Vec<u8>>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, says, Arc::clone(&shared)));
            }
        });
        Self { address, came }
    }

    /// How often each of the three segments came.
    fn counts(&self) -> [usize; 3] {
        let came = self.came.lock().unwrap();
        [1, 2, 3].map(|number| came.iter().filter(|one| **one == number).count())
    }
}

async fn serve(mut stream: TcpStream, says: Says, came: Arc<Mutex<Vec<u8>>>) {
    let mut received = Vec::new();
    while stream
        .read_buf(&mut received)
        .await
        .is_ok_and(|count| count > 0)
    {
        let mut answers = Vec::new();
        while let Some(pdu) = frame(&received).unwrap() {
            answers.extend(answer(&pdu, says, &came).unwrap_or_default());
            let length = pdu.length();
            received.drain(..length);
        }
        if stream.write_all(&answers).await.is_err() {
            return;
        }
    }
}

fn answer(pdu: &Frame<'_>, says: Says, came: &Mutex<Vec<u8>>) -> Option<Vec<u8>> {
    let (sequence, ok) = (pdu.sequence, CommandStatus::OK);
    match pdu.command {
        Command::BIND_TRANSMITTER => Some(response(pdu.command, ok, sequence, "centre")),
        Command::SUBMIT_SM => {
            // The sixth octet of a short header is the number of the segment.
            let number = Sms::read(pdu.body).unwrap().text[5];
            let mut came = came.lock().unwrap();
            let before = came.iter().filter(|one| **one == number).count();
            came.push(number);
            let status = says(number, before)?;
            Some(response(
                pdu.command,
                status,
                sequence,
                &format!("id-{number}"),
            ))
        }
        other if other.is_response() => None,
        other => Some(plain(other.response(), ok, sequence)),
    }
}

/// A route with one message of three segments.
async fn started(name: &str, centre: &Centre, keys: &str, downstream: &str) -> (Broker, Route) {
    let broker = queue(name, "quorum").await;
    let body = json!({ "id": "m-1", "text": "a".repeat(400) }).to_string();
    let properties = BasicProperties::default().with_message_id("m-1".into());
    broker
        .publish(name, [(body.into_bytes(), properties)])
        .await;
    let mut route = Route::new(name, centre.address);
    route.smpp = true;
    route.keys = format!(
        "journal = \"after\"\njournal_id = \"{{{{ answer.body.message_ids | join(' ') }}}}\"\n{keys}"
    );
    route.downstream = format!("{NO_BREAKER}{downstream}");
    (broker, route)
}

/// The lines of the journal about calls.
fn calls(log: &str) -> Vec<Value> {
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ours =
        lines.filter(|line| line["target"] == "sluiced::journal" && line["message"] == "call");
    ours.collect()
}

/// What was taken is not sent again, however often another segment is refused, and no attempt is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_refused_segment_is_sent_again() {
    let centre = Centre::start(|number, before| {
        let refused = number == 2 && before < 5;
        Some(if refused {
            CommandStatus::THROTTLED
        } else {
            CommandStatus::OK
        })
    })
    .await;
    let name = "segments-refused";
    let (broker, route) = started(
        name,
        &centre,
        "max_attempts = 2\n",
        "throttle_wait = \"200ms\"\n",
    )
    .await;
    let daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "the message is taken", || centre.counts()[1] == 6).await;
    let log = daemon.stop(&[NEW_SCHEDULE, THROTTLED]).await;
    assert_eq!(centre.counts(), [1, 6, 1]);
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    let calls = calls(&log);
    let last = calls.last().expect("a call");
    assert_eq!(last["outcome"], "accepted", "{log}");
    assert_eq!(last["provider_id"], "id-1 id-2 id-3");
    assert!(calls.iter().all(|call| call["attempt"] == 1), "{calls:?}");
}

/// If its replica stops, the message goes through a wait queue and is sent as a whole: that is an attempt, and after
/// the last one it is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_leaves_after_a_part_was_taken_spends_an_attempt() {
    let centre =
        Centre::start(|number, _| Some(CommandStatus(if number == 2 { 0x14 } else { 0 }))).await;
    let name = "segments-leave";
    // It waits for longer than it takes to stop.
    let downstream = "outcomes = { held = [\"ESME_RMSGQFUL\"] }\nthrottle_wait = \"8s\"\n";
    let (broker, route) = started(name, &centre, "max_attempts = 3\n", downstream).await;
    let config = config(name, vec![route]);
    let mut log = String::new();
    for round in 1..=3 {
        let daemon = Daemon::start(&config);
        eventually(LONG, "all segments came", || centre.counts() == [round; 3]).await;
        log += &daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
    }
    let dead = format!("{name}.dead");
    holds(&broker, &dead, 1).await;
    assert_eq!(centre.counts(), [3, 3, 3]);
    let (_, properties) = broker.drain(&dead).await.pop().expect("a dead letter");
    let value = |name| header(&properties, name);
    assert_eq!(
        value("x-sluiced-reason").as_deref(),
        Some("attempts_exhausted")
    );
    assert_eq!(value("x-sluiced-attempts").as_deref(), Some("3"));
    assert_eq!(
        value("x-sluiced-detail").as_deref(),
        Some(
            "some of its segments were taken, and the others cannot be sent alone any more; 3 of 3 attempts are spent"
        )
    );
    assert!(log.contains("an attempt is spent"), "{log}");
    let attempts: Vec<_> = calls(&log)
        .iter()
        .map(|call| call["attempt"].clone())
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
}

/// Another route of its queue would send all segments again: that is an attempt, and none may be left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_which_a_part_was_taken_moves_only_with_an_attempt_left() {
    for (attempts, moves) in [(1, false), (2, true)] {
        // The second segment is refused once, by whichever of the two centres it comes to first.
        let says: Says = |number, before| {
            Some(CommandStatus(if (number, before) == (2, 0) {
                0x14
            } else {
                0
            }))
        };
        let centre = Centre::start(says).await;
        let other = Centre::counting(says, Arc::clone(&centre.came)).await;
        let name = format!("segments-move-{attempts}");
        // Longer than max_hold: the other route is tried first.
        let downstream = "outcomes = { held = [\"ESME_RMSGQFUL\"] }\nthrottle_wait = \"1h\"\n";
        let keys = format!("max_attempts = {attempts}\n");
        let (broker, route) = started(&name, &centre, &keys, downstream).await;
        let beside = Route {
            name: format!("{name}-b"),
            provider: other.address,
            ..route.clone()
        };
        let daemon = Daemon::start(&config(&name, vec![route, beside]));
        let dead = format!("{name}.dead");
        match moves {
            true => eventually(LONG, "it is sent whole", || centre.counts() == [2; 3]).await,
            false => holds(&broker, &dead, 1).await,
        }
        daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
        assert_eq!(centre.counts(), [1 + usize::from(moves); 3]);
        let letters = broker.drain(&dead).await;
        let reasons: Vec<_> = letters
            .iter()
            .map(|(_, properties)| header(properties, "x-sluiced-reason"))
            .collect();
        let expected = [Some("attempts_exhausted".to_owned())];
        assert_eq!(reasons, expected[usize::from(moves)..]);
    }
}

/// The rest can be sent only from where the message is. It stays there without an attempt left, also for a wait that is
/// longer than others stay for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_which_a_part_was_taken_stays_for_its_rest() {
    // By whichever of the two centres it comes to first.
    let refused_once: Says = |number, before| match (number, before) {
        (2, 0) => Some(CommandStatus(0x14)),
        _ => Some(CommandStatus::OK),
    };
    let centre = Centre::start(refused_once).await;
    let other = Centre::counting(refused_once, Arc::clone(&centre.came)).await;
    let name = "segments-stay";
    let downstream = "outcomes = { held = [\"ESME_RMSGQFUL\"] }\nthrottle_wait = \"4s\"\n";
    let keys = "max_attempts = 1\nmax_hold = \"1s\"\n";
    let (broker, route) = started(name, &centre, keys, downstream).await;
    let beside = Route {
        name: format!("{name}-b"),
        provider: other.address,
        ..route.clone()
    };
    let daemon = Daemon::start(&config(name, vec![route, beside]));
    eventually(LONG, "its rest is taken", || centre.counts() == [1, 2, 1]).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(broker.drain(&format!("{name}.dead")).await.is_empty());
}

/// The first segment may have been taken, so a message that is called once is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_segment_beside_a_throttled_one_makes_a_message_unknown() {
    let centre = Centre::start(|number, _| (number > 1).then_some(CommandStatus::THROTTLED)).await;
    let name = "segments-silent";
    let downstream = "timeout = \"500ms\"\n";
    let (broker, mut route) = started(name, &centre, "", downstream).await;
    route.limits.push("repeats");
    let mut config = config(name, vec![route]);
    config.tables = "[limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"\n".to_owned();
    let daemon = Daemon::start(&config);
    let dead = format!("{name}.dead");
    holds(&broker, &dead, 1).await;
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;
    assert_eq!(centre.counts(), [1, 1, 1]);
    let (_, properties) = broker.drain(&dead).await.pop().expect("a dead letter");
    assert_eq!(
        header(&properties, "x-sluiced-reason").as_deref(),
        Some("unknown")
    );
}
