//! TLS of every client: which servers are trusted, our own certificate, and what a failed handshake means.
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
//!
//! **Words.** The library's errors are written for programmers; operators get a sentence.

use std::sync::Arc;
use std::{fmt, io};

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage,
    OtherError, PeerIncompatible, RootCertStore, SignatureScheme,
};
use secrecy::ExposeSecret as _;

use super::Secret;
use crate::dial::{causes, find};

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
    /// Those that the operator configured.
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
        let is_configured = || self.configured.iter().any(|known| known == certificate);
        // Both come only after its time was checked.
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
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
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

/// What a failure of TLS means. `None`: the failure is another one.
pub(super) fn why(error: &io::Error) -> Option<String> {
    if let Some(error) = find(error) {
        return Some(format!("TLS refused: {}", words(error)));
    }
    let is_cut = causes(error).any(|cause| cause.to_string() == "tls handshake eof");
    is_cut.then(|| "connection closed during the TLS handshake".to_owned())
}

/// An error of the TLS library for a person.
fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(_) if is_authority(error) => {
            "the server's certificate is that of an authority, and is not configured as one itself; write it into `ca_file`".to_owned()
        }
        Error::InvalidCertificate(what) => certificate_words(what),
        Error::AlertReceived(alert) => alert_words(*alert),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS".to_owned()
        }
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => OLD.to_owned(),
        Error::PeerIncompatible(what) => {
            format!("the server and sluiced have no way to encrypt in common ({what:?})")
        }
        other => other.to_string(),
    }
}

const OLD: &str = "the server speaks only versions of TLS before 1.2, which are not safe";

fn certificate_words(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the server's certificate expired {}", at(*not_after))
        }
        CertificateError::Expired => "the server's certificate has expired".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the server's certificate is valid only {}; is the clock of this machine right?",
            at(*not_before).replacen("on", "from", 1)
        ),
        CertificateError::NotValidYet => "the server's certificate is not valid yet".to_owned(),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the server's certificate is from an authority that is not trusted here; write that authority's certificate into `ca_file`".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } if presented.is_empty() => format!(
            "the server's certificate names no host; it must have a subjectAltName for {}",
            expected.to_str()
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "the server's certificate is for {}, and not for {}",
            presented
                .iter()
                .map(|name| plain(name))
                .collect::<Vec<_>>()
                .join(", "),
            expected.to_str()
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the server's certificate is not meant for servers".to_owned()
        }
        CertificateError::Revoked => "the server's certificate was revoked".to_owned(),
        other => format!("the server's certificate cannot be used: {other}"),
    }
}

fn alert_words(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            "the server wants a certificate of the client; write `cert_file` and `key_file`".to_owned()
        }
        AlertDescription::UnknownCA => {
            "the server does not trust the authority of our certificate (`cert_file`)".to_owned()
        }
        AlertDescription::CertificateExpired => "our certificate (`cert_file`) has expired".to_owned(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            format!("the server refuses our certificate, or that there is none (`cert_file`): {alert:?}")
        }
        AlertDescription::ProtocolVersion => OLD.to_owned(),
        AlertDescription::UnrecognisedName => "the server does not know this host name".to_owned(),
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the server found no way to encrypt that both know, or wants a certificate of the client (`cert_file`)"
                .to_owned()
        }
        other => format!("the server broke off: {other:?}"),
    }
}

/// A name as the library shows it, such as `DnsName("broker.example")`, without what is around it.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner);
    inner.trim_matches(['"', ')'])
}

/// `on 2026-11-26 at 12:00 UTC`.
fn at(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    time.strftime("on %Y-%m-%d at %H:%M UTC").to_string()
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

#[cfg(test)]
mod tests;
