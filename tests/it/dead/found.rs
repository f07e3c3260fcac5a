//! `sluiced find`: what is known of one message.

use lapin::BasicProperties;
use serde_json::Value;

use super::{Said, assert_says, broker, holds};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

const NAME: &str = "find";
const OTHER: &str = "find-other";
const DEAD: &str = "find.dead";

fn find(config: &str, arguments: &[&str]) -> Said {
    Said::by(program(&["find", "--config", config]).args(arguments))
}

/// A route with a limit for each recipient and each id, and another route that shares two of its limits.
async fn daemon_with_keys(broker: &Broker, downstream: &Recorder) -> Daemon {
    broker.declare(NAME, "quorum").await;
    broker.declare(OTHER, "quorum").await;
    let mut route = Route::new(NAME, downstream.address);
    route.limits = vec!["provider", "recipient", "id", "repeats"];
    route.keys = "journal = \"after\"\n".to_owned();
    let mut other = Route::new(OTHER, downstream.address);
    other.limits = vec!["provider", "repeats"];
    let mut config = Config::shared(NAME, "100/1s", vec![route, other]);
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"\n\
        [limits.id]\nkind = \"sliding_log\"\nrate = \"3/1h\"\nkey = \"{{ message_id }}\"\n\
        [limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"\n"
            .to_owned();
    Daemon::start(&config)
}

/// The first is accepted, and the second becomes a dead letter.
async fn publish_two_to_one_recipient(broker: &Broker) {
    for number in [1, 2] {
        let body = format!("{{\"n\":{number},\"to\":\"+49\"}}").into_bytes();
        let id = format!("m-{number}").as_str().into();
        let properties = BasicProperties::default().with_message_id(id);
        broker.publish(NAME, [(body, properties)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_found_among_the_letters_and_by_its_keys() {
    let broker = broker().await;
    let downstream =
        Recorder::start(|call| Reply::status(if call.number == 2 { 400 } else { 202 })).await;
    let daemon = daemon_with_keys(&broker, &downstream).await;
    let config = daemon.config().display().to_string();
    publish_two_to_one_recipient(&broker).await;
    holds(&broker, DEAD, 1).await;
    eventually(LONG, "both calls", || downstream.count() == 2).await;

    let digest = assert_the_letter_and_its_keys_are_found(&config);
    // By the digest its lines are found in the journal.
    let lines = format!("recipient={digest}");
    eventually(LONG, "its lines", || daemon.said(&lines) == 4).await;
    assert_the_letter_is_told_in_words(&config);
    // It is where it was.
    holds(&broker, DEAD, 1).await;

    assert_an_accepted_message_is_told_with_its_repeats(&config);
    assert_an_unknown_message_is_told_with_what_is_remembered(&config);
    assert_a_key_alone_is_found(&config);
    assert_what_is_wrong_is_told_with_what_is_right(&config);
    assert_a_letter_is_shown_while_redis_is_away(&config);
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;
}

/// Returns the digest of its recipient.
fn assert_the_letter_and_its_keys_are_found(config: &str) -> String {
    let dead = find(config, &["m-2", "--key", "recipient=+49", "--json"]).json();
    // Where it is, and why.
    assert_eq!(dead["dead_letters"][0]["dead_letter_queue"], DEAD);
    assert_eq!(dead["dead_letters"][0]["reason"], "rejected");
    assert_eq!(dead["dead_letters"][0]["last_status"], 400);
    // The limit of ids needs no key; the recipient was called twice.
    assert_eq!(dead["keys"][0]["limit"], "id");
    assert_eq!(dead["keys"][0]["units"]["remaining"], 2);
    assert_eq!(dead["keys"][2]["limit"], "recipient");
    assert_eq!(dead["keys"][2]["units"]["remaining"], 3);
    dead["keys"][2]["digest"].as_str().unwrap().to_owned()
}

fn assert_the_letter_is_told_in_words(config: &str) {
    let said = find(config, &["m-2", "--route", NAME]).good();
    assert_says(
        &said,
        &[
            "letter 1 of find.dead",
            "rejected: ",
            "400",
            "limits.id",
            "remaining",
        ],
    );
}

/// Its keys are unknown then, which is not the same as none.
fn assert_a_letter_is_shown_while_redis_is_away(config: &str) {
    let mut command = program(&["find", "m-2", "--json", "--config", config]);
    let said = Said::by(command.env("SLUICED__REDIS__URL", "redis://127.0.0.1:1"));
    assert_ne!(said.code, 0, "{}", said.out);
    let dead: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(dead["dead_letters"][0]["reason"], "rejected");
    assert_eq!(dead["keys"], Value::Null);
}

fn assert_an_accepted_message_is_told_with_its_repeats(config: &str) {
    let sent = find(config, &["m-1"]).good();
    assert!(
        sent.starts_with("it is no dead letter: ") && sent.contains("find.dead has 1 letter\n"),
        "{sent}"
    );
    // When it was done, and that a repeat waits for nothing.
    let (_, once) = sent.split_once("limits.repeats").unwrap();
    let (_, accepted) = once.split_once("a message was accepted at ").unwrap();
    assert!(
        accepted.contains("s ago), and a repeat is done without a call; forgotten in 23h"),
        "{once}"
    );
    assert!(!once.contains("retry after"), "{once}");
    assert!(sent.contains("limits.repeats of the queue find "), "{sent}");
    assert!(!sent.contains("queue find-other"), "another route: {sent}");
}

fn assert_an_unknown_message_is_told_with_what_is_remembered(config: &str) {
    // A number is an id, and no place in a queue.
    let none = find(config, &["1", "--json"]);
    assert_eq!(none.code, 1, "nothing is known");
    let none: Value = serde_json::from_str(&none.out).unwrap();
    assert_eq!(none["dead_letters"].as_array().unwrap().len(), 0);
    assert_eq!(none["known"], false);
    // What that means: the limits of the route remember for this long, and those of another route are not shown.
    let none = find(config, &["m-3"]);
    assert_eq!(none.code, 1);
    assert_says(
        &none.out,
        &[
            "it is no dead letter: ",
            "find.dead has 1 letter\n",
            "limits.repeats of the queue find",
            "remembers     accepted messages, for 1d: none was accepted since 20",
            "limits.id ",
            "remembers     messages, for 1h: none was counted since 20",
            "nothing is known of it: it never came, or ",
        ],
    );
}

fn assert_a_key_alone_is_found(config: &str) {
    let key = find(config, &["--key", "recipient=+49"]).good();
    assert!(
        key.starts_with("\nlimits.recipient (in the journal: "),
        "{key}"
    );
    assert!(key.contains("taken         1 "), "{key}");
    // One that was never counted.
    let key = find(config, &["--key", "recipient=+50"]);
    assert_eq!(key.code, 1);
    assert!(key.out.contains("none was counted since "), "{}", key.out);
}

fn assert_what_is_wrong_is_told_with_what_is_right(config: &str) {
    assert!(find(config, &[]).bad(2).contains("MESSAGE_ID"));
    let wrong = |option, value| find(config, &["m-1", option, value]).bad(2);
    assert!(wrong("--key", "recipent=+49").contains("did you mean `recipient`?"));
    assert!(wrong("--key", "recipient").contains("LIMIT=TEXT"));
    assert!(wrong("--key", "provider=+49").contains("it is paced"));
    assert!(wrong("--route", "fnd").contains("find"));
}
