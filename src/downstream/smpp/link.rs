//! The connections of a downstream: opened, bound, kept and bound again.
//!
//! Each bind has a task on the runtime that sends. It connects, binds, and then reads: answers go to the calls that
//! wait for them, requests of the centre are answered. A centre that is silent is asked whether it is there
//! (`enquire_link`). When the connection ends, for whatever reason, the calls without an answer learn it at once, and
//! the task tries again with backoff: soon if the centre could not be reached, more slowly if it refused the bind,
//! because centres lock accounts that try too often.
//!
//! A centre that wants to end a session (`unbind`) is answered at once, and gets no new message; answers to those that
//! it has are waited for.
//!
//! A receipt is answered once it is safe. What is not a receipt, or cannot be taken now, stays with the centre
//! (`ESME_RX_T_APPN`), which delivers it again, or to another client.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::super::gate::connect_detail;
use super::session::{Response, Session, Written};
use crate::core::backoff::Backoff;
use crate::core::smpp::{
    Bind, BindAs, Command, CommandStatus, Frame, Malformed, Message, Receipt, frame, plain,
    response, response_id,
};
use crate::ports::connect::{Resolver, Secret};
use crate::ports::downstream::{Gate, ReceiptArrival};
use crate::ports::lock;

/// Waits after a centre could not be reached, or ended a session.
const UNREACHED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
/// Waits after it refused a bind.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How long the answer to our unbind is waited for.
const UNBINDING: Duration = Duration::from_secs(1);
/// The sequence number of a bind.
const FIRST: u32 = 1;

/// A connection, plain or TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
type BoxStream = Box<dyn Stream>;

/// Where the centre is, and as whom we bind.
pub(super) struct Centre {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(super) connect_timeout: Duration,
    pub(super) bind_as: BindAs,
    pub(super) system_id: String,
    pub(super) password: Secret,
    pub(super) system_type: String,
}

/// What is done with a connection once it is bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    pub(super) binds: usize,
    pub(super) window: usize,
    /// After so long without a word the centre is asked.
    pub(super) enquire_link: Duration,
    /// How long it may take to answer.
    pub(super) timeout: Duration,
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum OpenError {
    #[error("{0}")]
    Unreached(String),
    #[error("the centre refused the bind: {0}")]
    Refused(CommandStatus),
    #[error("the bind cannot be written: {0}")]
    Unwritable(Malformed),
}

/// All connections of a downstream.
pub(super) struct Links {
    centre: Centre,
    keeping: Keeping,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Why the last connection could not be had, or was lost.
    failure: Mutex<String>,
    pub(super) room: Arc<Notify>,
    /// How many binds have been tried and how many stand.
    tried: watch::Sender<(usize, usize)>,
    is_started: AtomicBool,
    /// Where receipts go; `None`: they stay with the centre.
    receipts: Option<mpsc::Sender<ReceiptArrival>>,
    /// The tasks of the binds.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Links {
    pub(super) fn new(
        centre: Centre,
        keeping: Keeping,
        receipts: Option<mpsc::Sender<ReceiptArrival>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            centre,
            keeping,
            sessions: Mutex::default(),
            failure: Mutex::new("not connected yet".to_owned()),
            room: Arc::default(),
            tried: watch::Sender::default(),
            is_started: AtomicBool::new(false),
            receipts,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Begins to connect, on this runtime; once.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        for number in 0..self.keeping.binds {
            let stop = self.stop.clone();
            let this = Arc::clone(self);
            self.tasks
                .spawn(async move { this.keep(number, stop).await });
        }
    }

    /// Waits until each bind stands or has failed once.
    pub(super) async fn opened(&self, bound: Duration) -> Result<(), String> {
        let binds = self.keeping.binds;
        let mut tried = self.tried.subscribe();
        let all = timeout(bound, tried.wait_for(|(tried, _)| *tried >= binds)).await;
        let standing = lock(&self.sessions).len();
        if standing >= binds {
            return Ok(());
        }
        let why = match all {
            Ok(_) => lock(&self.failure).clone(),
            Err(_) => format!("not done within {bound:?}"),
        };
        Err(format!("{standing} of {binds} binds: {why}"))
    }

    /// Writes a message on the connection with the fewest calls under way. An error says why there is none.
    pub(super) fn write(&self, pdus: &mut [Vec<u8>], gate: Gate) -> Result<Written, String> {
        let sessions = lock(&self.sessions);
        let open = sessions
            .iter()
            .filter_map(|session| Some((session.load()?, session)));
        let mut open: Vec<_> = open.collect();
        open.sort_by_key(|(load, _)| *load);
        if open.is_empty() {
            return Err(lock(&self.failure).clone());
        }
        for (_, session) in open {
            match session.write(pdus, gate) {
                Written::Full => {}
                other => return Ok(other),
            }
        }
        Ok(Written::Full)
    }

    /// Ends all sessions. The centre learns it if the runtime still runs, or the system takes an unbind at once.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        for session in lock(&self.sessions).drain(..) {
            session.shut();
            session.ask(Command::UNBIND);
        }
    }

    /// The same, and waits until the centre has answered.
    pub(super) async fn close(&self) {
        self.stop();
        self.tasks.close();
        // A centre that does not answer learns it by the end of the connection.
        drop(timeout(UNBINDING, self.tasks.wait()).await);
    }

    /// The life of one bind.
    async fn keep(&self, number: usize, stop: CancellationToken) {
        let (mut unreached, mut refused) = (0, 0);
        // The same failure is logged once.
        let mut logged = None;
        while let Some(opened) = stop.run_until_cancelled(self.open()).await {
            let fraction = rand::rng().random_range(0.0..1.0);
            let (why, wait) = match opened {
                Ok(stream) => {
                    (unreached, refused, logged) = (1, 0, None);
                    info!(bind = number, centre = %self.name(), "bound");
                    let why = self.hold(stream, &stop).await;
                    (why, UNREACHED.full_jitter(1, fraction))
                }
                Err(error @ OpenError::Unreached(_)) => {
                    unreached += 1;
                    (
                        error.to_string(),
                        UNREACHED.half_jitter(unreached, fraction),
                    )
                }
                Err(error) => {
                    refused += 1;
                    (error.to_string(), REFUSED.half_jitter(refused, fraction))
                }
            };
            if stop.is_cancelled() {
                return;
            }
            if logged.as_ref() != Some(&why) {
                warn!(bind = number, centre = %self.name(), why, "not bound");
            }
            lock(&self.failure).clone_from(&why);
            logged = Some(why);
            self.tried.send_modify(|(tried, _)| *tried += 1);
            if stop.run_until_cancelled(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.centre.host, self.centre.port)
    }

    /// Connects and binds.
    async fn open(&self) -> Result<BoxStream, OpenError> {
        let bound = self.centre.connect_timeout;
        let opened = timeout(bound, async {
            let mut stream = self.centre.connect().await?;
            self.centre.bind(&mut stream).await?;
            Ok(stream)
        });
        opened.await.unwrap_or_else(|_| {
            let why = format!("not bound within {bound:?}");
            Err(OpenError::Unreached(why))
        })
    }

    /// Uses a connection until it ends; returns why it did.
    async fn hold(&self, stream: BoxStream, stop: &CancellationToken) -> String {
        let (input, output) = tokio::io::split(stream);
        let room = Arc::clone(&self.room);
        let session = Session::new(Box::new(output), self.keeping.window, room, FIRST);
        let session = Arc::new(session);
        lock(&self.sessions).push(Arc::clone(&session));
        self.tried.send_modify(|(tried, standing)| {
            *tried += 1;
            *standing += 1;
        });
        self.room.notify_waiters();
        let reading = Reading {
            session: &session,
            keeping: self.keeping,
            receipts: self.receipts.as_ref(),
            input,
            received: Vec::new(),
            asked: false,
            is_closing: false,
        };
        let why = reading.run(stop).await;
        lock(&self.sessions).retain(|other| !Arc::ptr_eq(other, &session));
        session.end();
        why
    }
}

impl Centre {
    async fn connect(&self) -> Result<BoxStream, OpenError> {
        let failed = |error: io::Error| OpenError::Unreached(connect_detail(&error));
        let found = Resolver::new().addresses(&self.host).await;
        let found = found
            .map_err(|_| OpenError::Unreached("the host's name cannot be resolved".to_owned()))?;
        // Divided, so that a dead address leaves time for the next.
        let each = self.connect_timeout / u32::try_from(found.len().max(1)).unwrap_or(u32::MAX);
        let mut last = OpenError::Unreached("the host has no address".to_owned());
        for address in found {
            let tcp = match timeout(each, TcpStream::connect((address, self.port))).await {
                Ok(Ok(tcp)) => tcp,
                Ok(Err(error)) => {
                    last = failed(error);
                    continue;
                }
                Err(_) => {
                    last = OpenError::Unreached(format!("no connection within {each:?}"));
                    continue;
                }
            };
            tcp.set_nodelay(true).map_err(failed)?;
            let Some((tls, name)) = &self.tls else {
                return Ok(Box::new(tcp));
            };
            let stream = tls.connect(name.clone(), tcp).await.map_err(failed)?;
            return Ok(Box::new(stream));
        }
        Err(last)
    }

    async fn bind(&self, stream: &mut BoxStream) -> Result<(), OpenError> {
        let lost = |error: io::Error| {
            OpenError::Unreached(format!("connection lost during the bind: {error}"))
        };
        let password = self.password.get();
        let bind = Bind {
            bind_as: self.bind_as,
            system_id: &self.system_id,
            password: password.expose_secret(),
            system_type: &self.system_type,
        };
        let bind = bind.write(FIRST).map_err(OpenError::Unwritable)?;
        stream.write_all(&bind).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let mut received = Vec::new();
        // Exactly the first PDU is read: what follows belongs to the session.
        loop {
            let first = frame(&received);
            let first =
                first.map_err(|_| OpenError::Unreached("no SMPP is spoken there".to_owned()))?;
            match first {
                Some(first) if first.command.is_response() => {
                    return match first.status {
                        CommandStatus::OK => Ok(()),
                        refused => Err(OpenError::Refused(refused)),
                    };
                }
                // A request before the bind is answered means nothing.
                Some(_) => received.clear(),
                None => {}
            }
            let missing = match received.get(..4) {
                Some(&[a, b, c, d]) => {
                    let length = u32::from_be_bytes([a, b, c, d]) as usize;
                    length.saturating_sub(received.len())
                }
                _ => 4 - received.len(),
            };
            let from = received.len();
            received.resize(from + missing, 0);
            stream
                .read_exact(&mut received[from..])
                .await
                .map_err(lost)?;
        }
    }
}

/// Reads what the centre sends in a session.
struct Reading<'a> {
    session: &'a Arc<Session>,
    keeping: Keeping,
    receipts: Option<&'a mpsc::Sender<ReceiptArrival>>,
    input: ReadHalf<BoxStream>,
    received: Vec<u8>,
    /// The centre was asked whether it is there.
    asked: bool,
    /// One of both sides wants to end the session.
    is_closing: bool,
}

impl Reading<'_> {
    async fn run(mut self, stop: &CancellationToken) -> String {
        let mut chunk = vec![0; 8 * 1024];
        loop {
            if let Err(why) = self.take_in() {
                return why;
            }
            if self.is_closing && self.session.is_idle() {
                return "the centre ended the session".to_owned();
            }
            let patience = match self.asked || self.is_closing {
                true => self.keeping.timeout,
                false => self.keeping.enquire_link,
            };
            tokio::select! {
                read = self.input.read(&mut chunk) => match read {
                    Ok(0) => return "the centre closed the connection".to_owned(),
                    Ok(count) => {
                        self.asked = false;
                        self.received.extend_from_slice(&chunk[..count]);
                    }
                    Err(error) => return format!("connection lost: {error}"),
                },
                broken = self.session.written() => return broken,
                () = sleep(patience) => {
                    if self.is_closing {
                        return "the centre ended the session".to_owned();
                    }
                    if self.asked {
                        return format!("no answer to enquire_link within {:?}", self.keeping.timeout);
                    }
                    self.asked = true;
                    self.session.ask(Command::ENQUIRE_LINK);
                }
                () = stop.cancelled() => {
                    // `Links::stop` has asked already; what is begun is written.
                    let ending = async {
                        tokio::select! {
                            _ = self.input.read(&mut chunk) => {}
                            _ = self.session.written() => {}
                        }
                    };
                    drop(timeout(UNBINDING, ending).await);
                    return "it was stopped".to_owned();
                }
            }
        }
    }

    /// Every PDU that is whole.
    fn take_in(&mut self) -> Result<(), String> {
        let received = std::mem::take(&mut self.received);
        let mut rest = received.as_slice();
        loop {
            let next = frame(rest).map_err(|wrong| format!("the centre sent {wrong}"))?;
            let Some(next) = next else { break };
            self.take(&next)?;
            rest = &rest[next.length()..];
        }
        self.received = rest.to_vec();
        Ok(())
    }

    /// Hands over a receipt; `None`: it stays with the centre, because nothing takes it, or there is no room for it.
    fn deliver(&self, body: &[u8]) -> Result<Option<oneshot::Receiver<bool>>, Malformed> {
        let Some(receipts) = self.receipts else {
            return Ok(None);
        };
        let delivery = Message::read(body)?;
        let Some(receipt) = Receipt::of(&delivery) else {
            return Ok(None);
        };
        let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
        let (sender, confirmed) = oneshot::channel();
        let arrival = ReceiptArrival {
            receipt,
            source: text(&delivery.source.digits),
            destination: text(&delivery.destination.digits),
            confirmed: sender,
        };
        Ok(receipts.try_send(arrival).is_ok().then_some(confirmed))
    }

    fn take(&mut self, pdu: &Frame<'_>) -> Result<(), String> {
        const ANSWER: Command = Command::SUBMIT_SM.response();
        const UNBOUND: Command = Command::UNBIND.response();
        let (session, sequence) = (self.session, pdu.sequence);
        let ours = |command: Command, status| plain(command, status, sequence);
        match pdu.command {
            ANSWER | Command::GENERIC_NACK => session.answered(
                sequence,
                Response {
                    status: pdu.status,
                    message_id: response_id(pdu.body),
                },
            ),
            UNBOUND => return Err("the centre ended the session".to_owned()),
            Command::ENQUIRE_LINK => {
                session.control(&ours(Command::ENQUIRE_LINK.response(), CommandStatus::OK));
            }
            Command::UNBIND => {
                session.shut();
                session.control(&ours(UNBOUND, CommandStatus::OK));
                self.is_closing = true;
            }
            Command::DELIVER_SM => {
                let taken = self.deliver(pdu.body).unwrap_or_default();
                let (session, bound) = (Arc::clone(session), self.keeping.timeout);
                // Bounded by the room for receipts, and by the time.
                tokio::spawn(async move {
                    let is_safe = match taken {
                        Some(confirmed) => matches!(timeout(bound, confirmed).await, Ok(Ok(true))),
                        None => false,
                    };
                    let status = match is_safe {
                        true => CommandStatus::OK,
                        false => CommandStatus::TRY_LATER,
                    };
                    session.control(&response(Command::DELIVER_SM, status, sequence, ""));
                });
            }
            other if other.is_response() => {}
            _ => session.control(&ours(Command::GENERIC_NACK, CommandStatus::INVALID_COMMAND)),
        }
        Ok(())
    }
}
