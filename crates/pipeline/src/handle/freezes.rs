//! How a limit is frozen because of what the downstream says: here at once, and through the store for every replica.
//!
//! The downstream refuses calls, or says that its quota is nearly used up. The rows of a paced limit are frozen in the
//! store; a route that nothing paces has a row there for this alone.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::{PacerEvent, PacerHandle};
use sluiced_core::pacing::Row;
use sluiced_ports::clock;
use sluiced_ports::store::StoreError;
use sluiced_telemetry::LogLimits;

/// Several calls that were in flight together are throttled together.
static FROZEN: LogLimits = LogLimits::new(Duration::from_secs(1));
/// Where the store is away.
static UNSHARED: LogLimits = LogLimits::new(Duration::from_secs(10));
static SPENT: LogLimits = LogLimits::new(Duration::from_secs(10));

impl PacerHandle {
    /// Freezes the limit: here at once, and through the store for every replica.
    pub(crate) fn freeze(self: &Arc<Self>, length: Duration, answer: &str) {
        let is_first = self.measures.note_refusal(clock::now());
        self.send(PacerEvent::FreezeByAnswer { length, is_first });
        self.meters.freezes.increment(1);
        if let Some(more) = FROZEN.event(&self.name, clock::now()) {
            let of = if self.is_paced() {
                "the limit is frozen for every replica"
            } else {
                "the route is frozen for every replica"
            };
            warn!(pacer = %self.name, answer, wait = ?length, "the downstream throttles; {of}{more}");
        }
        self.freeze_all(length);
    }

    /// Freezes the limit through the store, because the downstream says that only `left` units are left: no call was
    /// refused.
    pub(crate) fn freeze_for_quota(self: &Arc<Self>, length: Duration, left: u64) {
        self.meters.freezes.increment(1);
        if let Some(more) = SPENT.event(&self.name, clock::now()) {
            info!(pacer = %self.name, left, wait = ?length,
                "the downstream says that its quota is nearly used up; the limit is frozen for every replica{more}");
        }
        self.freeze_all(length);
    }

    /// Asks soon whether a route that nothing paces is frozen.
    pub(crate) fn look_at_freeze(self: &Arc<Self>) {
        let pacer = Arc::clone(self);
        tokio::spawn(async move { pacer.ask_for_freeze().await });
    }

    /// Asks whether a route that nothing paces is frozen, and tells its pacer; answers about leases say it of the rows
    /// of a limit. A freeze can only be made longer, so one without a length changes nothing and shows the freeze that
    /// is there.
    pub(crate) async fn ask_for_freeze(&self) {
        if !self.is_paced() {
            self.freeze_rows(Duration::ZERO).await;
        }
    }

    /// Freezes the rows in the store.
    fn freeze_all(self: &Arc<Self>, length: Duration) {
        let pacer = Arc::clone(self);
        tokio::spawn(async move { pacer.freeze_rows(length).await });
    }

    async fn freeze_rows(&self, length: Duration) {
        for row in [Row::Main, Row::Reserve] {
            let Some(stored) = self.stored_row(row) else {
                continue;
            };
            match self.store.freeze(&stored, length).await {
                Ok(freeze) => self.send(PacerEvent::FreezeOfRow(row, freeze)),
                Err(error) if length.is_zero() => {
                    debug!(pacer = %self.name, %error, "it is not known whether it is frozen");
                }
                Err(error) => warn_of_unshared(self, &error),
            }
        }
    }
}

/// The store was not told of a freeze.
fn warn_of_unshared(pacer: &PacerHandle, error: &StoreError) {
    if let Some(more) = UNSHARED.event(&pacer.name, clock::now()) {
        warn!(pacer = %pacer.name, %error, "only this replica knows of the freeze{more}");
    }
}
