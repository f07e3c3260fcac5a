//! How long a connection is used.
//!
//! Problem: a downstream closes connections that were idle for a time of its own. A request that is written just then
//! is lost in between: it may have been taken, and a message that must not be sent twice becomes a dead letter. And a
//! connection that never closes stays with one address for ever, also when the name has moved.
//!
//! So a connection is idle for no longer than `idle_timeout`, and for most of what the downstream says
//! (`Keep-Alive: timeout=5`, RFC 2068, section 19.7.1.1) or is seen to do: it closed a connection that was idle for a
//! second or more, and later another one after about the same. A restart closes all connections at one time: that
//! counts once. A connection that is as old as `max_connection_age` ends with its call, or while it is idle. The ages
//! of connections differ by up to a fifth, so that those that were opened together do not end together. Connections
//! that carried nothing yet end before they can be too old.
//!
//! Where hosts are from messages, each of them would leave connections behind. So only this many stay open, and others
//! end with their call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use sluiced_ports::lock;

/// This many fifths of the time after which a downstream closes idle connections are used.
const MOST_FIFTHS: u32 = 4;
/// Longer than any connection lives.
const FAR: Duration = Duration::from_secs(86_400 * 365);
/// This many connections to hosts of messages are kept between calls.
const MANY: usize = 512;
/// A shorter idle time shows nothing: downstreams count in seconds.
const LEAST_SEEN: Duration = Duration::from_secs(1);

/// What bounds the lives of the connections to one downstream.
#[derive(Debug)]
pub(crate) struct Lifetimes {
    idle: Duration,
    age: Duration,
    /// Connections that are open.
    open: AtomicUsize,
    /// With more than these none stays open after its call.
    most: usize,
    seen: Mutex<SeenCloses>,
}

/// Counts an open connection.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Lifetimes>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lifetimes {
    /// `hosts_differ`: hosts are from messages.
    pub(crate) const fn new(idle: Duration, age: Duration, hosts_differ: bool) -> Self {
        Self {
            idle,
            age,
            open: AtomicUsize::new(0),
            most: if hosts_differ { MANY } else { usize::MAX },
            seen: Mutex::new(SeenCloses {
                last: None,
                after: None,
            }),
        }
    }

    /// A connection is open until this is dropped.
    pub(crate) fn count_open(self: &Arc<Self>) -> OpenConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// For how long a connection waits for its first call.
    pub(crate) fn unused_time(&self) -> Duration {
        self.idle.min(most_of(self.age))
    }

    /// For how long a connection that is opened now is used. `fraction`: a random number from 0 to 1.
    pub(crate) fn age(&self, fraction: f64) -> Duration {
        self.age
            .min(FAR)
            .mul_f64(1.0 - fraction.clamp(0.0, 1.0) / 5.0)
    }

    /// For how long a connection may be idle after an answer with these headers.
    pub(crate) fn idle_after(&self, headers: &HeaderMap) -> Duration {
        if self.open.load(Ordering::Relaxed) > self.most {
            return Duration::ZERO;
        }
        let idle_times = [promised(headers), lock(&self.seen).after];
        let bounds = idle_times.into_iter().flatten().map(most_of);
        bounds.fold(self.idle, Duration::min)
    }

    /// The downstream closed a connection that was idle since then.
    pub(crate) fn note_close(&self, since: Instant, now: Instant) {
        lock(&self.seen).note(since, now);
    }
}

fn most_of(idle: Duration) -> Duration {
    idle / 5 * MOST_FIFTHS
}

/// The idle timeout that an answer promises.
fn promised(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("keep-alive").iter();
    let mut parameters = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|parameter| parameter.split_once('='));
    parameters.find_map(|(name, value)| {
        let is_it = name.trim().eq_ignore_ascii_case("timeout");
        let seconds = value.trim().trim_matches('"').parse::<u32>().ok();
        seconds
            .filter(|_| is_it)
            .map(|seconds| Duration::from_secs(seconds.into()))
    })
}

/// The idle times after which the downstream closed connections.
#[derive(Debug)]
struct SeenCloses {
    last: Option<Close>,
    /// The shortest that was seen twice.
    after: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Close {
    at: Instant,
    idle: Duration,
}

impl SeenCloses {
    fn note(&mut self, since: Instant, at: Instant) {
        let idle = at.saturating_duration_since(since);
        let is_the_same = self.last.is_some_and(|last| since <= last.at);
        if idle < LEAST_SEEN || is_the_same {
            return;
        }
        let Some(last) = self.last.replace(Close { at, idle }) else {
            return;
        };
        let (short, long) = (last.idle.min(idle), last.idle.max(idle));
        if most_of(long) <= short {
            self.after = Some(self.after.map_or(short, |after| after.min(short)));
        }
    }
}

/// A connection's end: it is not used after this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionEnd(Instant);

impl ConnectionEnd {
    pub(crate) fn after(age: Duration) -> Self {
        Self(later(age))
    }

    pub(crate) fn is_over(self) -> bool {
        self.0 <= Instant::now()
    }

    /// The end of an idle time of so long that begins now.
    pub(crate) fn idle_until(self, longest: Duration) -> Instant {
        self.0.min(later(longest))
    }
}

/// So far in the future, or as far as the clock goes.
pub(crate) fn later(after: Duration) -> Instant {
    Instant::now() + after.min(FAR)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn lifetimes() -> Lifetimes {
        Lifetimes::new(MINUTE, 5 * MINUTE, false)
    }

    fn headers(value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).expect("a value");
        HeaderMap::from_iter([("keep-alive".parse().expect("a name"), value)])
    }

    #[test]
    fn a_connection_is_idle_for_most_of_what_is_promised() {
        let seconds = Duration::from_secs;
        for (value, idle) in [
            // Node.js, Apache, LiteSpeed, Gunicorn behind a proxy.
            ("timeout=5", seconds(4)),
            ("timeout=5, max=100", seconds(4)),
            ("max=100, timeout=15", seconds(12)),
            ("Timeout = \"10\"", seconds(8)),
            ("timeout=0", seconds(0)),
            // More than is wanted, and what is no number of seconds.
            ("timeout=120", MINUTE),
            ("timeout=-1", MINUTE),
            ("timeout=99999999999", MINUTE),
            ("timeout", MINUTE),
            ("max=5", MINUTE),
            ("", MINUTE),
        ] {
            assert_eq!(lifetimes().idle_after(&headers(value)), idle, "{value}");
        }
        assert_eq!(lifetimes().idle_after(&HeaderMap::new()), MINUTE);
    }

    #[test]
    fn of_many_connections_to_hosts_of_messages_some_stay_open() {
        let lifetimes = Arc::new(Lifetimes::new(MINUTE, 5 * MINUTE, true));
        let idle = || lifetimes.idle_after(&HeaderMap::new());
        let mut open: Vec<_> = (0..MANY).map(|_| lifetimes.count_open()).collect();
        assert_eq!(idle(), MINUTE);
        open.push(lifetimes.count_open());
        assert_eq!(idle(), Duration::ZERO);
        open.clear();
        assert_eq!(idle(), MINUTE);
    }

    #[test]
    fn what_was_seen_twice_is_believed() {
        let millis = Duration::from_millis;
        let lifetimes = lifetimes();
        let idle = || lifetimes.idle_after(&HeaderMap::new());
        let mut now = Instant::now();
        // One connection after the other.
        let mut closed = |idle| {
            let since = now + millis(1);
            now = since + millis(idle);
            lifetimes.note_close(since, now);
            // Others that were idle meanwhile, and were closed by the same restart.
            lifetimes.note_close(since, now + millis(1));
            lifetimes.note_close(since + millis(1), now + millis(2));
        };
        for restarted in [900, 12_000, 30_000, 2_000] {
            closed(restarted);
            assert_eq!(idle(), MINUTE, "{restarted}");
        }
        closed(5_100);
        closed(5_000);
        assert_eq!(idle(), millis(4_000));
        // A promise that is shorter counts, and a longer one does not.
        assert_eq!(lifetimes.idle_after(&headers("timeout=2")), millis(1_600));
        assert_eq!(lifetimes.idle_after(&headers("timeout=20")), millis(4_000));
    }

    #[test]
    fn ages_differ_by_a_fifth() {
        assert_eq!(lifetimes().age(0.0), 5 * MINUTE);
        assert_eq!(lifetimes().age(1.0), 4 * MINUTE);
        assert_eq!(Lifetimes::new(MINUTE, Duration::MAX, false).age(0.0), FAR);
    }
}
