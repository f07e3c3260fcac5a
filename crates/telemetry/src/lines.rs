//! Log lines on their way to stderr.
//!
//! Problem: stderr may be a pipe that is not read, or a disk that hangs. A thread that writes there stands
//! still until the line is taken, and so would the pacer and every call. So lines go through a bounded
//! channel to a thread of their own. While that is full, lines are dropped and counted: late log lines may
//! be lost, late calls may not.
//!
//! Not `tracing-appender`: it would save sixty lines here and add nine crates, its lost lines are neither logged nor a
//! metric, and it writes to stdout when the end of the process finds stderr blocked.
//!
//! systemd's journal treats each line of a service as information unless the line begins with its priority,
//! such as `<4>` (sd-daemon(3)). Without it `journalctl -p warning` shows nothing. So where the journal reads
//! stderr, each line begins with its priority.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::recorder;

/// This many lines wait at most.
const WAITING: usize = 1024;
/// How long the end of the process waits for the last lines.
const LAST: Duration = Duration::from_secs(1);

/// An order to the thread.
enum Order {
    Write(Vec<u8>),
    /// Write all lines before it, then answer.
    Flush(SyncSender<()>),
}

/// Where lines are put. Copies are the same.
#[derive(Clone, Debug)]
pub(super) struct LineQueue {
    orders: SyncSender<Order>,
    dropped: Arc<AtomicU64>,
}

/// Writes the last lines when it is dropped, unless stderr takes none.
#[derive(Debug)]
#[must_use = "without it the last lines of the log are lost"]
pub struct LastLines(SyncSender<Order>);

impl LineQueue {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(super) fn start(target: impl Write + Send + 'static) -> io::Result<(Self, LastLines)> {
        let (orders, receiver) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&receiver, target, &counted))?;
        let lines = Self {
            orders: orders.clone(),
            dropped,
        };
        Ok((lines, LastLines(orders)))
    }

    /// Puts a line down, or drops it.
    pub(super) fn put(&self, line: Vec<u8>) {
        if self.orders.try_send(Order::Write(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            recorder::log_line_dropped();
        }
    }
}

impl Drop for LastLines {
    fn drop(&mut self) {
        let (done, written) = sync_channel(1);
        // A full channel means that stderr is blocked.
        if self.0.try_send(Order::Flush(done)).is_ok() {
            written.recv_timeout(LAST).ok();
        }
    }
}

fn write(orders: &Receiver<Order>, mut target: impl Write, dropped: &AtomicU64) {
    loop {
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let lines = dropped.swap(0, Ordering::Relaxed);
                if lines > 0 {
                    tracing::warn!(lines, "log lines were dropped: stderr did not take them");
                }
                let Ok(order) = orders.recv() else {
                    return;
                };
                order
            }
        };
        // The loss of the log cannot be logged, and the work goes on without it.
        match order {
            Order::Write(line) => target.write_all(&line).ok(),
            Order::Flush(done) => target.flush().ok().and_then(|()| done.send(()).ok()),
        };
    }
}

/// Makes a line of each event.
#[derive(Clone, Debug)]
pub(super) struct Stderr {
    lines: LineQueue,
    to_journal: bool,
}

impl Stderr {
    /// Finds out whether the journal reads it.
    pub(super) fn new(lines: LineQueue) -> Self {
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let stderr = std::fs::metadata("/proc/self/fd/2").ok();
        let own_stream = stderr.map(|file| format!("{}:{}", file.dev(), file.ino()));
        Self {
            lines,
            to_journal: stream.is_some() && stream == own_stream,
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
    lines: &'a LineQueue,
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
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Takes a line only when it is allowed to.
    struct Blocked {
        may: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Blocked {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.may.recv().map_err(io::Error::other)?;
            self.taken.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_target_stops_none_that_logs() {
        let (allow, may) = channel();
        let (taken, lines) = channel();
        let (log, last) = LineQueue::start(Blocked { may, taken }).expect("a thread");
        for n in 0..WAITING + 10 {
            log.put(vec![u8::try_from(n % 200).expect("small")]);
        }
        // The thread may hold one of them.
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!((9..=10).contains(&dropped), "{dropped}");
        for _ in 0..WAITING + 10 {
            allow.send(()).expect("the thread runs");
        }
        assert_eq!(lines.recv(), Ok(vec![0]));
        assert_eq!(lines.recv(), Ok(vec![1]));
        drop(last);
    }

    #[test]
    fn the_last_lines_are_written_before_the_end() {
        let (allow, may) = channel();
        let (taken, lines) = channel();
        let (log, last) = LineQueue::start(Blocked { may, taken }).expect("a thread");
        for _ in 0..3 {
            allow.send(()).expect("the thread runs");
            log.put(b"line".to_vec());
        }
        drop(last);
        assert_eq!(lines.try_iter().count(), 3);
    }

    #[test]
    fn only_the_journal_gets_priorities() {
        assert_eq!(priority(Level::WARN), "<4>");
        assert_eq!(priority(Level::ERROR), "<3>");
        assert_eq!(priority(Level::TRACE), "<7>");
        let (lines, _last) = LineQueue::start(io::sink()).expect("a thread");
        for (to_journal, prefix) in [(true, "<4>"), (false, "")] {
            let stderr = Stderr {
                lines: lines.clone(),
                to_journal,
            };
            assert_eq!(stderr.line(priority(Level::WARN)).prefix, prefix);
        }
    }
}
