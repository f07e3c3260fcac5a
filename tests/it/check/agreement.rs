//! What `check --connect` says is what `run` does: each failure of a connection, asked of both.

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::Value;

use super::*;
use crate::support::authority::Signed;
use crate::support::daemon::{file, program};
use crate::support::look_alike::{Differs, LookAlike};
use crate::support::strict_broker::StrictBroker;
use crate::support::wait::eventually;

/// The URLs of a configuration, and further keys of its sections.
struct Urls {
    rabbit: String,
    redis: String,
    downstream: String,
    queue: &'static str,
    of_rabbit: String,
    of_redis: String,
    of_downstream: String,
}

/// Where `run` shows a failure.
enum Shown {
    /// On `/readyz`, by the name of the component.
    Ready(&'static str),
    /// In the log, as the reason of a line.
    Log(&'static str),
}

struct Failure {
    what: &'static str,
    urls: Urls,
    /// How the line of `check` begins.
    about: &'static str,
    shown: Shown,
}

impl Urls {
    fn text(&self, prefix: &str) -> String {
        format!(
            "[rabbitmq]\nurls = [{:?}]\nconnect_timeout = \"3s\"\n{}[redis]\nurl = {:?}\nprefix = {prefix:?}\n{}\
             [admin]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
             [limits.provider]\nrate = \"400/1s\"\n\
             [routes.agree]\nqueue = {:?}\nlimits = [\"provider\"]\n\
             [routes.agree.downstream]\nkind = \"http\"\nwarm_connections = 1\nurl = {:?}\n{}",
            self.rabbit,
            self.of_rabbit,
            self.redis,
            self.of_redis,
            self.queue,
            self.downstream,
            self.of_downstream,
        )
    }
}

/// The reason that `check` gives, and its exit code.
fn checked(text: &str, about: &str) -> (String, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", text);
    let output = program(&["check", "--connect", "--config"])
        .arg(path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = line(&said, about);
    let (_, reason) = line
        .split_once(": failed: ")
        .unwrap_or_else(|| panic!("no failure: {said}"));
    (reason.to_owned(), output.status.code())
}

/// What the daemon shows now.
async fn shown(daemon: &mut Daemon, shown: &Shown) -> Vec<String> {
    let text_of = |value: &Value| value.as_str().map(str::to_owned);
    match shown {
        Shown::Ready(component) => {
            let page: Value = serde_json::from_str(&daemon.page("/readyz").await.1).unwrap();
            let missing = page["missing"].as_array().cloned().unwrap_or_default();
            let named = missing.iter().filter(|part| part["name"] == *component);
            named.filter_map(|part| text_of(&part["reason"])).collect()
        }
        Shown::Log(message) => {
            let lines = daemon.log();
            let lines = lines.lines().filter(|line| line.contains(message));
            let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter_map(|line| text_of(&line["why"])).collect()
        }
    }
}

impl Failure {
    /// Both fail, with the same words; `check` may add what listens there, or the command that helps.
    async fn is_told_alike(&self, prefix: &str) {
        let text = self.urls.text(prefix);
        let (reason, code) = checked(&text, self.about);
        assert_eq!(code, Some(1), "{}: {reason}", self.what);
        assert!(!reason.contains("hunter2"), "{reason}");
        let mut daemon = Daemon::start_with(&text, |_| {});
        let end = tokio::time::Instant::now() + LONG;
        loop {
            let told = shown(&mut daemon, &self.shown).await;
            if told.iter().any(|told| reason.starts_with(told.as_str())) {
                break;
            }
            let is_late = tokio::time::Instant::now() > end;
            assert!(
                !is_late,
                "{}: check says `{reason}`, run says {told:?}",
                self.what
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // It goes on trying: the server may be back.
        assert!(daemon.is_running(), "{}", self.what);
        assert_eq!(daemon.page("/healthz").await.0, 200);
        assert!(!daemon.log().contains("hunter2"));
        let declared = ["WARN", "ERROR"];
        daemon.kill(&declared).await;
    }
}

/// As `openssl req -x509 -addext subjectAltName=IP:127.0.0.1` makes it.
fn own_authority() -> Signed {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    Signed {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failure_is_told_alike() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start_with("", Some("right"));
    let plain = RedisServer::shared();
    let replica = RedisServer::start_with(&format!("--replicaof 127.0.0.1 {}", plain.port()), None);
    let open = RedisServer::start();
    let nameless = LookAlike::of(
        &open,
        Differs {
            without: vec!["run_id"],
            ..Differs::default()
        },
    );
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare("agree", "quorum").await;
    let downstream = Recorder::accepting().await;
    let (known, other) = (Authority::new(), Authority::new());
    let ca = format!("ca_file = {:?}\n", known.file("ca.pem"));
    let front = |port: u16, signed: Signed| async move { SecureFront::to(port, &signed).await };
    let rabbit_other = front(rabbit.port(), other.server()).await;
    let rabbit_named = front(rabbit.port(), known.server_named("broker.example")).await;
    let redis_other = front(plain.port(), other.server()).await;
    let web_other = front(downstream.address.port(), other.server()).await;
    rabbit.add_vhost("agree-other");

    let urls = || Urls {
        rabbit: rabbit.url(),
        redis: plain.url(),
        downstream: format!("http://{}/send", downstream.address),
        queue: "agree",
        of_rabbit: String::new(),
        of_redis: String::new(),
        of_downstream: String::new(),
    };
    let of_rabbit = |what, url: String, more: &str| Failure {
        what,
        urls: Urls {
            rabbit: url,
            of_rabbit: more.to_owned(),
            ..urls()
        },
        about: "rabbitmq ",
        shown: Shown::Ready("rabbitmq"),
    };
    let of_redis = |what, url: String, more: &str| Failure {
        what,
        urls: Urls {
            redis: url,
            of_redis: more.to_owned(),
            ..urls()
        },
        about: "redis: ",
        shown: Shown::Ready("redis"),
    };
    let of_downstream = |what, url: String, more: &str| Failure {
        what,
        urls: Urls {
            downstream: url,
            of_downstream: more.to_owned(),
            ..urls()
        },
        about: "routes.agree.downstream: ",
        shown: Shown::Log("no connection to the downstream yet"),
    };
    let amqps = |front: &SecureFront| format!("amqps://guest:guest@{}/%2f", front.address());
    let wrong = |url: String| url.replace("guest:guest", "guest:hunter2");
    let rabbit_port = rabbit.port();
    let failures = [
        of_rabbit(
            "nothing listens",
            format!("amqp://127.0.0.1:{}/%2f", free_port()),
            "",
        ),
        of_rabbit("a wrong password", wrong(rabbit.url()), ""),
        of_rabbit(
            "a virtual host that is missing",
            rabbit.url().replace("%2f", "nowhere"),
            "",
        ),
        of_rabbit("another authority", amqps(&rabbit_other), &ca),
        of_rabbit("another name", amqps(&rabbit_named), &ca),
        of_rabbit(
            "no TLS",
            format!("amqps://guest:guest@127.0.0.1:{rabbit_port}/%2f"),
            &ca,
        ),
        of_redis(
            "nothing listens",
            format!("redis://127.0.0.1:{}/0", free_port()),
            "",
        ),
        of_redis("a wrong password", redis.url_with("hunter2"), ""),
        of_redis(
            "a password that is missing",
            format!("redis://127.0.0.1:{}/0", redis.port()),
            "",
        ),
        of_redis("no run_id", nameless.url(), ""),
        of_redis("a replica", replica.url(), ""),
        of_redis("another mode", plain.url(), "mode = \"cluster\"\n"),
        of_redis(
            "another authority",
            format!("rediss://{}/0", redis_other.address()),
            &ca,
        ),
        of_redis(
            "no TLS",
            format!("rediss://127.0.0.1:{}/0", plain.port()),
            &ca,
        ),
        of_downstream(
            "nothing listens",
            format!("http://127.0.0.1:{}/", free_port()),
            "",
        ),
        of_downstream(
            "another authority",
            format!("https://{}/", web_other.address()),
            &ca,
        ),
        of_downstream("no TLS", format!("https://{}/", downstream.address), &ca),
        Failure {
            what: "a queue that is missing",
            urls: Urls {
                queue: "agree-nowhere",
                ..urls()
            },
            about: "routes.agree.queue: ",
            shown: Shown::Ready("route agree"),
        },
    ];
    for (n, failure) in failures.iter().enumerate() {
        failure.is_told_alike(&format!("agree-{n}")).await;
    }
}

/// What no server can mend is a wrong configuration for both, with its line, and no server is asked.
#[test]
fn what_cannot_be_used_is_a_wrong_configuration_for_both() {
    let urls = || Urls {
        rabbit: "amqp://127.0.0.1:1/%2f".to_owned(),
        redis: "redis://127.0.0.1:1/0".to_owned(),
        downstream: "http://127.0.0.1:1/".to_owned(),
        queue: "agree",
        of_rabbit: String::new(),
        of_redis: String::new(),
        of_downstream: String::new(),
    };
    let dir = tempfile::tempdir().unwrap();
    let no_pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let ca = format!("ca_file = {:?}\n", file(dir.path(), "ca.pem", no_pem));
    let secret = "pa/s3cret@";
    for (said, urls) in [
        (
            "rabbitmq.urls[0]: there is a `/` in its user or password",
            Urls {
                rabbit: format!("amqps://app:{secret}broker:5671/%2f"),
                ..urls()
            },
        ),
        (
            "redis.url: there is a `/` in its user or password",
            Urls {
                redis: format!("rediss://:{secret}cache:6379/0"),
                ..urls()
            },
        ),
        (
            "rabbitmq.ca_file: it has no certificate that can be trusted",
            Urls {
                rabbit: "amqps://127.0.0.1:1/%2f".to_owned(),
                of_rabbit: ca.clone(),
                ..urls()
            },
        ),
        (
            "redis.ca_file: it has no certificate that can be trusted",
            Urls {
                redis: "rediss://127.0.0.1:1/0".to_owned(),
                of_redis: ca.clone(),
                ..urls()
            },
        ),
    ] {
        let path = file(dir.path(), "sluiced.toml", &urls.text("agree"));
        let told = ["check", "run"].map(|command| {
            let output = program(&[command, "--config"]).arg(&path).output().unwrap();
            let told = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(told).unwrap())
        });
        for (code, text) in &told {
            assert_eq!(*code, Some(78), "{text}");
            assert!(text.contains(said), "no `{said}` in {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
        assert_eq!(told[0], told[1]);
    }
}

/// One self-signed certificate, given as the authority of every server: as with curl and redis-cli.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_its_own_authority_works_everywhere() {
    let own = own_authority();
    let dir = tempfile::tempdir().unwrap();
    let ca = format!(
        "ca_file = {:?}\n",
        file(dir.path(), "own.pem", &own.certificate)
    );
    let (rabbit, redis) = (Rabbit::shared(), RedisServer::shared());
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare("own-authority", "quorum").await;
    let messages = (1..=5).map(|n| (body(n), BasicProperties::default()));
    broker.publish("own-authority", messages).await;
    let downstream = Recorder::accepting().await;
    let ports = [rabbit.port(), redis.port(), downstream.address.port()];
    let mut fronts = Vec::new();
    for port in ports {
        fronts.push(SecureFront::to(port, &own).await);
    }
    let text = Urls {
        rabbit: format!("amqps://guest:guest@{}/%2f", fronts[0].address()),
        redis: format!("rediss://{}/0", fronts[1].address()),
        downstream: format!("https://{}/send", fronts[2].address()),
        queue: "own-authority",
        of_rabbit: ca.clone(),
        of_redis: ca.clone(),
        of_downstream: ca,
    }
    .text("own-authority");
    let path = file(dir.path(), "sluiced.toml", &text);
    let output = program(&["check", "--connect", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "all came", || downstream.count() == 5).await;
    daemon.stop(&[crate::support::daemon::NEW_SCHEDULE]).await;
}

/// RabbitMQ 4.2.6 and 4.3.0: a user without the right to configure a queue may not look for it. It is used all the
/// same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_asks_for_a_right_to_look_works() {
    let rabbit = Rabbit::shared();
    let name = "agree-look";
    let url = rabbit.add_vhost_for(name, "hunter2");
    let broker = Broker::connect(&url).await;
    broker.declare("agree", "quorum").await;
    let downstream = Recorder::accepting().await;
    // Declares the queues beside it, and ends.
    let urls = |rabbit: String| Urls {
        rabbit,
        redis: RedisServer::shared().url(),
        downstream: format!("http://{}/send", downstream.address),
        queue: "agree",
        of_rabbit: String::new(),
        of_redis: String::new(),
        of_downstream: String::new(),
    };
    let mut first = Daemon::start_with(&urls(url.clone()).text(name), |_| {});
    first.ready().await;
    first.stop(&[crate::support::daemon::NEW_SCHEDULE]).await;
    rabbit.set_permissions(name, name, ["^$", ".*", ".*"]);
    let strict = StrictBroker::to(rabbit.port()).await;
    let at = url.rsplit_once('@').unwrap().0;
    let text = urls(format!("{at}@{}/{name}", strict.address())).text(name);
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", &text);
    let output = program(&["check", "--connect", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let queue = line(&said, "routes.agree.queue: ok: ");
    assert!(
        queue.contains("warning: the user may not look at it"),
        "{queue}"
    );
    let messages = (1..=5).map(|n| (body(n), BasicProperties::default()));
    broker.publish("agree", messages).await;
    let mut daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "all came", || downstream.count() == 5).await;
    daemon.ready().await;
    let not_counted = "messages at the broker are not counted";
    daemon.says(not_counted).await;
    daemon
        .stop(&[crate::support::daemon::NEW_SCHEDULE, not_counted])
        .await;
    assert_eq!(broker.counts("agree").await, Some((0, 0)));
}
