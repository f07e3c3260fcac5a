//! TLS for callers from other machines.
//!
//! The certificate and its key are read again at most every second, when a connection comes: a renewed certificate is
//! used within that time. One that cannot be read (it is being replaced) leaves the last good one.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use sluiced_net::connect::Secret;
use sluiced_ports::lock;

/// The files are read no more often.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// Why the certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file of the certificate cannot be read, or a certificate in it is no PEM.
    #[error("`{}` cannot be read: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system or of the parser.
        why: String,
    },
    /// There is no private key in PEM, or only an encrypted one.
    #[error("the key cannot be read: {0}")]
    Key(String),
    /// The two do not belong together, the file has no certificate, or TLS cannot use one of them.
    #[error("the certificate and the key do not fit each other: {0}")]
    Pair(String),
}

/// The certificate of a listener, and its key.
pub struct Identity {
    certificate: PathBuf,
    key: Secret,
    loaded: Mutex<LoadedCertificate>,
}

/// What was read last.
struct LoadedCertificate {
    config: Arc<ServerConfig>,
    /// A digest of both files.
    digest: [u8; 32],
    looked: Instant,
}

impl Identity {
    /// Reads both.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit each other.
    pub fn new(certificate: &Path, key: Secret) -> Result<Self, IdentityError> {
        let files = CertificateFiles::read(certificate, &key)?;
        let loaded = LoadedCertificate {
            config: Arc::new(files.config(certificate)?),
            digest: files.digest(),
            looked: Instant::now(),
        };
        Ok(Self {
            certificate: certificate.to_owned(),
            key,
            loaded: Mutex::new(loaded),
        })
    }

    /// The handshake of a connection.
    pub(crate) async fn accept<T>(&self, stream: T) -> io::Result<TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.current()).accept(stream).await
    }

    /// With what the files have now. Connections of one certificate share their configuration, so that a session can be
    /// resumed.
    fn current(&self) -> Arc<ServerConfig> {
        let mut loaded = lock(&self.loaded);
        if loaded.looked.elapsed() >= MIN_REREAD_INTERVAL {
            loaded.looked = Instant::now();
            if let Ok(files) = CertificateFiles::read(&self.certificate, &self.key)
                && files.digest() != loaded.digest
                && let Ok(config) = files.config(&self.certificate)
            {
                loaded.config = Arc::new(config);
                loaded.digest = files.digest();
            }
        }
        Arc::clone(&loaded.config)
    }
}

/// A certificate with its chain, and its key.
struct CertificateFiles {
    chain: Vec<u8>,
    key: SecretString,
}

impl CertificateFiles {
    fn read(certificate: &Path, key: &Secret) -> Result<Self, IdentityError> {
        let chain = fs::read(certificate).map_err(|e| unreadable(certificate, e.to_string()))?;
        Ok(Self {
            chain,
            key: key.get(),
        })
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(Sha256::digest(&self.chain))
            .chain_update(self.key.expose_secret().as_bytes())
            .finalize()
            .into()
    }

    fn config(&self, certificate: &Path) -> Result<ServerConfig, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(&self.chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| unreadable(certificate, e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.expose_secret().as_bytes())
            .map_err(|e| IdentityError::Key(e.to_string()))?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        config.map_err(|e| IdentityError::Pair(e.to_string()))
    }
}

fn unreadable(path: &Path, why: String) -> IdentityError {
    IdentityError::File {
        path: path.to_owned(),
        why,
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}
