//! The plots for a terminal of 80 columns.

use super::axes::{axis_label, clock_ticks, numeric_axis};
use crate::cli::plan::figures::{INTERVALS, Series};

/// Columns of a plot; each shows as many intervals.
const COLUMNS: usize = 60;
const EACH: usize = INTERVALS / COLUMNS;
const ROWS: usize = 7;
/// Columns for the numbers beside it.
const LABELS: usize = 10;
/// Eighths of a character, from below.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Both plots, one above the other.
pub(in crate::cli::plan) fn plots(series: &Series) -> String {
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
            let height = value / top * (ROWS * 8) as f64;
            // Any value above zero is visible.
            let eighths = if *value > 0.0 { height.ceil() } else { 0.0 } as usize;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
