//! Where callers connect: a socket of this machine, an address, or a socket that systemd opened.
//!
//! Problem: ten thousand callers may wait at a time, each with a connection, and clients may be silent, slow or hostile.
//! So there is a most of connections. One more ends the oldest that has no request under way; if all have one, the new
//! one is closed. A connection that is silent for [`IDLE`] is closed, too. A request has a largest head, a largest body and a
//! longest time (`service`).

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fmt, fs, net};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use listenfd::ListenFd;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::tls::Identity;
use sluiced_settings::sockets::ListenOn;
use sluiced_telemetry::meters::CallersMeters;

/// A connection without a request is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// The longest TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The largest head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// Connections beyond those of requests that wait.
const MORE_CONNECTIONS: u64 = 1_000;
/// However few files a process may open, so many connections are accepted.
const FEWEST: usize = 16;
/// Files that everything else may open: a connection for each call under way, and a few others.
const OTHER_FILES: u64 = 4_000;
/// So many connections that ended are kept in the list at least.
const FEW: usize = 64;
/// A pause after an accept that failed because of missing file descriptors, instead of a hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Its user and its group may write to the socket.
const MODE: u32 = 0o660;

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on `{at}`: {reason}; {advice}")]
pub struct ListenError {
    at: String,
    reason: io::Error,
    advice: &'static str,
}

/// A listener that is bound and does not answer yet.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    file: Option<SocketFile>,
}

/// The sockets that systemd opened for this process. They can be taken once.
pub struct Inherited {
    sockets: ListenFd,
    names: String,
}

impl Inherited {
    /// What the environment says (sd_listen_fds(3)).
    #[must_use]
    pub fn from_environment() -> Self {
        Self {
            names: env::var("LISTEN_FDNAMES").unwrap_or_default(),
            sockets: ListenFd::from_env(),
        }
    }

    fn take(&mut self, name: &str) -> io::Result<Socket> {
        let place = self.names.split(':').position(|known| known == name);
        let place = place.ok_or(io::ErrorKind::NotFound)?;
        if let Ok(Some(socket)) = self.sockets.take_unix_listener(place) {
            return Ok(Socket::Unix(socket));
        }
        match self.sockets.take_tcp_listener(place)? {
            Some(socket) => Ok(Socket::Tcp(socket)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inherited")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Socket {
    Unix(unix::UnixListener),
    Tcp(net::TcpListener),
}

impl Listener {
    /// Binds it.
    ///
    /// # Errors
    /// When another process has the place, it is not allowed, or systemd did not open it.
    pub fn bind(at: &ListenOn, inherited: &mut Inherited) -> Result<Self, ListenError> {
        Self::bound(at, inherited).map_err(|reason| ListenError {
            at: at.to_string(),
            advice: advice(at, reason.kind()),
            reason,
        })
    }

    /// Whether it could be bound, without doing so for longer than a moment. Sockets of systemd exist only in their unit.
    ///
    /// # Errors
    /// When it cannot be bound for another reason than that a process listens there already.
    pub fn look(at: &ListenOn) -> Result<&'static str, ListenError> {
        if let ListenOn::Systemd(_) = at {
            return Ok("systemd opens it for the unit");
        }
        match Self::bind(at, &mut Inherited::from_environment()) {
            Ok(bound) => {
                drop(bound);
                Ok("nothing listens there yet")
            }
            Err(why) if why.reason.kind() == io::ErrorKind::AddrInUse => {
                Ok("a process listens there")
            }
            Err(why) => Err(why),
        }
    }

    fn bound(at: &ListenOn, inherited: &mut Inherited) -> io::Result<Self> {
        let (socket, file) = match at {
            ListenOn::Unix(path) => (Socket::Unix(at_path(path)?), SocketFile::at(path)),
            ListenOn::Tcp(place) => (Socket::Tcp(net::TcpListener::bind(place)?), None),
            ListenOn::Systemd(name) => (inherited.take(name)?, None),
        };
        match &socket {
            Socket::Unix(socket) => socket.set_nonblocking(true)?,
            Socket::Tcp(socket) => socket.set_nonblocking(true)?,
        }
        Ok(Self { socket, file })
    }

    /// Where other machines can reach it, whatever opened it.
    #[must_use]
    pub fn reached_at(&self) -> Option<net::SocketAddr> {
        let Socket::Tcp(socket) = &self.socket else {
            return None;
        };
        let address = socket.local_addr().ok()?;
        (!address.ip().to_canonical().is_loopback()).then_some(address)
    }

    /// Whether it is an address, and not a socket of this machine.
    pub(crate) const fn is_at_address(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Answers requests for as long as it is polled.
    pub(crate) async fn serve(
        self,
        router: Router,
        identity: Option<Arc<Identity>>,
        open: &mut Connections,
    ) -> io::Result<()> {
        let _file = self.file;
        match self.socket {
            Socket::Unix(socket) => {
                let socket = UnixListener::from_std(socket)?;
                loop {
                    match socket.accept().await {
                        Ok((stream, _)) => open.take(stream, &router, identity.as_ref()),
                        Err(error) => open.not_accepted(&error).await,
                    }
                }
            }
            Socket::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                loop {
                    match socket.accept().await {
                        Ok((stream, _)) => {
                            stream.set_nodelay(true).ok();
                            open.take(stream, &router, identity.as_ref());
                        }
                        Err(error) => open.not_accepted(&error).await,
                    }
                }
            }
        }
    }
}

/// The file of a socket, which is removed when it is dropped: unless another process has put one of its own there.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        let identity = identity_of(&path)?;
        Some(Self { path, identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity_of(&self.path) == Some(self.identity) {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let facts = fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino()))
}

/// Binds a path. A file that an earlier process left, at which no process listens, is replaced.
fn at_path(path: &Path) -> io::Result<unix::UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket());
    if is_socket {
        match unix::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    let socket = unix::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok(socket)
}

const fn advice(at: &ListenOn, kind: io::ErrorKind) -> &'static str {
    match (at, kind) {
        (_, io::ErrorKind::AddrInUse) => "another process has it: choose another place",
        (ListenOn::Unix(_), io::ErrorKind::NotFound) => {
            "its directory does not exist: RuntimeDirectory=sluiced in the unit makes /run/sluiced"
        }
        (ListenOn::Systemd(_), _) => {
            "the unit has no socket of that FileDescriptorName: see sluiced-callers.socket"
        }
        (_, io::ErrorKind::PermissionDenied) => {
            "this user may not: choose a place that it may use, or a socket of systemd"
        }
        (_, io::ErrorKind::AddrNotAvailable) => {
            "this machine does not have that address: choose one of its own"
        }
        _ => "choose another place",
    }
}

/// How many connections each listener has at a time, by how many requests may wait at each, as far as this process may open
/// files. It asks for as many files as it is allowed. The connections to the broker, the store and the downstream need
/// files, too: listeners together leave 4,000 to them, or half of what there is.
#[must_use]
pub fn connections(waiting: &[u16]) -> Vec<usize> {
    if waiting.is_empty() {
        return Vec::new();
    }
    let wanted = |waiting: &u16| u64::from(*waiting) + MORE_CONNECTIONS;
    let all: u64 = waiting.iter().map(wanted).sum();
    let files = open_files(all + OTHER_FILES);
    let rest = files.saturating_sub(OTHER_FILES).max(files / 2);
    let share = |waiting| wanted(waiting) * rest.min(all) / all;
    let each = waiting.iter().map(share);
    each.map(|share| usize::try_from(share).unwrap_or(usize::MAX).max(FEWEST))
        .collect()
}

/// How many files this process may open, after it asked for so many.
fn open_files(needed: u64) -> u64 {
    let allowed = getrlimit(Resource::Nofile);
    let raised = allowed.maximum.map_or(needed, |most| most.min(needed));
    let current = allowed.current.unwrap_or(u64::MAX);
    if current >= raised {
        return current;
    }
    let asked = Rlimit {
        current: Some(raised),
        maximum: allowed.maximum,
    };
    match setrlimit(Resource::Nofile, asked) {
        Ok(()) => raised,
        Err(_) => current,
    }
}

/// The connections that are open.
pub(crate) struct Connections {
    /// The oldest first.
    open: VecDeque<(AbortHandle, Busy)>,
    tasks: JoinSet<()>,
    most: usize,
    meters: Arc<CallersMeters>,
}

/// How many requests of a connection are under way.
#[derive(Clone, Debug, Default)]
struct Busy(Arc<AtomicUsize>);

impl Connections {
    /// None yet, and no more than `most` at a time.
    pub(crate) fn new(most: usize, meters: Arc<CallersMeters>) -> Self {
        Self {
            open: VecDeque::new(),
            tasks: JoinSet::new(),
            most,
            meters,
        }
    }

    /// A connection could not be accepted. Where this process may open no more files, one that is idle makes room.
    async fn not_accepted(&mut self, error: &io::Error) {
        debug!(%error, "a listener for callers could not accept");
        let no_files = [Errno::MFILE, Errno::NFILE];
        if Errno::from_io_error(error).is_some_and(|why| no_files.contains(&why)) {
            self.end_oldest_idle();
        }
        sleep(ACCEPT_PAUSE).await;
    }

    /// Answers the requests of a connection, in a task.
    fn take<T>(&mut self, stream: T, router: &Router, identity: Option<&Arc<Identity>>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        if self.open.len() >= self.most || self.open.len() > 2 * self.tasks.len() + FEW {
            self.open.retain(|(task, _)| !task.is_finished());
        }
        if self.open.len() >= self.most && !self.end_oldest_idle() {
            return;
        }
        let (busy, identity) = (Busy::default(), identity.cloned());
        let service = Counted {
            router: TowerToHyperService::new(router.clone()),
            busy: busy.clone(),
            _open: OpenConnection::begin(&self.meters),
        };
        let task = self.tasks.spawn(async move {
            let Some(identity) = identity else {
                return answer(stream, service).await;
            };
            match timeout(HANDSHAKE, identity.accept(stream)).await {
                Ok(Ok(stream)) => answer(stream, service).await,
                Ok(Err(error)) => debug!(%error, "a caller's TLS handshake failed"),
                Err(_) => debug!("a caller's TLS handshake took too long"),
            }
        });
        self.open.push_back((task, busy));
    }

    /// Ends the oldest connection without a request. Returns whether there was one.
    fn end_oldest_idle(&mut self) -> bool {
        let idle = |(_, busy): &(AbortHandle, Busy)| busy.0.load(Ordering::Relaxed) == 0;
        let Some(oldest) = self.open.iter().position(idle) else {
            return false;
        };
        if let Some((task, _)) = self.open.remove(oldest) {
            task.abort();
        }
        true
    }

    /// Whether a request is under way.
    pub(crate) fn is_busy(&self) -> bool {
        let mut open = self.open.iter();
        open.any(|(task, busy)| !task.is_finished() && busy.0.load(Ordering::Relaxed) > 0)
    }
}

async fn answer<T>(stream: T, service: Counted)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a caller's connection ended");
    }
}

/// The router, and a count of the requests under way.
struct Counted {
    router: TowerToHyperService<Router>,
    busy: Busy,
    _open: OpenConnection,
}

/// A connection that is counted until this is dropped.
struct OpenConnection(Arc<CallersMeters>);

impl OpenConnection {
    fn begin(meters: &Arc<CallersMeters>) -> Self {
        meters.connections.increment(1.0);
        Self(Arc::clone(meters))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.decrement(1.0);
    }
}

type Answered<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<hyper::body::Incoming>> for Counted {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = Answered<Result<Self::Response, Self::Error>>;

    fn call(&self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let under_way = UnderWay::begin(&self.busy);
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(under_way);
            answer
        })
    }
}

/// Ends the request when it is dropped: the caller may have hung up.
struct UnderWay(Busy);

impl UnderWay {
    fn begin(busy: &Busy) -> Self {
        busy.0.fetch_add(1, Ordering::Relaxed);
        Self(busy.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Inherited {
        Inherited {
            sockets: ListenFd::empty(),
            names: String::new(),
        }
    }

    #[test]
    fn a_file_that_an_earlier_process_left_is_replaced_and_a_living_listener_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("callers.sock");
        let at = ListenOn::Unix(path.clone());
        drop(unix::UnixListener::bind(&path).expect("a socket"));
        let first = Listener::bind(&at, &mut none()).expect("it is replaced");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let why = Listener::bind(&at, &mut none())
            .expect_err("it lives")
            .to_string();
        assert!(why.contains("another process has it"), "{why}");
        drop(first);
        fs::write(dir.path().join("file"), "").expect("a file");
        let why = Listener::bind(&ListenOn::Unix(dir.path().join("file")), &mut none());
        assert!(why.is_err(), "a file of others is not removed");
        let nowhere = ListenOn::Unix(dir.path().join("no/callers.sock"));
        let why = Listener::bind(&nowhere, &mut none())
            .expect_err("nowhere")
            .to_string();
        assert!(why.contains("RuntimeDirectory=sluiced"), "{why}");
    }

    /// Two listeners took what one of them needed, each for itself.
    #[test]
    fn listeners_share_the_files_that_a_process_may_open() {
        let each = connections(&[10_000, 1_000]);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let all: usize = each.iter().sum();
        assert!(all as u64 <= files.saturating_sub(OTHER_FILES).max(files / 2));
        assert!(each[0] <= 11_000 && each[1] <= 2_000, "{each:?}");
        assert!(each[0] > each[1], "{each:?}");
    }

    #[test]
    fn a_name_that_systemd_did_not_open_is_told() {
        let at = ListenOn::Systemd("callers".to_owned());
        let why = Listener::bind(&at, &mut none())
            .expect_err("no such socket")
            .to_string();
        assert!(why.contains("FileDescriptorName"), "{why}");
    }
}
