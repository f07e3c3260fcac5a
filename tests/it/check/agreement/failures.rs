//! Each failure of a connection: servers that refuse, and the configurations that lead to them.

use super::super::*;
use super::{Failure, Shown, Urls};
use crate::support::authority::Signed;
use crate::support::look_alike::{Differs, LookAlike};

/// The servers of the tests, and others that a configuration may be wrong about.
pub(super) struct Servers {
    rabbit: &'static Rabbit,
    redis: &'static RedisServer,
    downstream: Recorder,
    with_password: RedisServer,
    replica: RedisServer,
    without_run_id: LookAlike,
    /// Behind [`Self::without_run_id`].
    _behind: RedisServer,
    known: Authority,
    /// Servers whose certificate another authority signed.
    rabbit_of_another: SecureFront,
    redis_of_another: SecureFront,
    downstream_of_another: SecureFront,
    rabbit_of_another_name: SecureFront,
}

impl Servers {
    pub(super) async fn start() -> Self {
        let (rabbit, redis) = (Rabbit::shared(), RedisServer::shared());
        let follows = format!("--replicaof 127.0.0.1 {}", redis.port());
        let behind = RedisServer::start();
        let differs = Differs {
            without: vec!["run_id"],
            ..Differs::default()
        };
        let downstream = Recorder::accepting().await;
        let (known, other) = (Authority::new(), Authority::new());
        let front = |port: u16, signed: Signed| async move { SecureFront::to(port, &signed).await };
        Self {
            with_password: RedisServer::start_with("", Some("right")),
            replica: RedisServer::start_with(&follows, None),
            without_run_id: LookAlike::of(&behind, differs),
            _behind: behind,
            rabbit_of_another: front(rabbit.port(), other.server()).await,
            rabbit_of_another_name: front(rabbit.port(), known.server_named("broker.example"))
                .await,
            redis_of_another: front(redis.port(), other.server()).await,
            downstream_of_another: front(downstream.address.port(), other.server()).await,
            rabbit,
            redis,
            downstream,
            known,
        }
    }

    /// A configuration without a fault.
    fn urls(&self) -> Urls {
        Urls {
            rabbit: self.rabbit.url(),
            redis: self.redis.url(),
            downstream: format!("http://{}/send", self.downstream.address),
            queue: "agree",
            ..Urls::default()
        }
    }

    fn ca_file(&self) -> String {
        format!("ca_file = {:?}\n", self.known.file("ca.pem"))
    }

    pub(super) fn failures_of_rabbitmq(&self) -> Vec<Failure> {
        let (url, port, ca) = (self.rabbit.url(), self.rabbit.port(), self.ca_file());
        let of_front = |front: &SecureFront| format!("amqps://guest:guest@{}/%2f", front.address());
        let nowhere = format!("amqp://127.0.0.1:{}/%2f", free_port());
        let without_tls = format!("amqps://guest:guest@127.0.0.1:{port}/%2f");
        let cases = [
            ("nothing listens", nowhere, ""),
            (
                "a wrong password",
                url.replace("guest:guest", "guest:hunter2"),
                "",
            ),
            (
                "a virtual host that is missing",
                url.replace("%2f", "nowhere"),
                "",
            ),
            (
                "another authority",
                of_front(&self.rabbit_of_another),
                ca.as_str(),
            ),
            ("another name", of_front(&self.rabbit_of_another_name), &ca),
            ("no TLS", without_tls, &ca),
        ];
        let failure = |(what, rabbit, more): (&'static str, String, &str)| Failure {
            what,
            urls: Urls {
                rabbit,
                of_rabbit: more.to_owned(),
                ..self.urls()
            },
            about: "rabbitmq ",
            shown: Shown::Ready("rabbitmq"),
        };
        cases.map(failure).into()
    }

    pub(super) fn failures_of_redis(&self) -> Vec<Failure> {
        let ca = self.ca_file();
        let plain = |port: u16| format!("redis://127.0.0.1:{port}/0");
        let of_another = format!("rediss://{}/0", self.redis_of_another.address());
        let without_tls = format!("rediss://127.0.0.1:{}/0", self.redis.port());
        let cases = [
            ("nothing listens", plain(free_port()), ""),
            (
                "a wrong password",
                self.with_password.url_with("hunter2"),
                "",
            ),
            (
                "a password that is missing",
                plain(self.with_password.port()),
                "",
            ),
            ("no run_id", self.without_run_id.url(), ""),
            ("a replica", self.replica.url(), ""),
            ("another mode", self.redis.url(), "mode = \"cluster\"\n"),
            ("another authority", of_another, ca.as_str()),
            ("no TLS", without_tls, &ca),
        ];
        let failure = |(what, redis, more): (&'static str, String, &str)| Failure {
            what,
            urls: Urls {
                redis,
                of_redis: more.to_owned(),
                ..self.urls()
            },
            about: "redis: ",
            shown: Shown::Ready("redis"),
        };
        cases.map(failure).into()
    }

    pub(super) fn failures_of_the_downstream(&self) -> Vec<Failure> {
        let ca = self.ca_file();
        let nowhere = format!("http://127.0.0.1:{}/", free_port());
        let of_another = format!("https://{}/", self.downstream_of_another.address());
        let without_tls = format!("https://{}/", self.downstream.address);
        let cases = [
            ("nothing listens", nowhere, ""),
            ("another authority", of_another, ca.as_str()),
            ("no TLS", without_tls, &ca),
        ];
        let failure = |(what, downstream, more): (&'static str, String, &str)| Failure {
            what,
            urls: Urls {
                downstream,
                of_downstream: more.to_owned(),
                ..self.urls()
            },
            about: "routes.agree.downstream: ",
            shown: Shown::Log("no connection to the downstream yet"),
        };
        cases.map(failure).into()
    }

    pub(super) fn a_missing_queue(&self) -> Failure {
        Failure {
            what: "a queue that is missing",
            urls: Urls {
                queue: "agree-nowhere",
                ..self.urls()
            },
            about: "routes.agree.queue: ",
            shown: Shown::Ready("route agree"),
        }
    }
}
