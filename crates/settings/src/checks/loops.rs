//! Results and dead letters that come back as messages.
//!
//! Problem: a result is a message in a queue. If another route consumes that queue and its results come back
//! to the first route, each message is called again and again, without an end and without a failure. The same
//! happens with a route that consumes the dead letters of another one and sends its results back. So the whole
//! way is followed here: from each work queue to the queues of its results, and to its dead letters.
//!
//! Only constant routing keys of the default exchange name a queue. Where templates do, the way is known at
//! run time only: that is a warning, if it could close a circle. What goes to a named exchange is not known
//! here at all. At run time results of results end after a few steps (`pipeline::ends::results`).

use std::collections::{BTreeSet, VecDeque};

use super::Checks;
use crate::path::KeyPath;
use crate::types::{Results, Settings};

/// A way that messages take from one work queue to another one.
struct Hop<'s> {
    from: &'s str,
    to: &'s str,
    by: By<'s>,
}

#[derive(Clone, Copy)]
enum By<'s> {
    /// The results of this route.
    Results(&'s str),
    /// The dead letters of the queue; this route consumes them.
    DeadLetters(&'s str),
}

impl By<'_> {
    /// The key that says so.
    fn key(self) -> KeyPath {
        match self {
            Self::Results(route) => KeyPath::of(&["routes", route, "results", "routing_key"]),
            Self::DeadLetters(route) => KeyPath::of(&["routes", route, "queue"]),
        }
    }
}

impl Hop<'_> {
    fn in_words(&self) -> String {
        let (from, to) = (self.from, self.to);
        match self.by {
            By::Results(route) => format!("results of `routes.{route}` come to `{to}`"),
            By::DeadLetters(_) => format!("dead letters of `{from}` are in `{to}`"),
        }
    }
}

impl<'s> Checks<'s> {
    /// Circles of results and dead letters.
    pub(super) fn loops(&mut self) {
        let settings = self.settings;
        let hops = known_hops(settings);
        let mut found = BTreeSet::new();
        for hop in &hops {
            let Some(back) = way(&hops, hop.to, hop.from) else {
                continue;
            };
            let circle: Vec<&Hop<'_>> = std::iter::once(hop).chain(back).collect();
            let queues: BTreeSet<&str> = circle.iter().map(|hop| hop.from).collect();
            if found.insert(queues) {
                self.circle(&circle);
            }
        }
        if found.is_empty() {
            self.perhaps(hops);
        }
    }

    fn circle(&mut self, circle: &[&Hop<'_>]) {
        let steps: Vec<String> = circle.iter().map(|hop| hop.in_words()).collect();
        let keys: Vec<KeyPath> = circle.iter().map(|hop| hop.by.key()).collect();
        let message = format!(
            "{}: each message would be called again and again without an end; name a queue that none of these routes consumes",
            steps.join(", and ")
        );
        self.error(keys, message);
    }

    /// Results whose queue is made by a template, if it could be one from which they come back.
    fn perhaps(&mut self, mut hops: Vec<Hop<'s>>) {
        let settings = self.settings;
        let unknown: Vec<(&str, &str)> = settings
            .routes
            .iter()
            .filter(|(_, route)| route.results.as_ref().is_some_and(is_made))
            .map(|(name, route)| (name.as_str(), route.queue.as_str()))
            .collect();
        let queues: BTreeSet<&str> = settings.routes.values().map(|r| r.queue.as_str()).collect();
        for (route, from) in &unknown {
            let others = queues.iter().filter(|to| *to != from);
            hops.extend(others.map(|to| Hop {
                from,
                to,
                by: By::Results(route),
            }));
        }
        for (route, from) in unknown {
            let mut others = queues.iter().filter(|to| **to != from);
            if let Some(other) = others.find(|other| way(&hops, other, from).is_some()) {
                let message = format!(
                    "which queue these results come to is known only at run time; if it is `{other}`, they could come back to `{from}` as results of its route, and be called again: results of results end after a few steps, but until then each one is a call; write the name of a queue that no route consumes, or take the results of one of these routes out"
                );
                self.warning(By::Results(route).key(), message);
            }
        }
    }
}

/// What the configuration says of where results and dead letters of each queue go. A route whose results come straight
/// back is refused on its own.
fn known_hops(settings: &Settings) -> Vec<Hop<'_>> {
    let mut hops = Vec::new();
    for (name, route) in &settings.routes {
        let results = route.results.as_ref();
        for (other_name, other) in &settings.routes {
            let (from, to) = (route.queue.as_str(), other.queue.as_str());
            if from == to {
                continue;
            }
            let leads = |results: &&Results| {
                let queue = results.queue();
                queue.is_some_and(|queue| results.comes_back(queue, to))
            };
            if results.filter(leads).is_some() {
                let by = By::Results(name);
                hops.push(Hop { from, to, by });
            }
            if to.strip_prefix(from) == Some(".dead") {
                let by = By::DeadLetters(other_name);
                hops.push(Hop { from, to, by });
            }
        }
    }
    hops
}

/// Whether only a template knows the queue of these results. The publisher of a message names the queue in
/// `reply_to`, and a result has no `reply_to`: the chain ends there.
fn is_made(results: &Results) -> bool {
    let key = results.routing_key.as_str();
    let is_reply = key.replace(' ', "") == "{{properties.reply_to}}";
    results.exchange.is_empty() && results.queue().is_none() && !is_reply
}

/// The shortest way from one queue to another one.
fn way<'a, 's>(hops: &'a [Hop<'s>], from: &str, to: &str) -> Option<Vec<&'a Hop<'s>>> {
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut ways = VecDeque::from([(from.to_owned(), Vec::new())]);
    while let Some((at, way)) = ways.pop_front() {
        for hop in hops.iter().filter(|hop| hop.from == at) {
            let mut way = way.clone();
            way.push(hop);
            if hop.to == to {
                return Some(way);
            }
            if seen.insert(hop.to.to_owned()) {
                ways.push_back((hop.to.to_owned(), way));
            }
        }
    }
    None
}
