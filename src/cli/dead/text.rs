//! Texts for people: times, tables, and what a letter brought along.

use std::io::{self, Write};

use crate::cli::text::rough;
use crate::core::time::StoreTime;

/// A time in UTC, from seconds since the Unix epoch.
pub(super) fn time(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok();
    let at = at.and_then(|at| jiff::Timestamp::from_second(at).ok());
    at.map_or_else(|| seconds.to_string(), |at| at.to_string())
}

/// A time of the store in UTC, in whole seconds.
pub(super) fn time_micros(at: StoreTime) -> String {
    time(at.as_micros() / 1_000_000)
}

/// How long ago; `-` if that is not known.
pub(super) fn age(then: Option<StoreTime>, now: StoreTime) -> String {
    then.map_or_else(dash, |then| rough(now.since(then)))
}

/// The text, or `-`.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(dash, |value| value.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

/// `120B`, `3.4KiB`.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes}B"),
        1_024..1_048_576 => format!("{:.1}KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1}MiB", bytes as f64 / 1_048_576.0),
    }
}

/// `1 letter`, `2 letters`.
pub(super) fn letters(count: u64) -> String {
    match count {
        1 => "1 letter".to_owned(),
        many => format!("{many} letters"),
    }
}

/// Rows below a head; the columns in `right` are numbers.
pub(super) fn table<const N: usize>(
    head: [&str; N],
    right: [bool; N],
    rows: &[[String; N]],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut widths = head.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: [&str; N]| {
        let mut text = String::new();
        for ((cell, width), right) in cells.iter().zip(widths).zip(right) {
            text += &match right {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(head)?;
    for row in rows {
        line(row.each_ref().map(String::as_str))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        let at = StoreTime::from_micros(1_700_000_000_123_456);
        assert_eq!(time_micros(at), "2023-11-14T22:13:20Z");
    }
}
