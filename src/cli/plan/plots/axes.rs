//! The axes of a plot: round numbers, and times of a clock.

use std::time::Duration;

use crate::cli::plan::words::short;
use crate::cli::text::grouped;
use sluiced_core::rate::Span;

/// Steps of a clock, in seconds.
const CLOCK: [u64; 20] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800,
];

/// The end of an axis for numbers up to `most`, and the distance of its ticks: about `ticks` of them.
pub(super) fn numeric_axis(most: f64, ticks: u32) -> (f64, f64) {
    if most <= 0.0 {
        return (1.0, 1.0);
    }
    let rough = (most / f64::from(ticks)).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let fitting = steps.into_iter().find(|step| *step >= rough * 0.999);
    let step = fitting.unwrap_or(10.0 * power);
    ((most / step).ceil().max(1.0) * step, step)
}

/// Ticks of a time axis of this many microseconds, about `ticks` of them, each with its label.
pub(super) fn clock_ticks(length: u64, ticks: u64) -> Vec<(u64, String)> {
    let wanted = length / ticks.max(1) / 1_000_000;
    let seconds = CLOCK.into_iter().find(|step| *step >= wanted);
    let step = seconds.unwrap_or(wanted.max(1)) * 1_000_000;
    let at = (0..=length / step).map(|tick| tick * step);
    at.map(|at| (at, clock(at / 1_000_000))).collect()
}

/// `90` as `1m30s`.
fn clock(seconds: u64) -> String {
    match seconds {
        0 => "0".to_owned(),
        seconds => Span(Duration::from_secs(seconds)).to_string(),
    }
}

/// The label of a number on an axis: whole ones without a fraction.
pub(super) fn axis_label(number: f64) -> String {
    if (number - number.round()).abs() < 1e-9 {
        grouped(number.round() as u64)
    } else {
        short(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numeric_axis() {
        assert_eq!(numeric_axis(6_000.0, 4), (6_000.0, 2_000.0));
        assert_eq!(numeric_axis(6_100.0, 4), (8_000.0, 2_000.0));
        assert_eq!(numeric_axis(0.0, 4), (1.0, 1.0));
        assert_eq!(numeric_axis(1.0, 4), (1.0, 0.5));
    }

    #[test]
    fn times_are_those_of_a_clock() {
        let labels = |length: u64, ticks| -> Vec<String> {
            let ticks = clock_ticks(length * 1_000_000, ticks);
            ticks.into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(600, 5), ["0", "2m", "4m", "6m", "8m", "10m"]);
        assert_eq!(labels(16, 5), ["0", "5s", "10s", "15s"]);
        assert_eq!(
            labels(5_400, 6),
            ["0", "15m", "30m", "45m", "1h", "1h15m", "1h30m"]
        );
    }
}
