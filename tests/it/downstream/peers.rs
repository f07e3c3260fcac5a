//! The servers that are called: one that answers properly and counts, and raw sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

pub(crate) type Answer = fn(&Parts) -> Response<Full<Bytes>>;

/// What a peer has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    ended: AtomicUsize,
    pub(crate) requests: Mutex<Vec<(Parts, Bytes)>>,
}

impl Seen {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.connections() - self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// A listener that closes when the value is dropped.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    accepting: AbortHandle,
}

impl Peer {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/send", self.address)
    }

    /// Gives every connection to `serve`.
    pub(crate) async fn start<F, Fut>(serve: F) -> Self
    where
        F: Fn(TcpStream, Arc<Seen>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (serving, seen) = (serve(stream, Arc::clone(&shared)), Arc::clone(&shared));
                tokio::spawn(async move {
                    serving.await;
                    seen.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        })
        .abort_handle();
        Self {
            address,
            seen,
            accepting,
        }
    }

    /// A proper server.
    pub(crate) async fn answering(answer: Answer) -> Self {
        Self::start(move |stream, seen| serve_http(stream, seen, answer)).await
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers requests, and notes what they were.
pub(crate) fn answering(
    seen: Arc<Seen>,
    answer: Answer,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Full<Bytes>>,
    Error = hyper::Error,
    Future: Send,
> + Send {
    service_fn(move |request: Request<Incoming>| {
        let seen = Arc::clone(&seen);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let response = answer(&parts);
            seen.requests.lock().unwrap().push((parts, body));
            Ok::<_, hyper::Error>(response)
        }
    })
}

/// Serves HTTP/1.1 with keep-alive on one connection.
pub(crate) async fn serve_http<S>(stream: S, seen: Arc<Seen>, answer: Answer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // An error here is a client that went away.
    drop(
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answering(seen, answer))
            .await,
    );
}

pub(crate) fn ok(_: &Parts) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from_static(b"{\"ok\":true}")))
}

/// Reads one request with the body that `message` makes. `false`: the client closed instead.
pub(crate) async fn read_request(stream: &mut TcpStream) -> io::Result<bool> {
    let mut seen = Vec::new();
    let mut chunk = [0; 1024];
    while !seen.ends_with(b"\"+49170\"}") {
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            return Ok(false);
        }
        seen.extend_from_slice(&chunk[..read]);
    }
    Ok(true)
}
