//! The rows of slots of a paced limit, as a pacer asks for them; and the row that stands for a route that nothing
//! paces.

use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::pacing::{Row, RowPaces};
use sluiced_core::rate::Rate;
use sluiced_core::schedule::Pace;
use sluiced_ports::store::PacedRow;

use super::CurrentPolicy;

/// The rows of slots of a paced limit.
#[derive(Clone, Debug)]
pub struct PacedRows {
    pub main: PacedRow,
    /// Slots that only urgent messages may take.
    pub reserve: Option<PacedRow>,
}

/// Where the slots of a pacer come from.
#[derive(Clone, Debug)]
pub enum SlotSource {
    /// From the rows of a paced limit.
    Rows(PacedRows),
    /// Nothing paces its routes: slots are always due. The row is where they are frozen for every replica; no slot of
    /// it is leased.
    AlwaysDue(PacedRow),
}

impl SlotSource {
    /// The source of a pacer without a paced limit.
    #[must_use]
    pub fn always_due(pacer: &str) -> Self {
        let second = Duration::from_secs(1);
        let rate = Rate::new(NonZeroU32::MIN, second).expect("1/1s is within the bounds of rates");
        let pace = Pace::new(rate, Duration::ZERO, second);
        // No limit has a colon in its name.
        Self::AlwaysDue(PacedRow::new(format!(":{pacer}"), pace))
    }

    /// One of its rows in the store.
    pub(crate) fn stored_row(&self, row: Row) -> Option<&PacedRow> {
        match (self, row) {
            (Self::Rows(rows), Row::Main) => Some(&rows.main),
            (Self::Rows(rows), Row::Reserve) => rows.reserve.as_ref(),
            (Self::AlwaysDue(stored), Row::Main) => Some(stored),
            (Self::AlwaysDue(_), Row::Reserve) => None,
        }
    }

    /// The rows of the paced limit, if there is one.
    pub(crate) const fn rows(&self) -> Option<&PacedRows> {
        match self {
            Self::Rows(rows) => Some(rows),
            Self::AlwaysDue(_) => None,
        }
    }
}

impl PacedRows {
    /// The policy has changed.
    pub(crate) fn adopt_policy(&mut self, policy: &CurrentPolicy, paces: &RowPaces) {
        let version = policy.stored.version;
        (self.main.pace, self.main.known) = (paces.main, version);
        if let (Some(reserve), Some(pace)) = (&mut self.reserve, paces.reserve) {
            (reserve.pace, reserve.known) = (pace, version);
        }
    }

    /// Units per second of all rows.
    pub(crate) fn per_second(&self) -> f64 {
        let reserve = self.reserve.as_ref().map_or(0.0, |r| r.pace.per_second());
        self.main.pace.per_second() + reserve
    }
}
