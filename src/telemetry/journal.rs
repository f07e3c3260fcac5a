//! What stands before each log line: its priority, where systemd's journal reads stderr.
//!
//! The journal takes each line of a service for information unless the line begins with its priority, as
//! `<4>` (sd-daemon(3)). Without it `journalctl -p warning` shows nothing.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::lines::Lines;

/// Makes a line of each event.
#[derive(Clone, Debug)]
pub(super) struct Stderr {
    lines: Lines,
    to_journal: bool,
}

impl Stderr {
    /// Finds out whether the journal reads it.
    pub(super) fn new(lines: Lines) -> Self {
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let file = std::fs::metadata("/proc/self/fd/2").ok();
        let file = file.map(|file| format!("{}:{}", file.dev(), file.ino()));
        Self {
            lines,
            to_journal: stream.is_some() && stream == file,
        }
    }

    fn line(&self, prefix: &'static str) -> Line<'_> {
        Line {
            lines: &self.lines,
            prefix: if self.to_journal { prefix } else { "" },
        }
    }
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        self.line("")
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        self.line(priority(*metadata.level()))
    }
}

const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// One line, which comes in one piece.
#[derive(Debug)]
pub(super) struct Line<'a> {
    lines: &'a Lines,
    prefix: &'static str,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.put([self.prefix.as_bytes(), line].concat());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_journal_gets_priorities() {
        assert_eq!(priority(Level::WARN), "<4>");
        assert_eq!(priority(Level::ERROR), "<3>");
        assert_eq!(priority(Level::TRACE), "<7>");
        let (lines, _last) = Lines::start(io::sink()).expect("a thread");
        for (to_journal, prefix) in [(true, "<4>"), (false, "")] {
            let stderr = Stderr {
                lines: lines.clone(),
                to_journal,
            };
            assert_eq!(stderr.line(priority(Level::WARN)).prefix, prefix);
        }
    }
}
