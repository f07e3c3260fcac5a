//! The progress of a demo: a line that is rewritten in place on a terminal, otherwise one a second.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::series::series;
use sluiced_pipeline::meters::{HELD, SLOT_LATENESS};
use sluiced_provider::{LiveFigures, Provider};

/// No line is longer: a terminal of 80 columns does not wrap it.
const WIDTH: usize = 79;

/// Metrics of the pipeline, if it runs in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PipelineFigures {
    /// Messages received and not settled.
    pub(super) held: u64,
    /// 99 % of the calls started within this much of their slot.
    pub(super) late: Option<Duration>,
}

/// Where output goes, and how lines are written there.
pub(super) struct Screen<'a> {
    pub(super) out: &'a mut (dyn Write + Send),
    /// Whether lines can be rewritten.
    pub(super) terminal: bool,
}

impl Screen<'_> {
    /// A line that stays.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    fn show(&mut self, line: &str) -> io::Result<()> {
        if self.terminal {
            // To the start of the line, and erase the rest of a longer one before it.
            write!(self.out, "\r{line}\x1b[K")?;
        } else {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.terminal {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// Shows progress until `work` ends, and returns its result.
    pub(super) async fn show_during<T>(
        &mut self,
        provider: &Provider,
        goal: Goal,
        inside: impl Fn() -> Option<PipelineFigures>,
        work: impl Future<Output = T>,
    ) -> io::Result<T> {
        let every = if self.terminal { 100 } else { 1_000 };
        let mut ticks = interval(Duration::from_millis(every));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, before there is anything to show.
        ticks.tick().await;
        tokio::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = ticks.tick() => self.show(&goal.line(provider.live(), inside()))?,
            }
        };
        self.show(&goal.line(provider.live(), inside()))?;
        self.end()?;
        Ok(done)
    }
}

/// What a run must reach, and must not exceed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    pub(super) messages: u64,
    pub(super) limit: u32,
}

impl Goal {
    fn line(self, live: LiveFigures, inside: Option<PipelineFigures>) -> String {
        let mut line = format!(
            "sent {} of {} | now {}/s | worst {} of {}",
            live.unique, self.messages, live.last_second, live.worst, self.limit
        );
        if live.over > 0 {
            append(&mut line, &format!("{} OVER", live.over));
        }
        if let Some(inside) = inside {
            if let Some(late) = inside.late {
                append(
                    &mut line,
                    &format!("late {:.1} ms", 1e3 * late.as_secs_f64()),
                );
            }
            append(&mut line, &format!("held {}", inside.held));
        }
        line
    }
}

/// Adds a part, if the line has room for it.
fn append(line: &mut String, part: &str) {
    if line.len() + 3 + part.len() <= WIDTH {
        write!(line, " | {part}").expect("writing to a String cannot fail");
    }
}

impl PipelineFigures {
    /// Reads a route's and a limit's numbers out of the metrics in Prometheus' text format.
    pub(super) fn read(metrics: &str, route: &str, limit: &str) -> Self {
        let (mut held, mut buckets) = (0.0, Vec::new());
        for series in series(metrics) {
            let bucket = series.name.strip_suffix("_bucket");
            if series.name == HELD.name && series.label("route") == Some(route) {
                held = series.value;
            } else if bucket == Some(SLOT_LATENESS.name)
                && series.label("limit") == Some(limit)
                && let Some(Ok(bound)) = series.label("le").map(str::parse::<f64>)
            {
                buckets.push((bound, series.value));
            }
        }
        let all = buckets.last().map_or(0.0, |(_, count)| *count);
        let late = buckets
            .iter()
            .find(|(bound, count)| all > 0.0 && bound.is_finite() && *count >= 0.99 * all);
        Self {
            // A gauge of messages: whole, and never below zero. The cast saturates.
            held: held as u64,
            late: late.map(|(bound, _)| Duration::from_secs_f64(*bound)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn live(calls: u64, last_second: u64, worst: u64, over: u64) -> LiveFigures {
        LiveFigures {
            calls,
            unique: calls,
            last_second,
            worst,
            over,
        }
    }

    fn inside(held: u64, late: u64) -> Option<PipelineFigures> {
        let late = Some(Duration::from_micros(late));
        Some(PipelineFigures { held, late })
    }

    #[test]
    fn a_line_never_wraps_on_a_narrow_terminal() {
        let goal = Goal {
            messages: 1_000_000,
            limit: 10_000,
        };
        let line = goal.line(live(999_999, 10_000, 10_001, 12), inside(10_000, 2_500));
        assert!(line.len() <= WIDTH, "{line}");
        assert!(line.contains("12 OVER"), "{line}");
    }

    #[test]
    fn a_common_line_has_everything() {
        let goal = Goal {
            messages: 2_000,
            limit: 400,
        };
        assert_eq!(
            goal.line(live(1_234, 398, 398, 0), inside(266, 300)),
            "sent 1234 of 2000 | now 398/s | worst 398 of 400 | late 0.3 ms | held 266"
        );
    }

    #[test]
    fn the_pipelines_own_numbers_are_read_from_its_metrics() {
        let text = "# HELP x\n\
            sluiced_held{route=\"demo\"} 17\n\
            sluiced_slot_lateness_seconds_bucket{limit=\"provider\",le=\"0.0005\"} 90\n\
            sluiced_slot_lateness_seconds_bucket{limit=\"provider\",le=\"0.001\"} 99\n\
            sluiced_slot_lateness_seconds_bucket{limit=\"provider\",le=\"+Inf\"} 100\n";
        assert_eq!(
            PipelineFigures::read(text, "demo", "provider"),
            PipelineFigures {
                held: 17,
                late: Some(Duration::from_millis(1))
            }
        );
        assert_eq!(
            PipelineFigures::read("", "demo", "provider"),
            PipelineFigures::default()
        );
    }
}
