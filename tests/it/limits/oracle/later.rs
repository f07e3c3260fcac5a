//! Time passes by moving the times in the states.

use sluiced_core::limits::once::OnceState;
use sluiced_core::limits::{KindState, LimitState, NextReturn, Owed, Quota};
use sluiced_core::time::StoreTime;

pub(super) fn moved(time: StoreTime, by: i64) -> StoreTime {
    StoreTime::from_micros(time.as_micros().saturating_add_signed(by).max(1))
}

pub(super) fn later(state: LimitState, by: i64) -> LimitState {
    let moved = |time: u64| time.saturating_add_signed(by);
    let taken = match state.taken {
        KindState::Gcra(mut s) => {
            s.at = moved(s.at);
            KindState::Gcra(s)
        }
        KindState::TokenBucket(mut s) => {
            s.last = moved(s.last);
            KindState::TokenBucket(s)
        }
        KindState::FixedWindow(mut s) => {
            s.start = moved(s.start);
            s.last = moved(s.last);
            KindState::FixedWindow(s)
        }
        KindState::SlidingLog(mut s) => {
            for entry in &mut s.entries {
                entry.0 = moved(entry.0);
            }
            KindState::SlidingLog(s)
        }
        KindState::Concurrency(mut s) => {
            for call in &mut s.calls {
                call.ends = moved(call.ends);
            }
            KindState::Concurrency(s)
        }
        KindState::Once(OnceState::Claimed {
            ticket,
            since,
            ends,
        }) => KindState::Once(OnceState::Claimed {
            ticket,
            since: moved(since),
            ends: moved(ends),
        }),
        KindState::Once(OnceState::Done { until }) => KindState::Once(OnceState::Done {
            until: moved(until).max(1),
        }),
        free @ KindState::Once(OnceState::Free) => free,
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
