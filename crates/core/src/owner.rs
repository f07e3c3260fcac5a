//! Which fleet a name in the store belongs to.
//!
//! Problem: limits and breakers are kept by name, and two fleets of one store may have the same names without knowing
//! of each other. Each would then follow the rate of the other one, or stop when the other's downstream is away. So
//! each replica *registers* the names of its limits and routes for its fleet before it uses any of them, and again
//! every twenty seconds. A name that a replica of another fleet has registered is refused, unless the files of both say
//! that it is shared. All names are registered or none.
//!
//! A replica that stops takes its registration back. One that died leaves it behind for [`REGISTRATION_TTL`]: longer
//! than a restart takes, or an outage of the store's network, so that no other fleet comes between. After that the
//! names are free. The states of the limits may be older than the registration. That is safe: units that the first
//! fleet used count for the second one, too, so the second one is slower for a while, never faster.
//!
//! A fleet may be known by several names, and one in common is enough. RabbitMQ calls a cluster after the node that was
//! asked, unless an operator gave it a name: so replicas of one fleet may see different names of one cluster, and what
//! they have in common are the addresses in their files.
//!
//! **Formats.** A later version of sluiced may keep its state in the store in another format ([`STATE_FORMAT`]).
//! Replicas of two formats would each read the other's state wrongly and together go over a limit. So a registration
//! says the format, and a name that was registered under another format is refused, whatever the fleet. Two versions
//! with the same format run side by side.
//!
//! `lua/own.lua` is the same inside Redis.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::StoreTime;

/// A registration that was not made again for this long is over.
pub const REGISTRATION_TTL: Duration = Duration::from_secs(3600);

/// The format of what this version keeps in the store. It rises when a replica of the version before would read a state
/// wrongly; fields that the version before does not read leave it as it is.
pub const STATE_FORMAT: u32 = 1;

/// What the replicas of a fleet use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The format of the states that the replica reads and writes: [`STATE_FORMAT`] of its version.
    pub format: u32,
    /// The names of the fleet, the one to show first. They have no control characters.
    pub fleet: Vec<String>,
    /// The names, such as `limits.account`, each with whether the file shares it with other fleets.
    pub names: BTreeMap<String, bool>,
}

/// The registration of a replica, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRegistration {
    /// When it was made last.
    pub at: StoreTime,
    /// What the replica registered.
    pub registration: Registration,
}

impl Registration {
    /// The name of the fleet that is shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.fleet.first().map_or("", String::as_str)
    }

    fn is_of(&self, other: &Self) -> bool {
        self.fleet.iter().any(|name| other.fleet.contains(name))
    }
}

/// A name that another fleet has registered, or a replica of another version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignName {
    /// The name, such as `limits.account`.
    pub name: String,
    /// The name to show of the fleet that has registered it.
    pub fleet: String,
    /// A replica of that fleet.
    pub replica: String,
    /// How long ago this replica registered it.
    pub ago: Duration,
    /// The file of that replica shares it: it is refused because the other file does not.
    pub shared: bool,
    /// The format of the states of that replica.
    pub format: u32,
}

/// `replica` registers. Returns what is refused, in order; if nothing is, the registration is in `all` afterwards.
pub fn register(
    all: &mut BTreeMap<String, StoredRegistration>,
    replica: &str,
    registration: &Registration,
    now: StoreTime,
) -> Vec<ForeignName> {
    all.retain(|_, registered| ago(registered, now) <= REGISTRATION_TTL);
    let foreign = foreign(all, registration, now);
    if foreign.is_empty() {
        let registration = registration.clone();
        all.insert(
            replica.to_owned(),
            StoredRegistration {
                at: now,
                registration,
            },
        );
    }
    foreign
}

/// What of `registration` would be refused.
#[must_use]
pub fn foreign(
    all: &BTreeMap<String, StoredRegistration>,
    registration: &Registration,
    now: StoreTime,
) -> Vec<ForeignName> {
    let others = all
        .iter()
        .filter(|(_, other)| ago(other, now) <= REGISTRATION_TTL);
    let of_other = |(replica, other): (&String, &StoredRegistration)| {
        let same_format = other.registration.format == registration.format;
        let same_fleet = other.registration.is_of(registration);
        let refused = other
            .registration
            .names
            .iter()
            .filter_map(|(name, shared)| {
                let ours = registration.names.get(name)?;
                let fits = same_format && (same_fleet || *ours && *shared);
                (!fits).then(|| ForeignName {
                    name: name.clone(),
                    fleet: other.registration.shown().to_owned(),
                    replica: replica.clone(),
                    ago: ago(other, now),
                    shared: *shared,
                    format: other.registration.format,
                })
            });
        refused.collect::<Vec<_>>()
    };
    let mut all_refused: Vec<_> = others.flat_map(of_other).collect();
    all_refused.sort();
    all_refused
}

/// The store's clock may have gone back.
fn ago(registered: &StoredRegistration, now: StoreTime) -> Duration {
    now.since(registered.at).max(registered.at.since(now))
}

/// Why a replica of `fleet` is refused: the names, both fleets or both formats, and what to do. `foreign` is not empty;
/// `prefix` is that of the store.
#[must_use]
pub fn in_words(fleet: &str, prefix: &str, foreign: &[ForeignName]) -> String {
    let of_another_format = foreign
        .iter()
        .filter(|registration| registration.format != STATE_FORMAT);
    if let Some(latest) = of_another_format.min_by_key(|registration| registration.ago) {
        return format!(
            "this version keeps its state in Redis in format {STATE_FORMAT}, and the replica {} in format {} under the same prefix `{prefix}` (it was there {} s ago): \
             the two cannot keep one limit together. Stop all replicas of the other version first (one that was killed counts for an hour), \
             or write another prefix in [redis] of this one, if the two share no limit",
            latest.replica,
            latest.format,
            latest.ago.as_secs()
        );
    }
    let Some(first) = foreign.first() else {
        return format!("every name is free for the fleet `{fleet}`");
    };
    // There may be more fleets: one at a time.
    let of_first = foreign
        .iter()
        .filter(|registration| registration.fleet == first.fleet);
    let mut names: Vec<&str> = Vec::new();
    let mut latest = first;
    for registration in of_first {
        if !names.contains(&registration.name.as_str()) {
            names.push(&registration.name);
        }
        if registration.ago < latest.ago {
            latest = registration;
        }
    }
    let (other, replica, secs) = (&first.fleet, &latest.replica, latest.ago.as_secs());
    let belong = if names.len() == 1 {
        "belongs"
    } else {
        "belong"
    };
    let message = format!(
        "{} {belong} to the fleet `{other}` in this Redis under the prefix `{prefix}` (its replica {replica} was there {secs} s ago), and this is the fleet `{fleet}`: \
         write another prefix in [redis] of one of the fleets; or, if both are one fleet, fleet = \"{other}\" in [redis] of this one",
        listed(&names)
    );
    let limits: Vec<&str> = names
        .into_iter()
        .filter(|name| name.starts_with(LIMITS))
        .collect();
    match limits.as_slice() {
        [] => message,
        limits => format!(
            "{message}; or, for a limit that both fleets are to share, shared = true in the table of {} of both files",
            listed(limits)
        ),
    }
}

/// How the names of limits start.
pub const LIMITS: &str = "limits.";

fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests;
