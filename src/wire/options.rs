//! From settings to the options of each backend: the secrets and certificates that the settings name are read here, and
//! read again for later connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::WireError;
use sluiced_amqp::rabbit::{RENEW, RabbitOptions, RouteOptions};
use sluiced_core::ladder::Ladder;
use sluiced_core::unfit_run::ASIDE;
use sluiced_net::connect::Secret;
use sluiced_net::connect::{ClientCertificate, Tls};
use sluiced_settings::Loaded;
use sluiced_settings::secrets::{SecretError, Secrets};
use sluiced_settings::types::{Route, Settings};
use sluiced_store::redis::RedisOptions;

/// The secret in a file, which is read again at each use.
pub(super) fn rotating_secret(
    secrets: &Secrets,
    file: Option<&Path>,
) -> Result<Option<Secret>, SecretError> {
    let Some(first) = secrets.optional(file)? else {
        return Ok(None);
    };
    let (secrets, file) = (secrets.clone(), file.map(Path::to_owned));
    Ok(Some(Secret::rotating(first, move || {
        let read = secrets.read(file.as_deref().unwrap_or(Path::new("")));
        read.map_err(|why| why.to_string())
    })))
}

/// The Redis of a configuration.
///
/// # Errors
/// When a secret cannot be read.
pub fn redis(loaded: &Loaded) -> Result<RedisOptions, WireError> {
    let Loaded {
        settings, secrets, ..
    } = loaded;
    let redis = &settings.redis;
    let failed = |e| WireError::new("redis", e);
    let secret = |file: Option<&Path>| rotating_secret(secrets, file).map_err(failed);
    Ok(RedisOptions {
        password: secret(redis.password_file.as_deref())?,
        sentinel_password: secret(redis.sentinel_password_file.as_deref())?,
        tls: tls(secrets, [&redis.ca_file, &redis.cert_file, &redis.key_file])?,
        keyed: settings
            .limits
            .values()
            .any(|limit| limit.as_paced().is_none()),
        settings: redis.clone(),
    })
}

/// The RabbitMQ of a configuration.
///
/// # Errors
/// When a secret cannot be read.
pub fn rabbit(loaded: &Loaded) -> Result<RabbitOptions, WireError> {
    let Loaded {
        settings, secrets, ..
    } = loaded;
    let rabbit = &settings.rabbitmq;
    let password = rotating_secret(secrets, rabbit.password_file.as_deref());
    Ok(RabbitOptions {
        password: password.map_err(|e| WireError::new("rabbitmq", e))?,
        tls: tls(
            secrets,
            [&rabbit.ca_file, &rabbit.cert_file, &rabbit.key_file],
        )?,
        settings: rabbit.clone(),
        renew: RENEW,
    })
}

/// How to consume a route's queue.
pub(super) fn route(settings: &Settings, name: &str, route: Arc<Route>) -> RouteOptions {
    let keyed = |name: &String| {
        let limit = settings.limits.get(name);
        limit.is_some_and(|limit| limit.as_paced().is_none())
    };
    // A key with a long backlog sends messages away for hours: the longest rungs save rounds.
    let longest_wait = |route: &Route| {
        if route.limits.iter().any(keyed) {
            Ladder::LONGEST
        } else {
            route.retry.max.get().max(ASIDE)
        }
    };
    // One route may give the verdict on a message that another route of the queue received.
    let of_queue = || settings.of_queue(&route.queue).map(|(_, other)| other);
    let mut consuming = settings
        .of_queue(&route.queue)
        .filter(|(_, other)| other.standby_for.is_none());
    RouteOptions {
        name: Arc::from(name),
        prefetch: settings.prefetch(&route),
        longest_wait: of_queue().map(longest_wait).max().unwrap_or_default(),
        results: of_queue().find_map(|other| other.results.clone()),
        counts: consuming.next().is_none_or(|(first, _)| first == name),
        settings: Arc::clone(&route),
    }
}

/// Certificates to trust, and the client certificate with its key.
fn tls(secrets: &Secrets, [ca, cert, key]: [&Option<PathBuf>; 3]) -> Result<Tls, WireError> {
    let ours = certificate(secrets, cert.as_deref(), key.as_deref());
    Ok(Tls {
        ca: ca.as_deref().map(read_pem).transpose()?,
        certificate: ours.map_err(|e| WireError::new("cert_file, key_file", e))?,
    })
}

fn read_pem(path: &Path) -> Result<Vec<u8>, WireError> {
    std::fs::read(path).map_err(|e| WireError::new(path.display().to_string(), e))
}

/// The client certificate, which is read again for each connection.
pub(super) fn certificate(
    secrets: &Secrets,
    certificate: Option<&Path>,
    key: Option<&Path>,
) -> Result<Option<ClientCertificate>, SecretError> {
    let (certificate, key) = (
        rotating_secret(secrets, certificate)?,
        rotating_secret(secrets, key)?,
    );
    let certificate_and_key = certificate.zip(key);
    Ok(certificate_and_key.map(|(certificate, key)| ClientCertificate { certificate, key }))
}
