//! Numbers and times for people.

use std::time::Duration;

use crate::cli::text::rough;

/// `1234567` as `1,234,567`.
pub(super) fn count(number: u64) -> String {
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

/// `1 message`, `2 messages`.
pub(super) fn messages(number: usize) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} message{plural}", count(number as u64))
}

/// Microseconds as a time: `2.5ms`, `250ms`, `12.3s`, `3m20s`.
pub(super) fn time(micros: u64) -> String {
    let seconds = micros as f64 / 1e6;
    match micros {
        0 => "0s".to_owned(),
        1..10_000 => format!("{:.1}ms", seconds * 1e3),
        10_000..1_000_000 => format!("{:.0}ms", seconds * 1e3),
        1_000_000..60_000_000 => format!("{seconds:.1}s"),
        _ => rough(Duration::from_micros(micros)),
    }
}

/// A number of three digits or so: `398`, `39.8`, `0.5`.
pub(super) fn short(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n >= 100.0 => count(n.round() as u64),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

/// So many a second, in the unit in which it is at least one.
pub(super) fn often(per_second: f64) -> String {
    let units = [(1.0, "a second"), (60.0, "a minute"), (3_600.0, "an hour")];
    let fits = units.into_iter().find(|(size, _)| per_second * size >= 1.0);
    let (size, unit) = fits.unwrap_or((86_400.0, "a day"));
    format!("{} {unit}", short(per_second * size))
}

/// Lines of at most `width` columns, the first behind `first`, the others behind as many spaces.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(2_500), "2.5ms");
        assert_eq!(time(250_000), "250ms");
        assert_eq!(time(12_345_678), "12.3s");
        assert_eq!(time(200_000_000), "3m20s");
        assert_eq!(often(398.01), "398 a second");
        assert_eq!(often(5.0 / 3_600.0), "5.00 an hour");
        assert_eq!(often(0.5), "30.0 a minute");
    }

    #[test]
    fn long_lines_are_wrapped() {
        let text = wrapped("! ", "one two three four", 10);
        assert_eq!(text, "! one two\n  three\n  four\n");
    }
}
