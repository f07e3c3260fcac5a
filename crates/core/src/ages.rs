//! How old the oldest message of a route is.
//!
//! A replica knows when the messages that it holds were published. A queue delivers the oldest message first. So the
//! ready messages were published after the last message that came out, and after the last check that found the queue
//! empty. While a replica holds nothing, the later of these two times is the estimate. It may be wrong if a queue has
//! priorities, or if messages came back to the queue. Messages in wait queues and parked messages do not count.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::{StoreTime, micros};

/// The broker is asked for its counts at least this often: what was ready then may have gone since.
const COUNTED: Duration = Duration::from_secs(15);

/// The messages of one route, as one replica sees them.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// How many of the messages that it holds and does not call were published then.
    held: BTreeMap<StoreTime, u32>,
    /// Messages that are ready now were published after this: the youngest message that it has received, or
    /// the last check that found nothing ready.
    youngest: Option<StoreTime>,
}

impl Ages {
    /// A message that has waited since `since` (its publishing, or the opening of its hours if that is later) waits in
    /// the replica for its call.
    pub fn note_waiting(&mut self, since: StoreTime) {
        *self.held.entry(since).or_default() += 1;
        self.youngest = self.youngest.max(Some(since));
    }

    /// The message is called, or the replica no longer holds it.
    pub fn note_gone(&mut self, since: StoreTime) {
        if let Some(count) = self.held.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&since);
            }
        }
    }

    /// Since when the oldest message waits; `None`: none waits. `ready`: whether messages are ready in the queue.
    pub fn oldest(&mut self, ready: bool, now: StoreTime) -> Option<StoreTime> {
        let empty = StoreTime::from_micros(now.as_micros().saturating_sub(micros(COUNTED)));
        let seen = if ready { None } else { Some(empty) };
        let youngest = self.youngest.max(seen).unwrap_or(now);
        self.youngest = Some(youngest);
        let held = self.held.first_key_value().map(|(since, _)| *since);
        held.or(ready.then_some(youngest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> StoreTime {
        StoreTime::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_oldest_that_is_held_counts_and_without_one_the_youngest_that_came() {
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(false, at(100)), None);
        for since in [70, 60, 60, 90] {
            ages.note_waiting(at(since));
        }
        assert_eq!(ages.oldest(true, at(101)), Some(at(60)));
        for since in [60, 60, 90] {
            ages.note_gone(at(since));
        }
        assert_eq!(ages.oldest(true, at(102)), Some(at(70)));
        ages.note_gone(at(70));
        assert_eq!(ages.oldest(false, at(103)), None);
        // Ready messages were published after all that came.
        assert_eq!(ages.oldest(true, at(103)), Some(at(90)));
        ages.note_waiting(at(110));
        ages.note_gone(at(110));
        assert_eq!(ages.oldest(true, at(120)), Some(at(110)));
        // After a quiet night, messages that come in the morning are young.
        assert_eq!(ages.oldest(false, at(9_000)), None);
        assert_eq!(ages.oldest(true, at(9_010)), Some(at(9_000 - 15)));
    }

    #[test]
    fn a_backlog_of_which_nothing_was_received_counts_from_the_first_look() {
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(true, at(100)), Some(at(100)));
        assert_eq!(ages.oldest(true, at(130)), Some(at(100)));
    }
}
