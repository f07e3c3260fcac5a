//! A token endpoint of OAuth 2.0 as RFC 6749 describes it: sections 2.3.1, 4.4.2, 5.1 and 5.2. It also gives tokens for
//! claims that are signed (RFC 7523, section 2.1); OpenSSL says whether a signature is right.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::serve::serve;

/// What it knows and did.
#[derive(Debug, Default)]
struct Known {
    id: String,
    secret: String,
    seconds: u64,
    /// The forms of all requests, in their order.
    asked: Vec<String>,
    /// When each token was given out.
    issued: Vec<Instant>,
    /// Tokens up to this number were withdrawn.
    withdrawn: usize,
}

/// Gives out `token-1`, `token-2`, ….
pub struct TokenServer {
    pub address: SocketAddr,
    known: Arc<Mutex<Known>>,
    _server: AbortOnDropHandle<()>,
}

impl TokenServer {
    /// For one client; each token is good for this many seconds.
    pub async fn start(id: &str, secret: &str, seconds: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let known = Arc::new(Mutex::new(Known {
            id: id.to_owned(),
            secret: secret.to_owned(),
            seconds,
            ..Known::default()
        }));
        let of_server = Arc::clone(&known);
        let server = serve(listener, move |request| {
            respond(request, Arc::clone(&of_server))
        });
        Self {
            address,
            known,
            _server: server,
        }
    }

    /// The forms of all requests so far.
    pub fn asked(&self) -> Vec<String> {
        self.known.lock().unwrap().asked.clone()
    }

    /// Whether the header of a call that arrived then has a token that is good.
    pub fn knows(&self, authorization: &str, at: Instant) -> bool {
        let known = self.known.lock().unwrap();
        let number = authorization.strip_prefix("Bearer token-");
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let life = Duration::from_secs(known.seconds);
        number.is_some_and(|number| {
            let issued = number
                .checked_sub(1)
                .and_then(|place| known.issued.get(place));
            number > known.withdrawn
                && issued.is_some_and(|issued| at.saturating_duration_since(*issued) < life)
        })
    }

    /// All tokens so far are good for nothing.
    pub fn withdraw(&self) {
        let mut known = self.known.lock().unwrap();
        known.withdrawn = known.issued.len();
    }

    /// From now on the client has this secret.
    pub fn set_secret(&self, secret: &str) {
        secret.clone_into(&mut self.known.lock().unwrap().secret);
    }
}

async fn respond(request: Request<Incoming>, known: Arc<Mutex<Known>>) -> Response<Full<Bytes>> {
    let header = request.headers().get("authorization");
    let header = header.map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await;
    let body = body.map_or(Bytes::new(), http_body_util::Collected::to_bytes);
    let form = String::from_utf8(body.to_vec()).unwrap();
    let mut known = known.lock().unwrap();
    known.asked.push(form.clone());
    let client = format!("{}:{}", known.id, known.secret);
    let right = format!("Basic {}", BASE64_STANDARD.encode(client));
    let in_body = format!("client_id={}&client_secret={}", known.id, known.secret);
    let is_right = header.is_some_and(|header| header == right) || form.contains(&in_body);
    let is_right = is_right || is_signed(&form, &known.secret);
    let grants = [
        "grant_type=client_credentials",
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer",
    ];
    let (status, text) = if !grants.iter().any(|grant| form.starts_with(grant)) {
        (400, r#"{"error":"unsupported_grant_type"}"#.to_owned())
    } else if is_right {
        known.issued.push(Instant::now());
        let (number, seconds) = (known.issued.len(), known.seconds);
        let text = format!(
            r#"{{"access_token":"token-{number}","token_type":"Bearer","expires_in":{seconds}}}"#
        );
        (200, text)
    } else {
        let text =
            r#"{"error":"invalid_client","error_description":"Client authentication failed"}"#;
        (401, text.to_owned())
    };
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/json");
    let response = response.header("cache-control", "no-store");
    response.body(Full::from(text)).unwrap()
}

/// Whether the form has claims that are signed by the private key in `pem`.
fn is_signed(form: &str, pem: &str) -> bool {
    let assertion = form.split_once("assertion=").map(|(_, token)| token);
    assertion.is_some_and(|token| pem.contains("PRIVATE KEY") && is_token_of(token, pem))
}

/// Whether a token in the form of RFC 7515 is signed by RS256 with the private key in `pem`: OpenSSL says it.
pub fn is_token_of(token: &str, pem: &str) -> bool {
    let Some((text, signature)) = token.rsplit_once('.') else {
        return false;
    };
    let Ok(signature) = BASE64_URL_SAFE_NO_PAD.decode(signature) else {
        return false;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let (key, text) = (file("key", pem.as_bytes()), file("text", text.as_bytes()));
    let (signature, public) = (file("signature", &signature), dir.path().join("public"));
    let openssl = |arguments: &[&str], paths: &[&Path]| {
        let mut command = Command::new("openssl");
        command.args(arguments);
        for path in paths {
            command.arg(path);
        }
        command
            .output()
            .expect("openssl is installed")
            .status
            .success()
    };
    assert!(openssl(
        &["rsa", "-pubout", "-out"],
        &[&public, Path::new("-in"), &key]
    ));
    openssl(
        &["dgst", "-sha256", "-verify"],
        &[&public, Path::new("-signature"), &signature, &text],
    )
}
