//! The coverage of runs: how many of them had which kind of limit together with which fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::scenario::Scenario;
use super::verdict::FleetOutcome;
use crate::surroundings::{Fault, StateLeft};

/// The columns of the table of coverage.
const COLUMNS: [&str; 15] = [
    "runs", "chained", "paced", "crash", "leave", "join", "pause", "flush", "empty", "older",
    "kept", "away", "step", "rate", "lost",
];

/// How many runs had each kind of limit and each kind of event.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    kinds: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
}

impl Coverage {
    /// Counts a run in.
    pub fn add(&mut self, scenario: &Scenario, report: &FleetOutcome) {
        let mut had: BTreeSet<&str> = report.struck.iter().filter_map(column).collect();
        had.insert("runs");
        let conditions = [
            ("chained", scenario.keyed.len() > 1),
            ("paced", scenario.paced),
            ("lost", report.replies_lost > 0),
        ];
        had.extend(
            conditions
                .iter()
                .filter(|(_, had)| *had)
                .map(|(name, _)| name),
        );
        let kinds = scenario.keyed.iter().map(|limit| limit.kind.name());
        for kind in kinds.collect::<BTreeSet<_>>() {
            let row = self.kinds.entry(kind).or_default();
            for column in COLUMNS.into_iter().filter(|column| had.contains(column)) {
                *row.entry(column).or_default() += 1;
            }
        }
    }

    /// How many runs had a kind together with the fault of a column.
    #[must_use]
    pub fn of(&self, kind: &str, column: &str) -> u64 {
        let row = self.kinds.get(kind);
        row.and_then(|row| row.get(column)).copied().unwrap_or(0)
    }
}

fn column(fault: &Fault) -> Option<&'static str> {
    Some(match fault {
        Fault::Crash => "crash",
        Fault::Leave => "leave",
        Fault::Join => "join",
        Fault::Pause(_) | Fault::PauseAll(_) => "pause",
        Fault::Flush => "flush",
        Fault::Restart(StateLeft::Nothing) => "empty",
        Fault::Restart(StateLeft::Older) => "older",
        Fault::Restart(StateLeft::All) => "kept",
        Fault::Down(_) => "away",
        Fault::Step(_) => "step",
        Fault::Rate(_) => "rate",
        Fault::Way(_) | Fault::Throttle { .. } | Fault::Heal | Fault::Break(_) => return None,
    })
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24}", "runs with each limit")?;
        for column in COLUMNS {
            write!(f, "{column:>8}")?;
        }
        writeln!(f)?;
        for kind in self.kinds.keys() {
            write!(f, "{kind:<24}")?;
            for column in COLUMNS {
                write!(f, "{:>8}", self.of(kind, column))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
