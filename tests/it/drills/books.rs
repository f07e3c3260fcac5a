//! The one checker of all rows: what was published, what happened to each message, and what excuses a repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde::Serialize;
use sluiced_ports::clock;
use sluiced_ports::message::header::REASON;
use sluiced_provider::{Expect, Provider};
use tokio::time::Instant;

use super::RECIPIENTS;
use crate::fleet::Fleet;
use crate::support::judge::calls_apart;

/// The window of all limits here.
const WINDOW: Duration = Duration::from_secs(1);
/// Units of the account's limit.
const RATE: f64 = 200.0;
/// This share of the rate counts as the whole rate.
const BACK: f64 = 0.99;
/// A report names this many cases.
const NAMED: usize = 5;
/// The prefetch of a replica: this many of its calls may be unknown to RabbitMQ, whatever time a busy machine
/// takes for them.
const HELD: usize = 100;

/// The reason of a dead letter whose call may have been taken.
const UNKNOWN: &str = "unknown";

/// A call that arrived.
#[derive(Clone, Debug)]
struct Call {
    at: Instant,
    message: String,
    by: String,
}

/// Calls of that replica (of all of them) in that time may be repeated, and the last ones before it and the
/// first ones after it.
#[derive(Debug)]
struct Excuse {
    by: Option<String>,
    time: Range<Instant>,
}

/// The result of a drill.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Sums {
    pub(super) messages: u64,
    pub(super) delivered: u64,
    pub(super) dead: u64,
    /// Neither delivered nor dead, but in a queue of the route.
    pub(super) waiting: u64,
    pub(super) lost: u64,
    pub(super) lost_ids: Vec<String>,
    /// Calls that came too early, for the account or for a recipient.
    pub(super) over: u64,
    /// Delivered more often than published.
    pub(super) twice: u64,
    /// Those of them without a reason: their calls, as text.
    pub(super) without_reason: Vec<String>,
    /// Dead letters by reason.
    pub(super) reasons: BTreeMap<String, u64>,
    pub(super) calls: u64,
    /// Delivered, and dead because their answer is unknown.
    pub(super) delivered_unknown: u64,
}

impl Sums {
    /// Whether they keep the promises.
    pub(super) const fn hold(&self) -> bool {
        self.messages == self.delivered + self.dead + self.waiting
            && self.lost == 0
            && self.over == 0
            && self.without_reason.is_empty()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// How often each id was published.
    published: BTreeMap<String, u64>,
    messages: u64,
    /// How often each was taken, by providers that have ended.
    taken: BTreeMap<String, u64>,
    /// The reasons of the dead letters.
    dead: BTreeMap<String, Vec<String>>,
    /// The messages in a queue of the route.
    waiting: BTreeSet<String>,
    calls: Vec<Call>,
    over: u64,
    excuses: Vec<Excuse>,
    /// What the limit of a recipient allows in a window, if there is one.
    recipient: Option<usize>,
}

impl Books {
    pub(super) fn new(recipient: Option<usize>) -> Self {
        Self {
            recipient,
            ..Self::default()
        }
    }

    pub(super) fn published(&mut self, id: String) {
        self.messages += 1;
        *self.published.entry(id).or_default() += 1;
    }

    /// Of all that were published.
    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.published.keys()
    }

    /// How many were published.
    pub(super) const fn count(&self) -> u64 {
        self.messages
    }

    /// How many have left the work queue for good.
    pub(super) fn sent(&self, provider: &Provider) -> u64 {
        (self.taken.len() + self.dead.len()) as u64 + provider.live().unique
    }

    pub(super) fn excuse(&mut self, by: Option<String>, from: Instant, to: Instant) {
        let time = from..to;
        self.excuses.push(Excuse { by, time });
    }

    /// A dead letter.
    pub(super) fn buried(&mut self, (_, properties): &(Vec<u8>, BasicProperties)) {
        let reason = properties.headers().as_ref();
        let reason = reason.and_then(|headers| headers.inner().get(REASON).cloned());
        let reason = match reason {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            _ => "none".to_owned(),
        };
        self.dead.entry(id(properties)).or_default().push(reason);
    }

    /// Whether each message was taken or is dead.
    pub(super) fn all_ended(&self, provider: &Provider) -> bool {
        // This cheaper check usually suffices.
        if self.sent(provider) < self.published.len() as u64 {
            return false;
        }
        let taken = provider.taken();
        self.published.iter().all(|(id, times)| {
            let taken = taken.get(id.as_str()).copied().map_or(0, u64::from);
            *times <= taken + self.ended(id)
        })
    }

    fn ended(&self, id: &str) -> u64 {
        let dead = self.dead.get(id).map_or(0, Vec::len) as u64;
        self.taken.get(id).copied().unwrap_or(0) + dead
    }

    /// The counts of a provider, which is not asked again.
    pub(super) fn read(&mut self, provider: &Provider) {
        self.over += provider.report(&Expect::Nothing).over;
        for (id, times) in provider.taken() {
            *self.taken.entry(id.into()).or_default() += u64::from(times);
        }
        for (at, mark) in provider.keyed() {
            let (message, by) = mark.split_once(' ').unwrap_or((&*mark, ""));
            self.calls.push(Call {
                at: Instant::from_std(clock::instant(at)),
                message: message.to_owned(),
                by: by.to_owned(),
            });
        }
    }

    /// Whether no message is ready in the work queue, nor waits for less than two minutes.
    pub(super) async fn none_waits(&self, fleet: &Fleet) -> bool {
        for queue in queues(fleet).take(8) {
            let held = fleet.broker.counts(&queue).await;
            if held.is_some_and(|(ready, _)| ready > 0) {
                return false;
            }
        }
        true
    }

    /// Looks into the queues of the route, which no replica consumes any more.
    pub(super) async fn look_for_waiting(&mut self, fleet: &Fleet) {
        for queue in queues(fleet) {
            let held = fleet.broker.counts(&queue).await;
            if held.is_some_and(|(ready, _)| ready > 0) {
                let left = fleet.broker.drain(&queue).await;
                let ids = left.iter().map(|(_, properties)| id(properties));
                self.waiting.extend(ids);
            }
        }
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums {
            messages: self.messages,
            calls: self.calls.len() as u64,
            over: self.over + self.over_for_recipients(),
            ..Sums::default()
        };
        let calls = self.by(|call| &call.message);
        let replicas = self.by(|call| &call.by);
        for (id, times) in &self.published {
            let taken = self.taken.get(id).copied().unwrap_or(0);
            sums.delivered += taken.min(*times);
            let missing = times.saturating_sub(self.ended(id));
            if missing > 0 && self.waiting.contains(id) {
                sums.waiting += missing;
            } else if missing > 0 {
                sums.lost += missing;
                sums.lost_ids
                    .extend((sums.lost_ids.len() < NAMED).then(|| id.clone()));
            }
            if taken > *times {
                sums.twice += 1;
                let own = calls.get(id.as_str()).map_or(&[][..], Vec::as_slice);
                // When the others came is not known: they count as calls whose answer was unknown.
                let undated = match self.excuses.is_empty() {
                    true => 0,
                    false => taken.saturating_sub(own.len() as u64),
                };
                let repeats = (taken - times).saturating_sub(undated);
                if !self.excused(own, repeats, &replicas) && sums.without_reason.len() < NAMED {
                    sums.without_reason.push(format!("{own:?}"));
                }
            }
        }
        for (id, reasons) in &self.dead {
            let taken = self.taken.contains_key(id);
            for reason in reasons {
                // Its reason says that it may have been delivered: counted once, as that.
                if reason == UNKNOWN && taken {
                    sums.delivered_unknown += 1;
                } else {
                    sums.dead += 1;
                }
                *sums.reasons.entry(reason.clone()).or_default() += 1;
            }
        }
        sums
    }

    /// The calls of each message, or of each replica, in their order.
    fn by(&self, what: fn(&Call) -> &String) -> BTreeMap<&str, Vec<Call>> {
        let mut by: BTreeMap<&str, Vec<Call>> = BTreeMap::new();
        for call in &self.calls {
            by.entry(what(call)).or_default().push(call.clone());
        }
        by.values_mut()
            .for_each(|calls| calls.sort_by_key(|call| call.at));
        by
    }

    /// Each repeat needs a call before it whose answer was unknown.
    fn excused(&self, calls: &[Call], repeats: u64, replicas: &BTreeMap<&str, Vec<Call>>) -> bool {
        let before = &calls[..calls.len().saturating_sub(1)];
        let unknown = before.iter().filter(|call| {
            let own = replicas.get(call.by.as_str());
            let covers = |excuse: &&Excuse| {
                let own = own.into_iter().flatten().map(|other| other.at);
                excuse.by.as_ref().is_none_or(|by| *by == call.by)
                    && calls_apart(own, call.at, &excuse.time) <= HELD
            };
            self.excuses.iter().any(|excuse| covers(&excuse))
        });
        unknown.count() as u64 >= repeats
    }

    /// Calls that came too early for the limit of their recipient.
    fn over_for_recipients(&self) -> u64 {
        let Some(most) = self.recipient else {
            return 0;
        };
        let mut by: BTreeMap<u64, Vec<Instant>> = BTreeMap::new();
        for call in &self.calls {
            let number = call.message.parse::<u64>().expect("a number");
            by.entry(number % RECIPIENTS).or_default().push(call.at);
        }
        let over = by.into_values().map(|mut times| {
            times.sort_unstable();
            let early = times.iter().zip(times.iter().skip(most));
            early
                .filter(|(first, last)| **last - **first < WINDOW)
                .count() as u64
        });
        over.sum()
    }

    /// Seconds from the fault's end until the calls of a whole window were 99 % of what the headroom leaves of
    /// the rate.
    pub(super) fn recovery(&self, ended: Instant, headroom: &str) -> Option<f64> {
        let headroom: f64 = headroom.strip_suffix("ms")?.parse().ok()?;
        let need = (BACK * RATE / (1.0 + headroom / 1_000.0)).floor() as usize;
        let mut times: Vec<Instant> = self.calls.iter().map(|call| call.at).collect();
        times.sort_unstable();
        let after = times.partition_point(|at| *at < ended);
        let back = (after..times.len()).find(|first| {
            let end = times[*first] + WINDOW;
            times.partition_point(|at| *at < end) - first >= need
        })?;
        Some((times[back] - ended).as_secs_f64())
    }
}

/// The work queue, and the wait queues, the shortest first.
fn queues(fleet: &Fleet) -> impl Iterator<Item = String> {
    let name = fleet.plan.name;
    let steps = (0..13).map(move |step| format!("{name}.wait.{}s", 1 << step));
    std::iter::once(name.to_owned()).chain(steps)
}

fn id(properties: &BasicProperties) -> String {
    let id = properties.message_id().as_ref();
    id.map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests;
