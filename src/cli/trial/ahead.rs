//! What a message waits for besides its limits: running replicas, a downstream that is not away, and the
//! messages before it. All of it comes from the reports of the replicas, as on the status page.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::text::{counted, rough};
use sluiced_status::{Fleet, PROBES_ONLY, Replica, RouteState};

/// What is before the message.
pub(super) struct Ahead {
    replicas: usize,
    route: RouteState,
    /// The message is the first of the queue.
    first: bool,
    /// Until those before it are gone at the rate of the paced limit; `None`: there is no such limit.
    takes: Option<Duration>,
    /// Why the route sends nothing, whatever its limits allow.
    pub(super) stands: Option<String>,
}

impl Ahead {
    /// For a message of a route that is the `first` of its queue, or comes now.
    pub(super) fn of(replicas: Vec<Replica>, name: &str, paced: Option<&str>, first: bool) -> Self {
        let fleet = Fleet {
            replicas,
            ..Fleet::default()
        };
        let route = fleet.route(name);
        let mut ahead = Self {
            replicas: fleet
                .reporting_replicas()
                .filter(|r| r.routes.contains_key(name))
                .count(),
            stands: None,
            takes: None,
            first,
            route,
        };
        let rate = paced.map(|limit| fleet.rates(limit).0);
        ahead.takes = rate.filter(|rate| *rate > 0.0).map(|rate| {
            // A limit has at least one unit in a year, so the quotient normally fits a duration.
            Duration::try_from_secs_f64(ahead.before() as f64 / rate).unwrap_or(Duration::MAX)
        });
        ahead.stands = ahead.standing();
        ahead
    }

    /// Messages before it that no replica has taken yet.
    fn queued(&self) -> u64 {
        if self.first { 0 } else { self.route.ready }
    }

    /// Messages in the queue and held by replicas.
    fn before(&self) -> u64 {
        self.queued().saturating_add(self.route.held)
    }

    fn standing(&self) -> Option<String> {
        let RouteState {
            open,
            why,
            away_why,
            dying,
            stalled,
            ..
        } = &self.route;
        if self.replicas == 0 {
            return Some("once a replica runs that has this route: none reports itself".to_owned());
        }
        if self.route.moving {
            let how = "by another route of its queue: messages of this one move there";
            return Some(how.to_owned());
        }
        if self.route.away {
            let answer = away_why.as_ref().map(|why| format!(" ({why})"));
            let last = answer.unwrap_or_default();
            return Some(format!(
                "once the downstream takes messages again: {PROBES_ONLY}{last}"
            ));
        }
        if let Some(dying) = dying {
            return Some(format!(
                "at once if it can be sent; the route sets messages aside: {dying}"
            ));
        }
        if let Some(stalled) = stalled {
            return Some(format!("once the route goes on: it is stalled, {stalled}"));
        }
        let closed = why.as_ref().filter(|_| !open);
        let unsaid = closed.filter(|why| *why != sluiced_status::CLOSED_HOURS)?;
        Some(format!(
            "once the route is open again: it is closed, {unsaid}"
        ))
    }

    /// Until those before it are gone. `None`: there are some, and without a paced limit it is unknown how
    /// long they take. Messages that replicas hold do not count then: they wait beside this message, not
    /// before it.
    pub(super) fn wait(&self) -> Option<Duration> {
        let none = (self.queued() == 0).then_some(Duration::ZERO);
        self.takes.or(none)
    }

    /// What it waits for, if the time is not known.
    pub(super) fn unknown(&self) -> Option<String> {
        let waits = self.wait().is_none();
        waits.then(|| match self.before() {
            1 => "once the message before it is gone".to_owned(),
            before => format!("once the {before} messages before it are gone"),
        })
    }

    /// A line for each fact that an operator needs.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        if self.replicas == 0 {
            return Vec::new();
        }
        let RouteState {
            ready,
            held,
            parked,
            waiting,
            ..
        } = self.route;
        let mut parts = Vec::new();
        if !self.first {
            parts.push(format!("{ready} in the queue"));
        }
        let replicas = counted(self.replicas as u64, "replica");
        parts.push(format!("{held} held by {replicas}"));
        let takes = match self.takes {
            Some(takes) if takes >= Duration::from_secs(1) && self.stands.is_none() => {
                format!("; gone in {} at the earliest", rough(takes))
            }
            _ => String::new(),
        };
        let mut lines = vec![("before it", format!("{}{takes}", parts.join(", ")))];
        if parked > 0 {
            let why = "messages of tenants that had their share (`fair_by`)";
            lines.push(("parked", format!("{parked} {why}")));
        }
        if waiting > 0 {
            lines.push((
                "waiting",
                format!("{waiting} messages in wait queues come back later"),
            ));
        }
        lines
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "replicas": self.replicas,
            "ready": self.route.ready,
            "held": self.route.held,
            "parked": self.route.parked,
            "waiting": self.route.waiting,
            "before": self.before(),
            "stands": self.stands,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use sluiced_status::LimitUse;

    fn replica(route: RouteState) -> Replica {
        let rate = LimitUse {
            per_second: 10.0,
            ..LimitUse::default()
        };
        Replica {
            routes: BTreeMap::from([("sms".to_owned(), route)]),
            limits: BTreeMap::from([("account".to_owned(), rate)]),
            ..Replica::default()
        }
    }

    fn route() -> RouteState {
        RouteState {
            open: true,
            ready: 590,
            held: 10,
            ..RouteState::default()
        }
    }

    #[test]
    fn what_is_before_it_is_counted_and_timed() {
        let of = |paced, first| {
            let ahead = Ahead::of(vec![replica(route())], "sms", paced, first);
            let wait = ahead.wait().map(|wait| wait.as_secs());
            (ahead.lines()[0].1.clone(), wait, ahead.unknown())
        };
        let said = "590 in the queue, 10 held by 1 replica; gone in 1m at the earliest";
        assert_eq!(
            of(Some("account"), false),
            (said.to_owned(), Some(60), None)
        );
        let first = "10 held by 1 replica; gone in 1s at the earliest";
        assert_eq!(of(Some("account"), true), (first.to_owned(), Some(1), None));
        let unpaced = "590 in the queue, 10 held by 1 replica";
        let once = "once the 600 messages before it are gone".to_owned();
        assert_eq!(of(None, false), (unpaced.to_owned(), None, Some(once)));
        assert_eq!((of(None, true).1, of(None, true).2), (Some(0), None));
        let parked = RouteState {
            parked: 7,
            waiting: 3,
            ..route()
        };
        let ahead = Ahead::of(vec![replica(parked)], "sms", None, false);
        let labels: Vec<_> = ahead.lines().into_iter().map(|(label, _)| label).collect();
        assert_eq!(labels, ["before it", "parked", "waiting"]);
    }

    #[test]
    fn what_stands_says_why() {
        let stands = |replicas| {
            let ahead = Ahead::of(replicas, "sms", None, false);
            ahead.stands.unwrap_or_default()
        };
        let closed = |why: &str| {
            replica(RouteState {
                open: false,
                why: (!why.is_empty()).then(|| why.to_owned()),
                ..route()
            })
        };
        assert!(stands(Vec::new()).contains("a replica runs"));
        let silent = Replica {
            silent: 5,
            ..replica(route())
        };
        assert!(stands(vec![silent]).contains("a replica runs"));
        assert_eq!(stands(vec![replica(route())]), "");
        let away = replica(RouteState {
            away: true,
            away_why: Some("503 Service Unavailable".to_owned()),
            ..route()
        });
        let said = stands(vec![replica(route()), away]);
        assert!(said.ends_with("probes are sent (503 Service Unavailable)"));
        let dying = replica(RouteState {
            dying: Some("50 messages died in a row, invalid".to_owned()),
            ..route()
        });
        let said = stands(vec![replica(route()), dying]);
        assert!(said.ends_with("aside: 50 messages died in a row, invalid"));
        assert!(stands(vec![closed("redis: refused")]).ends_with("closed, redis: refused"));
        assert_eq!(stands(vec![closed("redis: refused"), replica(route())]), "");
        // Its limits and its hours have lines of their own.
        assert_eq!(stands(vec![closed("")]), "");
        assert_eq!(stands(vec![closed(sluiced_status::CLOSED_HOURS)]), "");
    }
}
