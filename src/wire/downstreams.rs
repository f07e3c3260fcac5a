//! From a route's settings to its downstream of either kind: the secrets and certificates that they name are
//! read here.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::mpsc;

use super::WireError;
use super::options::{certificate, rotating};
use crate::downstream::{
    Credentials, HttpDownstream, Misconfigured, ResolvedAuth, SmppCredentials, SmppDownstream,
};
use crate::ports::connect::Secret;
use crate::ports::downstream::{Downstream, ReceiptArrival};
use crate::settings::secrets::{SecretError, Secrets};
use crate::settings::types::{self, Auth, Http, Route, Smpp};
use crate::telemetry::traces::RouteTraces;

/// A downstream of either kind.
#[derive(Debug)]
pub(super) enum Built {
    Http(Arc<HttpDownstream>),
    Smpp(Arc<SmppDownstream>),
}

/// Uses of a downstream besides calls.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Spans of its calls.
    pub(super) traces: Option<RouteTraces>,
    /// Where receipts go.
    pub(super) receipts: Option<mpsc::Sender<ReceiptArrival>>,
}

/// Why no downstream can be made from the settings.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Key(#[from] Misconfigured),
}

impl Built {
    /// Opens no connection. `keeps_answers`: the answer is part of each judgement.
    pub(super) fn new(
        route: &Route,
        secrets: &Secrets,
        keeps_answers: bool,
        Uses { traces, receipts }: Uses,
    ) -> Result<Self, Unusable> {
        Ok(match &route.downstream {
            types::Downstream::Http(http) => {
                let credentials = credentials(http, secrets)?;
                let http = HttpDownstream::new(http, credentials, keeps_answers, traces)?;
                Self::Http(Arc::new(http))
            }
            types::Downstream::Smpp(smpp) => {
                let credentials = smpp_credentials(smpp, secrets)?;
                Self::Smpp(Arc::new(SmppDownstream::new(
                    smpp,
                    credentials,
                    keeps_answers,
                    traces,
                    receipts,
                )?))
            }
        })
    }

    /// How long the handshake of a connection takes, and whether it leads to this host. `None`: it could not be made.
    pub(super) async fn any_handshake(&self, bound: Duration) -> Option<(Duration, bool)> {
        match self {
            Self::Http(http) => http.any_handshake(bound).await,
            Self::Smpp(smpp) => smpp.any_handshake(bound).await,
        }
    }

    /// As the pipeline knows it.
    pub(super) fn as_port(&self) -> &dyn Downstream {
        match self {
            Self::Http(http) => &**http,
            Self::Smpp(smpp) => &**smpp,
        }
    }
}

impl From<Built> for Arc<dyn Downstream> {
    fn from(built: Built) -> Self {
        match built {
            Built::Http(http) => http,
            Built::Smpp(smpp) => smpp,
        }
    }
}

/// A route's downstream, as it is used.
pub(super) fn downstream(
    name: &str,
    (route, uses_answers): (&Route, bool),
    secrets: &Secrets,
    uses: Uses,
) -> Result<Built, WireError> {
    Built::new(route, secrets, uses_answers, uses)
        .map_err(|e| WireError::new(format!("routes.{name}.downstream"), e))
}

/// The route, or a copy without the parts that need a secret if secrets must not be read.
pub(super) fn without_secrets<'a>(route: &'a Route, secrets: &Secrets) -> Cow<'a, Route> {
    if secrets.are_complete() {
        return Cow::Borrowed(route);
    }
    let mut route = route.clone();
    match &mut route.downstream {
        types::Downstream::Http(http) => {
            http.auth = None;
            (http.cert_file, http.key_file) = (None, None);
        }
        types::Downstream::Smpp(smpp) => {
            // No bind is made.
            (smpp.password, smpp.password_file) = (Some("unknown".into()), None);
            (smpp.cert_file, smpp.key_file) = (None, None);
        }
    }
    Cow::Owned(route)
}

fn credentials(http: &Http, secrets: &Secrets) -> Result<Credentials, SecretError> {
    let auth = http.auth.as_ref().map(|auth| resolved(auth, secrets));
    let (cert_file, key_file) = (http.cert_file.as_deref(), http.key_file.as_deref());
    Ok(Credentials {
        auth: auth.transpose()?,
        certificate: certificate(secrets, cert_file, key_file)?,
    })
}

fn smpp_credentials(smpp: &Smpp, secrets: &Secrets) -> Result<SmppCredentials, SecretError> {
    let (value, file) = (smpp.password.as_ref(), smpp.password_file.as_deref());
    let (cert_file, key_file) = (smpp.cert_file.as_deref(), smpp.key_file.as_deref());
    Ok(SmppCredentials {
        password: secret(secrets, value, file, "password")?,
        certificate: certificate(secrets, cert_file, key_file)?,
    })
}

/// Credentials with their secret, which is in the configuration or in a file.
fn resolved(auth: &Auth, secrets: &Secrets) -> Result<ResolvedAuth, SecretError> {
    let secret = |value: Option<&SecretString>, file: Option<&Path>, name| {
        secret(secrets, value, file, name)
    };
    Ok(match auth {
        Auth::Basic(basic) => ResolvedAuth::Basic {
            user: basic.user.clone(),
            password: secret(
                basic.password.as_ref(),
                basic.password_file.as_deref(),
                "password",
            )?,
        },
        Auth::Bearer(bearer) => ResolvedAuth::Bearer {
            token: secret(bearer.token.as_ref(), bearer.token_file.as_deref(), "token")?,
        },
        Auth::Hmac(hmac) => ResolvedAuth::Hmac {
            settings: hmac.clone(),
            secret: secret(hmac.secret.as_ref(), hmac.secret_file.as_deref(), "secret")?,
        },
    })
}

/// A secret that is in the configuration or in a file.
fn secret(
    secrets: &Secrets,
    value: Option<&SecretString>,
    file: Option<&Path>,
    name: &'static str,
) -> Result<Secret, SecretError> {
    match (value, rotating(secrets, file)?) {
        (Some(value), None) => Ok(Secret::from(value.clone())),
        (None, Some(file)) => Ok(file),
        _ => Err(SecretError::Choice(name)),
    }
}
