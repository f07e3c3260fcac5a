//! `check --connect` about the work queue: its type, and the first message in it.

use super::*;

/// For a classic queue, `check` reports the cost of that choice; for a quorum queue, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_queue_is_warned_of() {
    let rabbit = Rabbit::shared();
    let broker = Broker::connect(&rabbit.url()).await;
    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    for (name, queue_type) in [("check-quorum", "quorum"), ("check-classic", "classic")] {
        broker.declare(name, queue_type).await;
        check.queue = name;
        for (keys, chosen) in [("", "quorum"), ("queue_type = \"classic\"", "classic")] {
            check.route = keys;
            let (_, out) = check.run(&["--connect"]);
            let said = line(&out, "routes.sms.queue");
            let warned = |part: &str| said.contains(part);
            assert_eq!(
                warned("it is a classic queue"),
                queue_type == "classic",
                "{said}"
            );
            assert_eq!(
                warned("a classic wait queue drops"),
                chosen == "classic",
                "{said}"
            );
        }
    }
}

/// The first message that waits is read, and stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_tried_on_the_first_message_that_waits() {
    let rabbit = Rabbit::shared();
    let broker = Broker::connect(&rabbit.url()).await;
    let name = "check-message";
    broker.declare(name, "quorum").await;
    let messages = [7, 8].map(|n| (body(n), BasicProperties::default()));
    broker.publish(name, messages).await;
    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = downstream.local_addr().expect("an address");
    check.queue = name;
    for (url, strictly, says) in [
        (
            "{{ body.n }}",
            0,
            "; the first message that waits can be decoded and rendered",
        ),
        (
            "{{ body.absent }}",
            1,
            "; warning: the first message that waits would be a dead letter: no request can be made of it: url: `body.absent` is missing",
        ),
    ] {
        check.downstream = format!("http://{address}/send?n={url}");
        let (code, out) = check.run(&["--connect"]);
        assert_eq!(code, Some(0), "{out}");
        let said = line(&out, "routes.sms.queue");
        let says = format!("{says}; it was given back, which a quorum queue counts as a return");
        assert!(said.ends_with(&says), "{said}");
        let (code, out) = check.run(&["--connect", "--strict"]);
        assert_eq!(code, Some(strictly), "{out}");
        assert!(line(&out, "routes.sms.queue").ends_with(&says), "{out}");
        assert_eq!(broker.counts(name).await, Some((2, 0)));
    }
    let first = broker.drain(name).await.remove(0);
    assert_eq!(first.0, body(7), "in its place");
}

/// Messages that are read from a stream stay in it: `check` names the route, and `run` consumes
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_no_work_queue() {
    let rabbit = Rabbit::shared();
    let name = "check-stream";
    let broker = Broker::connect(&rabbit.url()).await;
    let mut kept = FieldTable::default();
    kept.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(1 << 20));
    broker.declare_with(name, "stream", kept).await;
    let said = "queue `check-stream` is a stream, whose messages stay in it and would be sent again; write the name of a quorum or classic queue";

    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    check.queue = name;
    let (code, out) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{out}");
    assert_eq!(
        line(&out, "routes.sms.queue"),
        format!("routes.sms.queue: failed: {said}")
    );

    let downstream = Recorder::accepting().await;
    let config = Config {
        rabbit: Some(rabbit.url()),
        ..Config::shared(name, "100/1s", vec![Route::new(name, downstream.address)])
    };
    let daemon = Daemon::start(&config);
    daemon.says(said).await;
    let empty = (Vec::new(), BasicProperties::default());
    broker.publish(name, [empty]).await;
    assert_eq!(
        broker.counts(name).await.map(|(_, consumers)| consumers),
        Some(0)
    );
    assert_eq!(downstream.count(), 0);
    daemon.stop(&["the queue cannot be consumed"]).await;
    broker.delete(name).await;
}
