//! From settings to the options of each backend, with the secrets read, and how to read them again.

use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;

use super::WireError;
use crate::downstream::{Credentials, HttpDownstream, ResolvedAuth};
use crate::limiter::redis::{RedisOptions, Servers};
use crate::ports::secret::Secret;
use crate::ports::tls::{ClientCertificate, Tls};
use crate::queue::rabbit::{RabbitOptions, RouteOptions};
use crate::settings::secrets::{SecretError, Secrets};
use crate::settings::types::{Auth, Downstream, Limit, RedisMode, Route, Settings};
use crate::telemetry::traces::Traces;

/// The wait ladder of a route with keyed limits reaches as far as one can.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The secret in a file, which is read anew where it is used.
fn rotating(secrets: &Secrets, file: Option<&Path>) -> Result<Option<Secret>, SecretError> {
    let Some(first) = secrets.optional(file)? else {
        return Ok(None);
    };
    let (secrets, file) = (secrets.clone(), file.map(Path::to_owned));
    Ok(Some(Secret::rotating(first, move || {
        let read = secrets.read(file.as_deref().unwrap_or(Path::new("")));
        read.map_err(|why| why.to_string())
    })))
}

/// How to reach Redis.
pub(super) fn redis(settings: &Settings, secrets: &Secrets) -> Result<RedisOptions, WireError> {
    let redis = &settings.redis;
    let failed = |e| WireError::new("redis", e);
    let secret = |file: Option<&Path>| rotating(secrets, file).map_err(failed);
    let urls = redis.addresses().to_vec();
    let servers = match redis.mode {
        RedisMode::Single => Servers::Single(redis.url.clone()),
        RedisMode::Cluster => Servers::Cluster(urls),
        RedisMode::Sentinel => Servers::Sentinel {
            urls,
            service: redis.sentinel_service.clone().unwrap_or_default(),
            user: redis.sentinel_user.clone(),
            password: secret(redis.sentinel_password_file.as_deref())?,
        },
    };
    Ok(RedisOptions {
        user: redis.user.clone(),
        password: secret(redis.password_file.as_deref())?,
        tls: Tls {
            ca: redis.ca_file.as_deref().map(read_pem).transpose()?,
            certificate: certificate(
                secrets,
                redis.cert_file.as_deref(),
                redis.key_file.as_deref(),
            )
            .map_err(failed)?,
        },
        connect_timeout: redis.connect_timeout.get(),
        response_timeout: redis.response_timeout.get(),
        keyed: settings
            .limits
            .values()
            .any(|limit| !matches!(limit, Limit::Paced(_))),
        ..RedisOptions::new(servers, redis.prefix.clone())
    })
}

/// How to reach RabbitMQ.
pub(super) fn rabbit(settings: &Settings, secrets: &Secrets) -> Result<RabbitOptions, WireError> {
    let rabbit = &settings.rabbitmq;
    let failed = |e| WireError::new("rabbitmq", e);
    Ok(RabbitOptions {
        urls: rabbit.urls.clone(),
        password: rotating(secrets, rabbit.password_file.as_deref()).map_err(failed)?,
        tls: Tls {
            ca: rabbit.ca_file.as_deref().map(read_pem).transpose()?,
            certificate: certificate(
                secrets,
                rabbit.cert_file.as_deref(),
                rabbit.key_file.as_deref(),
            )
            .map_err(failed)?,
        },
        heartbeat: rabbit.heartbeat.get(),
        connect_timeout: rabbit.connect_timeout.get(),
        confirm_timeout: rabbit.confirm_timeout.get(),
        connection_name: connection_name(),
    })
}

/// What RabbitMQ calls our connections.
pub(super) fn connection_name() -> String {
    format!("sluiced {}", env!("CARGO_PKG_VERSION"))
}

/// How to consume a route's queue.
pub(super) fn route(settings: &Settings, name: &str, route: &Route, prefetch: u16) -> RouteOptions {
    // A key with a long backlog sends messages away for hours: the longest step saves rounds.
    let paced = |limit: &String| {
        settings
            .limits
            .get(limit)
            .is_none_or(|l| l.as_paced().is_some())
    };
    let longest_wait = if route.limits.iter().all(paced) {
        route.retry.max.get()
    } else {
        LONGEST_WAIT
    };
    RouteOptions {
        route: name.to_owned(),
        queue: route.queue.clone(),
        declare: route.declare,
        queue_type: route.queue_type,
        prefetch,
        max_body: route.max_body.0,
        parks: route.parks() > 0,
        longest_wait,
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>, WireError> {
    std::fs::read(path).map_err(|e| WireError::new(path.display().to_string(), e))
}

/// Our own certificate, which is read anew for each connection.
fn certificate(
    secrets: &Secrets,
    certificate: Option<&Path>,
    key: Option<&Path>,
) -> Result<Option<ClientCertificate>, SecretError> {
    let (certificate, key) = (rotating(secrets, certificate)?, rotating(secrets, key)?);
    let both = certificate.zip(key);
    Ok(both.map(|(certificate, key)| ClientCertificate { certificate, key }))
}

/// A route's downstream.
pub(super) fn downstream(
    name: &str,
    route: &Route,
    secrets: &Secrets,
    traces: Option<&Traces>,
) -> Result<HttpDownstream, WireError> {
    let Downstream::Http(http) = &route.downstream;
    let traces = traces.map(|traces| traces.of_route(name, &route.queue));
    HttpDownstream::new(http, credentials(name, route, secrets)?, traces)
        .map_err(|e| WireError::new(format!("routes.{name}.downstream"), e))
}

/// What the settings of a route's downstream only name.
pub(super) fn credentials(
    name: &str,
    route: &Route,
    secrets: &Secrets,
) -> Result<Credentials, WireError> {
    let Downstream::Http(http) = &route.downstream;
    let failed = |e| WireError::new(format!("routes.{name}.downstream"), e);
    let auth = http.auth.as_ref().map(|auth| resolved(auth, secrets));
    let (cert_file, key_file) = (http.cert_file.as_deref(), http.key_file.as_deref());
    Ok(Credentials {
        auth: auth.transpose().map_err(failed)?,
        certificate: certificate(secrets, cert_file, key_file).map_err(failed)?,
    })
}

/// Credentials with their secret, which stands in the configuration or in a file.
fn resolved(auth: &Auth, secrets: &Secrets) -> Result<ResolvedAuth, SecretError> {
    let secret = |value: Option<&SecretString>, file: Option<&Path>, name| match (
        value,
        rotating(secrets, file)?,
    ) {
        (Some(value), None) => Ok(Secret::from(value.clone())),
        (None, Some(file)) => Ok(file),
        _ => Err(SecretError::Choice(name)),
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
    })
}
