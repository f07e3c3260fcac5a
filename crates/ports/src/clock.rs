//! The clock by which calls are decided; and runtimes of one thread with a higher priority, for work that a slot waits
//! for.
//!
//! Timers of connections use tokio's own clock. The wall clock is read only for what others compare: signatures,
//! tokens, dates.
//!
//! On a busy machine a woken thread waits for a processor, often for longer than a slot is valid.
//! These threads work for microseconds at a time, so they can run at once.

use std::io;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::{Builder, Handle, Runtime};

use sluiced_core::time::{Mono, StoreTime};

/// The zero of the clock. With a zero of its own for each part of a process, their times could not be compared. It is
/// an hour before it is first read, so that subtracting a wait from "now" never saturates.
static ZERO: LazyLock<Zero> = LazyLock::new(Zero::new);

struct Zero {
    instant: Instant,
    /// The wall clock's time then, since the Unix epoch.
    epoch: Duration,
}

impl Zero {
    #[allow(clippy::disallowed_methods, reason = "this is the outermost layer")]
    fn new() -> Self {
        let now = Instant::now();
        let instant = now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            instant,
            epoch: wall.unwrap_or_default().saturating_sub(now - instant),
        }
    }
}

/// Now, in microseconds since the zero of the clock of this process.
#[must_use]
pub fn now() -> Mono {
    Mono::from_micros(u64::try_from(ZERO.instant.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// Now, as the time of a store in this process: what the wall clock showed when the clock was first read, and
/// the monotonic clock since. It never steps; it may drift from the wall clock by seconds a day.
#[must_use]
pub fn store_time() -> StoreTime {
    StoreTime::from_micros(now().as_micros()) + ZERO.epoch
}

/// The instant at a point of this clock, for timers that need one.
#[must_use]
pub fn instant(at: Mono) -> Instant {
    ZERO.instant + Duration::from_micros(at.as_micros())
}

/// The nice value of the thread.
const URGENT: i32 = -10;

/// Threads for blocking work, such as large requests and signatures. Names are looked up on threads of their own
/// (`net::connect`).
const BLOCKING: usize = 2;

/// A runtime of one thread. It runs the task first that was woken last.
///
/// # Errors
/// When the system has no thread for it.
pub fn urgent_runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .max_blocking_threads(BLOCKING)
        // Best effort: only a privileged process may do this. On Linux it applies to the calling thread.
        .on_thread_start(|| {
            rustix::process::setpriority_process(None, URGENT).ok();
        })
        .enable_all()
        .build()
}

/// Such a runtime as a part of another object: it ends when that is dropped, on any thread.
#[derive(Debug)]
pub struct Thread(Option<Runtime>);

impl Thread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has none.
    pub fn start(name: &str) -> io::Result<Self> {
        urgent_runtime(name).map(|runtime| Self(Some(runtime)))
    }

    /// The handle to spawn tasks there.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        self.0
            .as_ref()
            .expect("it is taken out only by `drop`")
            .handle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Waiting for its tasks is not allowed where tasks run.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
