//! Which replicas ask the store of keyed limits.
//!
//! A replica that starts waits until the others must have reported a step of the store's clock from before its start
//! (`store_watch`). A replica that is alone has no other to wait for ([`Askers`]). But the store's clock cannot show
//! which replicas are running: after a step forward all others seem to have asked long ago. So only a replica that has
//! been running for a while may remove others from the list. It is in the list itself, so a replica that starts does
//! not take itself for alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::StoreTime;

/// A replica that did not ask for this long is gone.
pub const GONE: Duration = Duration::from_secs(5);
/// No more than these are remembered; commands ask, too.
const MAX_REMEMBERED: usize = 1_000;

/// When each replica asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Askers {
    /// By the name of the replica, on the store's clock. At most 1,000.
    pub seen: BTreeMap<String, StoreTime>,
}

impl Askers {
    /// `replica` no longer asks.
    pub fn leave(&mut self, replica: &str) {
        self.seen.remove(replica);
    }

    /// `replica` asks; it `remembers` an answer, or has just started. Returns how many others ask.
    pub fn ask(&mut self, replica: &str, remembers: bool, now: StoreTime) -> usize {
        if remembers {
            self.seen
                .retain(|_, seen| now.since(*seen).max(seen.since(now)) <= GONE);
        }
        let is_known = self.seen.remove(replica).is_some();
        let others = self.seen.len();
        if is_known || others < MAX_REMEMBERED {
            self.seen.insert(replica.to_owned(), now);
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_starts_is_alone_only_if_no_other_was_there_however_the_clock_stepped() {
        let noon = StoreTime::from_micros(1_795_228_193_000_012);
        let mut askers = Askers::default();
        assert_eq!(askers.ask("a", false, noon), 0);
        let day_later = noon + GONE * 100_000;
        assert_eq!(
            askers.ask("b", false, day_later),
            1,
            "the clock may have stepped"
        );
        // A replica that has been running for a while forgets those that are gone.
        assert_eq!(askers.ask("b", true, day_later), 0);
        assert_eq!(askers.ask("a", true, day_later), 1);
        assert_eq!(askers.ask("b", true, noon), 0, "back");
    }

    #[test]
    fn no_more_are_remembered_than_a_fleet_has() {
        let now = StoreTime::from_micros(1_795_228_193_000_012);
        let mut askers = Askers::default();
        for replica in 0..2 * MAX_REMEMBERED {
            askers.ask(&replica.to_string(), false, now);
        }
        assert_eq!(askers.seen.len(), MAX_REMEMBERED);
    }
}
