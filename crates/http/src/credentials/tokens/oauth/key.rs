//! Claims that are signed with a private key: JSON Web Tokens (RFC 7519) in the form of RFC 7515, section 3.1.
//!
//! The kind of the key says how it signs: one of P-256 by ES256, as Apple wants it, one of RSA by RS256, as Google and
//! GitHub want it (RFC 7518, sections 3.3 and 3.4). A file is PEM, or the JSON of a service account of Google, which
//! also names the key and the account.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A token begins this long before it is made: its reader's clock may be behind.
const EARLIER: Duration = Duration::from_secs(30);
const WANTED: &str = "write the private key as PEM (BEGIN PRIVATE KEY, of RSA or P-256), \
                      or the JSON file of a service account of Google";

/// What is signed.
pub(super) struct Claims<'a> {
    /// The name of the key; `None`: that of the file, if it has one.
    pub(super) id: Option<&'a str>,
    pub(super) claims: &'a BTreeMap<String, String>,
    /// The token says when it ends.
    pub(super) expires: bool,
    pub(super) lifetime: Duration,
}

/// The file of a service account, as far as it is read.
#[derive(Deserialize)]
struct ServiceAccount {
    private_key: String,
    private_key_id: Option<String>,
    client_email: Option<String>,
}

enum SigningKey {
    Rsa(Box<RsaKeyPair>),
    P256(Box<EcdsaKeyPair>),
}

/// Whether a key can be read from this file.
///
/// # Errors
/// With the reason and a valid form. The text never has a part of the key.
pub(super) fn check(file: &str) -> Result<(), String> {
    open(file).map(drop)
}

/// The token, and how long it lasts from now on.
///
/// # Errors
/// Why there is none, for a person. Never a part of the key.
pub(super) fn sign_claims(
    wanted: &Claims<'_>,
    file: &str,
    now: SystemTime,
) -> Result<(String, Duration), String> {
    let (key, account) = open(file)?;
    let (id, email) = account.map_or((None, None), |file| {
        (file.private_key_id, file.client_email)
    });
    let since = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(EARLIER)
        .as_secs();
    let mut header = json!({ "alg": key.algorithm(), "typ": "JWT" });
    if let Some(id) = wanted.id.map(str::to_owned).or(id) {
        header["kid"] = id.into();
    }
    let mut claims = Map::new();
    claims.extend(email.map(|email| ("iss".to_owned(), email.into())));
    let own_claims = wanted.claims.iter();
    claims.extend(own_claims.map(|(name, value)| (name.clone(), value.clone().into())));
    claims.insert("iat".to_owned(), since.into());
    if wanted.expires {
        let ends = since + wanted.lifetime.as_secs();
        claims.insert("exp".to_owned(), ends.into());
    }
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&header), part(&Value::Object(claims)));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes())?);
    let lasts = wanted.lifetime.saturating_sub(EARLIER);
    Ok((format!("{text}.{signature}"), lasts))
}

fn open(file: &str) -> Result<(SigningKey, Option<ServiceAccount>), String> {
    if !file.trim_start().starts_with('{') {
        return Ok((SigningKey::read(file)?, None));
    }
    let account: ServiceAccount = serde_json::from_str(file)
        .map_err(|_| format!("it is JSON without a private_key: {WANTED}"))?;
    Ok((SigningKey::read(&account.private_key)?, Some(account)))
}

impl SigningKey {
    fn read(pem: &str) -> Result<Self, String> {
        let document = PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| format!("no private key can be read from it: {WANTED}"))?;
        let wrong = |kind: &str, why: ring::error::KeyRejected| {
            format!("its key of {kind} cannot be used ({why}): {WANTED}")
        };
        match document {
            PrivateKeyDer::Pkcs1(pkcs1) => RsaKeyPair::from_der(pkcs1.secret_pkcs1_der())
                .map(|key| Self::Rsa(Box::new(key)))
                .map_err(|why| wrong("RSA", why)),
            PrivateKeyDer::Pkcs8(pkcs8) => {
                let der = pkcs8.secret_pkcs8_der();
                let random = SystemRandom::new();
                let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random);
                match (p256, RsaKeyPair::from_pkcs8(der)) {
                    (Ok(key), _) => Ok(Self::P256(Box::new(key))),
                    (_, Ok(key)) => Ok(Self::Rsa(Box::new(key))),
                    (Err(_), Err(why)) => Err(wrong("RSA or P-256", why)),
                }
            }
            _ => Err(format!(
                "its key has the form SEC 1, which is not read (openssl pkcs8 -topk8 -nocrypt makes the other): {WANTED}"
            )),
        }
    }

    const fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
        }
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let random = SystemRandom::new();
        let signed = match self {
            Self::P256(key) => key.sign(&random, text).map(|tag| tag.as_ref().to_vec()),
            Self::Rsa(key) => {
                let mut tag = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, text, &mut tag)
                    .map(|()| tag)
            }
        };
        signed.map_err(|_| "the key could not sign".to_owned())
    }
}

#[cfg(test)]
mod tests;
