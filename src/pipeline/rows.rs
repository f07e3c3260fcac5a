//! The rows of slots of a paced limit, as a pacer asks for them.

use std::sync::Arc;

use sluiced_core::pacing::Row;
use sluiced_core::schedule::Pace;
use sluiced_core::time::StoreTime;
use sluiced_ports::store::{PacedLimit, Store};

use super::policies::CurrentPolicy;

/// The rows of slots of a paced limit.
#[derive(Clone, Debug)]
pub struct PacedRows {
    pub main: PacedLimit,
    /// Slots that only urgent messages may take.
    pub reserve: Option<PacedLimit>,
    pub store: Arc<dyn Store>,
    /// An operator said that nothing passes before. May be over.
    pub paused_until: Option<StoreTime>,
}

impl PacedRows {
    pub(super) fn limit(&self, row: Row) -> Option<&PacedLimit> {
        match row {
            Row::Main => Some(&self.main),
            Row::Reserve => self.reserve.as_ref(),
        }
    }

    /// The policy has changed.
    pub(super) fn adopt(&mut self, policy: &CurrentPolicy, paces: &[Pace]) {
        self.paused_until = policy.paused_until();
        let rows = std::iter::once(&mut self.main).chain(&mut self.reserve);
        for (row, pace) in rows.zip(paces) {
            row.pace = *pace;
            row.known = policy.stored.version;
        }
    }

    /// Units per second of all rows.
    pub(super) fn per_second(&self) -> f64 {
        let reserve = self.reserve.as_ref().map_or(0.0, |r| r.pace.per_second());
        self.main.pace.per_second() + reserve
    }
}
