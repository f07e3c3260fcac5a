//! A program that asks for permits, over one connection that it keeps, and one that calls a provider with them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::daemon::LONG;
use super::wait::within;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// A header's text; empty: it has none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    /// It grants a permit.
    pub fn granted(&self) {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
    }

    /// The id of the permit that it grants.
    #[must_use]
    pub fn id(&self) -> String {
        self.granted();
        self.body["id"].as_str().unwrap().to_owned()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: Option<&'static str>,
}

impl Client {
    /// To a socket, as soon as something listens there.
    pub async fn at_path(path: &Path) -> Self {
        let connecting = async {
            loop {
                match UnixStream::connect(path).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        Self::over(within(LONG, "something listens", connecting).await).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream).await
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self {
            sender,
            token: None,
        }
    }

    /// With this token in each request.
    #[must_use]
    pub fn with_token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    /// Sends a request, and reads the answer.
    pub async fn request(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error> {
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        })
    }

    /// Asks for a permit.
    pub async fn try_ask(&mut self, body: &Value) -> Result<Answer, hyper::Error> {
        let request = self.to(Method::POST, "/v1/permits", body.to_string());
        self.request(request).await
    }

    /// Asks for a permit.
    pub async fn ask(&mut self, body: &Value) -> Answer {
        within(LONG, "an answer", self.try_ask(body)).await.unwrap()
    }

    /// Asks what would pass.
    pub async fn look(&mut self, body: &Value) -> Answer {
        let request = self.to(Method::POST, "/v1/permits?mode=check", body.to_string());
        within(LONG, "an answer", self.request(request))
            .await
            .unwrap()
    }

    /// Ends a permit, with these parameters. Returns whether it still counted.
    pub async fn end(&mut self, id: &str, parameters: &str) -> bool {
        let path = format!("/v1/permits/{id}{parameters}");
        let request = self.to(Method::DELETE, &path, String::new());
        let answer = within(LONG, "an answer", self.request(request)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.body["ended"].as_bool().unwrap()
    }

    fn to(&self, method: Method, path: &str, body: String) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "callers")
            .header("content-type", "application/json");
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(body.into()).unwrap()
    }

    /// Calls a provider for a message.
    pub async fn call(&mut self, caller: &str, id: &str) -> Result<StatusCode, hyper::Error> {
        let request = Request::post("/send")
            .header("host", "provider")
            .header("x-caller", caller)
            .header("x-message-id", id)
            .header("x-key", id)
            .body(Full::default())
            .unwrap();
        Ok(self.request(request).await?.status)
    }
}
