//! What is known of the messages that keyed limits are being asked for. The pacer has the messages themselves, in the
//! questions that are in flight.

use std::collections::BTreeMap;

use crate::message::{MessageTotals, Queued};
use crate::rate::Cost;
use crate::time::Mono;

/// The messages of all questions in flight.
#[derive(Debug, Default)]
pub(super) struct AskedMessages {
    totals: MessageTotals,
    /// How many there are of each route.
    by_route: BTreeMap<usize, usize>,
    /// The costs of the messages of each question, in their order; by the time when it was sent.
    costs: BTreeMap<Mono, Vec<Cost>>,
}

impl AskedMessages {
    /// How many there are, and what they take.
    pub(super) const fn totals(&self) -> MessageTotals {
        self.totals
    }

    /// Whether there is one of this route.
    pub(super) fn any_of(&self, route: usize) -> bool {
        self.by_route.get(&route).is_some_and(|count| *count > 0)
    }

    /// Their costs, in the order in which they were asked for.
    pub(super) fn costs(&self) -> impl Iterator<Item = Cost> {
        self.costs.values().flatten().copied()
    }

    /// A message goes into a question.
    pub(super) fn add<T: Queued>(&mut self, item: &T) {
        self.totals.add(item);
        *self.by_route.entry(item.route()).or_default() += 1;
    }

    /// The question with messages of these costs was sent.
    pub(super) fn note_sent(&mut self, at: Mono, costs: impl Iterator<Item = Cost>) {
        self.costs.entry(at).or_default().extend(costs);
    }

    /// The question that was sent then is not in flight any more.
    pub(super) fn note_end(&mut self, sent: Mono) {
        self.costs.remove(&sent);
    }

    /// A message of a question that is not in flight any more.
    pub(super) fn remove<T: Queued>(&mut self, item: &T) {
        self.totals.remove(item);
        if let Some(count) = self.by_route.get_mut(&item.route()) {
            *count -= 1;
        }
    }
}
