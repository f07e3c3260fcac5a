//! RabbitMQ over TLS: certificates are verified, by the authority that the operator names.

use lapin::BasicProperties;

use super::config;
use crate::support::authority::{Authority, Signed};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, file, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::secure_front::SecureFront;
use crate::support::wait::eventually;

/// What is logged while there is no connection.
const AWAY: &str = "no connection to RabbitMQ";

/// A connection to a broker, with ten messages in the queue `secure`.
async fn filled(rabbit: &Rabbit) -> Broker {
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare("secure", "quorum").await;
    let messages = (1..=10).map(|n| (body(n), BasicProperties::default()));
    broker.publish("secure", messages).await;
    broker
}

/// The route `secure` of that fleet by TLS, trusting that authority. Another broker is another fleet.
fn trusting(fleet: &str, authority: &Authority, rabbit: String, downstream: &Recorder) -> String {
    let config = Config {
        rabbit: Some(rabbit),
        ..config(fleet, vec![Route::new("secure", downstream.address)])
    };
    let ca = format!("[rabbitmq]\nca_file = {:?}\n", authority.file("ca.pem"));
    config.text().replace("[rabbitmq]\n", &ca)
}

/// What `sluiced check --connect` reports about RabbitMQ.
fn checked(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "sluiced.toml", text);
    let mut check = program(&["check", "--connect", "--config"]);
    let output = check.arg(path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.starts_with("rabbitmq "));
    line.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_come_by_tls_from_a_broker_whose_certificate_is_good() {
    let authority = Authority::new();
    authority.server();
    let rabbit = Rabbit::start_secure(&authority);
    let broker = filled(&rabbit).await;
    let downstream = Recorder::accepting().await;
    let text = trusting("secure-good", &authority, rabbit.secure_url(), &downstream);
    let said = checked(&text);
    assert!(said.contains(": ok: "), "{said}");
    let daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "all came", || downstream.count() == 10).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(broker.counts("secure").await, Some((0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_authority_or_for_another_name_is_refused() {
    let (right, wrong) = (Authority::new(), Authority::new());
    let broker = filled(Rabbit::shared()).await;
    let port = Rabbit::shared().port();
    // The first certificate is signed by the right one, the second too, but for another host.
    for (name, trusted) in [("127.0.0.1", &wrong), ("broker.example", &right)] {
        let front = SecureFront::to(port, &right.server_named(name)).await;
        let url = format!("amqps://guest:guest@{}/%2f", front.address());
        let downstream = Recorder::accepting().await;
        let text = trusting("secure-other", trusted, url, &downstream);
        let said = checked(&text);
        assert!(said.contains("failed: "), "{said}");
        assert!(said.contains("certificate"), "{said}");
        let mut daemon = Daemon::start_with(&text, |_| {});
        daemon.says(AWAY).await;
        assert_eq!(daemon.page("/readyz").await.0, 503);
        daemon.stop(&[NEW_SCHEDULE, AWAY]).await;
        assert_eq!(downstream.count(), 0);
        assert_eq!(broker.counts("secure").await, Some((10, 0)));
    }
}

/// The broker asks clients for a certificate. The one of the start is of another authority; the right one
/// takes its place while the daemon runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_certificate_is_shown_and_read_anew_for_each_connection() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.server();
    let rabbit = Rabbit::start_asking(&authority, true);
    let broker = filled(&rabbit).await;
    let downstream = Recorder::accepting().await;
    let place = |signed: Signed| {
        std::fs::write(authority.file("client.key"), signed.key).unwrap();
        std::fs::write(authority.file("client.pem"), signed.certificate).unwrap();
    };
    let text = trusting("secure-ours", &authority, rabbit.secure_url(), &downstream);
    let said = checked(&text);
    assert!(said.contains("failed: "), "without a certificate: {said}");
    place(stranger.client());
    let ours = format!(
        "[rabbitmq]\ncert_file = {:?}\nkey_file = {:?}\n",
        authority.file("client.pem"),
        authority.file("client.key")
    );
    let text = text.replace("[rabbitmq]\n", &ours);
    let mut daemon = Daemon::start_with(&text, |_| {});
    daemon.says(AWAY).await;
    assert_eq!(downstream.count(), 0);
    place(authority.client());
    eventually(LONG, "all came", || downstream.count() == 10).await;
    daemon.ready().await;
    // Every user of the machine can read the key.
    let known = [NEW_SCHEDULE, AWAY, "chmod 600", "no certificate is shown"];
    daemon.stop(&known).await;
    assert_eq!(broker.counts("secure").await, Some((0, 0)));
}
