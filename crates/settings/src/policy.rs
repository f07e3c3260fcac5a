//! The policy of a limit: the part that may change while the fleet runs, as one line of text.
//!
//! `kind=paced rate=400/1s headroom=5ms`: the keys that the table marks as live, in its order, with defaults,
//! so that two files with the same meaning give the same line. Replicas compare these lines and the store
//! keeps them. A key that the line does not name has its default: a headroom that follows the window, for
//! example. Two words of the line are no keys, and no file has them: `adapted=300/1s` is the rate that
//! `adaptive` set, and `until=` is when the policy ends (`core::policy::ends`). How a message is counted
//! (`key`, `cost`) is not part of it and needs a restart.
//!
//! `max_cost` and `reserve` of a paced limit need a restart, too, and are in the line all the same: they are how its
//! row is divided, and replicas that divide it in two ways would send more than it allows. So a replica takes no slots
//! under a line whose words differ from its file ([`PolicyTextError::Fixed`]).

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use config::{Value, ValueKind};
use serde::Deserialize as _;

use sluiced_core::policy::{ADAPTED, ends};

use super::path::KeyPath;
use super::reading::collector::Collector;
use super::reading::conform::{conform, scalar};
use super::reading::layers::entries;
use super::reading::variables::read;
use super::schema::{KeySpec, Need, Shape};
use super::text::RateText;
use super::types::{LIMIT, Limit};

/// Words of a paced limit that only a restart changes.
const MAX_COST: &str = "max_cost";
const RESERVE: &str = "reserve";

/// A text that is no policy of this limit, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyTextError {
    /// A word is not `name=value`.
    #[error("`{0}` is not written as name=value")]
    Word(String),
    /// The text is the policy of a limit of another kind.
    #[error("it is the policy of a {0} limit, and in this file the limit is {1}")]
    Kind(String, &'static str),
    /// This kind has no key of that name.
    #[error("`{0}` cannot be changed while the fleet runs")]
    Name(String),
    /// A value that only a restart can change is not that of this file.
    #[error(
        "it has {name} = {other}, and this file {name} = {own}: restart the replicas with the same value"
    )]
    Fixed {
        name: &'static str,
        other: String,
        own: String,
    },
    /// The largest messages of the start need more slots than a lease would hold.
    #[error(
        "messages of up to {0} units are sent since the start, and would never fit; restart with a smaller max_cost"
    )]
    TooLarge(u32),
    /// A value that cannot be read.
    #[error("{name} = `{value}`: {why}")]
    Value {
        name: String,
        value: String,
        why: String,
    },
}

impl Limit {
    /// The limit's policy, by name, in the order in which it is written.
    #[must_use]
    pub fn policy(&self) -> Vec<(&'static str, String)> {
        let written = self.written();
        let value = |name: &str| Some(entries(&written)?.get(name)?.to_string());
        let live = self.live().map(|key| key.name);
        let adapted = self.as_paced().and_then(|paced| paced.adapted.as_ref());
        std::iter::once("kind")
            .chain(live)
            .filter_map(|name| Some((name, value(name)?)))
            .chain(self.fixed())
            .chain(adapted.map(|rate| (ADAPTED, rate.to_string())))
            .collect()
    }

    /// How a paced limit is divided, where it is.
    fn fixed(&self) -> impl Iterator<Item = (&'static str, String)> {
        let paced = self.as_paced();
        let largest = paced.map_or(1, |paced| paced.largest_cost().get());
        let max_cost = (largest > 1).then(|| (MAX_COST, largest.to_string()));
        let share = paced.and_then(|paced| paced.reserve);
        let reserve = share.map(|share| (RESERVE, share.to_string().replace(' ', "")));
        max_cost.into_iter().chain(reserve)
    }

    /// The limit's policy on one line.
    #[must_use]
    pub fn policy_line(&self) -> String {
        line(self.policy().iter().map(|(name, value)| (*name, value)))
    }

    /// The names of its values that can change.
    #[must_use]
    pub fn policy_names(&self) -> Vec<&'static str> {
        self.live().map(|key| key.name).collect()
    }

    /// This limit under another policy.
    ///
    /// # Errors
    /// When it is not the policy of such a limit.
    pub fn with_policy(&self, text: &str) -> Result<Self, PolicyTextError> {
        let mut table = self.written();
        let ValueKind::Table(entries) = &mut table.kind else {
            return Ok(self.clone());
        };
        // Keys that are not required fall back to their defaults.
        let kept = |key: &KeySpec| !key.live || matches!(key.need, Need::Required(_));
        let dropped: Vec<_> = self.keys().filter(|key| !kept(key)).collect();
        entries.retain(|name, _| dropped.iter().all(|key| key.name != name));
        let mut adapted = None;
        let words = words(ends(text).0)?;
        self.divides_as(&words)?;
        for (name, text) in words {
            if self.as_paced().is_some() && [MAX_COST, RESERVE].contains(&name) {
                continue;
            }
            if name == ADAPTED && self.as_paced().is_some() {
                let rate = text.parse::<RateText>();
                adapted = Some(rate.map_err(|why| wrong(name, text, why.to_string()))?);
                continue;
            }
            if name == "kind" {
                let kind = self.kind();
                if text != kind {
                    return Err(PolicyTextError::Kind(text.to_owned(), kind));
                }
                continue;
            }
            let Some(key) = self.live().find(|key| key.name == name) else {
                return Err(PolicyTextError::Name(name.to_owned()));
            };
            let value = read(text, &key.shape);
            scalar(&value.kind, &key.shape).map_err(|why| wrong(name, text, why))?;
            entries.insert(name.to_owned(), value);
        }
        let (path, mut faults) = (KeyPath::default(), Collector::default());
        conform(&mut table, &LIMIT, &path, &mut faults);
        let mut limit =
            Self::deserialize(table).map_err(|why| wrong("policy", text, why.to_string()))?;
        if let Self::Paced(paced) = &mut limit {
            paced.adapted = adapted;
        }
        Ok(limit)
    }

    /// This limit with what a running replica may change of another: of a file that was read again. All else stays as
    /// it was at the start, also how the row is divided.
    ///
    /// # Errors
    /// When the other one is of another kind, or messages as large as at the start would not fit any more.
    pub fn with_live_keys_of(&self, other: &Self) -> Result<Self, PolicyTextError> {
        let is_fixed =
            |name: &str| self.as_paced().is_some() && [MAX_COST, RESERVE].contains(&name);
        let policy = other.policy();
        let live = policy.into_iter().filter(|(name, _)| !is_fixed(name));
        let mut changed = self.with_policy(&line(live.chain(self.fixed())))?;
        if let (Self::Paced(changed), Some(running)) = (&mut changed, self.as_paced()) {
            // The default follows the rate, and messages are counted by that of the start.
            let largest = running.largest_cost();
            changed.max_cost = NonZeroU32::new(largest.get());
            let units = changed.rate.0.units().get();
            if changed.headroom_in_all().is_none() || !changed.leases_whole(units, largest.get()) {
                return Err(PolicyTextError::TooLarge(largest.get()));
            }
        }
        Ok(changed)
    }

    /// Whether the words of a policy divide the row as this limit does.
    fn divides_as(&self, words: &[(&str, &str)]) -> Result<(), PolicyTextError> {
        let own_values: BTreeMap<_, _> = self.fixed().collect();
        for name in [MAX_COST, RESERVE]
            .into_iter()
            .filter(|_| self.as_paced().is_some())
        {
            let other = words.iter().find(|(other, _)| *other == name);
            let (other, own) = (
                other.map(|(_, value)| *value),
                own_values.get(name).map(String::as_str),
            );
            if other != own {
                let absent = if name == MAX_COST { "1" } else { "none" };
                return Err(PolicyTextError::Fixed {
                    name,
                    other: other.unwrap_or(absent).to_owned(),
                    own: own.unwrap_or(absent).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The limit as its table in a file.
    fn written(&self) -> Value {
        let text = toml::to_string(self).expect("every value of a limit is written as a plain one");
        toml::from_str(&text).expect("it was written just now")
    }

    fn keys(&self) -> impl Iterator<Item = &'static KeySpec> + use<> {
        let kinds = match &LIMIT {
            Shape::Kinds { kinds, .. } => *kinds,
            _ => &[],
        };
        let kind = kinds.iter().find(|kind| kind.name == self.kind());
        kind.into_iter().flat_map(|kind| kind.keys())
    }

    fn live(&self) -> impl Iterator<Item = &'static KeySpec> + use<> {
        self.keys().filter(|key| key.live)
    }
}

/// The keys of a policy and their values, as a file would have them.
///
/// # Errors
/// When a word is not `name=value`.
pub fn keys_of(text: &str) -> Result<Vec<(&str, &str)>, PolicyTextError> {
    let mut words = words(ends(text).0)?;
    words.retain(|(name, _)| *name != ADAPTED);
    Ok(words)
}

/// The names and values of a line.
///
/// # Errors
/// When a word is not `name=value`.
pub fn words(text: &str) -> Result<Vec<(&str, &str)>, PolicyTextError> {
    let word = |word: &'_ str| PolicyTextError::Word(word.to_owned());
    text.split_ascii_whitespace()
        .map(|text| text.split_once('=').ok_or_else(|| word(text)))
        .collect()
}

/// Which of the words that only a restart changes differs between two policies of a paced limit. Replicas that have the
/// one take no slots under the other.
#[must_use]
pub fn divided_otherwise(before: &str, after: &str) -> Option<&'static str> {
    let of = |text| words(ends(text).0).unwrap_or_default();
    let (before, after) = (of(before), of(after));
    let value = |words: &[(&str, &str)], name| {
        let found = words.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    [MAX_COST, RESERVE]
        .into_iter()
        .find(|name| value(&before, *name) != value(&after, *name))
}

/// A line of names and values.
pub fn line<'a>(policy: impl Iterator<Item = (&'a str, impl fmt::Display)>) -> String {
    let words: Vec<_> = policy
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.join(" ")
}

fn wrong(name: &str, value: &str, why: String) -> PolicyTextError {
    PolicyTextError::Value {
        name: name.to_owned(),
        value: value.to_owned(),
        why,
    }
}
