//! `sluiced find`: what is known of one message.

use lapin::BasicProperties;
use serde_json::Value;

use super::{Said, broker, holds};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

fn find(arguments: &[&str]) -> Said {
    let output = program(&["find"]).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_found_among_the_letters_and_by_its_keys() {
    let name = "find";
    let broker = broker().await;
    broker.declare(name, "quorum").await;
    let downstream =
        Recorder::start(|call| Reply::status(if call.number == 2 { 400 } else { 202 })).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["provider", "recipient", "id", "repeats"];
    route.keys = "journal = \"after\"\n".to_owned();
    let mut other = Route::new("find-other", downstream.address);
    other.limits = vec!["provider", "repeats"];
    broker.declare("find-other", "quorum").await;
    let mut config = Config::shared(name, "100/1s", vec![route, other]);
    config.tables =
        "[limits.recipient]\nkind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"\n\
        [limits.id]\nkind = \"sliding_log\"\nrate = \"3/1h\"\nkey = \"{{ message_id }}\"\n\
        [limits.repeats]\nkind = \"once\"\nkey = \"{{ message_id }}\"\n"
            .to_owned();
    let daemon = Daemon::start(&config);
    let at = daemon.config().display().to_string();
    let letters = format!("{name}.dead");
    for number in [1, 2] {
        let body = format!("{{\"n\":{number},\"to\":\"+49\"}}").into_bytes();
        let id = format!("m-{number}").as_str().into();
        let properties = BasicProperties::default().with_message_id(id);
        broker.publish(name, [(body, properties)]).await;
    }
    holds(&broker, &letters, 1).await;
    eventually(LONG, "both calls", || downstream.count() == 2).await;

    // The dead letter: where it is, and why.
    let dead = find(&["m-2", "--config", &at, "--key", "recipient=+49", "--json"]).json();
    assert_eq!(
        dead["dead_letters"][0]["dead_letter_queue"],
        letters.as_str()
    );
    assert_eq!(dead["dead_letters"][0]["reason"], "rejected");
    assert_eq!(dead["dead_letters"][0]["last_status"], 400);
    // The limit of ids needs no key; the recipient was called twice.
    assert_eq!(dead["keys"][0]["limit"], "id");
    assert_eq!(dead["keys"][0]["units"]["remaining"], 2);
    assert_eq!(dead["keys"][2]["limit"], "recipient");
    assert_eq!(dead["keys"][2]["units"]["remaining"], 3);
    // By the digest its lines are found in the journal.
    let digest = dead["keys"][2]["digest"].as_str().unwrap();
    let lines = format!("recipient={digest}");
    eventually(LONG, "its lines", || daemon.said(&lines) == 4).await;
    let said = find(&["m-2", "--config", &at, "--route", name]).good();
    for part in [
        "letter 1 of find.dead",
        "rejected: ",
        "400",
        "limits.id",
        "remaining",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // It is where it was.
    holds(&broker, &letters, 1).await;

    let sent = find(&["m-1", "--config", &at]).good();
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
    // A number is an id, and no place in a queue.
    let none = find(&["1", "--config", &at, "--json"]);
    assert_eq!(none.code, 1, "nothing is known");
    let none: Value = serde_json::from_str(&none.out).unwrap();
    assert_eq!(none["dead_letters"].as_array().unwrap().len(), 0);
    assert_eq!(none["known"], false);
    // What that means: the limits of the route remember for so long, and those of another route are not shown.
    let none = find(&["m-3", "--config", &at]);
    assert_eq!(none.code, 1);
    for part in [
        "it is no dead letter: ",
        "find.dead has 1 letter\n",
        "limits.repeats of the queue find",
        "remembers     accepted messages, for 1d: none was accepted since 20",
        "limits.id ",
        "remembers     messages, for 1h: none was counted since 20",
        "nothing is known of it: it never came, or ",
    ] {
        assert!(none.out.contains(part), "{part}: {}", none.out);
    }
    assert!(sent.contains("limits.repeats of the queue find "), "{sent}");
    assert!(!sent.contains("queue find-other"), "another route: {sent}");
    // A key alone, and one that was never counted.
    let key = find(&["--key", "recipient=+49", "--config", &at]).good();
    assert!(
        key.starts_with("\nlimits.recipient (in the journal: "),
        "{key}"
    );
    assert!(key.contains("taken         1 "), "{key}");
    let key = find(&["--key", "recipient=+50", "--config", &at]);
    assert_eq!(key.code, 1);
    assert!(key.out.contains("none was counted since "), "{}", key.out);
    assert!(find(&["--config", &at]).bad(2).contains("MESSAGE_ID"));

    let wrong =
        |arguments: &[&str], code| find(&[&["m-1", "--config", &at], arguments].concat()).bad(code);
    assert!(wrong(&["--key", "recipent=+49"], 2).contains("did you mean `recipient`?"));
    assert!(wrong(&["--key", "recipient"], 2).contains("LIMIT=TEXT"));
    assert!(wrong(&["--key", "provider=+49"], 2).contains("it is paced"));
    assert!(wrong(&["--route", "fnd"], 2).contains("find"));
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;
}
