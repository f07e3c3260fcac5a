//! The plots as a picture for light and dark pages.

use std::fmt::Write as _;

use super::axes::{axis_label, clock_ticks, numeric_axis};
use crate::cli::plan::figures::{INTERVALS, Series};
use crate::cli::text::wrapped;

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
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The picture, with `said` below its title.
pub(in crate::cli::plan) fn svg(title: &str, said: &str, series: &Series) -> String {
    let (title, said) = (escaped(title), said.trim());
    let wrapped_text = wrapped("", said, LINE);
    // Three lines are free above the plots; the description has all of it.
    let shown = (0_u32..).zip(wrapped_text.lines().take(3));
    let lines: String = shown
        .map(|(place, line)| {
            let (y, line) = (44 + 17 * place, escaped(line));
            format!("<text class=\"quiet\" x=\"16\" y=\"{y}\">{line}</text>\n")
        })
        .collect();
    let whole = escaped(said);
    let per_second = |values: &[u32]| -> Vec<f64> {
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
    let (called, arrived) = (per_second(&series.called), per_second(&series.arrived));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {BROAD} {HEIGHT}\" width=\"{BROAD}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<desc>{whole}</desc>\n\
         <style>\n{STYLE}</style>\n\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n{lines}"
    );
    plot_waiting(&mut text, &waiting, series);
    plot_rates(&mut text, &arrived, &called, series);
    text + "</svg>\n"
}

/// The upper plot.
fn plot_waiting(text: &mut String, waiting: &[f64], series: &Series) {
    let top = panel(text, TOPS[0], "messages that wait", most(waiting), series);
    let path = line(waiting, TOPS[0], top);
    let (left, right, base) = (LEFT, BROAD - RIGHT, TOPS[0] + PANEL);
    // Writing to a text cannot fail.
    writeln!(
        text,
        "<path class=\"area\" d=\"M{left} {base} L{path} L{right} {base} Z\"/><path class=\"waiting\" d=\"M{path}\"/>"
    )
    .ok();
}

/// The lower plot, and the legend.
fn plot_rates(text: &mut String, arrived: &[f64], called: &[f64], series: &Series) {
    // A burst would flatten everything else: then the axis is scaled by the calls.
    let (calls, comes) = (most(called), most(arrived));
    let scale = if comes > 2.5 * calls && calls > 0.0 {
        calls * 1.25
    } else {
        comes.max(calls)
    };
    let top = panel(text, TOPS[1], "messages a second", scale, series);
    for (class, values) in [("arrived", arrived), ("called", called)] {
        let path = line(values, TOPS[1], top);
        writeln!(text, "<path class=\"{class}\" d=\"M{path}\"/>").ok();
    }
    text.push_str(&legend(comes > scale));
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
