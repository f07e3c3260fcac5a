//! What a failed handshake means.
//!
//! The library's errors are written for programmers; operators get a sentence.

use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::is_authority;
use crate::connect::{causes, find};

/// What a failure of TLS means. `None`: the failure is another one.
pub(in crate::connect) fn why(error: &io::Error) -> Option<String> {
    if let Some(error) = find(error) {
        return Some(format!("TLS refused: {}", words(error)));
    }
    let is_cut = causes(error).any(|cause| cause.to_string() == "tls handshake eof");
    is_cut.then(|| "connection closed during the TLS handshake".to_owned())
}

/// An error of the TLS library for a person.
pub(super) fn words(error: &Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_handshake_are_sentences() {
        let refused = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        for (error, said) in [
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "the server does not speak TLS",
            ),
            (Error::AlertReceived(AlertDescription::ProtocolVersion), OLD),
            (
                Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13),
                OLD,
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "the server wants a certificate of the client; write `cert_file` and `key_file`",
            ),
        ] {
            let text = format!("TLS refused: {said}");
            assert_eq!(why(&refused(error.clone())), Some(text.clone()));
            // As a client wraps it once more.
            assert_eq!(why(&io::Error::other(refused(error))), Some(text));
        }
        assert_eq!(why(&io::Error::other("another one")), None);
        assert_eq!(why(&io::ErrorKind::ConnectionRefused.into()), None);
    }
}
