//! What one replica reports of itself: its routes, the use of its limits, what it lacks and what it waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::explained::NO_TURN;
use sluiced_core::rate::Span;
use sluiced_core::time::millis;
use sluiced_ports::store::{FleetReports, SILENT};
use sluiced_telemetry::RecentLine;
use sluiced_telemetry::health::PROGRESS;

/// Why a tap is closed outside of its opening hours.
pub const CLOSED_HOURS: &str = "closed hours";

/// Why nothing else is sent while the breaker of a route is open.
pub const PROBES_ONLY: &str = "only single probes are sent";

/// Shown while a route cannot send and another route of its queue can.
pub const MOVING: &str = "its messages move to another route of its queue";

/// What one replica knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Of the configuration, else host and process.
    pub name: String,
    /// Where it listens for `/metrics`, `/` and the probes; `None`: nowhere.
    pub admin: Option<String>,
    pub version: String,
    /// How long it has run, in seconds.
    pub seconds: u64,
    /// For how many seconds it has not reported: everything else is as it was then. 0: it reports.
    pub silent: u64,
    /// What it lacks; empty: it is ready.
    pub missing: Vec<Missing>,
    /// What its limits wait for, although it is ready.
    pub waits: Vec<LimitWait>,
    pub routes: BTreeMap<String, RouteState>,
    pub limits: BTreeMap<String, LimitUse>,
    /// The last warnings, and what operators changed.
    pub events: Vec<RecentLine>,
}

/// Something that a replica needs and does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    pub name: String,
    pub reason: String,
    /// For how long.
    pub seconds: u64,
}

/// A limit that lets messages wait for something else than its rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitWait {
    /// A limit, or `route.` and the name of a route that is paused, or frozen without a paced limit.
    pub limit: String,
    /// `pause`, `freeze`, `debt`, `quota` or `lost`.
    pub what: String,
    pub reason: String,
    /// For how much longer. `None`: until an operator ends it.
    pub seconds: Option<u64>,
}

/// A route, as one replica sees it. The numbers at the broker are of the whole fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteState {
    pub open: bool,
    /// Why its tap is closed, or why its messages move although it is open; `None`: neither, or it is not known.
    pub why: Option<String>,
    /// Calls failed or were rejected in a row: only single probes are sent, even while the tap is open.
    pub away: bool,
    /// The answer to the last of them; `None`: there was none, or this replica made none of these calls.
    pub away_why: Option<String>,
    /// Why it sets messages aside that cannot be decoded or counted: those before died in a row; `None`: it sets none
    /// aside.
    pub dying: Option<String>,
    /// Why it makes no call although its messages could go; `None`: it does, or has a reason not to.
    pub stalled: Option<String>,
    /// By how much the way to the downstream varies, and how much the limits allow for that, in seconds.
    pub way_spread: f64,
    pub way_kept: f64,
    /// The age of the oldest message that waits, and the age that is warned of (0: none), in seconds.
    pub oldest: f64,
    pub max_delay: f64,
    /// How long the messages accepted in the last seconds had waited, in seconds; `None`: there were none.
    pub delay: Option<f64>,
    /// If its oldest message waits for too long: which route makes most of the calls of a limit that it
    /// shares.
    pub taken: Option<String>,
    pub held: u64,
    pub in_flight: u64,
    pub ready: u64,
    pub waiting: u64,
    pub parked: u64,
    pub dead: u64,
    /// Messages done, since the replica was started and in the last seconds.
    pub done: u64,
    pub per_second: f64,
    /// Calls in the last seconds, with any answer.
    pub calls_per_second: f64,
    /// Calls by answer, since the replica was started; only answers that came.
    pub answers: BTreeMap<String, u64>,
    /// Results by outcome, since the replica was started; only outcomes that occurred.
    pub results: BTreeMap<String, u64>,
    /// Messages that were in a queue of sluiced when it was deleted or purged, by part, since the replica was started;
    /// only parts that lost some. Each replica counts all of them.
    pub vanished: BTreeMap<String, u64>,
    /// Messages done without a call since the replica was started, because one of their key was accepted before.
    pub repeats: u64,
    /// The main route of a standby; `None`: it is none.
    pub standby_for: Option<String>,
    /// The route's messages move to another route of its queue, because it cannot send them.
    pub moving: bool,
}

/// The use of a limit by one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitUse {
    /// Of a paced limit: the current rate, in units per second.
    pub per_second: f64,
    /// Units a second that were used in the last seconds.
    pub used: f64,
    /// Units that were used since the start.
    pub total: u64,
    /// Units that are left of the downstream's quota, until that begins again.
    pub left: Option<f64>,
    /// Units that calls used according to their answers, since the start; zero if the limit has no `actual`.
    pub actual: u64,
}

impl Replica {
    /// The replicas that reported. The report of a later version may be unreadable here.
    #[must_use]
    pub fn read_all(reports: &FleetReports) -> Vec<Self> {
        let replicas = reports.replicas.iter().filter_map(|(ago, text)| {
            let replica: Self = serde_json::from_str(text).ok()?;
            let silent = if *ago < SILENT { 0 } else { ago.as_secs() };
            Some(Self { silent, ..replica })
        });
        replicas.collect()
    }

    /// The part that others must know at once when it changes: everything except the numbers.
    pub(super) fn state(&self) -> Self {
        let mut state = Self {
            seconds: 0,
            limits: BTreeMap::new(),
            ..self.clone()
        };
        for wait in &mut state.waits {
            wait.seconds = None;
        }
        for part in &mut state.missing {
            part.seconds = 0;
            if part.name.starts_with(PROGRESS) {
                // It says for how long.
                part.reason.clear();
            }
        }
        for route in state.routes.values_mut() {
            *route = RouteState {
                open: route.open,
                why: route.why.clone(),
                away: route.away,
                away_why: route.away_why.clone(),
                moving: route.moving,
                dying: route.dying.clone(),
                vanished: route.vanished.clone(),
                // Its text says for how long.
                stalled: route.stalled.as_ref().map(|_| String::new()),
                ..RouteState::default()
            };
        }
        state
    }
}

impl LimitWait {
    /// For operators.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.seconds {
            Some(seconds) => {
                let left = Span(Duration::from_secs(seconds));
                format!("{}; for another {left}", self.reason)
            }
            None => self.reason.clone(),
        }
    }
}

impl RouteState {
    /// The warning if messages are gone with a queue of sluiced.
    #[must_use]
    pub fn loss_warning(&self) -> Option<String> {
        let vanished = self.vanished.iter();
        let counts: Vec<_> = vanished
            .map(|(part, count)| format!("{count} {part}"))
            .collect();
        (!counts.is_empty()).then(|| {
            let all = counts.join(", ");
            format!("messages gone with a queue of sluiced that was deleted or purged: {all}")
        })
    }

    /// The warning if the limits allow too little for the way.
    #[must_use]
    pub fn headroom_warning(&self) -> Option<String> {
        let ms = |seconds| millis(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        (self.way_spread > self.way_kept).then(|| {
            format!(
                "the way to the downstream varies by {}, and the headroom keeps {} for that",
                ms(self.way_spread),
                ms(self.way_kept)
            )
        })
    }

    /// The warning if the oldest message waits for too long.
    #[must_use]
    pub fn delay_warning(&self) -> Option<String> {
        (self.max_delay > 0.0 && self.oldest > self.max_delay).then(|| {
            format!(
                "the oldest message waits for {:.0} s, longer than max_delay ({:.0} s)",
                self.oldest, self.max_delay
            )
        })
    }

    /// Whether only single probes are sent, and nothing else keeps it from consuming; with the answer to the last call
    /// that failed. Its tap opens for each probe.
    #[must_use]
    pub fn probing_reason(&self) -> Option<String> {
        let probes = self.away && (self.open || self.why.as_deref() == Some(PROBES_ONLY));
        probes.then(|| match &self.away_why {
            None => PROBES_ONLY.to_owned(),
            Some(why) => format!("{PROBES_ONLY}: {why}"),
        })
    }

    /// Whether its messages wait for slots of its limits, and not for an operator, a downstream or its hours.
    pub(super) fn waits_for_the_rate(&self) -> bool {
        let is_shut = self.why.as_ref().is_some_and(|why| why != NO_TURN);
        !is_shut && !self.away && !self.moving && self.dying.is_none() && self.stalled.is_none()
    }

    /// How many messages at the broker could be sent.
    #[must_use]
    pub const fn backlog(&self) -> u64 {
        self.ready.saturating_add(self.parked)
    }
}
