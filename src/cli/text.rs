//! Texts that several commands print: counts, times, sizes, tables, and foreign text.
//!
//! Problem: a terminal acts on control characters. A message, a header, an answer of the downstream or a
//! warning that quotes one of them could erase lines or change what an operator sees. So such a text goes
//! through `printable` or `in_a_line`, which make control characters harmless.
//!
//! Tables are thirty lines here. `comfy-table` (two more crates) or `tabled` (four) would leave fifteen of them, to
//! take their borders and padding away again.

use std::io::{self, Write};
use std::time::Duration;

use sluiced_core::policy::UNTIL_RESUMED;
use sluiced_core::rate::Span;
use sluiced_core::time::StoreTime;
use sluiced_status::LimitState;

/// `letter` for one, `letters` for any other number.
pub(super) fn plural(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{what}{ending}")
}

/// `1 letter`, `2 letters`.
pub(super) fn counted(number: u64, what: &str) -> String {
    format!("{number} {}", plural(number, what))
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `120B`, `3.4KiB`.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes}B"),
        1_024..1_048_576 => format!("{:.1}KiB", bytes as f64 / 1_024.0),
        _ => format!("{:.1}MiB", bytes as f64 / 1_048_576.0),
    }
}

/// The text, or `-`.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A duration with its two largest units at most: `3m20s`, `2d4h`.
pub(super) fn rough(length: Duration) -> String {
    let seconds = length.as_secs();
    let unit = match seconds {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    Span(Duration::from_secs(seconds / unit * unit)).to_string()
}

/// How long ago; `-` if that is not known.
pub(super) fn age(then: Option<StoreTime>, now: StoreTime) -> String {
    or_dash(then.map(|then| rough(now.since(then))))
}

/// A time in UTC, from seconds since the Unix epoch.
pub(super) fn utc(seconds: u64) -> String {
    let since_epoch = i64::try_from(seconds).ok();
    let time = since_epoch.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |at| at.to_string())
}

/// A time of the store in UTC, in whole seconds.
pub(super) fn utc_of(at: StoreTime) -> String {
    utc(at.as_micros() / 1_000_000)
}

/// Whether a limit grants anything.
pub(super) fn state_in_words(state: &LimitState) -> String {
    match state {
        LimitState::Paused { left, by } if *left > UNTIL_RESUMED => {
            format!("paused by {by} until resumed")
        }
        LimitState::Paused { left, by } => format!("paused by {by} for another {}", rough(*left)),
        LimitState::Frozen { left } => {
            format!("frozen by the downstream for another {}", rough(*left))
        }
        LimitState::Closed { left, why } => format!("closed for another {}: {why}", rough(*left)),
        LimitState::Open => "open".to_owned(),
    }
}

/// Cells, each as wide as the widest of its column. Those in the columns `right` are numbers and aligned
/// to the right.
#[must_use]
pub fn padded(rows: &[Vec<String>], right: &[usize]) -> Vec<Vec<String>> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let pad = |(column, (cell, width)): (usize, (&String, &usize))| {
        if right.contains(&column) {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    };
    rows.iter()
        .map(|row| row.iter().zip(&widths).enumerate().map(pad).collect())
        .collect()
}

/// Rows below a head, in columns.
pub(super) fn table<const N: usize>(
    head: [&str; N],
    right: &[usize],
    rows: impl Iterator<Item = [String; N]>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut all = vec![head.map(str::to_owned).to_vec()];
    all.extend(rows.map(|row| row.to_vec()));
    for row in padded(&all, right) {
        writeln!(out, "{}", row.join("  ").trim_end())?;
    }
    Ok(())
}

/// A line for each fact, below a title: its label in a column of this many characters, and its value.
pub(super) fn facts<L: AsRef<str>>(
    width: usize,
    facts: &[(L, String)],
    out: &mut impl Write,
) -> io::Result<()> {
    for (label, value) in facts {
        writeln!(out, "  {:<width$}  {value}", label.as_ref())?;
    }
    Ok(())
}

/// Lines of at most `width` columns, the first after `first`, the others after as many spaces.
pub(super) fn wrapped(first: &str, text: &str, width: usize) -> String {
    let indent = first.chars().count();
    let (mut lines, mut line) = (String::new(), first.to_owned());
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            lines += line.trim_end();
            lines.push('\n');
            line = " ".repeat(indent);
            column = indent;
        }
        if column > indent {
            line.push(' ');
            column += 1;
        }
        line += word;
        column += length;
    }
    lines + line.trim_end() + "\n"
}

/// Foreign text, without characters that a terminal would act on.
pub(super) fn printable(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() || turns(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(plain).collect()
}

/// Whether this changes the direction of the text after it.
const fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The printable text in one line, cut after `most` characters.
pub(super) fn in_a_line(text: &str, most: usize) -> String {
    let line: String = printable(text).replace(['\n', '\t'], " ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        assert_eq!(counted(1, "letter"), "1 letter");
        assert_eq!(counted(0, "letter"), "0 letters");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn times_are_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        let at = StoreTime::from_micros(1_700_000_000_123_456);
        assert_eq!(utc_of(at), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut out = Vec::new();
        let rows = [["7", "é"], ["10", "late"]].map(|row| row.map(str::to_owned));
        table(["NO", "WHY"], &[0], rows.into_iter(), &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text, "NO  WHY\n 7  é\n10  late\n");
    }

    #[test]
    fn long_lines_are_wrapped() {
        let text = wrapped("! ", "one two three four", 10);
        assert_eq!(text, "! one two\n  three\n  four\n");
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(in_a_line("a\nbcd", 3), "a b…");
    }
}
