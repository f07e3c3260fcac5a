//! Calls that are signed for AWS, with credentials of each kind of place, which end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, file, get, program};
use crate::support::metadata::MetadataServer;
use crate::support::port::free_port;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

/// As AWS answers a call whose session token has ended ("Common error types" of its APIs: 403).
const EXPIRED: &str = "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error><Type>Sender</Type>\
    <Code>ExpiredToken</Code><Message>The security token included in the request is expired</Message></Error></ErrorResponse>";

fn credentials(number: u32) -> String {
    format!(
        "[default]\naws_access_key_id = ASIA{number}\naws_secret_access_key = secret{number}\naws_session_token = token{number}\n"
    )
}

/// `more`: where the credentials are.
fn auth(more: &str) -> String {
    format!(
        "auth = {{ kind = \"aws_sigv4\", region = \"eu-central-1\", service = \"sns\", {more} }}\n"
    )
}

/// The credentials end while messages wait. They are written anew, and no message dies, although each has one attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_ended_are_read_again_and_cost_no_attempt() {
    let name = "aws-ended";
    let broker = queue(name, "quorum").await;
    let ended = Arc::new(AtomicBool::new(false));
    let is_ended = Arc::clone(&ended);
    let downstream = Recorder::start(move |call| {
        let is_old = call.headers["x-amz-security-token"] == "token1";
        match is_old && is_ended.load(Ordering::SeqCst) {
            true => Reply {
                body: EXPIRED,
                ..Reply::status(403)
            },
            false => Reply::status(200),
        }
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("aws");
    std::fs::write(&file, credentials(1)).unwrap();
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_attempts = 1\n".to_owned();
    route.downstream = auth("credentials_file = \"credential:aws\"");
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    broker.publish(name, numbered(1, 60)).await;
    let daemon = Daemon::start_with(&config.text(), |command| {
        command.env("CREDENTIALS_DIRECTORY", place.path());
    });
    eventually(LONG, "the first calls", || downstream.count() >= 10).await;
    std::fs::write(&file, credentials(2)).unwrap();
    ended.store(true, Ordering::SeqCst);
    let all = || downstream.accepted().len() == 60;
    eventually(LONG, "all are accepted", all).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains("secret1") && !log.contains("token1"), "{log}");
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)), "no message has a second attempt");
    for call in downstream.calls() {
        let signed = "/eu-central-1/sns/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=";
        assert!(call.authorization.contains(signed), "{call:?}");
    }
}

/// A service that takes calls with good credentials of this metadata.
async fn guarded(metadata: &Arc<MetadataServer>) -> Recorder {
    let metadata = Arc::clone(metadata);
    Recorder::start(move |call| match metadata.knows(&call.headers, call.at) {
        true => Reply::status(200),
        false => Reply {
            body: EXPIRED,
            ..Reply::status(403)
        },
    })
    .await
}

fn instance(metadata: &MetadataServer) -> String {
    let address = metadata.address;
    auth(&format!(
        "credentials = \"instance\", metadata_url = \"http://{address}\""
    ))
}

/// Credentials of an instance last for six seconds, so they are replaced several times: never too late, without a call
/// that is refused or waits, and by one session of metadata for both routes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_an_instance_are_renewed_before_they_end() {
    let (one, other) = ("aws-instance", "aws-instance-other");
    let metadata = Arc::new(MetadataServer::of_instance(Some("sms"), 6).await);
    let downstream = guarded(&metadata).await;
    let broker = queue(one, "quorum").await;
    broker.declare(other, "quorum").await;
    broker.publish(one, numbered(1, 70)).await;
    broker.publish(other, numbered(71, 140)).await;
    let routes = [one, other].map(|name| {
        let mut route = Route::new(name, downstream.address);
        route.downstream = instance(&metadata);
        route
    });
    let mut config = config(one, routes.to_vec());
    config.rate = "10/1s".to_owned();
    let daemon = Daemon::start(&config);
    let all = || downstream.numbers().len() == 140;
    eventually(LONG, "all are called", all).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    for secret in ["secret-", "token-", "session-"] {
        assert!(!log.contains(secret), "{log}");
    }
    assert_eq!(downstream.count(), 140, "none was refused");
    // Fourteen seconds of calls.
    assert!((3..=6).contains(&metadata.made()), "{}", metadata.made());
    let asked = metadata.asked();
    let roles = "/latest/meta-data/iam/security-credentials/";
    let expected = [
        "PUT /latest/api/token".to_owned(),
        format!("GET {roles}"),
        format!("GET {roles}sms"),
    ];
    assert!(asked.chunks(3).all(|asked| asked == expected), "{asked:?}");
    assert_eq!(asked.len(), 3 * metadata.made(), "each is asked for once");
}

/// An instance gets its role late, and its credentials end before their time: they are replaced once, and no message
/// dies, although each has one attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_end_early_are_replaced_and_cost_no_attempt() {
    let name = "aws-early";
    let metadata = Arc::new(MetadataServer::of_instance(None, 3600).await);
    let downstream = guarded(&metadata).await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 120)).await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_attempts = 1\n".to_owned();
    route.downstream = instance(&metadata);
    let mut config = config(name, vec![route]);
    config.rate = "10/1s".to_owned();
    let mut daemon = Daemon::start(&config);
    daemon.says("the downstream is away").await;
    let admin = daemon.admin().await;
    let named = || {
        let (code, page) = get(admin, "/readyz");
        code == 503 && page.contains("asked for the name of its role, it said 404 Not Found")
    };
    eventually(LONG, "it says why", named).await;
    assert_eq!(downstream.count(), 0);
    metadata.set_role("sms");
    // Credentials that are younger would be refused for another reason.
    eventually(LONG, "six seconds of calls", || downstream.count() >= 60).await;
    metadata.end();
    let all = || downstream.accepted().len() == 120;
    eventually(LONG, "all are accepted", all).await;
    let log = daemon.stop(&AWAY).await;
    assert!(
        log.contains("refused the credentials: others are asked for"),
        "{log}"
    );
    assert_eq!(metadata.made(), 2);
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)), "no message has a second attempt");
}

/// What a daemon says while it has no credentials.
const AWAY: [&str; 4] = [
    NEW_SCHEDULE,
    "the downstream is away",
    "no credentials could be fetched",
    "no connection to the downstream yet",
];

/// Metadata of a container is away, then refuses the token in the file, which is read each time: nothing is called and
/// nothing is lost, and calls go on once it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_a_container_may_come_later_than_messages() {
    let name = "aws-container";
    let (port, place) = (free_port(), tempfile::tempdir().unwrap());
    let token = file(place.path(), "token", "an-old-one\n");
    let service = Arc::new(std::sync::OnceLock::<Arc<MetadataServer>>::new());
    let known = Arc::clone(&service);
    let downstream = Recorder::start(move |call| {
        let is_good = known
            .get()
            .is_some_and(|known| known.knows(&call.headers, call.at));
        Reply::status(if is_good { 200 } else { 403 })
    })
    .await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 20)).await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = auth("credentials = \"container\"");
    let text = config(name, vec![route]).text();
    let mut daemon = Daemon::start_with(&text, |command| {
        let url = format!("http://127.0.0.1:{port}/v1/credentials");
        command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
        command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token);
    });
    daemon.says("the downstream is away").await;
    let metadata = MetadataServer::of_container(port, "a-new-one", 3600).await;
    service.set(Arc::new(metadata)).ok().unwrap();
    let admin = daemon.admin().await;
    let named = || {
        get(admin, "/readyz")
            .1
            .contains("401 Unauthorized: Unauthorized not this token")
    };
    eventually(LONG, "it says why", named).await;
    assert_eq!(downstream.count(), 0);
    let _path = file(place.path(), "token", "a-new-one\n");
    let all = || downstream.numbers().len() == 20;
    eventually(LONG, "all are called", all).await;
    let log = daemon.stop(&AWAY).await;
    for secret in ["an-old-one", "a-new-one", "secret-1", "token-1"] {
        assert!(!log.contains(secret), "{log}");
    }
    assert_eq!(downstream.count(), 20, "none was refused");
    let dead = broker.counts(&format!("{name}.dead")).await;
    assert_eq!(dead, Some((0, 0)));
}

/// Variables of the environment are credentials if the configuration asks for them, and are shown nowhere. `check` says
/// which one is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_the_environment_are_used_and_not_shown() {
    let name = "aws-environment";
    let downstream = Recorder::start(|_| Reply::status(200)).await;
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 10)).await;
    let mut route = Route::new(name, downstream.address);
    route.downstream = auth("credentials = \"environment\"");
    let text = config(name, vec![route]).text();
    let variables = [
        ("AWS_ACCESS_KEY_ID", "ASIA1"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
        ("AWS_SESSION_TOKEN", "t0ken"),
    ];
    let daemon = Daemon::start_with(&text, |command| {
        command.envs(variables);
    });
    let all = || downstream.numbers().len() == 10;
    eventually(LONG, "all are called", all).await;
    let log = daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(!log.contains("s3cret") && !log.contains("t0ken"), "{log}");
    for call in downstream.calls() {
        assert!(call.authorization.contains("Credential=ASIA1/"), "{call:?}");
        assert_eq!(call.headers["x-amz-security-token"], "t0ken");
    }

    let place = tempfile::tempdir().unwrap();
    let config = file(place.path(), "c.toml", &text);
    let check = |variables: &[(&str, &str)]| {
        let mut command = program(&["check", "--print", "--config"]);
        command.arg(&config).envs(variables.iter().copied());
        let checked = command.output().unwrap();
        let said = [checked.stdout, checked.stderr].concat();
        (checked.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = check(&variables);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        !said.contains("s3cret") && !said.contains("t0ken"),
        "{said}"
    );
    let (code, said) = check(&variables[..1]);
    assert_eq!(code, Some(78), "{said}");
    let lacks = "auth.credentials: AWS_SECRET_ACCESS_KEY is not set in the environment";
    assert!(said.contains(lacks), "{said}");
}
