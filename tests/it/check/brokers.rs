//! `check --connect` about brokers that others set up: limits, rights, policies.

use super::*;

fn checked(rabbit: String) -> (Check, TcpListener) {
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut check = Check::new(rabbit, RedisServer::shared().url());
    let address = downstream.local_addr().expect("an address");
    check.downstream = format!("http://{address}/send");
    (check, downstream)
}

/// The queues that a route needs beside its work queue, if its own waits are short: a message may be set aside for a
/// minute.
fn ours() -> Vec<String> {
    let waits = (0..7).map(|step| format!("sms.wait.{}s", 1 << step));
    waits.chain(["sms.dead".to_owned()]).collect()
}

#[test]
fn a_limit_of_queues_is_named_before_a_queue_is_missing() {
    let rabbit = Rabbit::shared();
    let url = rabbit.add_vhost_for("check-full", "hunter2");
    rabbit.declare("check-full", "sms");
    rabbit.limit_queues("check-full", 1);
    let (check, _downstream) = checked(url);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    let said = line(&said, "routes.sms.queue: failed: ");
    assert!(
        said.contains("cannot be declared") && said.contains("queue limit in vhost 'check-full'"),
        "{said}"
    );
}

/// A replica has three, and no route works with two of them.
#[test]
fn a_limit_of_connections_is_named() {
    let rabbit = Rabbit::shared();
    let url = rabbit.add_vhost_for("check-few", "hunter2");
    rabbit.declare("check-few", "sms");
    rabbit.limit_connections("check-few", 2);
    let (check, _downstream) = checked(url);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    let said = line(&said, "rabbitmq 127.0.0.1:");
    for part in [
        "failed: ",
        "connection limit (2) is reached",
        "each replica has three",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// Only read and write: enough once all queues are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_were_made_beforehand_need_no_right_to_declare() {
    let rabbit = Rabbit::shared();
    let name = "check-made";
    let url = rabbit.add_vhost_for(name, "hunter2");
    let broker = Broker::connect(&url).await;
    broker.declare("sms", "quorum").await;
    let (mut check, _downstream) = checked(url);
    check.route = "retry = { max = \"1s\" }";
    rabbit.set_permissions(name, name, ["^$", ".*", ".*"]);
    let queue = |code: i32| {
        let (ended, said) = check.run(&["--connect"]);
        assert_eq!(ended, Some(code), "{said}");
        line(&said, "routes.sms.queue").to_owned()
    };
    assert!(queue(1).contains("the user lacks a right"));
    rabbit.set_permissions(name, name, [".*"; 3]);
    for queue in ours() {
        broker.declare(&queue, "quorum").await;
    }
    rabbit.set_permissions(name, name, ["^$", ".*", ".*"]);
    let ours = ours().join(", ");
    let used = format!("warning: the user may not declare {ours}: they are used as they are");
    assert!(queue(0).contains(&used));
    // Copies must be published all the same.
    rabbit.set_permissions(name, name, ["^$", "^$", ".*"]);
    assert!(queue(1).contains("the user lacks a right"));
}

/// The policies are read by a user that may nothing else, for queues that are there and for those that are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_act_on_queues_of_ours_are_named() {
    let (rabbit, port) = Rabbit::start_managed();
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare("sms", "quorum").await;
    broker.declare("sms.wait.1s", "quorum").await;
    rabbit.ctl(&["add_user", "monitor", "hunter2"]);
    rabbit.ctl(&["set_user_tags", "monitor", "management"]);
    let (mut check, _downstream) = checked(rabbit.url());
    check.route = "retry = { max = \"2s\" }";
    check.broker = format!("management = \"http://monitor:hunter2@127.0.0.1:{port}\"\n");
    let said = |code| {
        let (ended, said) = check.run(&["--connect"]);
        assert_eq!(ended, Some(code), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
        line(&said, "rabbitmq.management").to_owned()
    };
    assert!(said(1).contains("failed: it refuses the user"));
    rabbit.set_permissions("/", "monitor", ["^$"; 3]);
    // The wait queue that is there would keep its messages; RabbitMQ itself refuses to declare it.
    let told = said(1);
    let wrong = "warning: sms.wait.1s: its argument x-message-ttl must be 1000";
    assert!(told.contains(": ok: ") && told.contains(wrong), "{told}");
    broker.delete("sms.wait.1s").await;

    assert_eq!(
        said(0),
        "rabbitmq.management: ok: policies and queues were read"
    );
    let tidy = r#"{"expires":60000,"message-ttl":1500,"max-length":10}"#;
    let ctl = |arguments: &[&str]| drop(rabbit.ctl(arguments));
    ctl(&["set_policy", "tidy", ".*", tidy, "--apply-to", "queues"]);
    let told = said(0);
    let ours = ours();
    let (all, longer) = (ours.join(", "), ours[1..7].join(", "));
    for effect in [
        format!("on {all}: `expires` deletes it 1m after its last use, with the messages in it"),
        format!("on {longer}: `message-ttl` sends messages back after 1s500ms, before their time"),
        "on sms.dead: `message-ttl` drops messages that are in it for 1s500ms".to_owned(),
        format!("on {all}: `max-length` refuses copies beyond 10 messages"),
    ] {
        let effect = format!("warning: policy `tidy` {effect}");
        assert!(told.contains(&effect), "no `{effect}` in {told}");
    }

    // The policy of the documentation shields them.
    let page = include_str!("../../../docs/rabbitmq.md");
    let shield = page
        .lines()
        .find(|line| line.starts_with("rabbitmqctl set_policy"));
    let shield = shield.expect("the page has one");
    let mut words = Vec::new();
    for (index, part) in shield.split('\'').enumerate() {
        match index % 2 {
            1 => words.push(part),
            _ => words.extend(part.split_whitespace()),
        }
    }
    ctl(&words[1..]);
    assert_eq!(
        said(0),
        "rabbitmq.management: ok: policies and queues were read"
    );
}
