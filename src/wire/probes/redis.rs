//! What `sluiced check --connect` asks Redis: whether it can be used, how far away it is, and whether another fleet has
//! a name of this configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use secrecy::ExposeSecret as _;

use crate::wire::owners::{EMBEDDED, owned_names};
use crate::wire::{family, options, reach, stores};
use sluiced_amqp::rabbit::probe;
use sluiced_core::distance::{TooFar, horizon_needed};
use sluiced_core::headroom::Headroom;
use sluiced_core::owner::{self, Registration, STATE_FORMAT};
use sluiced_core::policy::as_written;
use sluiced_core::time::millis;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Inspection, PresentReplica, RegistrationAction};
use sluiced_settings::Loaded;
use sluiced_settings::types::{Limit, QueueBackend};

/// Whether Redis can be used, and whether each limit that something names works with it so far away.
pub(super) fn probe_redis(loaded: &Loaded) -> impl Future<Output = Result<String, String>> + use<> {
    let configured = options::redis(loaded);
    // A limit that nothing names counts nothing, so the distance of Redis does not matter for it.
    let used: BTreeSet<_> = loaded.settings.named_limits().cloned().collect();
    let mut limits = loaded.settings.limits.clone();
    limits.retain(|name, _| used.contains(name));
    async move {
        let options = configured.map_err(|e| e.why)?;
        match sluiced_store::redis::probe(&options).await {
            Ok(report) => {
                let slow_trip = report.slow_trip;
                with_distance(in_words(report), &limits, slow_trip)
            }
            Err(error) => Err({
                // They differ only in their addresses.
                let first = options.settings.addresses().first();
                let url = first.map_or("", |url| url.expose_secret());
                reach::explain(error.to_string(), url).await
            }),
        }
    }
}

/// Looks whether another fleet has a name of this configuration, and registers nothing.
pub(super) fn probe_fleet(loaded: &Loaded) -> impl Future<Output = Result<String, String>> + use<> {
    let settings = &loaded.settings;
    let configured = options::redis(loaded).map_err(|e| e.why);
    let rabbit = options::rabbit(loaded).map_err(|e| e.why);
    let embedded = settings.backend.queue == QueueBackend::Embedded;
    let written = settings.redis.fleet.clone();
    let own_name = written.or_else(|| embedded.then(|| EMBEDDED.to_owned()));
    let names = owned_names(settings).into_iter().collect();
    let limits = settings.limits.clone();
    async move {
        let redis = configured?;
        let fleet = match own_name {
            Some(name) => vec![name],
            None => probe::fleet(&rabbit?)
                .await
                .map_err(|e| format!("its name comes from RabbitMQ: {e}"))?
                .to_vec(),
        };
        let registration = Registration {
            format: STATE_FORMAT,
            fleet,
            names,
        };
        let store = stores::store(&redis).await.map_err(|e| e.to_string())?;
        let foreign = store
            .register_names(RegistrationAction::Look, "", &registration)
            .await
            .map_err(|e| e.to_string())?;
        if foreign.is_empty() {
            let ownership = format!(
                "`{}`: its limits and routes are free or its own",
                registration.shown()
            );
            let mut facts = vec![ownership];
            for (name, limit) in &limits {
                let policy = PolicyOf::new(&*store, family(limit), name);
                let found = policy.inspect().await.map_err(|e| e.to_string())?;
                facts.extend(not_in_force(name, &limit.policy_line(), &found));
            }
            return Ok(facts.join("; "));
        }
        let prefix = &redis.settings.prefix;
        Err(owner::in_words(registration.shown(), prefix, &foreign))
    }
}

/// What starting this file does to a limit that has other values in force, if it does.
fn not_in_force(name: &str, file: &str, found: &Inspection) -> Option<String> {
    let policy = found.policy.as_ref()?;
    if as_written(&policy.text) == as_written(file) {
        return None;
    }
    let same = |replica: &&PresentReplica| as_written(&replica.file) == as_written(&policy.text);
    let (have, all) = (
        found.replicas.iter().filter(same).count(),
        found.replicas.len(),
    );
    let becomes = if as_written(&policy.file) == as_written(file) {
        "an operator's value stays".to_owned()
    } else if all == 0 {
        "no replica runs, so the first one that starts with it puts it in force".to_owned()
    } else {
        format!(
            "it counts once more than half of the replicas have it, or with `sluiced limits adopt {name}`"
        )
    };
    let (now, file) = (&policy.text, file);
    Some(format!(
        "warning: in force for limits.{name} is {now}, in the files of {have} of {all} replicas; this file has {file}: {becomes}"
    ))
}

fn in_words(report: sluiced_store::redis::RedisFacts) -> String {
    let sluiced_store::redis::RedisFacts {
        servers,
        version,
        round_trip,
        slow_trip,
        warnings,
    } = report;
    let mut facts = format!(
        "version {version}, {servers}, scripts allowed, {} there and back, {} when slow",
        millis(round_trip),
        millis(slow_trip)
    );
    for warning in warnings {
        facts.push_str("; warning: ");
        facts.push_str(&warning);
    }
    facts
}

/// What is known of Redis, and whether each limit works with Redis so far away. A limit that could never send
/// is an error: everything else would look right, and no call would be made.
fn with_distance(
    said: String,
    limits: &BTreeMap<String, Limit>,
    slow_trip: Duration,
) -> Result<String, String> {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for (name, limit) in limits {
        match limit {
            Limit::Paced(paced) => {
                near.push(covered(name, paced.paces().main.horizon(), slow_trip))
            }
            keyed => {
                let found = TooFar::find(longest(keyed), slow_trip);
                far.extend(found.map(|far| format!("limits.{name}: {far}")));
            }
        }
    }
    match far.as_slice() {
        [] => Ok([vec![said], near].concat().join("; ")),
        _ => Err([vec![said], far].concat().join("; ")),
    }
}

/// The headroom of a keyed limit; the longest one, if it follows the round trip.
fn longest(limit: &Limit) -> Headroom {
    let follows = limit.auto_bounds().map(|bounds| Headroom {
        late: bounds.most / 2,
        way: bounds.least.way,
    });
    follows.unwrap_or_else(|| limit.headroom())
}

/// Whether slots are leased far enough ahead.
fn covered(name: &str, horizon: Duration, slow_trip: Duration) -> String {
    let needed = horizon_needed(slow_trip);
    let of = millis(horizon);
    if needed <= horizon {
        return format!("the horizon of limits.{name}, {of}, covers that");
    }
    format!(
        "warning: the horizon of limits.{name}, {of}, does not cover that: slots may go unused; write horizon = \"{}ms\" or more",
        needed.as_millis()
    )
}
