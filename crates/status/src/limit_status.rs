//! A limit on the status page: its policy, and whether it grants anything now; if not, why and for how long.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A limit as its store has it: an entry of `limits` in `/status.json`, and the answer of `sluiced limits show --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitStatus {
    /// Its name in the configuration.
    pub name: String,
    /// The kind in its current policy, or in the file before there is one.
    pub kind: String,
    /// The current policy, key by key; `None`: no replica has declared it yet.
    pub in_force: Option<Map<String, Value>>,
    /// The rate that `adaptive` set.
    pub adapted: Option<String>,
    /// When the current policy ends.
    pub ends: Option<Timestamp>,
    /// The policy of this replica's file, if it has the limit.
    pub file: Option<Map<String, Value>>,
    /// How often the policy was changed.
    pub version: Option<u64>,
    /// Whether the policy is that of a file, or an operator set it.
    pub origin: Option<String>,
    /// The operator or the replica that set it.
    pub by: Option<String>,
    /// When that was.
    pub since: Option<Timestamp>,
    /// [`LimitState::word`].
    pub state: String,
    /// Until when an operator paused it.
    pub paused_until: Option<Timestamp>,
    /// Which operator.
    pub paused_by: Option<String>,
    /// Until when the downstream asked to wait.
    pub frozen_until: Option<Timestamp>,
    /// Until when it grants nothing because the store lost its state, or may have.
    pub closed_until: Option<Timestamp>,
    /// Which of the two.
    pub closed_why: Option<String>,
    /// The time of the store.
    pub now: Timestamp,
    /// The replicas that use it.
    pub replicas: Vec<PresentFile>,
}

/// What the file of a replica says of a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PresentFile {
    /// The replica.
    pub name: String,
    /// Its policy, key by key.
    pub file: Map<String, Value>,
    /// It is not the current one.
    pub differs: bool,
}

impl LimitStatus {
    /// Whether it grants anything now.
    #[must_use]
    pub fn state(&self) -> LimitState {
        let left = |until: Option<Timestamp>| {
            let left = until?.duration_since(self.now);
            Some(Duration::try_from(left).unwrap_or_default())
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        LimitState::of(
            left(self.paused_until).map(|left| (left, text(&self.paused_by))),
            left(self.frozen_until),
            left(self.closed_until).map(|left| (left, text(&self.closed_why))),
        )
    }
}

/// Whether a limit grants anything now. Where several reasons hold, the first of these counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// An operator paused it; `by`: the operator.
    Paused { left: Duration, by: String },
    /// The downstream asked to wait.
    Frozen { left: Duration },
    /// The store lost the state of the limit, or may have.
    Closed { left: Duration, why: String },
    /// It grants what it has.
    Open,
}

impl LimitState {
    /// The state of a limit, from how long each reason still holds: a pause and the operator that asked for it, a
    /// freeze, a loss and what is known of it.
    #[must_use]
    pub fn of(
        paused: Option<(Duration, String)>,
        frozen: Option<Duration>,
        closed: Option<(Duration, String)>,
    ) -> Self {
        match (paused, frozen, closed) {
            (Some((left, by)), ..) => Self::Paused { left, by },
            (None, Some(left), _) => Self::Frozen { left },
            (None, None, Some((left, why))) => Self::Closed { left, why },
            (None, None, None) => Self::Open,
        }
    }

    /// In one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Paused { .. } => "paused",
            Self::Frozen { .. } => "frozen",
            Self::Closed { .. } => "closed",
            Self::Open => "open",
        }
    }

    /// For how long it grants nothing; `None`: it is open.
    #[must_use]
    pub const fn left(&self) -> Option<Duration> {
        match self {
            Self::Paused { left, .. } | Self::Frozen { left } | Self::Closed { left, .. } => {
                Some(*left)
            }
            Self::Open => None,
        }
    }
}
