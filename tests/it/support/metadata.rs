//! Metadata of AWS as it is documented: of an instance by IMDSv2 ("Use the Instance Metadata Service to access instance
//! metadata" and "Retrieve security credentials from instance metadata", EC2 User Guide), and of a container
//! ("Container credential provider", AWS SDKs and Tools Reference Guide).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::serve::serve;

const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

/// What it knows and did.
#[derive(Debug, Default)]
struct Known {
    /// How long credentials last.
    seconds: u64,
    /// `None`: the instance has no role.
    role: Option<&'static str>,
    /// What a container shows to be answered.
    authorization: &'static str,
    sessions: usize,
    /// When each of the credentials was made.
    made: Vec<Instant>,
    /// Credentials up to this number are good for nothing.
    ended: usize,
    /// The method and the path of all requests, in their order.
    asked: Vec<String>,
}

/// Gives the credentials `ASIA1`, `secret-1`, `token-1`, then those with 2, ….
pub struct MetadataServer {
    pub address: SocketAddr,
    known: Arc<Mutex<Known>>,
    _server: AbortOnDropHandle<()>,
}

impl MetadataServer {
    /// Of an instance; each of its credentials lasts for this many seconds.
    pub async fn of_instance(role: Option<&'static str>, seconds: u64) -> Self {
        let known = Known {
            role,
            seconds,
            ..Known::default()
        };
        Self::start(0, known).await
    }

    /// Of a container, at this port.
    pub async fn of_container(port: u16, authorization: &'static str, seconds: u64) -> Self {
        let known = Known {
            authorization,
            seconds,
            ..Known::default()
        };
        Self::start(port, known).await
    }

    async fn start(port: u16, known: Known) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let known = Arc::new(Mutex::new(known));
        let of_server = Arc::clone(&known);
        let server = serve(listener, move |request| {
            std::future::ready(of_server.lock().unwrap().answer(&request))
        });
        Self {
            address,
            known,
            _server: server,
        }
    }

    /// The method and the path of all requests so far.
    pub fn asked(&self) -> Vec<String> {
        self.known.lock().unwrap().asked.clone()
    }

    /// How many credentials it made.
    pub fn made(&self) -> usize {
        self.known.lock().unwrap().made.len()
    }

    /// From now on the instance has this role.
    pub fn set_role(&self, role: &'static str) {
        self.known.lock().unwrap().role = Some(role);
    }

    /// All credentials so far are good for nothing.
    pub fn end(&self) {
        let mut known = self.known.lock().unwrap();
        known.ended = known.made.len();
    }

    /// Whether a call that arrived then is signed with credentials that are good. The signature itself is not looked
    /// at.
    pub fn knows(&self, headers: &HeaderMap, at: Instant) -> bool {
        let known = self.known.lock().unwrap();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = text("x-amz-security-token").and_then(|token| token.strip_prefix("token-"));
        let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) else {
            return false;
        };
        let made = number
            .checked_sub(1)
            .and_then(|place| known.made.get(place));
        let life = Duration::from_secs(known.seconds);
        let id = format!("AWS4-HMAC-SHA256 Credential=ASIA{number}/");
        number > known.ended
            && made.is_some_and(|made| at.saturating_duration_since(*made) < life)
            && text("authorization").is_some_and(|value| value.starts_with(&id))
    }
}

impl Known {
    fn answer(&mut self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (method, path) = (request.method(), request.uri().path());
        self.asked.push(format!("{method} {path}"));
        let text = |name: &str| {
            let value = request.headers().get(name);
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let session = text("x-aws-ec2-metadata-token").strip_prefix("session-");
        let session = session.and_then(|number| number.parse::<usize>().ok());
        let seconds = text("x-aws-ec2-metadata-token-ttl-seconds").parse::<u32>();
        if path == "/v1/credentials" {
            return match text("authorization") == self.authorization {
                true => reply(
                    200,
                    self.credentials("\"RoleArn\":\"arn:aws:iam::1:role/task\""),
                ),
                false => reply(
                    401,
                    r#"{"code":"Unauthorized","message":"not this token"}"#.to_owned(),
                ),
            };
        }
        if method == Method::PUT && path == "/latest/api/token" {
            return match seconds {
                Ok(1..=21_600) => {
                    self.sessions += 1;
                    reply(200, format!("session-{}", self.sessions))
                }
                _ => reply(400, String::new()),
            };
        }
        // Without a session all is refused, as where IMDSv2 is required.
        if session.is_none_or(|number| number == 0 || number > self.sessions) {
            return reply(401, String::new());
        }
        let role = path.strip_prefix(ROLES);
        match (self.role, role) {
            (Some(role), Some("")) => reply(200, role.to_owned()),
            (Some(role), Some(asked)) if asked == role => {
                let text = self.credentials("\"Code\":\"Success\",\"Type\":\"AWS-HMAC\"");
                reply(200, text)
            }
            _ => reply(404, "<html>404 - Not Found</html>".to_owned()),
        }
    }

    /// The last ones again, or new ones in the second half of their life.
    fn credentials(&mut self, more: &str) -> String {
        let life = Duration::from_secs(self.seconds);
        let is_young = |at: &Instant| at.elapsed() < life / 2;
        if self.made.len() == self.ended || !self.made.last().is_some_and(is_young) {
            self.made.push(Instant::now());
        }
        let (number, age) = (self.made.len(), self.made.last().unwrap().elapsed());
        let ends = Timestamp::now() + life.saturating_sub(age);
        let ends = ends.strftime("%Y-%m-%dT%H:%M:%SZ");
        format!(
            r#"{{{more},"AccessKeyId":"ASIA{number}","SecretAccessKey":"secret-{number}","Token":"token-{number}","Expiration":"{ends}"}}"#
        )
    }
}

fn reply(status: u16, text: String) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    response.body(Full::from(text)).unwrap()
}
