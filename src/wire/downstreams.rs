//! From a route's settings to its downstream of either kind: the secrets and certificates that they name are
//! read here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::sync::mpsc;

use super::WireError;
use super::options::{certificate, rotating_secret};
use sluiced_http::HttpDownstream;
use sluiced_net::connect::Secret;
use sluiced_net::dial::{Credentials, Misconfigured};
use sluiced_ports::downstream::{Downstream, InboundEvent};
use sluiced_settings::secrets::{HIDDEN, SecretError, Secrets};
use sluiced_settings::types::{self, Auth, AwsCredentials, Route, SecretEncoding};
use sluiced_smpp::SmppDownstream;
use sluiced_telemetry::traces::RouteTraces;

/// A downstream of either kind.
#[derive(Debug)]
pub(super) enum BuiltDownstream {
    Http(Arc<HttpDownstream>),
    Smpp(Arc<SmppDownstream>),
}

/// Uses of a downstream besides calls.
#[derive(Debug, Default)]
pub(super) struct DownstreamUses {
    /// Spans of its calls.
    pub(super) traces: Option<RouteTraces>,
    /// Takes what a centre delivers; `None`: the centre keeps it.
    pub(super) arrivals: Option<mpsc::Sender<InboundEvent>>,
}

/// Why no downstream can be made from the settings.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableDownstream {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Key(#[from] Misconfigured),
}

impl BuiltDownstream {
    /// Opens no connection. `keeps_answers`: the answer is part of each judgement.
    pub(super) fn new(
        route: &Route,
        secrets: &Secrets,
        keeps_answers: bool,
        DownstreamUses { traces, arrivals }: DownstreamUses,
    ) -> Result<Self, UnusableDownstream> {
        let credentials = credentials(&route.downstream, secrets)?;
        Ok(match &route.downstream {
            types::Downstream::Http(http) => {
                let http = HttpDownstream::new(http, &credentials, keeps_answers, traces)?;
                Self::Http(Arc::new(http))
            }
            types::Downstream::Smpp(smpp) => Self::Smpp(Arc::new(SmppDownstream::new(
                smpp,
                &credentials,
                keeps_answers,
                traces,
                arrivals,
            )?)),
        })
    }

    /// As the pipeline knows it.
    pub(super) fn as_port(&self) -> &dyn Downstream {
        match self {
            Self::Http(http) => &**http,
            Self::Smpp(smpp) => &**smpp,
        }
    }
}

impl From<BuiltDownstream> for Arc<dyn Downstream> {
    fn from(built: BuiltDownstream) -> Self {
        match built {
            BuiltDownstream::Http(http) => http,
            BuiltDownstream::Smpp(smpp) => smpp,
        }
    }
}

/// A route's downstream, as it is used.
pub(super) fn downstream(
    name: &str,
    route: &Route,
    uses_answers: bool,
    secrets: &Secrets,
    uses: DownstreamUses,
) -> Result<BuiltDownstream, WireError> {
    BuiltDownstream::new(route, secrets, uses_answers, uses)
        .map_err(|e| WireError::new(format!("routes.{name}.downstream"), e))
}

/// The route, or a copy without the parts that need a secret if secrets must not be read. Where secrets are made up, a
/// copy without certificates and proxies: nothing is connected.
pub(super) fn without_secrets<'a>(route: &'a Route, secrets: &Secrets) -> Cow<'a, Route> {
    if secrets.are_made_up() {
        return Cow::Owned(unconnected(route.clone()));
    }
    if secrets.are_complete() {
        return Cow::Borrowed(route);
    }
    let mut route = route.clone();
    match &mut route.downstream {
        types::Downstream::Http(http) => {
            http.auth = None;
            (http.cert_file, http.key_file) = (None, None);
            http.proxy_password_file = None;
        }
        types::Downstream::Smpp(smpp) => {
            // No bind is made.
            (smpp.password, smpp.password_file) = (Some("unknown".into()), None);
            (smpp.cert_file, smpp.key_file) = (None, None);
        }
    }
    Cow::Owned(route)
}

fn unconnected(mut route: Route) -> Route {
    let (ca, certificate, key) = match &mut route.downstream {
        types::Downstream::Http(http) => {
            (http.proxy, http.proxy_password_file) = (None, None);
            // A made-up secret is the word `secret`, which is no key that signs a token.
            http.auth.take_if(|auth| matches!(auth, Auth::Jwt(_)));
            if let Some(Auth::Aws(aws)) = &mut http.auth {
                // Made-up credentials have the form of a credentials file (`made_up`).
                aws.credentials = AwsCredentials::File;
            }
            (&mut http.ca_file, &mut http.cert_file, &mut http.key_file)
        }
        types::Downstream::Smpp(smpp) => {
            (&mut smpp.ca_file, &mut smpp.cert_file, &mut smpp.key_file)
        }
    };
    (*ca, *certificate, *key) = (None, None, None);
    route
}

/// Where a secret stands: in the configuration or in a file; and what its key is called.
type SecretPlace<'a> = (Option<&'a SecretString>, Option<&'a Path>, &'static str);

fn credentials(
    downstream: &types::Downstream,
    secrets: &Secrets,
) -> Result<Credentials, SecretError> {
    if secrets.are_made_up() {
        return Ok(made_up(downstream, secrets));
    }
    let mut proxy = None;
    let (secret, cert_file, key_file) = match downstream {
        types::Downstream::Http(http) => {
            let secret = http.auth.as_ref().map(|auth| secret_of(secrets, auth));
            proxy = rotating_secret(secrets, http.proxy_password_file.as_deref())?;
            (secret.transpose()?, &http.cert_file, &http.key_file)
        }
        types::Downstream::Smpp(smpp) => {
            let (password, file) = (smpp.password.as_ref(), smpp.password_file.as_deref());
            let secret = read(secrets, (password, file, "password"))?;
            (Some(secret), &smpp.cert_file, &smpp.key_file)
        }
    };
    Ok(Credentials {
        secret,
        certificate: certificate(secrets, cert_file.as_deref(), key_file.as_deref())?,
        proxy,
        named: named_secrets(secrets)?,
    })
}

/// In place of each secret: the word `secret`, in the form that its key asks for; for one that templates name, with its
/// name.
fn made_up(downstream: &types::Downstream, secrets: &Secrets) -> Credentials {
    let secret = |text: String| Secret::from(SecretString::from(text));
    let word = match downstream {
        types::Downstream::Http(http) => match &http.auth {
            Some(Auth::Aws(aws)) => format!(
                "[{}]\naws_access_key_id = secret\naws_secret_access_key = secret",
                aws.profile
            ),
            Some(Auth::Hmac(hmac)) => match hmac.secret_encoding {
                SecretEncoding::Text => "secret".to_owned(),
                SecretEncoding::Hex => "736563726574".to_owned(),
                SecretEncoding::Base64 => "c2VjcmV0".to_owned(),
            },
            _ => "secret".to_owned(),
        },
        types::Downstream::Smpp(_) => "secret".to_owned(),
    };
    let named = secrets.named().keys();
    Credentials {
        secret: Some(secret(word)),
        certificate: None,
        proxy: None,
        named: named
            .map(|name| (name.clone(), secret(format!("secret-{name}"))))
            .collect(),
    }
}

/// The secrets that templates name. Where no secrets are needed, their files are not read.
fn named_secrets(secrets: &Secrets) -> Result<BTreeMap<String, Secret>, SecretError> {
    let named = secrets.named().iter().map(|(name, file)| {
        let read = match secrets.are_complete() {
            true => rotating_secret(secrets, Some(file))?,
            false => None,
        };
        let secret = read.unwrap_or_else(|| Secret::from(SecretString::from(HIDDEN)));
        Ok((name.clone(), secret))
    });
    named.collect()
}

/// The secret that an `auth` needs; empty: none, besides what comes with the settings.
fn secret_of(secrets: &Secrets, auth: &Auth) -> Result<Secret, SecretError> {
    let none = || Secret::from(SecretString::default());
    let (value, file, name) = match auth {
        Auth::Aws(aws) => match aws.credentials {
            AwsCredentials::File => (&None, &aws.credentials_file, "credentials"),
            AwsCredentials::Container => match aws.variables.authorization() {
                (None, None) => return Ok(none()),
                (value, file) => return read(secrets, (value, file, "credentials")),
            },
            AwsCredentials::Environment | AwsCredentials::Instance => return Ok(none()),
        },
        Auth::Jwt(jwt) => return read(secrets, (None, Some(&jwt.key_file), "key")),
        Auth::Basic(basic) => (&basic.password, &basic.password_file, "password"),
        Auth::Bearer(bearer) => (&bearer.token, &bearer.token_file, "token"),
        Auth::Hmac(hmac) => (&hmac.secret, &hmac.secret_file, "secret"),
        Auth::Oauth2(client) => (
            &client.client_secret,
            &client.client_secret_file,
            "client_secret",
        ),
    };
    read(secrets, (value.as_ref(), file.as_deref(), name))
}

fn read(secrets: &Secrets, (value, file, name): SecretPlace<'_>) -> Result<Secret, SecretError> {
    match (value, rotating_secret(secrets, file)?) {
        (Some(value), None) => Ok(Secret::from(value.clone())),
        (None, Some(file)) => Ok(file),
        _ => Err(SecretError::Choice(name)),
    }
}
