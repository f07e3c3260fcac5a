//! A server of HTTP/2 that writes what a test tells it, frame by frame (RFC 9113, section 4.1), and counts what clients
//! send.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Of PING and SETTINGS.
const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;

pub const NO_ERROR: u32 = 0;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// `:status: 200` and `:status: 500` in the static table (RFC 7541, appendix A).
pub const OK: u8 = 0x88;
pub const FAILED: u8 = 0x8e;

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A whole request. Its head is not decoded.
#[derive(Clone, Debug)]
pub struct Call {
    pub stream: u32,
    pub body: Vec<u8>,
}

/// What all clients sent.
#[derive(Debug, Default)]
pub struct Seen {
    pub connections: usize,
    /// Heads of requests.
    pub heads: usize,
    /// RST_STREAM, with the codes.
    pub resets: Vec<u32>,
    pub pings: usize,
    /// Bodies of whole requests, in the order of their ends.
    pub bodies: Vec<Vec<u8>>,
}

/// Runs until it is dropped.
pub struct FrameServer {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _server: AbortOnDropHandle<()>,
}

impl FrameServer {
    /// Each connection is given to `serve`, with its number, from 1 on, once it has sent the preface.
    pub async fn start<F, Fut>(serve: F) -> Self
    where
        F: Fn(Peer, usize) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        let server = async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let number = {
                    let mut seen = shared.lock().unwrap();
                    seen.connections += 1;
                    seen.connections
                };
                tokio::spawn(serve(Peer::new(stream, Arc::clone(&shared)), number));
            }
        };
        Self {
            address,
            seen,
            _server: AbortOnDropHandle::new(tokio::spawn(server)),
        }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/send", self.address)
    }

    pub fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap())
    }
}

/// One connection of a client.
pub struct Peer {
    frames: mpsc::Receiver<Frame>,
    writer: WriteHalf<TcpStream>,
    calls: Vec<Call>,
    seen: Arc<Mutex<Seen>>,
    /// Whether it answers PING.
    pub is_alive: bool,
    _reader: AbortOnDropHandle<()>,
}

impl Peer {
    fn new(stream: TcpStream, seen: Arc<Mutex<Seen>>) -> Self {
        let (reader, writer) = split(stream);
        // Little is read ahead: a peer that does not ask for calls blocks its client.
        let (tell, frames) = mpsc::channel(1);
        let shared = Arc::clone(&seen);
        let reader = tokio::spawn(async move {
            read(reader, tell, shared).await;
        });
        Self {
            frames,
            writer,
            calls: Vec::new(),
            seen,
            is_alive: true,
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    /// Writes a frame. An error is a client that went away.
    pub async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.writer.write_all(&frame).await.ok();
    }

    /// The first frame of a server, or another one like it.
    pub async fn settings(&mut self, settings: &[(u16, u32)]) {
        let one =
            |(key, value): &(u16, u32)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat();
        let payload: Vec<u8> = settings.iter().flat_map(one).collect();
        self.write(SETTINGS, 0, 0, &payload).await;
    }

    /// An answer without a body.
    pub async fn answer(&mut self, stream: u32, status: u8) {
        self.write(HEADERS, END_HEADERS | END_STREAM, stream, &[status])
            .await;
    }

    pub async fn reset(&mut self, stream: u32, code: u32) {
        self.write(RST_STREAM, 0, stream, &code.to_be_bytes()).await;
    }

    pub async fn go_away(&mut self, last: u32, code: u32) {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        self.write(GOAWAY, 0, 0, &payload).await;
    }

    /// The next whole request; `None`: the client closed. What is not a request is answered as it must be. May be
    /// dropped while it waits.
    pub async fn call(&mut self) -> Option<Call> {
        loop {
            let frame = self.frames.recv().await?;
            let is_ack = frame.flags & ACK != 0;
            match frame.kind {
                SETTINGS if !is_ack => self.write(SETTINGS, ACK, 0, &[]).await,
                PING if !is_ack && self.is_alive => {
                    self.write(PING, ACK, 0, &frame.payload).await;
                }
                HEADERS => self.calls.push(Call {
                    stream: frame.stream,
                    body: Vec::new(),
                }),
                DATA => self.data(&frame).await,
                RST_STREAM => self.calls.retain(|call| call.stream != frame.stream),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                let at = self
                    .calls
                    .iter()
                    .position(|call| call.stream == frame.stream);
                if let Some(at) = at {
                    let call = self.calls.remove(at);
                    self.seen.lock().unwrap().bodies.push(call.body.clone());
                    return Some(call);
                }
            }
        }
    }

    /// Reads up to the head of a request, and not its body.
    pub async fn head(&mut self) {
        while let Some(frame) = self.frames.recv().await {
            if frame.kind == HEADERS {
                let (stream, body) = (frame.stream, Vec::new());
                return self.calls.push(Call { stream, body });
            }
        }
    }

    async fn data(&mut self, frame: &Frame) {
        let call = self
            .calls
            .iter_mut()
            .find(|call| call.stream == frame.stream);
        if let Some(call) = call {
            call.body.extend_from_slice(&frame.payload);
        }
        if let Ok(length @ 1..) = u32::try_from(frame.payload.len()) {
            self.write(WINDOW_UPDATE, 0, 0, &length.to_be_bytes()).await;
            if frame.flags & END_STREAM == 0 {
                let stream = frame.stream;
                self.write(WINDOW_UPDATE, 0, stream, &length.to_be_bytes())
                    .await;
            }
        }
    }

    /// Answers all calls.
    pub async fn answer_all(mut self) {
        while let Some(call) = self.call().await {
            self.answer(call.stream, OK).await;
        }
    }
}

async fn read(
    mut reader: ReadHalf<TcpStream>,
    tell: mpsc::Sender<Frame>,
    seen: Arc<Mutex<Seen>>,
) -> Option<()> {
    let mut preface = [0; 24];
    reader.read_exact(&mut preface).await.ok()?;
    assert!(preface.starts_with(b"PRI * HTTP/2.0"));
    loop {
        let mut header = [0; 9];
        reader.read_exact(&mut header).await.ok()?;
        let [a, b, c, kind, flags, d, e, f, g] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        reader.read_exact(&mut payload).await.ok()?;
        {
            let mut seen = seen.lock().unwrap();
            match kind {
                HEADERS => seen.heads += 1,
                PING => seen.pings += 1,
                RST_STREAM => {
                    let code = payload[..].try_into().map(u32::from_be_bytes);
                    seen.resets.push(code.unwrap());
                }
                _ => {}
            }
        }
        let stream = u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff;
        let frame = Frame {
            kind,
            flags,
            stream,
            payload,
        };
        tell.send(frame).await.ok()?;
    }
}
