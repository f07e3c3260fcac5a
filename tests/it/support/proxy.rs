//! A network that fails: a TCP proxy that delays, cuts, refuses, or accepts and stays silent.
//!
//! What a connection sends is passed on in its order, however it is delayed. A proxy that is silent reads
//! and passes nothing; what it was sent meanwhile is passed on when it passes again, as in a network that
//! was interrupted for a while.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::port::{RELEASED, free_port};

/// This many pieces are under way in each direction of a connection.
const UNDER_WAY: usize = 1_000;

/// What the proxy does with connections and their data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// In each direction, and up to this much longer at random.
    Delay(Duration, Duration),
    /// This many bytes a second in each direction.
    Throttle(u32),
    /// This many bytes a second from the client of each connection, the answers at once.
    Uplink(u32),
    /// Accepts, and passes nothing in either direction.
    Silent,
    /// Nothing listens, and all connections are closed.
    Refuse,
}

/// Changes what a server sends to one connection. It may keep bytes until more come.
pub type Filter = Box<dyn FnMut(Vec<u8>) -> Vec<u8> + Send>;
/// What RabbitMQ sends without the frames of one method (the numbers of its class and its own), while `silent`.
pub fn without_method(method: [u8; 4], silent: Arc<AtomicBool>) -> Filter {
    let mut cut = frames();
    Box::new(move |piece| {
        let frames = cut(piece).into_iter();
        let passes = |frame: &Vec<u8>| !is_of(frame, method) || !silent.load(Ordering::Relaxed);
        frames.filter(passes).flatten().collect()
    })
}

/// What RabbitMQ sends, but from a frame of one method on nothing passes while it is `held`. What was held passes with
/// the first bytes after that.
pub fn held_from_method(method: [u8; 4], held: Arc<AtomicBool>) -> Filter {
    let (mut cut, mut kept) = (frames(), Vec::new());
    Box::new(move |piece| {
        let mut passed = Vec::new();
        for frame in cut(piece) {
            let holds = held.load(Ordering::Relaxed);
            if holds && (!kept.is_empty() || is_of(&frame, method)) {
                kept.extend(frame);
            } else {
                passed.append(&mut kept);
                passed.extend(frame);
            }
        }
        passed
    })
}

fn is_of(frame: &[u8], method: [u8; 4]) -> bool {
    frame[0] == 1 && frame[7..11] == method
}

/// Cuts what comes into frames: type, channel, size; the payload; one byte at the end.
fn frames() -> impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send {
    let mut rest = Vec::new();
    move |piece| {
        rest.extend(piece);
        let mut frames = Vec::new();
        while let Some(size) = rest.get(3..7) {
            let size = u32::from_be_bytes(size.try_into().expect("four bytes")) as usize;
            if rest.len() < size + 8 {
                break;
            }
            frames.push(rest.drain(..size + 8).collect());
        }
        frames
    }
}

type MakeFilter = dyn Fn() -> Filter + Send + Sync;

/// Runs until it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

struct Shared {
    mode: watch::Sender<Mode>,
    target: Mutex<SocketAddr>,
    /// The connections in the order in which they came.
    open: Mutex<Vec<CancellationToken>>,
    filter: Option<Box<MakeFilter>>,
}

impl Proxy {
    /// To a port of this machine.
    pub async fn to(port: u16) -> Self {
        Self::start(port, None).await
    }

    /// The same, with a filter for each connection.
    pub async fn filtering(port: u16, filter: impl Fn() -> Filter + Send + Sync + 'static) -> Self {
        Self::start(port, Some(Box::new(filter))).await
    }

    async fn start(target: u16, filter: Option<Box<MakeFilter>>) -> Self {
        let port = free_port();
        let shared = Arc::new(Shared {
            mode: watch::channel(Mode::Pass).0,
            target: Mutex::new(local(target)),
            open: Mutex::default(),
            filter,
        });
        let first = network().spawn(listen(port)).await;
        let first = first.expect("it listens");
        let server = network().spawn(serve(port, first, Arc::clone(&shared)));
        Self {
            port,
            shared,
            _server: AbortOnDropHandle::new(server),
        }
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        local(self.port)
    }

    /// For a RabbitMQ behind it, as the user that a new one has.
    #[must_use]
    pub fn amqp(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// Does this from now on, with the connections that are open too.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
        if mode == Mode::Refuse {
            self.cut();
        }
    }

    /// Connections from now on lead to another port.
    pub fn retarget(&self, port: u16) {
        *self.shared.target.lock().unwrap() = local(port);
    }

    /// Closes all connections.
    pub fn cut(&self) {
        let open = std::mem::take(&mut *self.shared.open.lock().unwrap());
        open.iter().for_each(CancellationToken::cancel);
    }

    /// Closes the oldest of the open connections; returns whether there was one.
    pub fn cut_one(&self) -> bool {
        let mut open = self.shared.open.lock().unwrap();
        open.retain(|one| !one.is_cancelled());
        if open.is_empty() {
            return false;
        }
        open.remove(0).cancel();
        true
    }
}

/// The runtime of all proxies. The workers of a test are busy with the test, and a call that waited in a
/// proxy for one of them would come late although nothing is wrong.
pub fn network() -> &'static Runtime {
    static NETWORK: OnceLock<Runtime> = OnceLock::new();
    NETWORK.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(2)
            .thread_name("network")
            .enable_all();
        builder.build().expect("threads")
    })
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The port is the proxy's own. But a process that another test starts has all sockets of this one between
/// its fork and its exec, including the one that found the port to be free: until the exec the port cannot
/// be bound.
async fn listen(port: u16) -> TcpListener {
    let end = Instant::now() + RELEASED;
    loop {
        match TcpListener::bind(local(port)).await {
            Ok(listener) => return listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("the proxy cannot listen on its port {port}: {error}"),
        }
    }
}

async fn serve(port: u16, first: TcpListener, shared: Arc<Shared>) {
    let mut mode = shared.mode.subscribe();
    let mut listener = first;
    loop {
        let refused = tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    tokio::spawn(connection(client, Arc::clone(&shared)));
                }
                false
            }
            refused = mode.wait_for(|mode| *mode == Mode::Refuse) => {
                if refused.is_err() { return; }
                true
            }
        };
        if refused {
            drop(listener);
            if mode.wait_for(|mode| *mode != Mode::Refuse).await.is_err() {
                return;
            }
            listener = listen(port).await;
        }
    }
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let ends = CancellationToken::new();
    shared.open.lock().unwrap().push(ends.clone());
    let mode = shared.mode.subscribe();
    let passing = async {
        // A connection that is accepted in silence gets nothing, not even the end of its server.
        let mut passes = mode.clone();
        if passes.wait_for(|mode| *mode != Mode::Silent).await.is_err() {
            return;
        }
        let target = *shared.target.lock().unwrap();
        let Ok(server) = TcpStream::connect(target).await else {
            return;
        };
        for stream in [&client, &server] {
            drop(stream.set_nodelay(true));
        }
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        let filter = shared.filter.as_ref().map(|filter| filter());
        tokio::join!(
            direction(from_client, to_server, mode.clone(), Way::Up),
            direction(from_server, to_client, mode.clone(), Way::Down(filter)),
        );
    };
    ends.run_until_cancelled(passing).await;
    ends.cancel();
}

/// A direction of a connection.
enum Way {
    /// To the server.
    Up,
    /// Back, through a filter.
    Down(Option<Filter>),
}

/// Passes on what comes from one side, each piece when it is due.
async fn direction(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    way: Way,
) {
    let (up, mut filter) = match way {
        Way::Up => (true, None),
        Way::Down(filter) => (false, filter),
    };
    let (pieces, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let mut silence = mode.clone();
    let reading = async move {
        let mut last = Instant::now();
        let mut buffer = vec![0; 16 * 1024];
        while silence.wait_for(|mode| *mode != Mode::Silent).await.is_ok() {
            let Ok(count @ 1..) = from.read(&mut buffer).await else {
                break;
            };
            let now = *silence.borrow();
            let rate = match now {
                Mode::Throttle(bytes) => Some(bytes),
                Mode::Uplink(bytes) if up => Some(bytes),
                _ => None,
            };
            if let Some(bytes) = rate {
                sleep(Duration::from_secs_f64(count as f64 / f64::from(bytes))).await;
            }
            last = last.max(Instant::now() + delay(now));
            let piece = buffer[..count].to_vec();
            if pieces.send((last, piece)).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((at, piece)) = due.recv().await {
            sleep_until(at).await;
            if mode.wait_for(|mode| *mode != Mode::Silent).await.is_err() {
                return;
            }
            let piece = match &mut filter {
                Some(filter) => filter(piece),
                None => piece,
            };
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        drop(to.shutdown().await);
    };
    tokio::join!(reading, writing);
}

fn delay(mode: Mode) -> Duration {
    match mode {
        Mode::Delay(base, jitter) => base + jitter.mul_f64(rand::random()),
        _ => Duration::ZERO,
    }
}
