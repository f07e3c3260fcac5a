//! Where log lines go: stderr, with a priority in front where systemd's journal reads it.
//!
//! The journal takes each line of a service for information unless the line begins with its priority, as
//! `<4>` (sd-daemon(3)). Without it `journalctl -p warning` shows nothing.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Stderr.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stderr {
    to_journal: bool,
}

impl Stderr {
    /// Finds out whether the journal reads it.
    pub(super) fn new() -> Self {
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let file = std::fs::metadata("/proc/self/fd/2").ok();
        let file = file.map(|file| format!("{}:{}", file.dev(), file.ino()));
        Self {
            to_journal: stream.is_some() && stream == file,
        }
    }

    fn prefix(self, level: Level) -> &'static str {
        match level {
            _ if !self.to_journal => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        }
    }
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line("")
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line(self.prefix(*metadata.level()))
    }
}

/// One line, which comes in one piece.
#[derive(Debug)]
pub(super) struct Line(&'static str);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        stderr.write_all(self.0.as_bytes())?;
        stderr.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_journal_gets_priorities() {
        let journal = Stderr { to_journal: true };
        assert_eq!(journal.prefix(Level::WARN), "<4>");
        assert_eq!(journal.prefix(Level::ERROR), "<3>");
        assert_eq!(journal.prefix(Level::TRACE), "<7>");
        assert_eq!(Stderr { to_journal: false }.prefix(Level::ERROR), "");
    }
}
