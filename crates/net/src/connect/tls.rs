//! TLS of every client: which servers are trusted, and our own certificate; `words` says what a failed handshake means.
//!
//! **Our certificate.** Problem: a certificate lasts days or months, and a fleet runs longer. So the client
//! certificate and its key are read again for each connection. While one of the two is being replaced they do
//! not belong together; then no certificate is sent, the server refuses, and the next attempt reads them
//! again.
//!
//! **A server's certificate that is its own authority.** Problem: `openssl req -x509` makes a certificate that may sign
//! others, and many servers use it as their own. The rules for chains (RFC 5280) allow no such certificate at the end
//! of one, so it would be refused even if it is configured as the authority, where curl and redis-cli accept it. So a
//! certificate that is, byte for byte, one of those that the operator configured is trusted by itself: it must be in
//! its time and for the name of the server, and the server proves in the handshake that it has the key. Only such a
//! certificate may name its host as the common name of its subject, if it has no other names.

pub(super) mod words;

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use secrecy::ExposeSecret as _;

use self::words::words;
use super::Secret;

/// Certificates, as PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// One certificate or more, trusted in addition to the system's.
    pub ca: Option<Vec<u8>>,
    /// Ours, where servers ask clients for one.
    pub certificate: Option<ClientCertificate>,
}

/// A client's certificate with its key, both as PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate first, then those that lead to its authority.
    pub certificate: Secret,
    /// The private key of the certificate, not encrypted: PKCS #8 (`PRIVATE KEY`), PKCS #1 (`RSA PRIVATE KEY`) or SEC 1
    /// (`EC PRIVATE KEY`). The first key of the text is used.
    pub key: Secret,
}

/// Certificates that cannot be used. None of these passes by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// In `ca_file`.
    #[error("it has no certificate that can be trusted: {0}")]
    Authority(String),
    /// Neither the system nor `ca_file` names an authority.
    #[error("the system has no certificates to trust; install them or set `ca_file`")]
    NoAuthority,
    /// In `cert_file` or `key_file`.
    #[error("{0}")]
    Certificate(String),
}

impl Tls {
    /// Trusts the authorities of the system and those that are configured.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        client_config(self.ca.as_deref(), self.certificate.as_ref(), true)
    }
}

/// Trusts the authorities in `ca` (PEM), and with `system` those of the system; sends our certificate to servers that
/// ask for one. Reads many files: meant to be done once.
///
/// # Errors
/// When a certificate cannot be used.
pub fn client_config(
    ca: Option<&[u8]>,
    ours: Option<&ClientCertificate>,
    system: bool,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Certificate(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trust::of(ca, system, provider)?));
    let Some(ours) = ours else {
        return Ok(config.with_no_client_auth());
    };
    ours.read().map_err(TlsError::Certificate)?;
    Ok(config.with_client_cert_resolver(ours.resolver()))
}

/// Decides whether a server is trusted.
#[derive(Debug)]
struct Trust {
    /// By the rules for chains. `None`: no authority is known, so that no certificate is good.
    chains: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates that the operator configured.
    configured: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Trust {
    fn of(
        ca: Option<&[u8]>,
        system: bool,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let configured = ca.map(authorities).transpose()?.unwrap_or_default();
        for certificate in &configured {
            let added = roots.add(certificate.clone());
            added.map_err(|error| TlsError::Authority(words(&error)))?;
        }
        if system {
            let found = rustls_native_certs::load_native_certs();
            for error in &found.errors {
                tracing::warn!(%error, "a system certificate cannot be read");
            }
            // Systems have odd certificates; those that cannot be parsed are not trusted.
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(TlsError::NoAuthority);
            }
        }
        let chains = (!roots.is_empty()).then(|| {
            let rules =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            rules
                .build()
                .map_err(|error| TlsError::Authority(error.to_string()))
        });
        Ok(Self {
            chains: chains.transpose()?,
            configured,
            provider,
        })
    }

    /// For a certificate that was configured itself.
    fn by_itself(
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        match verify_server_name(&parsed, name) {
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                presented,
                ..
            })) if presented.is_empty() && is_called(certificate, name) => {}
            named => named?,
        }
        Ok(ServerCertVerified::assertion())
    }
}

fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(read) if read.is_empty() => Err(TlsError::Authority("there is none".to_owned())),
        Ok(read) => Ok(read),
        Err(error) => Err(TlsError::Authority(format!(
            "it cannot be read as PEM: {error}"
        ))),
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chains) = &self.chains else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let judged = chains.verify_server_cert(certificate, others, name, ocsp, now);
        let Err(error) = &judged else { return judged };
        let is_configured = || {
            self.configured
                .iter()
                .any(|configured| configured == certificate)
        };
        // The library reports these two errors only for a certificate that is within its time.
        let is_about_its_kind = is_authority(error)
            || matches!(
                error,
                Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
            );
        if is_about_its_kind && is_configured() {
            return Self::by_itself(certificate, name);
        }
        judged
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// The certificate at the end of the chain may sign others.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(other))) = error else {
        return false;
    };
    matches!(other.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Whether the common name of its subject is that of the server.
fn is_called(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return false;
    };
    common_name(parsed.subject()).is_some_and(|called| called.eq_ignore_ascii_case(&name.to_str()))
}

/// The first common name (2.5.4.3) in a subject, which is DER: the number of the attribute, then the tag of a text
/// (`UTF8String`, `PrintableString`, `IA5String`), its length, and the text.
fn common_name(subject: &[u8]) -> Option<&str> {
    const NUMBER: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
    let at = subject
        .windows(NUMBER.len())
        .position(|part| part == NUMBER)?;
    let (&[tag, length], rest) = subject[at + NUMBER.len()..].split_first_chunk()?;
    let is_short_text = matches!(tag, 0x0c | 0x13 | 0x16) && length < 0x80;
    let text = rest.get(..usize::from(length)).filter(|_| is_short_text)?;
    str::from_utf8(text).ok()
}

impl ClientCertificate {
    /// Reads both.
    ///
    /// # Errors
    /// When one is not PEM, or they do not belong together; the text says which, and quotes neither.
    pub fn read(&self) -> Result<CertifiedKey, String> {
        let (certificate, key) = (self.certificate.get(), self.key.get());
        let pem = certificate.expose_secret().as_bytes();
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
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
        Arc::new(CurrentCertificate(self.clone()))
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
struct CurrentCertificate(ClientCertificate);

impl ResolvesClientCert for CurrentCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let warn = |why: &String| tracing::warn!(why, "no certificate is shown");
        self.0.read().inspect_err(warn).ok().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
