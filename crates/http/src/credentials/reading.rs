//! Secrets that are read again while messages come.
//!
//! At once when an answer refuses them, but at most once a second: a downstream that refuses for another reason costs
//! no more than that. And every half minute: many providers say with another status, or in the body, that a key is
//! wrong or has ended.
//!
//! A file may be slow, or on a mount that hangs. So a thread of its own reads it: calls of other messages leave
//! meanwhile. The message whose answer refuses its credentials waits for the new ones, for [`READING`] at most.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Mutex as Turns, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout};
use tracing::warn;

use sluiced_ports::lock;

/// The shortest time between two reads because of answers.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time between two reads while messages come.
const ROUTINE: Duration = Duration::from_secs(30);
/// A message waits no longer than this for secrets that are read again.
const READING: Duration = Duration::from_secs(2);

/// How often a value has changed: what was made with one version is outdated under the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecretVersion(u64);

impl SecretVersion {
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// A value that is made of secrets, and made again when they change.
pub(super) struct Reread<T>(Arc<Source<T>>);

struct Source<T> {
    state: Mutex<State<T>>,
    read: Box<dyn Fn() -> Option<T> + Send + Sync>,
    /// One reads at a time: an older value must not replace a newer one, and where one read hangs a second one would
    /// hang, too.
    turns: Arc<Turns<()>>,
}

struct State<T> {
    value: T,
    version: SecretVersion,
    /// How often they were read again.
    reads: u64,
    times: RereadTimes,
}

impl<T: Clone + Send + 'static> Reread<T> {
    /// The secrets were read just now, and made this value; `read` makes it again, or says `None`: nothing has changed,
    /// or the new secrets cannot be used.
    pub(super) fn new(value: T, read: impl Fn() -> Option<T> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Source {
            state: Mutex::new(State {
                value,
                version: SecretVersion(0),
                reads: 0,
                times: RereadTimes::new(),
            }),
            read: Box::new(read),
            turns: Arc::default(),
        }))
    }

    pub(super) fn current(&self) -> (T, SecretVersion) {
        let state = lock(&self.0.state);
        (state.value.clone(), state.version)
    }

    pub(super) fn version(&self) -> SecretVersion {
        lock(&self.0.state).version
    }

    /// Reads the secrets again if an answer with this status refuses them, and waits for that. Where another call waits
    /// for them already, this one waits with it.
    pub(super) async fn note_answer(&self, status: StatusCode) {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return;
        }
        let reads = || lock(&self.0.state).reads;
        let reads_before = reads();
        let reading = async {
            let turn = Arc::clone(&self.0.turns).lock_owned().await;
            let was_read = reads() != reads_before;
            if !was_read && lock(&self.0.state).times.take_refusal() {
                // A read that panicked made no value.
                self.read(turn).await.ok();
            }
        };
        // A read that takes longer still counts for later messages.
        timeout(READING, reading).await.ok();
    }

    /// Reads them again from time to time. The value of this moment does not wait for it.
    pub(super) fn refresh_if_due(&self) {
        let is_due = lock(&self.0.state).times.take_due();
        let turn = Arc::clone(&self.0.turns).try_lock_owned().ok();
        if let Some(turn) = turn.filter(|_| is_due) {
            drop(self.read(turn));
        }
    }

    /// Reads them on a thread, and ends once it has.
    fn read(&self, turn: OwnedMutexGuard<()>) -> oneshot::Receiver<()> {
        let source = Arc::clone(&self.0);
        let (done, is_done) = oneshot::channel();
        let read = move || {
            source.refresh();
            drop(turn);
            done.send(()).ok();
        };
        let thread = std::thread::Builder::new().name("secrets".to_owned());
        if let Err(error) = thread.spawn(read) {
            warn!(%error, "no thread to read secrets again; the last ones are used");
        }
        is_done
    }
}

impl<T> Source<T> {
    fn refresh(&self) {
        let read = (self.read)();
        let mut state = lock(&self.state);
        state.reads += 1;
        if let Some(value) = read {
            (state.value, state.version) = (value, SecretVersion(state.version.0 + 1));
        }
    }
}

/// When they were read.
#[derive(Debug)]
struct RereadTimes {
    last: Instant,
    /// The last time because of an answer.
    asked: Option<Instant>,
}

impl RereadTimes {
    /// The files of secrets were read just now.
    fn new() -> Self {
        Self {
            last: Instant::now(),
            asked: None,
        }
    }

    /// Whether to read them now, because they were not for a while.
    fn take_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= ROUTINE;
        if is_due {
            self.last = Instant::now();
        }
        is_due
    }

    /// Whether to read them now, because an answer refuses them.
    fn take_refusal(&mut self) -> bool {
        let is_due = self
            .asked
            .is_none_or(|asked| asked.elapsed() >= MIN_REREAD_INTERVAL);
        if is_due {
            self.last = Instant::now();
            self.asked = Some(self.last);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_are_read_when_they_are_refused_and_from_time_to_time() {
        let pass = tokio::time::advance;
        let mut reading = RereadTimes::new();
        assert!(!reading.take_due());
        assert!(reading.take_refusal(), "the first at once");
        assert!(!reading.take_refusal());
        pass(MIN_REREAD_INTERVAL).await;
        assert!(reading.take_refusal());
        pass(ROUTINE).await;
        assert!(reading.take_due());
        assert!(!reading.take_due());
    }

    /// As a file on a mount that hangs. Two answers refuse the credentials meanwhile.
    #[tokio::test]
    async fn a_read_that_hangs_stops_no_other_call_and_counts_for_all_that_wait_for_it() {
        let (goes_on, hangs) = std::sync::mpsc::channel::<()>();
        let (began, begins) = std::sync::mpsc::channel();
        let hangs = Mutex::new(hangs);
        let reread = Arc::new(Reread::new("old", move || {
            began.send(()).ok();
            lock(&hangs).recv().ok().map(|()| "new")
        }));
        let refused = || {
            let reread = Arc::clone(&reread);
            tokio::spawn(async move {
                reread.note_answer(StatusCode::UNAUTHORIZED).await;
                reread.current()
            })
        };
        let waiting = [refused(), refused()];
        reread.note_answer(StatusCode::BAD_REQUEST).await;
        // The only thread of this runtime runs this, too.
        while begins.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(reread.current(), ("old", SecretVersion(0)));
        goes_on.send(()).expect("it still reads");
        for call in waiting {
            assert_eq!(call.await.expect("it ends"), ("new", SecretVersion(1)));
        }
        assert!(begins.try_recv().is_err(), "one read is for both");
    }
}
