//! What `check --connect` says is what `run` does: each failure of a connection, asked of both.

mod failures;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::Value;

use self::failures::Servers;
use super::*;
use crate::support::authority::Signed;
use crate::support::daemon::{NEW_SCHEDULE, file, program};
use crate::support::strict_broker::StrictBroker;
use crate::support::wait::eventually;

/// The URLs of a configuration, and further keys of its sections.
#[derive(Default)]
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
            "[rabbitmq]\nurls = [{:?}]\nconnect_timeout = \"3s\"\n{}[redis]\nresponse_timeout = \"5s\"\nurl = {:?}\nprefix = {prefix:?}\n{}\
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

/// What `check --connect` writes of this configuration, and its exit code.
fn check_connect(text: &str) -> (String, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", text);
    let output = program(&["check", "--connect", "--config"])
        .arg(path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (said, output.status.code())
}

/// The reason that `check` gives, and its exit code.
fn checked(text: &str, about: &str) -> (String, Option<i32>) {
    let (said, code) = check_connect(text);
    let line = line(&said, about);
    let (_, reason) = line
        .split_once(": failed: ")
        .unwrap_or_else(|| panic!("no failure: {said}"));
    (reason.to_owned(), code)
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
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare("agree", "quorum").await;
    let servers = Servers::start().await;
    let failures = [
        servers.failures_of_rabbitmq(),
        servers.failures_of_redis(),
        servers.failures_of_the_downstream(),
        vec![servers.a_missing_queue()],
    ];
    for (n, failure) in failures.iter().flatten().enumerate() {
        failure.is_told_alike(&format!("agree-{n}")).await;
    }
}

/// What no server can mend is a wrong configuration for both, with its line, and no server is asked.
#[test]
fn what_cannot_be_used_is_a_wrong_configuration_for_both() {
    let dir = tempfile::tempdir().unwrap();
    let no_pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let ca = format!("ca_file = {:?}\n", file(dir.path(), "ca.pem", no_pem));
    for (said, urls) in unusable(&ca) {
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

/// What is said of each configuration that cannot be used; `ca` names a file without a certificate.
fn unusable(ca: &str) -> [(&'static str, Urls); 4] {
    let urls = || Urls {
        rabbit: "amqp://127.0.0.1:1/%2f".to_owned(),
        redis: "redis://127.0.0.1:1/0".to_owned(),
        downstream: "http://127.0.0.1:1/".to_owned(),
        queue: "agree",
        ..Urls::default()
    };
    let secret = "pa/s3cret@";
    [
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
                of_rabbit: ca.to_owned(),
                ..urls()
            },
        ),
        (
            "redis.ca_file: it has no certificate that can be trusted",
            Urls {
                redis: "rediss://127.0.0.1:1/0".to_owned(),
                of_redis: ca.to_owned(),
                ..urls()
            },
        ),
    ]
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
    let (said, code) = check_connect(&text);
    assert_eq!(code, Some(0), "{said}");
    let daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "all came", || downstream.count() == 5).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
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
    let text = |rabbit: String| {
        let urls = Urls {
            rabbit,
            redis: RedisServer::shared().url(),
            downstream: format!("http://{}/send", downstream.address),
            queue: "agree",
            ..Urls::default()
        };
        let queue = "fair_by = \"{{ body.n }}\"\nqueue =";
        urls.text(name).replace("queue =", queue)
    };
    let mut first = Daemon::start_with(&text(url.clone()), |_| {});
    first.ready().await;
    first.stop(&[NEW_SCHEDULE]).await;
    rabbit.set_permissions(name, name, ["^$", ".*", ".*"]);
    let strict = StrictBroker::to(rabbit.port()).await;
    let at = url.rsplit_once('@').unwrap().0;
    let text = text(format!("{at}@{}/{name}", strict.address()));
    let (said, code) = check_connect(&text);
    assert_eq!(code, Some(0), "{said}");
    let queue = line(&said, "routes.agree.queue: ok: ");
    assert!(
        queue.contains("warning: the user may not look at it"),
        "{queue}"
    );
    assert!(
        queue.contains("the user may not look at agree.parked.*: no message is parked"),
        "{queue}"
    );
    let messages = (1..=5).map(|n| (body(n), BasicProperties::default()));
    broker.publish("agree", messages).await;
    let mut daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "all came", || downstream.count() == 5).await;
    daemon.ready().await;
    let not_counted = "messages at the broker are not counted";
    daemon.says(not_counted).await;
    let not_parked = "no message is parked";
    daemon.says(not_parked).await;
    daemon.stop(&[NEW_SCHEDULE, not_counted, not_parked]).await;
    assert_eq!(broker.counts("agree").await, Some((0, 0)));
}
