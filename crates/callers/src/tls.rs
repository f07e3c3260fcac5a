//! TLS for callers from other machines.
//!
//! The certificate is read anew for each connection: a renewed one is used at once. One that cannot be read (it is being
//! replaced) leaves the last good one.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use sluiced_ports::connect::Secret;
use sluiced_ports::lock;

/// Why the certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("`{}` cannot be read: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("the key cannot be read: {0}")]
    Key(String),
    #[error("the certificate and the key do not fit each other: {0}")]
    Pair(String),
}

/// The certificate of a listener, and its key.
pub struct Identity {
    certificate: PathBuf,
    key: Secret,
    last: Mutex<Arc<ServerConfig>>,
}

impl Identity {
    /// Reads both.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit each other.
    pub fn new(certificate: &Path, key: Secret) -> Result<Self, IdentityError> {
        let config = config(certificate, &key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key,
            last: Mutex::new(Arc::new(config)),
        })
    }

    /// The handshake of a connection.
    pub(crate) async fn accept<T>(&self, stream: T) -> io::Result<TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let now = config(&self.certificate, &self.key);
        let config = {
            let mut last = lock(&self.last);
            if let Ok(now) = now {
                *last = Arc::new(now);
            }
            Arc::clone(&last)
        };
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn config(certificate: &Path, key: &Secret) -> Result<ServerConfig, IdentityError> {
    let unreadable = |why: String| IdentityError::File {
        path: certificate.to_owned(),
        why,
    };
    let text = fs::read(certificate).map_err(|e| unreadable(e.to_string()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|e| unreadable(e.to_string()))?;
    let key = key.get();
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes());
    let key = key.map_err(|e| IdentityError::Key(e.to_string()))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key);
    config.map_err(|e| IdentityError::Pair(e.to_string()))
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}
