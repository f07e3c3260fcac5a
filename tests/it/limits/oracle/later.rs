//! Time passes by moving the times in the states.

use sluiced_core::limits::once::OnceState;
use sluiced_core::limits::{Left, Line, Owed, State, Taken};
use sluiced_core::time::StoreTime;

pub(super) fn moved(time: StoreTime, by: i64) -> StoreTime {
    StoreTime::from_micros(time.as_micros().saturating_add_signed(by).max(1))
}

pub(super) fn later(state: State, by: i64) -> State {
    let moved = |time: u64| time.saturating_add_signed(by);
    let taken = match state.taken {
        Taken::Gcra(mut s) => {
            s.at = moved(s.at);
            Taken::Gcra(s)
        }
        Taken::TokenBucket(mut s) => {
            s.last = moved(s.last);
            Taken::TokenBucket(s)
        }
        Taken::FixedWindow(mut s) => {
            s.start = moved(s.start);
            s.last = moved(s.last);
            Taken::FixedWindow(s)
        }
        Taken::SlidingLog(mut s) => {
            for entry in &mut s.entries {
                entry.0 = moved(entry.0);
            }
            Taken::SlidingLog(s)
        }
        Taken::Concurrency(mut s) => {
            for call in &mut s.calls {
                call.ends = moved(call.ends);
            }
            Taken::Concurrency(s)
        }
        Taken::Once(OnceState::Held {
            ticket,
            since,
            ends,
        }) => Taken::Once(OnceState::Held {
            ticket,
            since: moved(since),
            ends: moved(ends),
        }),
        Taken::Once(OnceState::Done { until }) => Taken::Once(OnceState::Done {
            until: moved(until).max(1),
        }),
        free @ Taken::Once(OnceState::Free) => free,
    };
    State {
        taken,
        line: Line {
            at: moved(state.line.at),
            ..state.line
        },
        left: Left {
            until: moved(state.left.until),
            ..state.left
        },
        owed: Owed {
            from: moved(state.owed.from),
            ..state.owed
        },
    }
}
