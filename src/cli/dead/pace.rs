//! How fast a replay sends letters: at a rate, in batches.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use sluiced_amqp::rabbit::letters::BATCH;
use sluiced_core::rate::Rate;

/// With a pace, the letters of this much time go together.
const TOGETHER: Duration = Duration::from_millis(100);

/// How fast letters go.
pub(super) struct ReplayPace {
    rate: Option<Rate>,
    /// This many letters go together.
    pub(super) batch: usize,
    /// When the next batch may go.
    due: Instant,
}

impl ReplayPace {
    pub(super) fn of(rate: Option<Rate>) -> Self {
        let together = |rate: Rate| (rate.per_second() * TOGETHER.as_secs_f64()) as usize;
        Self {
            batch: rate.map_or(BATCH, |rate| together(rate).clamp(1, BATCH)),
            rate,
            due: Instant::now(),
        }
    }

    /// How many letters go within this long; at least one.
    pub(super) fn within(&self, time: Duration) -> usize {
        let count = |rate: Rate| (rate.per_second() * time.as_secs_f64()) as usize;
        self.rate.map_or(usize::MAX, count).max(1)
    }

    /// This many letters went, from that time on. Time in which none went (the queue was read, for example) is not
    /// made up for.
    pub(super) fn note_sent(&mut self, count: usize, begun: Instant) {
        if let Some(rate) = self.rate {
            let length = Duration::from_secs_f64(count as f64 / rate.per_second());
            self.due = self.due.max(begun) + length;
        }
    }

    /// Waits until the next batch is due, or until `stop`.
    pub(super) async fn wait(&self, stop: &CancellationToken) {
        tokio::select! {
            () = sleep_until(self.due) => {}
            () = stop.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_in_which_no_letter_went_is_not_made_up_for() {
        let mut pace = ReplayPace::of(Some("10/1s".parse().unwrap()));
        let (begun, stop) = (Instant::now(), CancellationToken::new());
        let passed = || begun.elapsed().as_secs();
        for (reads, sent_at) in [(0, 0), (0, 1), (30, 31), (0, 32), (0, 33)] {
            // The next queue is read.
            tokio::time::advance(Duration::from_secs(reads)).await;
            pace.wait(&stop).await;
            assert_eq!(passed(), sent_at);
            pace.note_sent(10, Instant::now());
        }
    }

    #[tokio::test]
    async fn a_pace_decides_how_many_go_together() {
        let batch = |rate: &str| ReplayPace::of(Some(rate.parse().unwrap())).batch;
        assert_eq!(batch("1/10s"), 1);
        assert_eq!(batch("50/1s"), 5);
        assert_eq!(batch("100000/1s"), BATCH);
        assert_eq!(ReplayPace::of(None).batch, BATCH);
        let within = |rate: &str| {
            ReplayPace::of(Some(rate.parse().unwrap())).within(Duration::from_secs(600))
        };
        assert_eq!((within("5/1s"), within("1/1h")), (3_000, 1));
        assert_eq!(
            ReplayPace::of(None).within(Duration::from_secs(600)),
            usize::MAX
        );
    }
}
