//! A broker that asks for the right to configure where a queue or an exchange is only looked for: RabbitMQ 4.2.6 and
//! 4.3.0 (pull request 16085 of rabbitmq-server). A front before a real broker answers each passive declaration with
//! 403, as these versions answer a user without that right.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::proxy::network;

const METHOD: u8 = 1;
const END: u8 = 0xCE;
const CLOSE: [u8; 4] = [0, 20, 0, 40];
const CLOSE_OK: [u8; 4] = [0, 20, 0, 41];
const QUEUE_DECLARE: [u8; 4] = [0, 50, 0, 10];
const EXCHANGE_DECLARE: [u8; 4] = [0, 40, 0, 10];

/// Runs until it is dropped.
pub struct StrictBroker {
    address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

impl StrictBroker {
    /// In front of the broker at that port of this machine.
    pub async fn to(port: u16) -> Self {
        let listener = network().spawn(TcpListener::bind(("127.0.0.1", 0)));
        let listener = listener.await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let server = network().spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(pass(client, server));
            }
        });
        Self {
            address,
            _server: AbortOnDropHandle::new(server),
        }
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Closes of channels that the front itself sent, and whose answers it keeps.
#[derive(Default)]
struct ClosedReason {
    /// To the client: everything on these channels is dropped until its answer.
    by_client: HashMap<u16, bool>,
    /// To the server.
    by_server: HashMap<u16, bool>,
}

async fn pass(client: TcpStream, server: TcpStream) {
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let mut greeting = [0; 8];
    if from_client.read_exact(&mut greeting).await.is_err()
        || to_server.write_all(&greeting).await.is_err()
    {
        return;
    }
    let closing = Arc::new(Mutex::new(ClosedReason::default()));
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let back = tokio::spawn(answers(
        from_server,
        Arc::clone(&to_client),
        Arc::clone(&closing),
    ));
    asks(from_client, to_server, to_client, &closing).await;
    back.abort();
}

async fn asks(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    back: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    closing: &Mutex<ClosedReason>,
) {
    while let Some(frame) = read(&mut from).await {
        let is_closing = closing
            .lock()
            .unwrap()
            .by_client
            .contains_key(&frame.channel);
        if is_closing {
            if frame.method() == Some(CLOSE_OK) {
                closing.lock().unwrap().by_client.remove(&frame.channel);
            }
            continue;
        }
        let Some(name) = looked_for(&frame) else {
            if to.write_all(&frame.raw).await.is_err() {
                return;
            }
            continue;
        };
        {
            let mut closing = closing.lock().unwrap();
            closing.by_client.insert(frame.channel, true);
            closing.by_server.insert(frame.channel, true);
        }
        let why = format!("ACCESS_REFUSED - configure access to '{name}' refused");
        let asked = &frame.payload[..4];
        let refused = close(frame.channel, 403, &why, asked);
        let ended = close(frame.channel, 200, "", &[0; 4]);
        if back.lock().await.write_all(&refused).await.is_err()
            || to.write_all(&ended).await.is_err()
        {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    to: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    closing: Arc<Mutex<ClosedReason>>,
) {
    while let Some(frame) = read(&mut from).await {
        {
            let mut closing = closing.lock().unwrap();
            if closing.by_server.contains_key(&frame.channel) {
                if frame.method() == Some(CLOSE_OK) {
                    closing.by_server.remove(&frame.channel);
                }
                continue;
            }
        }
        if to.lock().await.write_all(&frame.raw).await.is_err() {
            return;
        }
    }
}

struct Frame {
    kind: u8,
    channel: u16,
    payload: Vec<u8>,
    raw: Vec<u8>,
}

impl Frame {
    fn method(&self) -> Option<[u8; 4]> {
        let method = self.payload.first_chunk().copied();
        method.filter(|_| self.kind == METHOD)
    }
}

async fn read(from: &mut OwnedReadHalf) -> Option<Frame> {
    let mut head = [0; 7];
    from.read_exact(&mut head).await.ok()?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut rest = vec![0; usize::try_from(size).ok()? + 1];
    from.read_exact(&mut rest).await.ok()?;
    let raw = [&head[..], &rest].concat();
    rest.pop();
    Some(Frame {
        kind: head[0],
        channel: u16::from_be_bytes([head[1], head[2]]),
        payload: rest,
        raw,
    })
}

/// The queue or exchange that is only looked for.
fn looked_for(frame: &Frame) -> Option<String> {
    let method = frame.method()?;
    // Behind the method stands a number that is not used any more.
    let rest = frame.payload.get(6..)?;
    let (name, rest) = short(rest)?;
    let bits = match method {
        QUEUE_DECLARE => rest.first()?,
        EXCHANGE_DECLARE => short(rest)?.1.first()?,
        _ => return None,
    };
    (bits & 1 == 1).then_some(name)
}

fn short(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(length.into())?;
    Some((String::from_utf8_lossy(text).into_owned(), rest))
}

/// `channel.close`.
fn close(channel: u16, code: u16, why: &str, asked: &[u8]) -> Vec<u8> {
    let length = u8::try_from(why.len()).unwrap();
    let payload = [
        &CLOSE[..],
        &code.to_be_bytes(),
        &[length],
        why.as_bytes(),
        asked,
    ]
    .concat();
    let size = u32::try_from(payload.len()).unwrap();
    [
        &[METHOD][..],
        &channel.to_be_bytes(),
        &size.to_be_bytes(),
        &payload,
        &[END],
    ]
    .concat()
}
