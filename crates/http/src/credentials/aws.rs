//! AWS Signature Version 4: each call is signed when it is sent (`sign` says why then), with `credentials`.
//!
//! Temporary credentials in a file are replaced by another program: when AWS refuses a call, the file is read again.
//! Credentials of metadata are fetched ahead (`tokens`); each call brings those that it was given.
//!
//! Signed are the method, the path, the query, the body, and the headers `host`, `content-type` and `x-amz-*`, which is
//! what AWS asks for ("Create a signed AWS API request", IAM User Guide).

mod credentials;

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use jiff::Timestamp;
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode,
};
use ring::{digest, hmac};
use secrecy::ExposeSecret as _;

pub(crate) use self::credentials::Credentials;
use crate::url::host_header;
use sluiced_net::connect::Secret;
use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::UnfitReason;
use sluiced_ports::lock;
use sluiced_settings::types::{AwsCredentials, AwsSigv4};

const UNSIGNED: &str =
    "cannot be signed: its URL has no host, or the clock shows no year that AWS knows";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const X_AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");
const X_AMZ_SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// All but the unreserved characters of RFC 3986, and the slashes of a path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Signs requests for one service in one region. Its credentials may change.
pub(crate) struct AwsSigner {
    settings: AwsSigv4,
    file: Secret,
    /// `None`: each call brings some.
    own: Mutex<Option<Arc<Credentials>>>,
}

impl AwsSigner {
    /// # Errors
    /// When there are no credentials where the settings say.
    pub(crate) fn new(settings: &AwsSigv4, file: Secret) -> Result<Self, Misconfigured> {
        let own_credentials = read(settings, &file)?;
        Ok(Self {
            settings: settings.clone(),
            file,
            own: Mutex::new(own_credentials.map(Arc::new)),
        })
    }

    /// From now on signs with the credentials that were read last.
    ///
    /// # Errors
    /// When there are none; the earlier ones stay.
    pub(super) fn renew(&self) -> Result<(), Misconfigured> {
        let renewed = read(&self.settings, &self.file)?;
        *lock(&self.own) = renewed.map(Arc::new);
        Ok(())
    }

    /// Puts the signature of this moment into the request, in place of an earlier one. `given`: the credentials that
    /// the call brings; without any the request stays as it is, and is signed when it is sent.
    ///
    /// # Errors
    /// When the time or the host cannot be written. The request is not complete then.
    pub(super) fn sign(
        &self,
        request: &mut Request<Bytes>,
        now: SystemTime,
        given: Option<&Credentials>,
    ) -> Result<(), UnfitReason> {
        let own_credentials = lock(&self.own).clone();
        let Some(credentials) = given.or(own_credentials.as_deref()) else {
            return Ok(());
        };
        let is_signed = |name: &HeaderName| {
            *name == HOST || *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-")
        };
        let signed = self.sign_with(request, now, credentials, is_signed);
        signed.ok_or_else(|| UnfitReason {
            what: "auth".to_owned(),
            why: UNSIGNED.to_owned(),
        })
    }

    fn sign_with(
        &self,
        request: &mut Request<Bytes>,
        now: SystemTime,
        credentials: &Credentials,
        is_signed: impl Fn(&HeaderName) -> bool,
    ) -> Option<()> {
        let at = Timestamp::try_from(now)
            .ok()?
            .strftime("%Y%m%dT%H%M%SZ")
            .to_string();
        let day = at.get(..8)?;
        let host = host_header(request.uri());
        let headers = request.headers_mut();
        if !headers.contains_key(HOST) {
            headers.insert(HOST, host?);
        }
        headers.insert(X_AMZ_DATE, HeaderValue::try_from(at.as_str()).ok()?);
        headers.remove(AUTHORIZATION);
        headers.remove(&X_AMZ_SECURITY_TOKEN);
        if let Some(token) = &credentials.token {
            headers.insert(X_AMZ_SECURITY_TOKEN, token.clone());
        }
        let (lines, names) = canonical_headers(headers, is_signed)?;
        let (path, query) = (request.uri().path(), request.uri().query());
        let canonical = [
            request.method().as_str(),
            &canonical_path(path),
            &canonical_query(query.unwrap_or_default()),
            &lines,
            &names,
            &hex::encode(digest::digest(&digest::SHA256, request.body())),
        ]
        .join("\n");
        let AwsSigv4 {
            region, service, ..
        } = &self.settings;
        let scope = format!("{day}/{region}/{service}/aws4_request");
        let digest = hex::encode(digest::digest(&digest::SHA256, canonical.as_bytes()));
        let text = format!("{ALGORITHM}\n{at}\n{scope}\n{digest}");
        let first = format!("AWS4{}", credentials.secret.expose_secret()).into_bytes();
        let key = [day, region, service, "aws4_request"]
            .into_iter()
            .fold(first, |key, part| tag(&key, part));
        let signature = hex::encode(tag(&key, &text));
        let id = &credentials.id;
        let authorization = format!(
            "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        let mut value = HeaderValue::try_from(authorization).ok()?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Some(())
    }
}

fn read(settings: &AwsSigv4, file: &Secret) -> Result<Option<Credentials>, Misconfigured> {
    let found = match settings.credentials {
        AwsCredentials::File => {
            Credentials::of_file(file.last().expose_secret(), &settings.profile)
        }
        AwsCredentials::Environment => Credentials::of_environment(&settings.variables),
        AwsCredentials::Container | AwsCredentials::Instance => return Ok(None),
    };
    found.map(Some)
}

/// A line for each header, by name, and the names.
fn canonical_headers(
    headers: &HeaderMap,
    is_signed: impl Fn(&HeaderName) -> bool,
) -> Option<(String, String)> {
    let mut signed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| is_signed(name)) {
        let text = String::from_utf8_lossy(value.as_bytes());
        // Blanks within a value count as one.
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        signed
            .entry(name.as_str())
            .or_default()
            .push(words.join(" "));
    }
    let mut lines = String::new();
    for (name, values) in &signed {
        writeln!(lines, "{name}:{}", values.join(",")).ok()?;
    }
    let names: Vec<_> = signed.into_keys().collect();
    Some((lines, names.join(";")))
}

/// The path without `.`, `..` and empty parts, encoded once more: services other than S3 decode it twice.
fn canonical_path(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    let is_folder = !joined.is_empty() && path.ends_with('/');
    let path = format!("/{joined}{}", if is_folder { "/" } else { "" });
    utf8_percent_encode(&path, ENCODED).to_string()
}

/// By name and then by value. Both are encoded as AWS does it, however they are sent: it decodes them first.
fn canonical_query(query: &str) -> String {
    let encoded = |text: &str| {
        let text: Vec<u8> = percent_decode_str(text).collect();
        percent_encode(&text, ENCODED)
            .to_string()
            .replace('/', "%2F")
    };
    let mut pairs: Vec<_> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort_unstable();
    let written: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    written.join("&")
}

fn tag(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

impl fmt::Debug for AwsSigner {
    /// Shows no credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsSigner")
            .field("region", &self.settings.region)
            .field("service", &self.settings.service)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
