//! What the rooms that connect to servers share: whether a server can be reached, the addresses of its host, and TLS.
//!
//! **Names.** Problem: the system's lookup blocks a thread, for half a minute where DNS does not answer, and a timeout
//! ends only the waiting. A client that looks a name up for each attempt piles up threads until the system refuses
//! more, and then a runtime panics. So there is at most one lookup of a name under way; attempts that need the name
//! meanwhile wait for the same answer, each within its own bound. A thread that cannot be had is an error. Nothing is
//! cached: the next lookup asks the system again.
//!
//! **Certificates.** Problem: a certificate lasts days or months, and a fleet runs longer. So our own certificate and
//! its key are read anew for each connection. While one of the two is being replaced they do not belong together; then
//! no certificate is shown, the server refuses, and the next attempt reads them again.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::ExposeSecret as _;
use tokio::sync::watch;

use super::lock;
use super::secret::Secret;

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

/// Lookups of different names at a time. Names that are made of messages can be many.
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
    /// By the system.
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
    /// When the name is not known, or there is no thread to look it up.
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
    /// Trusted besides the system's.
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

    /// Shows it in handshakes, as it is then.
    #[must_use]
    pub fn resolver(&self) -> Arc<dyn ResolvesClientCert> {
        Arc::new(Shown(self.clone()))
    }
}

impl fmt::Debug for Tls {
    /// Says what there is, never what it holds.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static GATE: Mutex<()> = Mutex::new(());

    /// Hangs until the gate is open.
    fn hangs(_host: &str) -> io::Result<Vec<IpAddr>> {
        ASKED.fetch_add(1, Ordering::SeqCst);
        drop(GATE.lock().unwrap());
        Ok(vec![IpAddr::from([10, 0, 0, 1])])
    }

    #[tokio::test]
    #[allow(clippy::await_holding_lock, reason = "the lookup is to hang meanwhile")]
    async fn a_lookup_that_hangs_takes_one_thread_however_often_it_is_asked() {
        let resolver = Resolver::with(hangs);
        let shut = GATE.lock().unwrap();
        for _ in 0..3 {
            let asking = (0..100).map(|_| resolver.addresses("hung.example"));
            let asked = timeout(Duration::from_millis(20), join_all(asking)).await;
            assert!(asked.is_err());
        }
        assert_eq!(lock(&resolver.under_way).len(), 1);
        for n in 1..MOST {
            let name = format!("{n}.example");
            assert!(resolver.ask(&name).is_ok());
        }
        assert!(resolver.ask("one.more.example").is_err(), "bounded");
        let own = resolver.addresses("192.0.2.7").await.unwrap();
        assert_eq!(own, [IpAddr::from([192, 0, 2, 7])], "no lookup");
        drop(shut);
        let found = resolver.addresses("hung.example").await.unwrap();
        assert_eq!(found, [IpAddr::from([10, 0, 0, 1])]);
        assert!(ASKED.load(Ordering::SeqCst) <= MOST + 1);
    }

    #[tokio::test]
    async fn a_name_that_is_not_known_is_an_error() {
        let resolver = Resolver::with(|_| Err(io::Error::other("no such name")));
        let error = resolver.addresses("nowhere.example").await.unwrap_err();
        assert!(error.to_string().contains("no such name"));
    }
}
