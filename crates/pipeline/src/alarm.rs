//! Waits for a point in time more precisely than the runtime's timer, which ticks in milliseconds.
//!
//! A `timerfd` is driven by the kernel's high-resolution timers and, unlike a sleeping thread, is
//! not widened by the thread's timer slack; it wakes the pacer's own event loop directly, so no
//! second thread has to hand the slot over. `sluiced_slot_lateness_seconds` measures the lateness.

use std::io;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use sluiced_core::time::Mono;
use sluiced_ports::clock;

/// A timer of one event loop.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: AsyncFd<std::os::fd::OwnedFd>,
    /// What the timer is set to, to save a system call when nothing changed.
    set: Option<Mono>,
}

impl Alarm {
    /// Makes a timer on the current runtime.
    #[allow(
        deprecated,
        reason = "unsound only for descriptors that can change under it; an `OwnedFd` cannot, and \
                  the replacement is `unsafe`"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        Ok(Self {
            timer: AsyncFd::new(timer)?,
            set: None,
        })
    }

    /// Returns at `at`, at once if it has passed, or earlier after a wait that was cancelled. Cancel-safe.
    pub(super) async fn until(&mut self, at: Mono) -> io::Result<()> {
        let wait = at.since(clock::now());
        if wait.is_zero() {
            return Ok(());
        }
        if self.set != Some(at) {
            let relative = Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(wait.subsec_nanos()),
            };
            let once = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: relative,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
            self.set = Some(at);
        }
        let mut ready = self.timer.readable().await?;
        ready.clear_ready();
        drop(ready);
        // Reading resets the timer's event, so that the next wait does not end with this one.
        match rustix::io::read(&self.timer, &mut [0_u8; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        self.set = None;
        Ok(())
    }
}
