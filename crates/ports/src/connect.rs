//! Shared by the rooms that connect to servers: whether a server can be reached, the addresses of its host,
//! TLS, and secrets.
//!
//! **Names.** Problem: the system's lookup blocks a thread, for half a minute where DNS does not answer, and
//! a timeout ends only the waiting. A client that looks a name up for each attempt piles up threads until the
//! system refuses more, and then a runtime panics. So there is at most one lookup of a name under way;
//! attempts that need the name meanwhile wait for the same answer, each within its own bound. If no thread
//! can be started, that is an error. Nothing is cached: the next lookup asks the system again.
//!
//! **Certificates.** Problem: a certificate lasts days or months, and a fleet runs longer. So the client
//! certificate and its key are read again for each connection. While one of the two is being replaced they do
//! not belong together; then no certificate is sent, the server refuses, and the next attempt reads them
//! again.
//!
//! **Secrets.** Problem: a password that was read once at the start is wrong after a rotation, and every
//! later attempt to connect fails. So the secret is read again for each login. If that fails (a file is being
//! replaced), the last good one is used, with a warning.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::{fmt, io, thread};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::watch;
use tracing::warn;

use super::lock;

/// The state of a connection that is supervised and rebuilt by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not connected since the start.
    Connecting,
    /// Usable.
    Up,
    /// Lost, with the reason as an operator should read it. Being rebuilt with backoff.
    Down(Arc<str>),
}

impl Link {
    /// Whether it can be used now.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}

/// Lookups of different names at a time. Names that are made from messages can be many.
const MOST: usize = 8;

type Addresses = Option<Result<Vec<IpAddr>, Arc<io::Error>>>;
type UnderWay = BTreeMap<String, watch::Receiver<Addresses>>;

/// Looks names up. Copies share what is under way.
#[derive(Clone)]
pub struct Resolver {
    lookup: fn(&str) -> io::Result<Vec<IpAddr>>,
    under_way: Arc<Mutex<UnderWay>>,
}

impl Resolver {
    /// One that asks the system.
    #[must_use]
    pub fn new() -> Self {
        Self::with(system)
    }

    fn with(lookup: fn(&str) -> io::Result<Vec<IpAddr>>) -> Self {
        Self {
            lookup,
            under_way: Arc::default(),
        }
    }

    /// The addresses of a host, by name or as an address. Has no bound in time: the caller has one.
    ///
    /// # Errors
    /// When the name is not known, or there is no thread for the lookup.
    pub async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let mut answer = self.ask(host)?;
        let answer = answer.wait_for(Option::is_some).await;
        match answer.as_deref() {
            Ok(Some(Ok(found))) => Ok(found.clone()),
            Ok(Some(Err(error))) => Err(io::Error::new(error.kind(), Arc::clone(error))),
            _ => Err(io::Error::other("the lookup broke off")),
        }
    }

    fn ask(&self, host: &str) -> io::Result<watch::Receiver<Addresses>> {
        let mut under_way = lock(&self.under_way);
        if let Some(answer) = under_way.get(host) {
            return Ok(answer.clone());
        }
        if under_way.len() >= MOST {
            let why = "lookups of other names do not end";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        let (sender, answer) = watch::channel(None);
        let (this, name) = (self.clone(), host.to_owned());
        thread::Builder::new()
            .name("resolve".to_owned())
            .spawn(move || {
                let found = (this.lookup)(&name).map_err(Arc::new);
                lock(&this.under_way).remove(&name);
                sender.send_replace(Some(found));
            })?;
        under_way.insert(host.to_owned(), answer.clone());
        Ok(answer)
    }
}

fn system(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = (host, 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// Certificates, as PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Trusted in addition to the system's.
    pub ca: Option<Vec<u8>>,
    /// Ours, where servers ask clients for one.
    pub certificate: Option<ClientCertificate>,
}

/// A client's certificate with its key, both as PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate, and those that lead to its authority.
    pub certificate: Secret,
    pub key: Secret,
}

impl ClientCertificate {
    /// Reads both.
    ///
    /// # Errors
    /// When one is not PEM, or they do not belong together; the text says which, and quotes neither.
    pub fn read(&self) -> Result<CertifiedKey, String> {
        let (certificate, key) = (self.certificate.get(), self.key.get());
        let certificates = CertificateDer::pem_slice_iter(certificate.expose_secret().as_bytes());
        let certificates: Vec<_> = certificates
            .collect::<Result<_, _>>()
            .map_err(|error| format!("the certificate cannot be read as PEM: {error}"))?;
        if certificates.is_empty() {
            return Err("the certificate cannot be read as PEM: there is none".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes())
            .map_err(|error| format!("the key cannot be read as PEM: {error}"))?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(certificates, key, &provider)
            .map_err(|error| format!("the certificate and its key cannot be used: {error}"))
    }

    /// Sends it in handshakes, read at that moment.
    #[must_use]
    pub fn resolver(&self) -> Arc<dyn ResolvesClientCert> {
        Arc::new(Shown(self.clone()))
    }
}

impl fmt::Debug for Tls {
    /// Shows which parts there are, never their content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("certificate", &self.certificate.is_some())
            .finish()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Shown(ClientCertificate);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let read = self.0.read();
        let read = read.inspect_err(|why| tracing::warn!(why, "no certificate is shown"));
        read.ok().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Reads the secret; the error gives the reason, without the secret.
type Read = dyn Fn() -> Result<SecretString, String> + Send + Sync;

/// A secret, and how to read it again. Copies are the same.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    /// `None`: it is in the configuration.
    read: Option<Box<Read>>,
    known: Mutex<Known>,
}

struct Known {
    last: SecretString,
    /// The failure that was logged.
    logged: Option<String>,
}

impl Secret {
    /// A secret that `read` reads again, with its first value.
    pub fn rotating(
        first: SecretString,
        read: impl Fn() -> Result<SecretString, String> + Send + Sync + 'static,
    ) -> Self {
        Self::new(first, Some(Box::new(read)))
    }

    fn new(last: SecretString, read: Option<Box<Read>>) -> Self {
        let known = Mutex::new(Known { last, logged: None });
        Self(Arc::new(Inner { read, known }))
    }

    /// The current secret, or the last one that could be read.
    #[must_use]
    pub fn get(&self) -> SecretString {
        let now = self.0.read.as_ref().map(|read| read());
        let mut known = lock(&self.0.known);
        match now {
            None => {}
            Some(Ok(now)) => {
                known.last = now;
                known.logged = None;
            }
            // Once for each reason, not once for each attempt.
            Some(Err(why)) if known.logged.as_ref() != Some(&why) => {
                warn!(why, "a secret cannot be read again; the last one is used");
                known.logged = Some(why);
            }
            Some(Err(_)) => {}
        }
        known.last.clone()
    }

    /// The secret as it was used last.
    #[must_use]
    pub fn last(&self) -> SecretString {
        lock(&self.0.known).last.clone()
    }
}

impl From<SecretString> for Secret {
    fn from(fixed: SecretString) -> Self {
        Self::new(fixed, None)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests;
