//! Where a command writes to: stdout or stderr, until its reader has seen enough.
//!
//! Problem: `sluiced man | head -1` closes the pipe after one line. That is no failure of the command, and a
//! replay or a demo under way must not stop in the middle for it. So what comes after is dropped, the command
//! goes on to its end, and its exit code says how it ended. Other failures, such as a full disk, stay failures.

use std::io::{self, ErrorKind, Write};

/// Writes to `W` for as long as it is read.
#[derive(Debug)]
pub(super) struct Output<W>(pub(super) W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self.0.write(text) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(text.len()),
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let mut closed = Output(Failing(ErrorKind::BrokenPipe));
        closed.write_all(b"text").expect("dropped");
        closed.flush().expect("dropped");
        let mut full = Output(Failing(ErrorKind::StorageFull));
        assert!(full.write_all(b"text").is_err());
        assert!(full.flush().is_err());
    }
}
