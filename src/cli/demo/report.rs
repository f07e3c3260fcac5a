//! The result of a demo: a table of numbers, one sentence, and whether the limit held.

use std::fmt;
use std::time::Duration;

use crate::cli::text::{counted, padded};
use sluiced_core::rate::{Rate, Span};
use sluiced_provider::Report;

/// The result of a run.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) rate: Rate,
    pub(super) messages: u64,
    pub(super) report: Report,
    /// On real servers only.
    pub(super) fleet: Option<FleetFacts>,
}

/// Numbers that only a run on real servers has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FleetFacts {
    /// Calls of scripts and functions that Redis counted during the run.
    pub(super) script_calls: u64,
    /// Messages still in the work queue after the replicas had stopped.
    pub(super) left: u64,
    /// Messages in the dead-letter queue.
    pub(super) dead: u64,
    /// Daemons that were killed on purpose.
    pub(super) killed: u64,
}

impl Proof {
    /// Nothing came too early and nothing was lost.
    pub(super) fn holds(&self) -> bool {
        self.report.over == 0 && self.lost() == 0 && self.report.calls > 0
    }

    fn lost(&self) -> u64 {
        self.report.lost.unwrap_or(0)
    }

    fn rows(&self) -> Vec<ReportRow> {
        let report = &self.report;
        let took = Duration::from_micros(report.duration_us).as_secs_f64();
        let limit = self.rate.units();
        let window = Span(self.rate.window());
        let mut rows = vec![
            row("calls", report.calls, format!("in {took:.2} s")),
            row(
                "fullest sliding window",
                report.worst,
                format!("of {limit} in any {window}"),
            ),
            row("calls that came too early", report.over, self.when_over()),
            row("share of the limit used", self.used(), String::new()),
            row("messages lost", self.lost(), named(&report.lost_ids)),
            row(
                "messages taken twice",
                report.repeated,
                named(&report.repeated_ids),
            ),
        ];
        if report.undated > 0 {
            let note = "they are in no window".to_owned();
            rows.push(row("calls at an unknown time", report.undated, note));
        }
        if let (Some(p50), Some(p99)) = (report.gap_p50_us, report.gap_p99_us) {
            let note = format!("median; 99 % within {}", millis(p99));
            rows.push(row("from call to call", millis(p50), note));
        }
        if let Some(fleet) = self.fleet {
            rows.extend(fleet.rows(self.messages));
        }
        for (caller, calls) in &report.callers {
            let share = 100.0 * ratio(*calls, report.calls);
            rows.push(row(caller, calls, format!("{share:.0} % of the calls")));
        }
        rows
    }

    fn when_over(&self) -> String {
        let seconds = |at: &u64| format!("{:.2}", Duration::from_micros(*at).as_secs_f64());
        let times: Vec<_> = self.report.over_at_us.iter().take(3).map(seconds).collect();
        match times.as_slice() {
            [] => String::new(),
            times => format!("at {} s", times.join(", ")),
        }
    }

    fn used(&self) -> String {
        self.report
            .used
            .map_or_else(|| "-".to_owned(), |used| format!("{:.1} %", 100.0 * used))
    }

    /// Broken for a terminal of 80 columns.
    fn sentence(&self) -> String {
        let report = &self.report;
        let lost = match self.lost() {
            0 => "none lost".to_owned(),
            lost => format!("{lost} LOST"),
        };
        let twice = match report.repeated {
            0 => "none twice".to_owned(),
            repeated => format!("{repeated} twice"),
        };
        let window = if self.rate.window() == Duration::from_secs(1) {
            "second".to_owned()
        } else {
            Span(self.rate.window()).to_string()
        };
        let over = match report.over {
            0 => String::new(),
            over => format!(", {} TOO EARLY", counted(over, "call")),
        };
        format!(
            "{} of {} delivered, {lost}, {twice};\nworst {window} {} of {}{over}; \
             {} of the limit used",
            report.unique.saturating_sub(report.unexpected),
            self.messages,
            report.worst,
            self.rate.units(),
            self.used(),
        )
    }
}

impl FleetFacts {
    fn rows(self, messages: u64) -> Vec<ReportRow> {
        let share = ratio(self.script_calls, messages);
        let per_message = format!("{share:.4} a message");
        let mut rows = vec![row("script calls to Redis", self.script_calls, per_message)];
        if self.killed > 0 {
            let note = "without a warning, each replaced at once".to_owned();
            rows.push(row("daemons killed", self.killed, note));
        }
        if self.left > 0 {
            let note = "must be delivered again".to_owned();
            rows.push(row("left in the queue", self.left, note));
        }
        if self.dead > 0 {
            rows.push(row("dead letters", self.dead, String::new()));
        }
        rows
    }
}

/// A line of the table: a name, its value and a note.
type ReportRow = Vec<String>;

fn row(name: &str, value: impl fmt::Display, note: String) -> ReportRow {
    vec![name.to_owned(), value.to_string(), note]
}

fn named(ids: &[String]) -> String {
    ids.iter().take(3).cloned().collect::<Vec<_>>().join(", ")
}

fn millis(micros: u64) -> String {
    format!(
        "{:.2} ms",
        Duration::from_micros(micros).as_secs_f64() * 1_000.0
    )
}

#[allow(clippy::cast_precision_loss, reason = "counts of messages")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in padded(&self.rows(), &[1]) {
            let line = format!("  {}", row.join("  "));
            writeln!(f, "{}", line.trim_end())?;
        }
        let word = if self.holds() { "PASSED" } else { "FAILED" };
        write!(f, "\n{word}: {}", self.sentence())
    }
}

#[cfg(test)]
mod tests;
