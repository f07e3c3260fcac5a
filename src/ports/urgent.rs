//! Runtimes of one thread that goes before others: those that a slot waits for.
//!
//! Where a machine is busy, whatever is woken waits for a processor, often for longer than a slot is
//! good for. These threads work for microseconds at a time, so they can be let in at once.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// The nice value of the thread.
const URGENT: i32 = -10;

/// Threads for what blocks. Names are looked up elsewhere (`ports::connect`), but for the subscription in
/// Redis, whose client looks its host up on one.
const BLOCKING: usize = 2;

/// A runtime of one thread. It runs the task first that was woken last.
///
/// # Errors
/// When the system has no thread for it.
pub fn runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .max_blocking_threads(BLOCKING)
        // Best effort: only a privileged process may. On Linux this is about the calling thread.
        .on_thread_start(|| {
            rustix::process::setpriority_process(None, URGENT).ok();
        })
        .enable_all()
        .build()
}

/// Such a runtime as a part of something else: it ends when that is dropped, wherever that is.
#[derive(Debug)]
pub struct Thread(Option<Runtime>);

impl Thread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has none.
    pub fn start(name: &str) -> io::Result<Self> {
        runtime(name).map(|runtime| Self(Some(runtime)))
    }

    /// The way to spawn tasks there.
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
