//! Time passes by moving the times in the states.

use sluiced_core::limits::once::OnceState;
use sluiced_core::limits::{LimitState, NextReturn, Owed, Quota, TakenUnits};
use sluiced_core::time::StoreTime;

pub(super) fn moved(time: StoreTime, by: i64) -> StoreTime {
    StoreTime::from_micros(time.as_micros().saturating_add_signed(by).max(1))
}

pub(super) fn later(state: LimitState, by: i64) -> LimitState {
    let moved = |time: u64| time.saturating_add_signed(by);
    let taken = match state.taken {
        TakenUnits::Gcra(mut s) => {
            s.at = moved(s.at);
            TakenUnits::Gcra(s)
        }
        TakenUnits::TokenBucket(mut s) => {
            s.last = moved(s.last);
            TakenUnits::TokenBucket(s)
        }
        TakenUnits::FixedWindow(mut s) => {
            s.start = moved(s.start);
            s.last = moved(s.last);
            TakenUnits::FixedWindow(s)
        }
        TakenUnits::SlidingLog(mut s) => {
            for entry in &mut s.entries {
                entry.0 = moved(entry.0);
            }
            TakenUnits::SlidingLog(s)
        }
        TakenUnits::Concurrency(mut s) => {
            for call in &mut s.calls {
                call.ends = moved(call.ends);
            }
            TakenUnits::Concurrency(s)
        }
        TakenUnits::Once(OnceState::Held {
            ticket,
            since,
            ends,
        }) => TakenUnits::Once(OnceState::Held {
            ticket,
            since: moved(since),
            ends: moved(ends),
        }),
        TakenUnits::Once(OnceState::Done { until }) => TakenUnits::Once(OnceState::Done {
            until: moved(until).max(1),
        }),
        free @ TakenUnits::Once(OnceState::Free) => free,
    };
    LimitState {
        taken,
        next_return: NextReturn {
            at: moved(state.next_return.at),
            ..state.next_return
        },
        quota: Quota {
            until: moved(state.quota.until),
            ..state.quota
        },
        owed: Owed {
            from: moved(state.owed.from),
            ..state.owed
        },
    }
}
