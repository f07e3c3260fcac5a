//! What limits wait for, where it is not their rate: a pause, a freeze, a debt, a quota, a loss.
//!
//! Problem: an answer of the downstream can make a limit wait for hours, and a debt, or an operator's pause, for
//! days. Nothing is wrong with the replica meanwhile: it is ready, and can do nothing about it. So a wait is noted
//! here with its end, for `/readyz`, the status page, `sluiced status` and an alert, and it ends there by itself. Of
//! several keys of a limit the one that waits longest counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::meters::LIMIT_WAITS;
use super::metric::gauge;
use sluiced_core::policy::UNTIL_RESUMED;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::lock;

pub use super::waits_for::WaitsFor;

/// A shorter wait is usual where costs are estimates, and is not shown.
const SHOWN_FROM: Duration = Duration::from_secs(5);

/// A route that waits as a whole is a limit with this prefix and the name of the route.
pub const ROUTE: &str = "route.";

/// A wait that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub limit: Arc<str>,
    pub what: WaitsFor,
    /// For how much longer. `None`: until an operator ends it.
    pub left: Option<Duration>,
}

impl Wait {
    /// For operators, after the name of the limit.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.what {
            WaitsFor::Pause if self.limit.starts_with(ROUTE) => {
                "paused by an operator (`sluiced routes resume` ends it)"
            }
            WaitsFor::Freeze if self.limit.starts_with(ROUTE) => {
                "frozen, as the downstream asked (`sluiced routes resume` ends it)"
            }
            what => what.reason(),
        }
    }
}

/// When waits end, by limit.
type Ends = BTreeMap<(Arc<str>, WaitsFor), Mono>;

/// The waits of all limits. Copies are the same.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    ends: Arc<Mutex<Ends>>,
}

impl Waits {
    /// From now on this limit may have such waits: its series begin.
    pub fn begin_series(&self, limit: &str, what: &[WaitsFor]) {
        for what in what {
            publish(limit, *what, Duration::ZERO);
        }
    }

    /// A message waits for `limit` until then. An earlier end than the known one changes nothing.
    pub fn note(&self, limit: &str, what: WaitsFor, until: Mono) {
        let time_left = until.since(clock::now());
        if time_left < SHOWN_FROM {
            return;
        }
        let mut ends = lock(&self.ends);
        let known_end = ends.get(&(Arc::from(limit), what));
        if known_end.is_none_or(|known_end| *known_end < until) {
            ends.insert((limit.into(), what), until);
            publish(limit, what, time_left);
        }
    }

    /// The limit as a whole grants nothing before `until`, whatever was known. `None`: it does.
    pub fn set_whole(&self, limit: &str, what: WaitsFor, until: Option<Mono>) {
        let is_known = lock(&self.ends).contains_key(&(Arc::from(limit), what));
        match until {
            // A wait that is shown is shown until it is over.
            Some(until) if is_known || until.since(clock::now()) >= SHOWN_FROM => {
                lock(&self.ends).insert((limit.into(), what), until);
                publish(limit, what, until.since(clock::now()));
            }
            Some(_) => {}
            None => self.end(limit, what),
        }
    }

    /// Nothing waits for it any more.
    pub fn end(&self, limit: &str, what: WaitsFor) {
        let ended = lock(&self.ends).remove(&(Arc::from(limit), what));
        if ended.is_some() {
            publish(limit, what, Duration::ZERO);
        }
    }

    /// The waits that last, by limit.
    #[must_use]
    pub fn all(&self) -> Vec<Wait> {
        let now = clock::now();
        let mut ends = lock(&self.ends);
        ends.retain(|_, until| *until > now);
        let waits = ends.iter().map(|((limit, what), until)| Wait {
            limit: Arc::clone(limit),
            what: *what,
            left: Some(until.since(now)).filter(|left| *left <= UNTIL_RESUMED),
        });
        waits.collect()
    }
}

/// The end of a wait in Unix time; zero: there is none.
fn publish(limit: &str, what: WaitsFor, left: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let until = now.filter(|_| !left.is_zero()).map(|now| now + left);
    gauge(&LIMIT_WAITS, &[limit, what.label()]).set(until.unwrap_or_default().as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_wait_of_a_limit_is_shown_until_it_ends() {
        let waits = Waits::default();
        let second = Duration::from_secs(1);
        let (soon, later) = (clock::now() + 100 * second, clock::now() + 300 * second);
        waits.note("tokens", WaitsFor::Debt, clock::now() + 4 * second);
        assert_eq!(waits.all(), [], "it is short");
        for until in [soon, later, soon] {
            waits.note("tokens", WaitsFor::Debt, until);
        }
        waits.note("account", WaitsFor::Freeze, soon);
        let all = waits.all();
        let shown: Vec<_> = all.iter().map(|wait| (&*wait.limit, wait.what)).collect();
        assert_eq!(
            shown,
            [("account", WaitsFor::Freeze), ("tokens", WaitsFor::Debt)]
        );
        assert!(all[1].left > Some(299 * second), "{all:?}");
        waits.end("tokens", WaitsFor::Debt);
        assert_eq!(waits.all().len(), 1);
        waits.end("account", WaitsFor::Freeze);
        assert_eq!(waits.all(), []);
        let left = |waits: &Waits| Some(waits.all().first()?.left);
        let whole = |until| waits.set_whole("account", WaitsFor::Pause, until);
        whole(Some(clock::now() + 4 * second));
        assert_eq!(left(&waits), None, "it is short");
        whole(Some(clock::now() + UNTIL_RESUMED + second));
        assert_eq!(left(&waits), Some(None), "until it is resumed");
        whole(Some(clock::now() + 4 * second));
        assert!(
            left(&waits) <= Some(Some(4 * second)),
            "an operator changed it"
        );
        let resumes = |waits: &Waits, command| waits.all()[0].reason().contains(command);
        assert!(resumes(&waits, "`sluiced limits resume`"));
        whole(None);
        assert_eq!(left(&waits), None);
        waits.set_whole("route.sms", WaitsFor::Pause, Some(soon));
        assert!(resumes(&waits, "`sluiced routes resume`"));
    }
}
