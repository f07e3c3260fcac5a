//! What only the embedded queue does.

use std::io::Cursor;
use std::sync::Arc;

use sluiced_amqp::embedded::{self, EmbeddedOptions, Input};
use sluiced_core::gate::Tap;
use sluiced_ports::queue::Subscription;
use sluiced_ports::queue::Verdict;

use crate::support::messages::{Counted, body, number};
use crate::support::wait::within;

use super::BOUND;

fn start(input: Input, dir: &tempfile::TempDir) -> Arc<Subscription> {
    let options = EmbeddedOptions {
        route: "sms".into(),
        prefetch: 10,
        leftover: Some(dir.path().join("leftover.ndjson")),
        checkpoint: None,
    };
    let events = Arc::new(Counted::default());
    let queue = embedded::start(input, options, events);
    queue.set_tap(Tap::Open);
    queue
}

#[tokio::test]
async fn ends_when_all_is_settled_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (1..=100)
        .map(|n| String::from_utf8(body(n)).unwrap() + "\n")
        .collect();
    let queue = start(Input::Reader(Box::pin(Cursor::new(lines))), &dir);
    let mut deliveries = queue.deliveries().unwrap();
    let mut count = 0;
    while let Some(delivery) = within(BOUND, "a delivery", deliveries.recv()).await {
        count += 1;
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(count, 100);
    assert_eq!(queue.close(BOUND).await.given_back, 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_line_that_is_not_json_is_left_over_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let text = &b"{\"n\":1}\n\nnot json\n{\"n\":2}"[..];
    let queue = start(Input::Reader(Box::pin(text)), &dir);
    let mut deliveries = queue.deliveries().unwrap();
    let mut seen = Vec::new();
    while let Some(delivery) = within(BOUND, "a delivery", deliveries.recv()).await {
        seen.push(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(seen, [1, 2]);
    // The file is complete when the subscription has ended.
    queue.close(BOUND).await;
    let text = std::fs::read_to_string(dir.path().join("leftover.ndjson")).unwrap();
    let record: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(record["line"], 3);
    assert_eq!(record["reason"], "undecodable");
    assert_eq!(record["body"], "not json");
}

#[tokio::test]
async fn an_input_that_is_missing_shows_on_the_link() {
    let dir = tempfile::tempdir().unwrap();
    let queue = start(Input::File(dir.path().join("none")), &dir);
    let mut link = queue.link();
    let down = link.wait_for(|link| matches!(link, sluiced_ports::link::Link::Down(_)));
    assert!(within(BOUND, "down", down).await.is_ok());
    assert_eq!(queue.close(BOUND).await.given_back, 0);
}
