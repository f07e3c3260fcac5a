//! All fleet tests are judged by the provider, so it is tested itself: over real sockets, with
//! calls whose distances are known.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::machine;
use sluiced_provider::{Act, Behaviour, Expect, Provider, Report, ScriptStep};

/// One keep-alive connection, written by hand: the test uses nothing of the code that it tests.
struct Client {
    stream: BufReader<TcpStream>,
}

struct Answer {
    status: u16,
    headers: Vec<String>,
    body: String,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("timeout");
        Self {
            stream: BufReader::new(stream),
        }
    }

    fn call(&mut self, id: &str) -> u16 {
        self.send("POST", "/send", &format!("x-message-id: {id}\r\n"), "{}")
            .expect("an answer")
            .status
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, "", body).expect("an answer")
    }

    fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> io::Result<Answer> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: provider\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            lines.push(line.trim_end().to_ascii_lowercase());
        }
        let status = lines[0][9..12].parse().expect("a status");
        let length = header(&lines, "content-length").map_or(0, |n| n.parse().expect("a length"));
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Answer {
            status,
            headers: lines,
            body: String::from_utf8(body).expect("UTF-8"),
        })
    }
}

fn header<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    lines
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn start(rate: &str, change: impl FnOnce(&mut Behaviour)) -> Provider {
    machine::share();
    let mut behaviour = Behaviour::judging(rate.parse().expect("a rate"));
    change(&mut behaviour);
    Provider::start("127.0.0.1:0".parse().expect("an address"), behaviour).expect("it starts")
}

fn ids(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("m-{n}")).collect()
}

fn report(provider: &Provider) -> Report {
    provider.report(&Expect::Nothing)
}

#[test]
fn calls_that_are_far_enough_apart_are_not_over() {
    let provider = start("2/50ms", |_| {});
    let mut client = Client::new(provider.address());
    for id in ids(0..12) {
        assert_eq!(client.call(&id), 202);
        // The next call cannot arrive earlier than this after the last one: three span > 50 ms.
        thread::sleep(Duration::from_millis(30));
    }
    let report = provider.report(&Expect::Ids(ids(0..12)));
    assert_eq!((report.calls, report.over, report.lost), (12, 0, Some(0)));
    assert!(report.worst <= 2, "{report:?}");
    assert!(report.used.is_some_and(|used| used < 1.0), "{report:?}");
}

#[test]
fn one_call_beyond_the_limit_is_one_over() {
    let provider = start("5/1h", |_| {});
    let mut client = Client::new(provider.address());
    for id in ids(0..5) {
        client.call(&id);
    }
    assert_eq!((report(&provider).worst, report(&provider).over), (5, 0));
    assert_eq!(client.call("m-5"), 202, "it only judges");
    assert_eq!((report(&provider).worst, report(&provider).over), (6, 1));
}

#[test]
fn an_enforcing_provider_refuses_what_is_over_and_says_until_when() {
    let provider = start("3/1h", |behaviour| behaviour.enforce = true);
    let mut client = Client::new(provider.address());
    for id in ids(0..3) {
        assert_eq!(client.call(&id), 202);
    }
    let refused = client.ask("POST", "/send", r#"{"id": "m-3"}"#);
    assert_eq!(refused.status, 429);
    let after: u64 = header(&refused.headers, "retry-after")
        .expect("Retry-After")
        .parse()
        .expect("whole seconds");
    assert!((3_500..=3_600).contains(&after), "{after}");
    let report = provider.report(&Expect::Ids(ids(0..4)));
    assert_eq!((report.calls, report.accepted, report.over), (4, 3, 1));
    assert_eq!(report.lost_ids, ["m-3"]);
}

#[test]
fn what_is_lost_or_taken_twice_is_named() {
    let provider = start("1000/1s", |_| {});
    let mut client = Client::new(provider.address());
    for id in ["m-0", "m-1", "m-1", "m-7"] {
        client.call(id);
    }
    client.ask("POST", "/send", r#"{"id": 2, "text": "by its body"}"#);
    client.ask("POST", "/send", "not JSON");
    let wanted = serde_json::to_string(&["m-0", "m-1", "m-3", "2"]).expect("JSON");
    let answer = client.ask("POST", "/report", &wanted);
    let report: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(report["calls"], 6, "questions are no calls");
    assert_eq!(report["unique"], 4);
    assert_eq!(report["anonymous"], 1);
    assert_eq!(report["lost_ids"], serde_json::json!(["m-3"]));
    assert_eq!(report["repeated_ids"], serde_json::json!(["m-1"]));
    assert_eq!(report["unexpected"], 1);
    let counted = client.ask("GET", "/report?expect=6", "");
    let counted: serde_json::Value = serde_json::from_str(&counted.body).expect("JSON");
    assert_eq!(counted["lost"], 2);
}

#[test]
fn scripted_answers_come_in_their_order_and_end() {
    let provider = start("1000/1s", |_| {});
    let mut client = Client::new(provider.address());
    let step = r#"{"status": 429, "retry_after": "2", "count": 2}"#;
    assert_eq!(client.ask("POST", "/control", step).status, 204);
    let step = r#"{"status": 503, "count": 1}"#;
    assert_eq!(client.ask("POST", "/control", step).status, 204);
    let first = client.ask("POST", "/send", r#"{"id": "a"}"#);
    assert_eq!(header(&first.headers, "retry-after"), Some("2"));
    let rest: Vec<u16> = (0..3).map(|_| client.call("a")).collect();
    assert_eq!((first.status, rest), (429, vec![429, 503, 202]));
    let report = report(&provider);
    assert_eq!((report.calls, report.accepted), (4, 1));
    assert_eq!(report.repeated, 0, "a refused call may be repeated");
    let wrong = client.ask("POST", "/control", r#"{"status": 429, "cuont": 2}"#);
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("cuont"), "{}", wrong.body);
    assert_eq!(client.ask("POST", "/reset", "").status, 204);
    assert_eq!(provider.live().calls, 0);
}

#[test]
fn a_connection_can_be_closed_although_the_message_was_taken() {
    let provider = start("1000/1s", |_| {});
    let close = ScriptStep {
        act: Act::Close,
        accept: true,
        count: Some(1),
        ..ScriptStep::default()
    };
    provider.script(close).expect("room for it");
    let mut client = Client::new(provider.address());
    let end = client.send("POST", "/send", "x-message-id: a\r\n", "{}");
    assert!(end.is_err(), "closed without an answer");
    assert_eq!(Client::new(provider.address()).call("a"), 202);
    let report = report(&provider);
    assert_eq!((report.calls, report.accepted, report.repeated), (2, 2, 1));
}

#[test]
fn a_hanging_call_hangs_alone_and_ends_with_the_provider() {
    let provider = start("1000/1s", |_| {});
    let hang = ScriptStep {
        act: Act::Hang,
        count: Some(1),
        ..ScriptStep::default()
    };
    provider.script(hang).expect("room for it");
    let address = provider.address();
    let mut hanging = Client::new(address);
    let waiting = thread::spawn(move || hanging.send("POST", "/send", "", "{}").is_err());
    for _ in 0..20_000 {
        if provider.live().calls == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Client::new(address).call("b"), 202);
    drop(provider);
    assert!(waiting.join().expect("no panic"), "it never got an answer");
}

#[test]
fn twenty_clients_at_once_are_all_counted() {
    let provider = start("400/1h", |_| {});
    let address = provider.address();
    thread::scope(|scope| {
        for client in 0..20 {
            scope.spawn(move || {
                let mut connection = Client::new(address);
                for id in ids(client * 50..client * 50 + 50) {
                    assert_eq!(connection.call(&id), 202);
                }
            });
        }
    });
    let report = provider.report(&Expect::Ids(ids(0..1_000)));
    assert_eq!(report.calls, 1_000);
    assert_eq!((report.unique, report.lost), (1_000, Some(0)));
    assert_eq!((report.worst, report.over), (1_000, 600));
    assert_eq!((report.repeated, report.unexpected), (0, 0));
}

#[test]
fn a_share_of_the_calls_fails_and_latency_is_added() {
    let provider = start("1000/1s", |behaviour| {
        behaviour.failures = vec!["503:1".parse().expect("a failure")];
        behaviour.latency = Duration::from_millis(1);
        behaviour.jitter = Duration::from_millis(1);
    });
    assert_eq!(Client::new(provider.address()).call("a"), 503);
    assert_eq!(provider.report(&Expect::Count(1)).lost, Some(1));
}
