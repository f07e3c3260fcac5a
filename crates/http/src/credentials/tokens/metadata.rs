//! Credentials of AWS for a time, from the metadata of the container or of the instance that the daemon runs in.
//!
//! A container of ECS, Fargate or EKS Pod Identity is told by variables where to ask, and with which token ("Container
//! credential provider", AWS SDKs and Tools Reference Guide). The credentials of its role are one GET away.
//!
//! An instance of EC2 is asked at a fixed address, by IMDSv2 alone ("Use the Instance Metadata Service to access
//! instance metadata", EC2 User Guide): a PUT gives the token of a session, with which a GET gives the name of the role
//! and another one its credentials. IMDSv1 has no PUT: what makes a program call a URL could read credentials there.
//!
//! AWS gives new credentials five minutes before the old ones end. A question before that gets the old ones again, with
//! less life, so questions come closer together towards the end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use url::{Host, Url};

use super::client::{TokenClient, excerpt};
use super::{IssuedToken, TokenValue};
use crate::credentials::aws::Credentials;
use sluiced_net::dial::Misconfigured;
use sluiced_settings::types::{AwsCredentials, AwsSigv4, AwsVariables};

/// The addresses of metadata of containers: ECS, and EKS Pod Identity.
const ECS: Ipv4Addr = Ipv4Addr::new(169, 254, 170, 2);
const EKS: Ipv4Addr = Ipv4Addr::new(169, 254, 170, 23);
const EKS_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23);
const SESSION: HeaderName = HeaderName::from_static("x-aws-ec2-metadata-token");
const SESSION_SECONDS: HeaderName = HeaderName::from_static("x-aws-ec2-metadata-token-ttl-seconds");
/// A session is for the two requests that follow.
const FOR_A_MINUTE: HeaderValue = HeaderValue::from_static("60");
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
/// Where an API answers in JSON, the name of an error may be in this header alone.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
/// "Common Error Types" of the APIs: `ExpiredTokenException`, 403; older ones call it `ExpiredToken`.
const EXPIRED: &[u8] = b"ExpiredToken";

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Metadata {
    Container { url: String },
    Instance { url: String },
}

/// The answer of either kind of metadata; an error may have its names in small letters.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetadataAnswer {
    #[serde(alias = "code")]
    code: Option<String>,
    #[serde(alias = "message")]
    message: Option<String>,
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Metadata {
    /// The metadata that the settings ask for. `None`: the credentials are elsewhere.
    ///
    /// # Errors
    /// When the environment does not say where metadata of the container is, or AWS does not allow that place.
    pub(super) fn for_aws(aws: &AwsSigv4) -> Result<Option<Self>, Misconfigured> {
        Ok(match aws.credentials {
            AwsCredentials::File | AwsCredentials::Environment => None,
            AwsCredentials::Container => {
                let url = container(&aws.variables)
                    .map_err(|why| Misconfigured::new("auth.credentials", why))?;
                Some(Self::Container { url })
            }
            AwsCredentials::Instance => {
                let url = aws.metadata_url.trim_end_matches('/').to_owned();
                Some(Self::Instance { url })
            }
        })
    }

    pub(super) fn url(&self) -> &str {
        match self {
            Self::Container { url } | Self::Instance { url } => url,
        }
    }

    /// The credentials of the role. `authorization`: the token that a container has for this; empty: it has none.
    ///
    /// # Errors
    /// Why there are none, for a person.
    pub(super) async fn ask(
        &self,
        client: &TokenClient,
        authorization: &str,
    ) -> Result<IssuedToken, String> {
        let body = match self {
            Self::Container { url } => {
                let token = (!authorization.is_empty()).then_some((AUTHORIZATION, authorization));
                fetch(client, get(url, token)?, "credentials").await?
            }
            Self::Instance { url } => {
                let opening = Request::put(format!("{url}/latest/api/token"))
                    .header(SESSION_SECONDS, FOR_A_MINUTE);
                let opened = fetch(client, complete(opening)?, "a session token").await?;
                let session = line(&opened)?;
                let roles = get(&format!("{url}{ROLES}"), Some((SESSION, session)))?;
                let names = fetch(client, roles, "the name of its role").await?;
                let role_url = format!("{url}{ROLES}{}", role(&names)?);
                let request = get(&role_url, Some((SESSION, session)))?;
                fetch(client, request, "credentials of its role").await?
            }
        };
        read_credentials(&body, SystemTime::now())
    }

    /// Whether an answer of a service says that the credentials of its call have ended.
    pub(super) fn have_ended(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
        let says = |text: &[u8]| text.windows(EXPIRED.len()).any(|part| part == EXPIRED);
        let refuses = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let header = headers.get(ERROR_TYPE);
        refuses && (says(body) || header.is_some_and(|name| says(name.as_bytes())))
    }
}

/// Where metadata of the container is.
fn container(variables: &AwsVariables) -> Result<String, String> {
    let (relative, full) = (AwsVariables::RELATIVE_URI, AwsVariables::FULL_URI);
    let value = |name| variables.get(name).map(|value| value.expose_secret());
    // The first one counts if both are set, as for all programs of AWS.
    let (name, text) = match (value(relative), value(full)) {
        (Some(path), _) if path.starts_with('/') => (relative, format!("http://{ECS}{path}")),
        (Some(_), _) => return Err(format!("{relative} does not begin with a slash")),
        (None, Some(url)) => (full, url.to_owned()),
        (None, None) => {
            return Err(format!(
                "neither {relative} nor {full} is set: this is no container of ECS or EKS, or it has no role"
            ));
        }
    };
    let url = Url::parse(&text).map_err(|why| format!("{name} is no URL: {why}"))?;
    match is_allowed(&url) {
        true => Ok(url.into()),
        false => Err(format!(
            "{name} leads to a place that AWS does not allow: it must be https:, or http: to a loopback address, {ECS}, {EKS} or [{EKS_6}]"
        )),
    }
}

/// Without TLS credentials come from this machine, or from an address that only this machine has.
fn is_allowed(url: &Url) -> bool {
    let address = match url.host() {
        _ if url.scheme() == "https" => return true,
        _ if url.scheme() != "http" => return false,
        Some(Host::Domain(name)) => return name == "localhost",
        Some(Host::Ipv4(address)) => IpAddr::from(address),
        Some(Host::Ipv6(address)) => IpAddr::from(address),
        None => return false,
    };
    address.is_loopback() || [ECS.into(), EKS.into(), EKS_6.into()].contains(&address)
}

fn get(url: &str, token: Option<(HeaderName, &str)>) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::get(url);
    if let Some((name, token)) = token {
        let mut value = HeaderValue::try_from(token)
            .map_err(|_| "its token has a control character".to_owned())?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    complete(request)
}

fn complete(request: http::request::Builder) -> Result<Request<Full<Bytes>>, String> {
    let request = request.body(Full::default());
    request.map_err(|_| "its URL cannot be asked".to_owned())
}

/// The body of an answer that gives what was asked for.
async fn fetch(
    client: &TokenClient,
    request: Request<Full<Bytes>>,
    what: &str,
) -> Result<Bytes, String> {
    let answer = client.ask(request).await?;
    let (status, body) = (answer.status(), answer.into_body());
    match status.is_success() {
        true => Ok(body),
        false => {
            let error_answer: MetadataAnswer = serde_json::from_slice(&body).unwrap_or_default();
            Err(format!(
                "asked for {what}, it said {}",
                error_answer.refusal(&status.to_string())
            ))
        }
    }
}

/// A text of one line.
fn line(body: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(body)
        .ok()
        .and_then(|text| text.lines().next())
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .ok_or_else(|| "its answer is empty, or no text".to_owned())
}

/// The name of the role, which becomes a part of a URL. IAM allows these characters.
fn role(body: &[u8]) -> Result<&str, String> {
    let name = line(body)?;
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
    match name.len() <= 64 && name.chars().all(is_fine) {
        true => Ok(name),
        false => Err("what it answers is no name of a role".to_owned()),
    }
}

/// The credentials of an answer that came `now`.
fn read_credentials(body: &[u8], now: SystemTime) -> Result<IssuedToken, String> {
    let answer: MetadataAnswer =
        serde_json::from_slice(body).map_err(|_| "its answer has no credentials".to_owned())?;
    // An instance says in an answer of 200 that its role cannot be taken.
    if answer.code.as_deref().is_some_and(|code| code != "Success") {
        return Err(answer.refusal("no credentials"));
    }
    if answer.access_key_id.is_empty() || answer.secret_access_key.is_empty() {
        return Err("its answer has no credentials".to_owned());
    }
    let life = answer.expiration.as_deref().map(|ends| life(ends, now));
    let (secret, token) = (answer.secret_access_key.into(), answer.token);
    let credentials = Credentials::new(&answer.access_key_id, secret, token.as_deref())
        .map_err(|why| why.to_string())?;
    Ok(IssuedToken {
        gives: TokenValue::Aws(Arc::new(credentials)),
        life: life.transpose()?,
    })
}

/// How long what ends then lasts.
fn life(ends: &str, now: SystemTime) -> Result<Duration, String> {
    let at: Timestamp = ends
        .parse()
        .map_err(|_| "its Expiration is no time".to_owned())?;
    let time_left = SystemTime::from(at).duration_since(now);
    time_left.map_err(|_| {
        format!("its credentials ended at {at}, or the clock of this machine is wrong")
    })
}

impl MetadataAnswer {
    /// What it says instead of giving credentials; `otherwise`, if it does not say anything.
    fn refusal(&self, otherwise: &str) -> String {
        let parts = [self.code.as_deref(), self.message.as_deref()];
        let text = excerpt(parts.into_iter().flatten());
        match text.is_empty() {
            true => otherwise.to_owned(),
            false => format!("{otherwise}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests;
