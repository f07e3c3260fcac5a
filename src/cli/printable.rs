//! Texts of others on a terminal.
//!
//! Problem: a terminal acts on control characters. A message, a header, an answer of the downstream or a
//! warning that quotes one of them could erase lines or change what an operator sees. So such a text is
//! shown with its control characters written out.

/// What a message brought along, without characters that a terminal would act on.
pub(super) fn printable(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() || turns(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(plain).collect()
}

/// Whether this turns the direction of the text behind it.
const fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same in one line of a table.
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
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(in_a_line("a\nbcd", 3), "a b…");
    }
}
