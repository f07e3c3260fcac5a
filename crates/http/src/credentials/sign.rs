//! Signed requests: HMAC over a text that a template makes from the request, in the headers that the settings
//! name.
//!
//! Problem: receivers refuse a signature whose timestamp is some minutes old, and a message may wait that long after
//! its request was made. So the request is signed when it is prepared, which finds messages that cannot be signed
//! before they cost a slot, and again when it is sent, with the time and the secret of that moment. The signature of a
//! large body takes so long that a slot may pass: that of the preparation is sent, unless it is too old or of another
//! secret. Then it is made again on another thread, and the call leaves if there is time left.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::{HeaderName, Request};
use ring::hmac;
use secrecy::ExposeSecret as _;
use tokio::task::spawn_blocking;

use super::aws::{AwsSigner, Credentials};
use super::tokens::CallToken;
use crate::fields::{compile, header_name, header_value};
use sluiced_net::connect::Secret;
use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::{Facts, NotSent, UnfitReason};
use sluiced_ports::lock;
use sluiced_ports::message::Message;
use sluiced_settings::types::{HashFunction, Hmac, Http, SecretEncoding};
use sluiced_template::{About, Context, SecretValues, SentRequest, Template, Templates};

/// The prefix of the secrets of Standard Webhooks.
const WEBHOOK_SECRET: &str = "whsec_";
/// Some providers leave out the `=` at the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What signs the requests of a route.
#[derive(Clone)]
pub(crate) enum AnySigner {
    Hmac(Arc<Signer>),
    Aws(Arc<AwsSigner>),
}

/// What signs one request, now and again later.
pub(crate) enum AnySigning {
    Hmac(Signing),
    Aws(Arc<AwsSigner>),
}

impl AnySigner {
    /// From now on signs with the last secret that was read.
    ///
    /// # Errors
    /// When it cannot be used; the earlier one stays.
    pub(super) fn renew(&self) -> Result<(), Misconfigured> {
        match self {
            Self::Hmac(signer) => signer.renew(),
            Self::Aws(signer) => signer.renew(),
        }
    }

    /// The secrets that its templates name.
    pub(crate) fn secrets(&self) -> Option<&BTreeSet<String>> {
        match self {
            Self::Hmac(signer) => Some(signer.secrets()),
            Self::Aws(_) => None,
        }
    }

    /// What is needed to sign the request of this message.
    ///
    /// # Errors
    /// When a template needs the body and it is no JSON.
    pub(crate) fn signing(
        &self,
        message: &Message,
        facts: Facts<'_>,
        secrets: Option<&SecretValues>,
    ) -> Result<AnySigning, UnfitReason> {
        Ok(match self {
            Self::Hmac(signer) => AnySigning::Hmac(signer.signing(message, facts, secrets)?),
            Self::Aws(signer) => AnySigning::Aws(Arc::clone(signer)),
        })
    }
}

impl AnySigning {
    /// Puts the headers into the request, in place of those of an earlier signature. `given`: credentials that the call
    /// brings, if its signer has none.
    ///
    /// # Errors
    /// When the request cannot be signed.
    pub(crate) fn sign(
        &self,
        request: &mut Request<Bytes>,
        now: SystemTime,
        given: Option<&Credentials>,
    ) -> Result<(), UnfitReason> {
        match self {
            Self::Hmac(signing) => signing.sign(request, now),
            Self::Aws(signer) => signer.sign(request, now, given),
        }
    }
}

/// The signature that a request has.
pub(crate) struct RequestSignature {
    at: SystemTime,
    /// With which secret.
    version: u64,
    /// To sign it again.
    signing: AnySigning,
}

/// The signature of a body up to this size takes no time that a slot would notice.
const QUICK: usize = 64 * 1024;
/// The signature of a larger body may be this old when it is sent. Receivers take five minutes (Standard
/// Webhooks, AWS Signature Version 4).
const FRESH: Duration = Duration::from_secs(60);

impl RequestSignature {
    /// The signature was made then, with the secret of this version.
    pub(crate) const fn new(at: SystemTime, version: u64, signing: AnySigning) -> Self {
        Self {
            at,
            version,
            signing,
        }
    }

    /// The request with the signature that is sent.
    ///
    /// # Errors
    /// When it cannot be signed: it must be prepared again, which says why.
    pub(crate) async fn renew(
        self,
        mut request: Request<Bytes>,
        version: u64,
        given: Option<&CallToken>,
    ) -> Result<Request<Bytes>, NotSent> {
        let now = SystemTime::now();
        if request.body().len() > QUICK {
            let age = now.duration_since(self.at).unwrap_or_default();
            return match age <= FRESH && self.version == version {
                true => Ok(request),
                false => Box::pin(self.aside(request, given.cloned())).await,
            };
        }
        // Without credentials at hand it was not signed when it was prepared.
        let given = given.and_then(CallToken::credentials);
        let signed = self.signing.sign(&mut request, now, given);
        signed.map_err(|_why| NotSent::NotReady)?;
        Ok(request)
    }

    /// Not on the thread that sends.
    async fn aside(
        self,
        mut request: Request<Bytes>,
        given: Option<CallToken>,
    ) -> Result<Request<Bytes>, NotSent> {
        let signing = spawn_blocking(move || {
            let given = given.as_ref().and_then(CallToken::credentials);
            let signed = self.signing.sign(&mut request, SystemTime::now(), given);
            signed.map(|()| request)
        });
        let signed = signing.await.ok().and_then(Result::ok);
        signed.ok_or(NotSent::NotReady)
    }
}

/// Signs requests. Compiled once; its secret may change.
pub(crate) struct Signer {
    templates: Templates,
    signed: Template,
    headers: Vec<SignedHeader>,
    /// Whether a template uses the body, which must be a text then.
    reads_body: bool,
    algorithm: hmac::Algorithm,
    encoding: SecretEncoding,
    secret: Secret,
    key: Mutex<Arc<hmac::Key>>,
}

struct SignedHeader {
    name: HeaderName,
    template: Template,
    /// Whether the signature is in it: such a value is never shown.
    is_sensitive: bool,
}

/// The part of a message that is needed to sign its request.
pub(crate) struct Signing {
    signer: Arc<Signer>,
    context: Context,
}

impl Signer {
    /// # Errors
    /// When a template or the secret cannot be used, or a header is sent already.
    pub(crate) fn new(hmac: &Hmac, secret: Secret, http: &Http) -> Result<Self, Misconfigured> {
        let mut templates = Templates::about(About::Signature);
        let signed = compile(&mut templates, "auth.signed", "auth.signed", &hmac.signed)?;
        let mut headers = Vec::new();
        for (name, text) in &hmac.headers {
            let key = format!("auth.headers.{name}");
            let header = header_name(&key, name)?;
            if http
                .headers
                .keys()
                .any(|other| other.eq_ignore_ascii_case(name))
            {
                let why = "stands in `headers` too; keep one of them";
                return Err(Misconfigured::new(key, why));
            }
            headers.push(SignedHeader {
                template: compile(&mut templates, &format!("header {header}"), &key, text)?,
                name: header,
                is_sensitive: text.contains("signature_"),
            });
        }
        let algorithm = match hmac.algorithm {
            HashFunction::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            HashFunction::Sha256 => hmac::HMAC_SHA256,
            HashFunction::Sha512 => hmac::HMAC_SHA512,
        };
        Ok(Self {
            reads_body: templates.uses("request_body"),
            key: Mutex::new(Arc::new(key(&secret, hmac.secret_encoding, algorithm)?)),
            encoding: hmac.secret_encoding,
            templates,
            signed,
            headers,
            algorithm,
            secret,
        })
    }

    /// From now on signs with the last secret that was read.
    ///
    /// # Errors
    /// When it cannot be used; the earlier one stays.
    pub(super) fn renew(&self) -> Result<(), Misconfigured> {
        let renewed = key(&self.secret, self.encoding, self.algorithm)?;
        *lock(&self.key) = Arc::new(renewed);
        Ok(())
    }

    /// The secrets that the templates name, besides the key.
    pub(super) const fn secrets(&self) -> &BTreeSet<String> {
        self.templates.secrets()
    }

    /// What the templates can use of this message, to sign its request now and again later.
    ///
    /// # Errors
    /// When a template needs the body and it is no JSON.
    pub(super) fn signing(
        self: &Arc<Self>,
        message: &Message,
        facts: Facts<'_>,
        secrets: Option<&SecretValues>,
    ) -> Result<Signing, UnfitReason> {
        let context = self.templates.context(message, facts)?;
        Ok(Signing {
            context: match secrets {
                Some(secrets) => context.with_secrets(secrets),
                None => context,
            },
            signer: Arc::clone(self),
        })
    }
}

impl Signing {
    /// Puts the headers into the request, in place of those of an earlier signature.
    ///
    /// # Errors
    /// When the message lacks what the templates need, or its body is no text. The request is unchanged then.
    pub(super) fn sign(
        &self,
        request: &mut Request<Bytes>,
        now: SystemTime,
    ) -> Result<(), UnfitReason> {
        let signer = &self.signer;
        let context = self.context.with_request(SentRequest {
            // A clock before 1970 is wrong in any case.
            timestamp: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            method: request.method().as_str(),
            path: request
                .uri()
                .path_and_query()
                .map_or("/", |path| path.as_str()),
            body: match signer.reads_body {
                true => Some(text(request.body())?),
                false => None,
            },
        });
        let signed = signer.templates.render(&signer.signed, &context)?;
        let key = Arc::clone(&lock(&signer.key));
        let tag = hmac::sign(&key, signed.as_bytes());
        let signed_context = context.with_signature(tag.as_ref());
        let mut made = Vec::with_capacity(signer.headers.len());
        for header in &signer.headers {
            let text = signer.templates.render(&header.template, &signed_context)?;
            let mut value = header_value(&header.name, text)?;
            value.set_sensitive(header.is_sensitive);
            made.push((header.name.clone(), value));
        }
        for (name, value) in made {
            request.headers_mut().insert(name, value);
        }
        Ok(())
    }
}

fn text(body: &Bytes) -> Result<&str, UnfitReason> {
    std::str::from_utf8(body).map_err(|_| UnfitReason {
        what: "auth.signed".to_owned(),
        why: "`request_body` is no text (UTF-8)".to_owned(),
    })
}

/// The bytes of the secret as a key. No error shows any of it.
fn key(
    secret: &Secret,
    encoding: SecretEncoding,
    algorithm: hmac::Algorithm,
) -> Result<hmac::Key, Misconfigured> {
    let secret = secret.last();
    let text = secret.expose_secret();
    let bytes = match encoding {
        SecretEncoding::Text => Some(text.as_bytes().to_vec()),
        SecretEncoding::Hex => hex::decode(text).ok(),
        SecretEncoding::Base64 => {
            let encoded = text.strip_prefix(WEBHOOK_SECRET).unwrap_or(text);
            BASE64.decode(encoded).ok()
        }
    };
    match bytes {
        Some(bytes) if !bytes.is_empty() => Ok(hmac::Key::new(algorithm, &bytes)),
        Some(_) => Err(Misconfigured::new("auth", "the secret is empty")),
        None => Err(Misconfigured::new(
            "auth",
            "the secret is not written as secret_encoding says; write another encoding or the right secret",
        )),
    }
}

impl fmt::Debug for Signer {
    /// Shows neither the secret nor the templates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(..)")
    }
}

#[cfg(test)]
mod tests;
