//! Where the message centre is: connecting to it, and binding.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use sluiced_net::connect::{Resolver, Secret, ServerStream, secured};
use sluiced_net::dial::connect_detail;
use sluiced_pdu::{Bind, BindAs, Command, CommandStatus, Malformed, frame};

/// The sequence number of a bind.
pub(super) const FIRST_SEQUENCE: u32 = 1;

/// Where the centre is, and the account of a bind.
pub(super) struct Centre {
    /// Shared by all binds, so that a name is looked up once at a time.
    pub(super) resolver: Resolver,
    pub(super) host: String,
    pub(super) port: u16,
    /// The certificate must be for `host`.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) connect_timeout: Duration,
    pub(super) bind_as: BindAs,
    pub(super) system_id: String,
    pub(super) password: Secret,
    pub(super) system_type: String,
}

/// The settings of a bound connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindSettings {
    pub(super) binds: usize,
    pub(super) window: usize,
    /// A centre that sends nothing for this long is asked whether it is there.
    pub(super) enquire_link: Duration,
    /// How long its answer may take.
    pub(super) timeout: Duration,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{0}")]
    Unreached(String),
    #[error("the centre refused the bind: {0}")]
    Refused(CommandStatus),
    #[error("the centre could not read the bind: generic_nack, {0}")]
    Unread(CommandStatus),
    #[error("the bind cannot be written: {0}")]
    Unwritable(Malformed),
}

impl Centre {
    /// Connects and binds, at the first address of the host that does both.
    pub(super) async fn open(&self) -> Result<ServerStream, OpenError> {
        let found = timeout(self.connect_timeout, self.resolver.addresses(&self.host)).await;
        match found {
            Ok(Ok(addresses)) => self.open_first(&addresses).await,
            Ok(Err(_)) | Err(_) => {
                let why = "the host's name cannot be resolved".to_owned();
                Err(OpenError::Unreached(why))
            }
        }
    }

    /// What the centre answers at one address counts for all of them: only where no answer comes the next one is tried.
    async fn open_first(&self, addresses: &[IpAddr]) -> Result<ServerStream, OpenError> {
        // Divided, so that a dead address does not take the time of the next.
        let timeout_each =
            self.connect_timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let mut last = OpenError::Unreached("the host has no address".to_owned());
        for address in addresses {
            match self.open_at(*address, timeout_each).await {
                Err(unreached @ OpenError::Unreached(_)) => last = unreached,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// Connects to an address within this long, and binds there. The bind has a time of its own: a centre may take
    /// longer for it, and binds that are given up can lock the account.
    async fn open_at(&self, address: IpAddr, within: Duration) -> Result<ServerStream, OpenError> {
        let too_late = |what, within| OpenError::Unreached(format!("{what} within {within:?}"));
        let connected = timeout(within, self.connect_to(address)).await;
        let mut stream = connected
            .map_err(|_| too_late("no connection", within))?
            .map_err(|error| OpenError::Unreached(connect_detail(&error)))?;
        let bound = timeout(self.connect_timeout, self.bind(&mut stream)).await;
        bound.map_err(|_| too_late("not bound", self.connect_timeout))??;
        Ok(stream)
    }

    async fn connect_to(&self, address: IpAddr) -> io::Result<ServerStream> {
        let tcp = TcpStream::connect((address, self.port)).await?;
        secured(tcp, self.tls.as_ref(), &self.host).await
    }

    async fn bind(&self, stream: &mut ServerStream) -> Result<(), OpenError> {
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
        let pdu = bind.write(FIRST_SEQUENCE).map_err(OpenError::Unwritable)?;
        let answer = self.bind_as.command().response();
        stream.write_all(&pdu).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let mut received = Vec::new();
        // Only the first PDU is read: the following ones belong to the session.
        loop {
            let first = frame(&received)
                .map_err(|_| OpenError::Unreached("no SMPP is spoken there".to_owned()))?;
            match first {
                Some(first) if first.command == answer => {
                    return match first.status {
                        CommandStatus::OK => Ok(()),
                        refused => Err(OpenError::Refused(refused)),
                    };
                }
                // Nothing but the response to the bind says that it stands (section 4.1).
                Some(first) if first.command == Command::GENERIC_NACK => {
                    return Err(OpenError::Unread(first.status));
                }
                // What else comes before the answer to the bind is ignored.
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

#[cfg(test)]
mod tests;
