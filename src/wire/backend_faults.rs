//! Faults of a configuration that only a backend can find, without connecting: `check`, `run` and `test` report them at
//! their places, as the settings report theirs.

use super::downstreams::{BuiltDownstream, DownstreamUses, UnusableDownstream, without_secrets};
use super::{callers, options};
use sluiced_net::connect::TlsError;
use sluiced_settings::types::{LimitBackend, QueueBackend};
use sluiced_settings::{Faults, KeyPath, Loaded};

/// The faults of a configuration that only a backend can find, at their places.
#[must_use]
pub fn backend_faults(loaded: &Loaded) -> Faults {
    let routes = loaded.settings.routes.iter();
    let found = routes.filter_map(|(name, route)| {
        let path = KeyPath::of(&["routes", name, "downstream"]);
        let route = without_secrets(route, &loaded.secrets);
        match BuiltDownstream::new(&route, &loaded.secrets, false, DownstreamUses::default()) {
            Ok(_) => None,
            Err(UnusableDownstream::Secret(error)) => Some((path, error.to_string())),
            Err(UnusableDownstream::Key(misfit)) => {
                // The name of a header may have dots of its own.
                let steps = misfit.key.splitn(2, '.');
                Some((steps.fold(path, |path, step| path.join(step)), misfit.why))
            }
        }
    });
    // Where nothing is connected, certificates need not exist.
    let connects = !loaded.secrets.are_made_up();
    let certificates = match connects {
        true => tls_faults(loaded),
        false => Vec::new(),
    };
    let limits = loaded.settings.limits.iter();
    let uncounted = limits.filter_map(|(name, limit)| {
        let error = limit.rule().err()?;
        Some((KeyPath::of(&["limits", name]), error.to_string()))
    });
    let callers = loaded.settings.callers.iter();
    let refused = callers.filter(|_| connects).filter_map(|(name, callers)| {
        let why = callers::identity(&loaded.secrets, callers).err()?;
        Some((KeyPath::of(&["callers", name, "cert_file"]), why))
    });
    let all = found.chain(certificates).chain(uncounted).chain(refused);
    loaded.faults(all)
}

/// Certificates of the servers that cannot be used.
fn tls_faults(loaded: &Loaded) -> Vec<(KeyPath, String)> {
    let settings = &loaded.settings;
    let mut tls = Vec::new();
    if settings.backend.queue == QueueBackend::Rabbitmq {
        tls.extend(options::rabbit(loaded).map(|options| ("rabbitmq", options.tls)));
    }
    if settings.backend.limits == LimitBackend::Redis {
        tls.extend(options::redis(loaded).map(|options| ("redis", options.tls)));
    }
    // Without certificates of its own a section can have no wrong ones.
    let written = tls
        .into_iter()
        .filter(|(_, tls)| tls.ca.is_some() || tls.certificate.is_some());
    let wrong = written.filter_map(|(section, tls)| {
        let error = tls.client_config().err()?;
        let key = match error {
            TlsError::Authority(_) | TlsError::NoAuthority => "ca_file",
            TlsError::Certificate(_) => "cert_file",
        };
        Some((KeyPath::of(&[section, key]), error.to_string()))
    });
    wrong.collect()
}
