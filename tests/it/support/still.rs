//! The times when the machine stood still: for assertions about figures that no program can reach
//! then.
//!
//! A test that measures how much of a limit was used, or how long a message took, also measures
//! whether the machine ran. On a virtual machine whose host takes the processor away, or beside
//! compilers, it does not always. So a watcher on each processor, at the highest priority that a
//! process may have, wakes every [`EVERY`] and notes the intervals by which it woke later than
//! [`LATE`]. What passed in such an interval is left out of the figure, the time as well as the
//! calls.
//!
//! This excuses no fault of the program, because a watcher only waits. It is scheduled like the
//! pacer (the same nice value, and hardly any work): a processor that does not run the watcher
//! would not have run the pacer either. Delays that a program under test causes itself (a lock,
//! a slow answer, a wrong decision) delay no watcher and are never excused. A program that is
//! busy by itself does not delay it either: the scheduler runs a thread of higher priority
//! within the time slice of a few milliseconds, which is below [`LATE`]. And a test never passes
//! because there was too little time to judge: it requires enough time that is not excused.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sluiced_core::time::Mono;
use sluiced_ports::clock;

/// How often a watcher wakes.
const EVERY: Duration = Duration::from_millis(2);
/// A delay that no idle machine shows.
const LATE: Duration = Duration::from_millis(10);
/// As urgent as the pacer's thread. An ordinary user may not; then neither is the pacer.
const URGENT: i32 = -10;

/// Less than this cannot be judged.
const ENOUGH: Duration = Duration::from_secs(3);

/// Watches the processors for as long as it lives.
#[derive(Debug)]
pub struct Still {
    done: Arc<AtomicBool>,
    late: Arc<Mutex<Vec<(Mono, Mono)>>>,
    watchers: Vec<JoinHandle<()>>,
}

impl Still {
    /// Starts to watch. Times are those of `ports::clock`.
    #[must_use]
    pub fn watch() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let late = Arc::new(Mutex::new(Vec::new()));
        let ours = sched_getaffinity(None).unwrap();
        let processors = (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu));
        let watchers = processors.map(|cpu| {
            let (done, late) = (Arc::clone(&done), Arc::clone(&late));
            std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                sched_setaffinity(None, &only).unwrap();
                // On Linux this is about the calling thread.
                setpriority_process(None, URGENT).ok();
                while !done.load(Ordering::Relaxed) {
                    let due = clock::now() + EVERY;
                    std::thread::sleep(EVERY);
                    let woke = clock::now();
                    if woke.since(due) >= LATE {
                        late.lock().unwrap().push((due, woke));
                    }
                }
            })
        });
        Self {
            watchers: watchers.collect(),
            done,
            late,
        }
    }

    /// The intervals so far. A watcher that is late just now has not reported it yet.
    #[must_use]
    pub fn seen(&self) -> Standstills {
        Standstills::new(self.late.lock().unwrap().clone())
    }

    /// Ends the watch. The result is complete: it waits for a watcher that is late just now.
    #[must_use]
    pub fn end(mut self) -> Standstills {
        self.done.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            watcher.join().unwrap();
        }
        self.seen()
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// The intervals in which a processor stood still, in order and apart from each other.
#[derive(Clone, Default)]
pub struct Standstills(Vec<(Mono, Mono)>);

impl Standstills {
    fn new(mut seen: Vec<(Mono, Mono)>) -> Self {
        seen.sort_unstable();
        let mut apart: Vec<(Mono, Mono)> = Vec::with_capacity(seen.len());
        for (from, to) in seen {
            match apart.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ => apart.push((from, to)),
            }
        }
        Self(apart)
    }

    /// Each with this much time after it, in which calls that are late because of it still come.
    #[must_use]
    pub fn and_then(&self, more: Duration) -> Self {
        Self::new(
            self.0
                .iter()
                .map(|(from, to)| (*from, *to + more))
                .collect(),
        )
    }

    /// Whether any of the time from `start` to `end` lies in one.
    #[must_use]
    pub fn touch(&self, start: Mono, end: Mono) -> bool {
        let after = self.0.partition_point(|(_, to)| *to <= start);
        self.0.get(after).is_some_and(|(from, _)| *from <= end)
    }

    /// How much of the time from `start` to `end` they take.
    #[must_use]
    pub fn within(&self, start: Mono, end: Mono) -> Duration {
        let parts = self.0.iter();
        parts
            .map(|(from, to)| (*to).min(end).since((*from).max(start)))
            .sum()
    }

    /// How many calls a second came from `start` to `end` while the machine ran. Panics if it ran too
    /// little for that.
    #[must_use]
    pub fn pace(&self, calls: impl IntoIterator<Item = Mono>, start: Mono, end: Mono) -> f64 {
        let calls = calls.into_iter();
        let judged = calls.filter(|at| (start..end).contains(at) && !self.touch(*at, *at));
        let (judged, excused) = (judged.count(), self.within(start, end));
        let ran = end.since(start).saturating_sub(excused);
        eprintln!("{judged} calls in {ran:?}; {excused:?} left out: {self:?}");
        assert!(ran >= ENOUGH, "the machine ran for {ran:?} only: {self:?}");
        judged as f64 / ran.as_secs_f64()
    }
}

impl fmt::Debug for Standstills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: Duration = self.0.iter().map(|(from, to)| to.since(*from)).sum();
        let longest = self.0.iter().map(|(from, to)| to.since(*from)).max();
        let longest = longest.unwrap_or_default();
        write!(
            f,
            "{} standstills, {total:?} in all, {longest:?} the longest",
            self.0.len()
        )
    }
}
