//! Where callers connect: a socket of this machine, an address, or a socket that systemd opened. What becomes of a
//! connection is in `connections`.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fmt, fs, net};

use axum::Router;
use listenfd::ListenFd;
use tokio::net::{TcpListener, UnixListener};

use super::connections::Connections;
use super::tls::Identity;
use sluiced_settings::sockets::ListenOn;

/// The user and the group of the socket may write to it.
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
        let place = self
            .names
            .split(':')
            .position(|given_name| given_name == name)
            .ok_or(io::ErrorKind::NotFound)?;
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

    /// Whether it could be bound, without doing so for longer than a moment. Sockets of systemd exist only in their
    /// unit.
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
        let identity = identity.as_ref();
        match self.socket {
            Socket::Unix(socket) => {
                let socket = UnixListener::from_std(socket)?;
                loop {
                    let accepted = socket.accept().await.map(|(stream, _)| stream);
                    open.take_accepted(accepted, &router, identity).await;
                }
            }
            Socket::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                loop {
                    let accepted = socket.accept().await.map(|(stream, _)| {
                        stream.set_nodelay(true).ok();
                        stream
                    });
                    open.take_accepted(accepted, &router, identity).await;
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

    #[test]
    fn a_name_that_systemd_did_not_open_is_told() {
        let at = ListenOn::Systemd("callers".to_owned());
        let why = Listener::bind(&at, &mut none())
            .expect_err("no such socket")
            .to_string();
        assert!(why.contains("FileDescriptorName"), "{why}");
    }
}
