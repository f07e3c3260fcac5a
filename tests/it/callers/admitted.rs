//! Which programs may ask: those with the token, over TLS, or over a socket that systemd opened.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::Arc;

use http::{Request, StatusCode};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::authority::Authority;
use crate::support::caller::Client;
use crate::support::daemon::{Daemon, LONG, file, program};
use crate::support::port::free_port;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually_async, within};

const REFUSED: &str = "a request without the right token was refused";
const DECLARED: &[&str] = &["the schedule was lost", "nothing is kept on disk"];

fn text(name: &str, callers: &str) -> String {
    let redis = RedisServer::shared().url();
    format!(
        "[redis]\nurl = \"{redis}\"\nprefix = \"{name}\"\nfleet = \"{name}\"\nresponse_timeout = \"5s\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.provider]\nkind = \"paced\"\nrate = \"200/1s\"\n\
         [callers.web]\nlimits = [\"provider\"]\n{callers}\n"
    )
}

async fn secure(port: u16, authority: &Authority) -> Client {
    let mut roots = RootCertStore::empty();
    let pem = authority.pem();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let stream = within(LONG, "a handshake", stream).await.unwrap();
    Client::over(stream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_with_the_token_of_the_file() {
    let authority = Authority::new();
    drop(authority.server());
    let dir = tempfile::tempdir().unwrap();
    let token = file(dir.path(), "token", "first-token\n");
    let port = free_port();
    let callers = format!(
        "listen = \"0.0.0.0:{port}\"\ntoken_file = \"{}\"\ncert_file = \"{}\"\nkey_file = \"{}\"",
        token.display(),
        authority.file("server.pem").display(),
        authority.file("server.key").display(),
    );
    let declared = [DECLARED, &["every user of this machine can read", REFUSED]].concat();
    let mut daemon = Daemon::start_with(&text("callers-tls", &callers), |_| {});
    daemon.ready().await;
    let mut without = secure(port, &authority).await;
    let refused = without.ask(&json!({})).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let mut client = secure(port, &authority).await.with_token("first-token");
    client.ask(&json!({})).await.granted();
    // Both are replaced while it runs.
    drop(authority.server());
    drop(file(dir.path(), "token", "second-token\n"));
    let mut client = secure(port, &authority).await.with_token("second-token");
    let is_new = async {
        loop {
            let answer = client.ask(&json!({})).await;
            if answer.status == StatusCode::OK {
                return;
            }
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
        }
    };
    within(LONG, "the new token counts", is_new).await;
    let log = daemon.stop(&declared).await;
    assert!(!log.contains("first-token") && !log.contains("second-token"));
}

/// As systemd does it (sd_listen_fds(3)): the socket is descriptor 3, and its name is in the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_socket_that_was_opened_before_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["callers", "others"].map(|name| dir.path().join(name));
    let sockets = paths.each_ref().map(|path| {
        let socket: OwnedFd = UnixListener::bind(path).unwrap().into();
        Stdio::from(socket)
    });
    let callers = "listen = \"systemd:callers\"\n\
                   [callers.others]\nlimits = [\"provider\"]\nlisten = \"systemd:others\"";
    let config = file(
        dir.path(),
        "sluiced.toml",
        &text("callers-systemd", callers),
    );
    let sluiced = program(&[]);
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; \
        LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=callers:others exec \"$0\" run --config \"$1\"";
    let [first, second] = sockets;
    let mut daemon = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(sluiced.get_program())
        .arg(&config)
        .stdin(first)
        .stdout(second)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    for path in &paths {
        let granted = || async {
            let mut client = Client::at_path(path).await;
            let answer = client.try_ask(&json!({"wait": "5s"})).await;
            answer.is_ok_and(|answer| answer.status == StatusCode::OK)
        };
        eventually_async(LONG, "a permit", granted).await;
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let are_there = paths.iter().all(|path| path.exists());
    assert!(are_there, "the sockets are not the daemon's to remove");
}

/// A page in a browser may have a name that leads here (DNS rebinding), and then it may ask for anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_without_a_token_answers_to_no_name_that_a_page_could_have() {
    let port = free_port();
    let callers = format!("listen = \"127.0.0.1:{port}\"");
    let mut daemon = Daemon::start_with(&text("callers-names", &callers), |_| {});
    daemon.ready().await;
    let mut client = Client::at(([127, 0, 0, 1], port).into()).await;
    for (host, status) in [
        ("evil.example:9470", 401),
        ("localhost.evil.example", 401),
        ("", 401),
        ("localhost", 200),
        ("[::1]:9470", 200),
        ("127.0.0.1", 200),
    ] {
        let request = Request::post("/v1/permits")
            .header("host", host)
            .header("content-type", "application/json")
            .body("{\"wait\": \"20s\"}".to_owned().into())
            .unwrap();
        let answer = within(LONG, "an answer", client.request(request)).await;
        assert_eq!(answer.unwrap().status.as_u16(), status, "{host}");
    }
    daemon.stop(&[DECLARED, &[REFUSED]].concat()).await;
}

#[test]
fn check_says_what_callers_must_know_and_whether_it_can_listen() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("callers.sock");
    let listen = format!("listen = \"unix:{}\"", socket.display());
    let config = file(dir.path(), "sluiced.toml", &text("callers-check", &listen));
    let config = config.to_str().unwrap();
    let checked = program(&["check", "--connect", "--config", config]);
    let said = |mut command: std::process::Command| {
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let first = said(checked);
    let shown = socket.display();
    for expected in [
        format!(
            "callers.web: programs ask at unix:{shown}, each for up to 30s; 10000 of them may wait at a time"
        ),
        "up to 2ms after the permits".to_owned(),
        "no token".to_owned(),
        "callers.web.listen: ok: nothing listens there yet".to_owned(),
    ] {
        assert!(first.contains(&expected), "no `{expected}` in {first}");
    }
    assert!(!first.contains("rabbitmq"), "{first}");
    let _other = UnixListener::bind(&socket).unwrap();
    let second = said(program(&["check", "--connect", "--config", config]));
    assert!(
        second.contains("callers.web.listen: ok: a process listens there"),
        "{second}"
    );
    let listed = said(program(&["routes", "list", "--config", config]));
    assert!(listed.contains("callers.web"), "{listed}");
}
