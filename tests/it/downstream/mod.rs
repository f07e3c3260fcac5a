//! The HTTP downstream against real sockets: a proper server, and peers that misbehave.
mod calls;
mod connections;
mod peers;
mod secure;

use std::collections::BTreeMap;
use std::time::Duration;

use sluiced::downstream::{HttpDownstream, HttpOptions};
use sluiced::ports::clock::Clock;
use sluiced::ports::downstream::{Downstream, Facts, Gate, Judgement};
use sluiced::ports::message::{Message, Properties};
use sluiced::settings::types::Outcomes;

use crate::support::machine;

/// Nothing here takes this long unless it hangs.
const BOUND: Duration = Duration::from_secs(20);

fn options(url: &str) -> HttpOptions {
    HttpOptions {
        url: url.to_owned(),
        method: "POST".to_owned(),
        headers: BTreeMap::new(),
        body: None,
        auth: None,
        timeout: Duration::from_secs(15),
        connect_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        warm_connections: 0,
        ca_file: None,
        certificate: None,
        outcomes: Outcomes::default(),
        keep_answer: false,
        throttle_wait: Duration::from_secs(1),
        max_throttle_wait: Duration::from_secs(60),
        traces: None,
    }
}

fn downstream(options: &HttpOptions) -> HttpDownstream {
    machine::share();
    HttpDownstream::new(options).unwrap()
}

fn message() -> Message {
    Message {
        body: bytes::Bytes::from_static(b"{\"to\": \"+49170\"}"),
        properties: Properties {
            message_id: Some("m-1".to_owned()),
            ..Properties::default()
        },
        ..Message::default()
    }
}

/// One call, which must end.
async fn call(downstream: &HttpDownstream) -> Judgement {
    let facts = Facts {
        route: "sms",
        attempt: 1,
    };
    let prepared = downstream.prepare(&message(), facts).unwrap();
    tokio::time::timeout(BOUND, prepared.send(Gate::open(Clock::start())))
        .await
        .unwrap()
        .unwrap()
}
