//! `check --connect` about servers that refuse, and about URLs that lead to others.

use super::*;

/// Each right that `run` needs is tried, the command that is printed grants them all, and nothing is declared.
#[test]
fn a_right_that_is_missing_is_told_with_the_command_that_grants_it() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start();
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    rabbit.add_vhost("rights");
    let url = rabbit.add_user("poor", "hunter2");
    let declare = |queue: &str| rabbit.declare("rights", queue);
    let queues = || rabbit.queues_of("rights");
    declare("sms");
    let mut check = Check::new(url.replace("%2f", "rights"), redis.url());
    let address = downstream.local_addr().expect("an address");
    check.downstream = format!("http://{address}/send");
    let queue = |code: i32| {
        let (ended, said) = check.run(&["--connect"]);
        assert_eq!(ended, Some(code), "{said}");
        line(&said, "routes.sms.queue").to_owned()
    };

    let mut told = String::new();
    for rights in [["^$", ".*", ".*"], [".*", "^$", ".*"], [".*", ".*", "^$"]] {
        rabbit.set_permissions("rights", "poor", rights);
        told = queue(1);
        assert!(
            told.contains("the user lacks a right") && !told.contains("hunter2"),
            "{rights:?}: {told}"
        );
    }
    let command = told.split('`').nth(3).expect("a command");
    let words: Vec<_> = command
        .split([' ', '\''])
        .filter(|word| !word.is_empty())
        .collect();
    // By the command itself.
    rabbit.ctl(&words[1..]);
    assert!(queue(0).contains("routes.sms.queue: ok: "));
    let before = queues();
    assert!(
        !before.contains("wait") && !before.contains("dead"),
        "{before}"
    );

    // Queues of ours that have another type: the route wants quorum queues. From a wait queue messages would not come
    // back.
    declare("sms.dead");
    let used = "warning: queue `sms.dead` has other settings, and is used as it is: ";
    assert!(queue(0).contains(used));
    declare("sms.wait.1s");
    assert!(queue(1).contains("queue `sms.wait.1s` exists with other settings: "));
}

#[test]
fn servers_that_say_no_or_nothing() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start_with("", Some("hunter2"));
    let mut check = Check::new(
        format!(
            "{} amqp://guest:hunter3@{}",
            rabbit.url().replace("127.0.0.1", "localhost"),
            rabbit.url().split('@').nth(1).expect("a host")
        ),
        redis.url_with("hunter4"),
    );
    check.downstream = format!("https://127.0.0.1:{}/", free_port());
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        line(&said, "rabbitmq localhost:").contains(": ok: "),
        "{said}"
    );
    let refused = line(&said, "rabbitmq 127.0.0.1:");
    assert!(
        refused.contains("failed: RabbitMQ refused: ACCESS_REFUSED")
            && refused.contains("the user or the password is wrong"),
        "{said}"
    );
    assert!(line(&said, "redis").contains("failed: "), "{said}");
    assert_eq!(
        line(&said, "routes.sms.downstream"),
        "routes.sms.downstream: failed: 0 of 1 connections opened: connection refused"
    );
    for secret in ["hunter2", "hunter3", "hunter4"] {
        assert!(!said.contains(secret), "{said}");
    }
}

/// URLs that lead to another kind of server: each is reported with what listens there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_leads_elsewhere_is_told_what_listens_there() {
    let authority = Authority::new();
    let (plain, redis_tls) = secure::server(&authority, "no");
    let rabbit = Rabbit::shared();
    let front = SecureFront::to(rabbit.port(), &authority.server()).await;
    let recorder = Recorder::accepting().await;
    let web = recorder.address.port();
    let port = |url: &str| Url::parse(url).unwrap().port().unwrap();
    let (redis, redis_tls) = (port(&plain.url()), port(&redis_tls));
    let (amqp, amqps) = (rabbit.port(), front.address().port());
    let no_tls = |scheme: &str| format!("no TLS is spoken there: write {scheme}://");
    let tls = |scheme: &str| format!("; TLS is spoken there: write {scheme}://");
    let of_redis = "a Redis listens there: its URL belongs into redis.url";
    let of_rabbit = "a RabbitMQ listens there: its URL belongs into rabbitmq.urls";

    let wrong = [
        ("amqps", amqp, no_tls("amqp")),
        ("amqp", amqps, tls("amqps")),
        ("amqp", redis, of_redis.to_owned()),
        ("amqps", redis, of_redis.to_owned()),
        ("amqp", web, "an HTTP server listens there".to_owned()),
    ];
    // The first one is right: the queue is looked for there.
    let mut urls = vec![rabbit.url()];
    let url = |(scheme, port, _): &(&str, u16, String)| {
        format!("{scheme}://guest:hunter2@127.0.0.1:{port}/%2f")
    };
    urls.extend(wrong.iter().map(url));
    let (_, said) = Check::new(urls.join(" "), plain.url()).run(&["--connect"]);
    for (scheme, port, hint) in &wrong {
        let about = format!("rabbitmq 127.0.0.1:{port}: failed: ");
        let mut lines = said.lines().filter(|line| line.starts_with(&about));
        let told = lines.any(|line| line.contains(hint));
        assert!(told, "{scheme}: no `{hint}` of {port} in\n{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");

    let mut check = Check::new(rabbit.url(), plain.url());
    check.downstream = format!("https://127.0.0.1:{web}/send");
    let (_, said) = check.run(&["--connect"]);
    let about = line(&said, "routes.sms.downstream: failed: ");
    assert!(about.contains(&no_tls("http")), "{said}");

    for (scheme, port, hint) in [
        ("rediss", redis, no_tls("redis")),
        ("redis", redis_tls, tls("rediss")),
        ("redis", amqp, of_rabbit.to_owned()),
        ("redis", web, "an HTTP server listens there".to_owned()),
    ] {
        let url = format!("{scheme}://:hunter2@127.0.0.1:{port}/0");
        let (_, said) = Check::new(rabbit.url(), url).run(&["--connect"]);
        let about = line(&said, "redis: failed: ");
        assert!(about.contains(&hint), "{scheme}: no `{hint}` in {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}
