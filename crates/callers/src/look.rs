//! What keyed limits have left for a request, without taking any of it.
//!
//! A paced limit is not looked at: its slots are evenly spaced, so it has no units that could be left.

use std::sync::Arc;
use std::time::Duration;

use super::request::LimitCost;
use sluiced_core::limits::Fit;
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::{KeyedLimit, LimitStore, Look, message_key};
use sluiced_ports::store::StoreError;

/// The keyed limits of one listener, and where they are asked.
#[derive(Clone, Debug)]
pub struct KeyedLimits {
    store: Arc<dyn LimitStore>,
    limits: Vec<Arc<KeyedLimit>>,
}

/// What one limit has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitLook {
    pub(crate) name: String,
    /// The most that it ever has.
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// When it lets the request pass, at the latest if that costs more than a unit; zero: now, or not known (calls
    /// under way end by themselves).
    pub(crate) wait: Duration,
    /// Whether it would let the request pass now.
    pub(crate) passes: bool,
}

impl KeyedLimits {
    /// `limits` are asked in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn LimitStore>, limits: Vec<Arc<KeyedLimit>>) -> Self {
        Self { store, limits }
    }

    /// Why a request costs more than a limit can ever let pass, if it does: it would be a message that dies.
    pub(crate) fn too_costly(&self, costs: &[LimitCost]) -> Option<String> {
        costs.iter().find_map(|asked| {
            let limit = self
                .limits
                .iter()
                .find(|limit| *limit.name == *asked.limit)?;
            let most = limit.policy().rule.max_cost();
            let cost = u64::from(asked.cost.get());
            (cost > most).then(|| asked.costs_more_than(most))
        })
    }

    /// Looks at those that a request takes from.
    pub(crate) async fn look(&self, costs: &[LimitCost]) -> Result<Vec<LimitLook>, StoreError> {
        let mut found = Vec::new();
        for limit in &self.limits {
            let Some(asked) = costs.iter().find(|asked| *asked.limit == *limit.name) else {
                continue;
            };
            let key = message_key(None, asked.key.as_deref());
            let look = self.store.look(limit, key).await?;
            found.push(LimitLook::of(asked, &look, limit.counts_calls()));
        }
        Ok(found)
    }
}

impl LimitLook {
    fn of(asked: &LimitCost, look: &Look, counts_calls: bool) -> Self {
        let has_room = look.room.remaining >= u64::from(asked.cost.get());
        let after = |at: StoreTime| at.since(look.now);
        let fits = match look.fits {
            // Nothing says when calls in flight end.
            Fit::Full => Duration::ZERO,
            Fit::Now if counts_calls => Duration::ZERO,
            // The store says when one unit fits. This many do when all of them are back.
            _ if !has_room && asked.cost.get() > 1 => after(look.room.reset_at),
            Fit::At(at) => after(at),
            Fit::Now => Duration::ZERO,
        };
        let closed = look.closed.map(|(until, _)| until.since(look.now));
        let wait = closed.unwrap_or_default().max(fits);
        Self {
            name: asked.limit.clone(),
            limit: look.limit,
            remaining: look.room.remaining,
            wait,
            passes: has_room && closed.is_none_or(|left| left.is_zero()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use sluiced_core::limits::Room;

    const NOW: u64 = 1_700_000_000_000_000;

    fn found(cost: u32, remaining: u64, fits: Fit, counts_calls: bool) -> LimitLook {
        let asked = LimitCost {
            limit: "sender".to_owned(),
            key: None,
            cost: NonZeroU32::new(cost).expect("a cost"),
        };
        let look = Look {
            fits,
            now: StoreTime::from_micros(NOW),
            limit: 3,
            room: Room {
                remaining,
                reset_at: StoreTime::from_micros(NOW + 9_000_000),
            },
            closed: None,
            state: None,
        };
        LimitLook::of(&asked, &look, counts_calls)
    }

    /// A request of two units was told to come back at once while one was left.
    #[test]
    fn a_request_is_told_when_all_of_its_units_fit() {
        let second = Duration::from_secs(1);
        let asked = found(
            1,
            0,
            Fit::At(StoreTime::from_micros(NOW + 1_000_000)),
            false,
        );
        assert_eq!((asked.passes, asked.wait), (false, second));
        let two = found(2, 1, Fit::Now, false);
        assert_eq!((two.passes, two.wait), (false, second * 9));
        // Nothing says when calls in flight end.
        for fits in [Fit::Now, Fit::Full] {
            let calls = found(2, 1, fits, true);
            assert_eq!((calls.passes, calls.wait), (false, Duration::ZERO));
        }
        let fits = found(2, 2, Fit::Now, false);
        assert_eq!((fits.passes, fits.wait), (true, Duration::ZERO));
    }
}
