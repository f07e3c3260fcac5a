//! Our own certificate, for servers that ask clients for one, and the authorities that we trust.
//!
//! Problem: a certificate lasts days or months, and a fleet runs longer. So certificate and key are read
//! anew for each connection. While one of the two is being replaced they do not belong together; then no
//! certificate is shown, the server refuses, and the next attempt reads them again.

use std::fmt;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::ExposeSecret as _;

use super::secret::Secret;

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
