//! The plots of a plan, for a terminal of 80 columns and as a picture for light and dark pages: messages that
//! wait, and messages that come and are called, over the same time.
//!
//! Not `plotters` (four more crates): it writes colours into each element, in whole pixels, so a picture cannot follow a
//! dark page or be read aloud. Not `poloto` (two): it has neither two panels over one axis nor an axis of a clock.

use std::fmt::Write as _;
use std::time::Duration;

use super::figures::{INTERVALS, Series};
use super::words::short;
use crate::cli::text::{grouped, wrapped};
use sluiced_core::rate::Span;

/// Steps of a clock, in seconds.
const CLOCK: [u64; 20] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800,
];

/// The end of an axis for numbers up to `most`, and the distance of its ticks: about `ticks` of them.
fn numeric_axis(most: f64, ticks: u32) -> (f64, f64) {
    if most <= 0.0 {
        return (1.0, 1.0);
    }
    let rough = (most / f64::from(ticks)).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    ((most / step).ceil().max(1.0) * step, step)
}

/// Ticks of a time axis of so many microseconds, about `ticks` of them, each with its label.
fn clock_ticks(length: u64, ticks: u64) -> Vec<(u64, String)> {
    let wanted = length / ticks.max(1) / 1_000_000;
    let step = CLOCK.into_iter().find(|step| *step >= wanted);
    let step = step.unwrap_or(wanted.max(1)) * 1_000_000;
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
fn axis_label(number: f64) -> String {
    if (number - number.round()).abs() < 1e-9 {
        grouped(number.round() as u64)
    } else {
        short(number)
    }
}

/// Columns of a plot; each shows as many intervals.
const COLUMNS: usize = 60;
const EACH: usize = INTERVALS / COLUMNS;
const ROWS: usize = 7;
/// Columns for the numbers beside it.
const LABELS: usize = 10;
/// Eighths of a character, from below.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Both plots, one above the other.
pub(super) fn plots(series: &Series) -> String {
    let waiting = series.waiting.chunks(EACH).map(|chunk| {
        let most = chunk.iter().copied().max().unwrap_or(0);
        f64::from(most)
    });
    let seconds = series.interval_us as f64 * EACH as f64 / 1e6;
    let called = series.called.chunks(EACH).map(|chunk| {
        let calls: u32 = chunk.iter().sum();
        f64::from(calls) / seconds
    });
    plot("messages that wait", &waiting.collect::<Vec<_>>(), series)
        + "\n"
        + &plot("calls a second", &called.collect::<Vec<_>>(), series)
}

fn plot(title: &str, values: &[f64], series: &Series) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    let (top, _) = numeric_axis(most, 4);
    let mut text = format!("{title}\n");
    for row in (0..ROWS).rev() {
        let label = match row {
            0 => "0".to_owned(),
            row if row == ROWS - 1 => axis_label(top),
            _ => String::new(),
        };
        let cell = |value: &f64| {
            let eighths = value / top * (ROWS * 8) as f64;
            // Any value above zero is visible.
            let eighths = if *value > 0.0 { eighths.ceil() } else { 0.0 } as usize;
            EIGHTHS[eighths.saturating_sub(row * 8).min(8)]
        };
        let cells: String = values.iter().map(cell).collect();
        text += format!("{label:>LABELS$} │{cells}").trim_end();
        text.push('\n');
    }
    text + &time_axis(series)
}

fn time_axis(series: &Series) -> String {
    let length = series.interval_us * INTERVALS as u64;
    // One more for a tick at the very end.
    let mut line: Vec<char> = vec!['─'; COLUMNS + 1];
    let mut labels = vec![' '; COLUMNS + LABELS];
    for (at, label) in clock_ticks(length, 5) {
        let column = usize::try_from(at * COLUMNS as u64 / length).unwrap_or(0);
        if let Some(mark) = line.get_mut(column) {
            *mark = '┬';
            for (place, letter) in label.chars().enumerate() {
                if let Some(free) = labels.get_mut(column + place) {
                    *free = letter;
                }
            }
        }
    }
    let (line, labels): (String, String) =
        (line.into_iter().collect(), labels.into_iter().collect());
    let margin = " ".repeat(LABELS);
    format!("{margin} └{line}\n{margin}  {}\n", labels.trim_end())
}

const BROAD: f64 = 760.0;
const HEIGHT: f64 = 516.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const PANEL: f64 = 150.0;
/// Characters of a line.
const LINE: usize = 105;
/// Where the panels begin.
const TOPS: [f64; 2] = [114.0, 318.0];

const STYLE: &str = "\
  svg { background: #ffffff; font: 13px system-ui, sans-serif; }
  text { fill: #24292f; }
  .title { font-size: 15px; font-weight: 600; }
  .quiet { fill: #57606a; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .axis { stroke: #57606a; stroke-width: 1; }
  .area { fill: #0969da; fill-opacity: 0.25; }
  .waiting { fill: none; stroke: #0969da; stroke-width: 1.5; }
  .called { fill: none; stroke: #0969da; stroke-width: 1.8; }
  .arrived { fill: none; stroke: #bc4c00; stroke-width: 1.3; stroke-dasharray: 5 3; }
  .key-called { fill: #0969da; } .key-arrived { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; }
    text { fill: #e6edf3; }
    .quiet { fill: #9198a1; }
    .grid { stroke: #30363d; }
    .axis { stroke: #9198a1; }
    .area { fill: #58a6ff; } .waiting { stroke: #58a6ff; }
    .called { stroke: #58a6ff; } .arrived { stroke: #f0883e; }
    .key-called { fill: #58a6ff; } .key-arrived { fill: #f0883e; }
  }
";

/// A text as the content of an element.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// The picture, with `said` below its title.
pub(super) fn svg(title: &str, said: &str, series: &Series) -> String {
    let (title, said) = (escaped(title), said.trim());
    let lines = wrapped("", said, LINE);
    // Three lines are free above the plots; the description has all of it.
    let lines = (0_u32..).zip(lines.lines().take(3)).map(|(place, line)| {
        let (y, line) = (44 + 17 * place, escaped(line));
        format!("<text class=\"quiet\" x=\"16\" y=\"{y}\">{line}</text>\n")
    });
    let (whole, lines) = (escaped(said), lines.collect::<String>());
    let each = |values: &[u32]| -> Vec<f64> {
        let seconds = series.interval_us as f64 / 1e6;
        values
            .iter()
            .map(|value| f64::from(*value) / seconds)
            .collect()
    };
    let waiting: Vec<f64> = series
        .waiting
        .iter()
        .map(|value| f64::from(*value))
        .collect();
    let (called, arrived) = (each(&series.called), each(&series.arrived));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {BROAD} {HEIGHT}\" width=\"{BROAD}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<desc>{whole}</desc>\n\
         <style>\n{STYLE}</style>\n\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n{lines}"
    );
    let top = panel(
        &mut text,
        TOPS[0],
        "messages that wait",
        most(&waiting),
        series,
    );
    let path = line(&waiting, TOPS[0], top);
    let (left, right, base) = (LEFT, BROAD - RIGHT, TOPS[0] + PANEL);
    // Writing to a text cannot fail.
    writeln!(
        text,
        "<path class=\"area\" d=\"M{left} {base} L{path} L{right} {base} Z\"/><path class=\"waiting\" d=\"M{path}\"/>"
    )
    .ok();
    // A burst would flatten everything else: then the axis is scaled by the calls.
    let (calls, comes) = (most(&called), most(&arrived));
    let scale = if comes > 2.5 * calls && calls > 0.0 {
        calls * 1.25
    } else {
        comes.max(calls)
    };
    let top = panel(&mut text, TOPS[1], "messages a second", scale, series);
    let path = line(&arrived, TOPS[1], top);
    writeln!(text, "<path class=\"arrived\" d=\"M{path}\"/>").ok();
    let path = line(&called, TOPS[1], top);
    writeln!(text, "<path class=\"called\" d=\"M{path}\"/>").ok();
    text += &legend(comes > scale);
    text + "</svg>\n"
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Where the values lie, from left to right, at the middle of their intervals.
fn line(values: &[f64], panel: f64, top: f64) -> String {
    let width = (BROAD - LEFT - RIGHT) / INTERVALS as f64;
    let points = values.iter().enumerate().map(|(place, value)| {
        let x = LEFT + width * (place as f64 + 0.5);
        let y = panel + PANEL * (1.0 - (value / top).min(1.0));
        format!("{x:.1} {y:.1}")
    });
    points.collect::<Vec<_>>().join(" L")
}

/// The axes of a panel; returns where its axis ends.
fn panel(text: &mut String, at: f64, unit: &str, most: f64, series: &Series) -> f64 {
    let (top, step) = numeric_axis(most, 4);
    let (right, base) = (BROAD - RIGHT, at + PANEL);
    writeln!(
        text,
        "<text class=\"quiet\" x=\"{LEFT}\" y=\"{:.0}\">{unit}</text>",
        at - 8.0
    )
    .ok();
    let ticks = (top / step).round() as u32;
    for tick in 0..=ticks {
        let value = step * f64::from(tick);
        let (y, label) = (base - PANEL * value / top, axis_label(value));
        let class = if tick == 0 { "axis" } else { "grid" };
        writeln!(
            text,
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text class=\"quiet\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y + 4.5
        )
        .ok();
    }
    let length = series.interval_us * INTERVALS as u64;
    for (at, label) in clock_ticks(length, 8) {
        let x = LEFT + (BROAD - LEFT - RIGHT) * at as f64 / length as f64;
        writeln!(
            text,
            "<line class=\"axis\" x1=\"{x:.1}\" y1=\"{base}\" x2=\"{x:.1}\" y2=\"{:.0}\"/>\
             <text class=\"quiet\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
            base + 5.0,
            base + 19.0
        )
        .ok();
    }
    top
}

fn legend(cut: bool) -> String {
    let y = HEIGHT - 12.0;
    let arrived = if cut {
        "arrived (bursts are higher than shown)"
    } else {
        "arrived"
    };
    let key = |x: f64, class: &str, label: &str| {
        let (end, beside, middle) = (x + 26.0, x + 34.0, y - 4.5);
        format!(
            "<line class=\"{class}\" x1=\"{x}\" y1=\"{middle}\" x2=\"{end}\" y2=\"{middle}\"/>\
             <text class=\"key-{class}\" x=\"{beside}\" y=\"{y}\">{label}</text>\n"
        )
    };
    key(LEFT, "called", "called") + &key(LEFT + 120.0, "arrived", arrived)
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

    #[test]
    fn plots_fit_a_terminal_and_show_what_there_is() {
        let mut series = Series {
            interval_us: 5_000_000,
            arrived: vec![0; INTERVALS],
            called: vec![5; INTERVALS],
            waiting: vec![0; INTERVALS],
        };
        series.waiting[0] = 1_000_000;
        series.waiting[40] = 1;
        let text = plots(&series);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(text.contains(" 1,000,000 │█\n"), "{text}");
        assert!(
            text.contains("         0 │█                   ▁\n"),
            "{text}"
        );
        assert!(text.contains("0           2m"), "{text}");
    }

    #[test]
    fn texts_are_escaped_and_points_stay_within() {
        let mut series = Series {
            interval_us: 100_000,
            arrived: vec![0; INTERVALS],
            called: vec![40; INTERVALS],
            waiting: vec![3; INTERVALS],
        };
        series.arrived[0] = 6_000;
        let text = svg("route <a> & \"b\"", "NOT GOOD", &series);
        assert!(
            text.contains("route &lt;a&gt; &amp; &quot;b&quot;"),
            "{text}"
        );
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
