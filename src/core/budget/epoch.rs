//! Which state of a store still says the truth.
//!
//! Problem: a budget that has no state may be new, or it was lost: by a restart, an eviction, a
//! failover to a replica that lagged, or because the store's clock stepped and its times mean
//! something else. So the store keeps one record of its present *era*, and replicas remember its
//! number. Whatever was written in another era is ignored. An era begins
//!
//! - **fresh** if the store has no record and the asker knows of none: a new installation, as far as
//!   anybody can tell. For [`DOUBT`] nothing is granted, so that a replica that does remember an
//!   older era can say so at its next heartbeat.
//! - **lost** if the record was written under another process of the store, if it is missing or
//!   newly fresh while the asker remembers an older one, or if the asker saw the clock step. Then
//!   budgets without a state wait until nothing that was spent before counts any more.

use super::admit::Epoch;
use crate::core::time::StoreTime;

/// How long a fresh era waits for somebody who remembers an older one: two heartbeats.
pub const DOUBT: u64 = 2_000_000;
/// A record from further ahead than this shows that the clock went back.
const STEP: u64 = 100_000;

/// How an era began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// With a store that cannot have lost anything.
    Whole,
    /// Nobody knows of an earlier one.
    Fresh,
    /// Whatever was there before is not there any more.
    Lost,
}

/// A time in which nothing was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Era {
    pub epoch: Epoch,
    pub since: StoreTime,
    pub began: Began,
    /// Which process of the store wrote this.
    pub run: String,
}

/// What the asker knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Witness {
    /// The epoch of its last answer; zero if there was none.
    pub known: Epoch,
    /// It saw the clock step since then.
    pub stepped: bool,
}

impl Era {
    /// The one era of a store in this process.
    #[must_use]
    pub const fn whole(since: StoreTime) -> Self {
        Self {
            epoch: Epoch(1),
            since,
            began: Began::Whole,
            run: String::new(),
        }
    }

    /// Until when a budget without a state may be spent; `forgotten_at` tells when nothing counts
    /// any more that was spent up to a time.
    pub(super) fn blind_until(&self, forgotten_at: impl FnOnce(u64) -> u64) -> u64 {
        let since = self.since.as_micros();
        match self.began {
            Began::Whole => 0,
            Began::Fresh => since + DOUBT,
            Began::Lost => forgotten_at(since),
        }
    }
}

/// The era that a question at `now` falls into, given the store's record.
#[must_use]
pub fn enter(record: Option<Era>, run: &str, witness: Witness, now: StoreTime) -> Era {
    let began = match &record {
        None if witness.known.0 == 0 => Began::Fresh,
        None => Began::Lost,
        Some(era) => {
            let known = witness.known;
            let other = era.run != run || known > era.epoch;
            let doubted = era.began == Began::Fresh && known.0 > 0 && known < era.epoch;
            let stepped = witness.stepped && known == era.epoch;
            let ahead = era.since.as_micros() > now.as_micros() + STEP;
            if !(other || doubted || stepped || ahead) {
                return era.clone();
            }
            Began::Lost
        }
    };
    let last = record.map_or(0, |era| era.epoch.0).max(witness.known.0);
    Era {
        // Milliseconds, so that a new number is larger even if nobody remembers the last one.
        epoch: Epoch((last + 1).max(now.as_micros() / 1_000)),
        since: now,
        began,
        run: run.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: StoreTime = StoreTime::from_micros(1_795_228_193_000_012);

    const fn knows(epoch: u64) -> Witness {
        Witness {
            known: Epoch(epoch),
            stepped: false,
        }
    }

    #[test]
    fn a_store_that_nobody_knows_is_fresh_until_somebody_remembers_more() {
        let fresh = enter(None, "a", knows(0), NOW);
        assert_eq!((fresh.began, fresh.since), (Began::Fresh, NOW));
        let same = enter(Some(fresh.clone()), "a", knows(fresh.epoch.0), NOW);
        assert_eq!(same, fresh);
        assert_eq!(enter(Some(fresh.clone()), "a", knows(0), NOW), fresh);
        let lost = enter(Some(fresh.clone()), "a", knows(7), NOW);
        assert_eq!(lost.began, Began::Lost);
        assert!(lost.epoch > fresh.epoch);
        // The others that remember the older one learn the same.
        assert_eq!(enter(Some(lost.clone()), "a", knows(7), NOW), lost);
    }

    #[test]
    fn another_process_a_missing_record_and_a_step_are_losses() {
        let era = enter(None, "a", knows(0), NOW);
        let known = knows(era.epoch.0);
        let stepped = Witness {
            stepped: true,
            ..known
        };
        for (record, run, witness) in [
            (Some(era.clone()), "b", known),
            (None, "a", known),
            (Some(era.clone()), "a", stepped),
            (Some(era.clone()), "a", knows(era.epoch.0 + 1)),
        ] {
            let lost = enter(record, run, witness, NOW);
            assert_eq!((lost.began, &*lost.run), (Began::Lost, run));
            assert!(lost.epoch > era.epoch && lost.epoch > witness.known);
        }
        let before = StoreTime::from_micros(NOW.as_micros() - STEP - 1);
        assert_eq!(
            enter(Some(era.clone()), "a", known, before).began,
            Began::Lost
        );
        // Only who knows the present era can tell that the clock stepped within it.
        let late = Witness {
            known: Epoch(1),
            stepped: true,
        };
        let lost = enter(Some(era), "b", known, NOW);
        assert_eq!(enter(Some(lost.clone()), "b", late, NOW), lost);
    }
}
