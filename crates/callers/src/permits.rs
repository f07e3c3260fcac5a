//! The permits of one listener: those that callers wait for, and those that they have and did not end yet.
//!
//! This is where the two sides meet. A request waits under its id ([`Permits::wait`]). When its turn has come, the
//! downstream's side hands it over ([`Permits::offer_turn`]), and the request says whether its caller is still there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use sluiced_core::headroom::{LatencySamples, Spread};
use sluiced_core::time::Mono;
use sluiced_ports::downstream::LeaveBy;
use sluiced_ports::lock;
use sluiced_ports::queue::{SettlementSender, Verdict};

/// No more permits of a listener count at a time: each takes a kilobyte or two.
const MOST_OPEN: usize = 50_000;
/// A report that says more than this many times `use_within` is believed only up to that: one wrong report must not
/// cost every replica a part of its rate.
const BELIEVED: u32 = 4;
/// Reports are believed about this many permits: those of the last seconds.
const REMEMBERED: usize = 10_000;

/// The id of a permit. It is random, so that no other caller can guess it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PermitId(pub(crate) u64);

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that no permit has as its id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a permit has an id of 16 digits from 0 to f")]
pub(crate) struct InvalidPermitId;

impl FromStr for PermitId {
    type Err = InvalidPermitId;

    fn from_str(text: &str) -> Result<Self, InvalidPermitId> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let id = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or(InvalidPermitId)
    }
}

/// What a request that waits hears.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    /// The request's turn has come.
    TurnOffer(TurnOffer),
    /// The pipeline settled the request without a turn, with this verdict.
    Settled(Verdict),
}

/// A turn. The request answers `goes` if its caller is there and it is not too late; dropped, nothing was taken.
#[derive(Debug)]
pub(crate) struct TurnOffer {
    pub(crate) leave_by: LeaveBy,
    pub(crate) goes: oneshot::Sender<()>,
}

/// How a permit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitEnd {
    /// The call was made, or may have been.
    Used,
    /// The caller made no call.
    Unused,
}

/// The permits of one listener.
#[derive(Debug)]
pub(crate) struct Permits {
    waiting: Mutex<HashMap<PermitId, mpsc::UnboundedSender<WaitOutcome>>>,
    open: Mutex<HashMap<PermitId, oneshot::Sender<PermitEnd>>>,
    unreported: Mutex<UnreportedPermits>,
    /// How long after their permits callers made their calls, as they report it.
    used: Mutex<LatencySamples>,
    /// What is kept for that in any case.
    use_within: Duration,
}

impl Permits {
    pub(crate) fn new(use_within: Duration) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            open: Mutex::default(),
            unreported: Mutex::default(),
            used: Mutex::default(),
            use_within,
        })
    }

    /// A request waits, until the value is dropped.
    pub(crate) fn wait(self: &Arc<Self>, session: SettlementSender) -> WaitingRequest {
        let (sender, heard) = mpsc::unbounded_channel();
        let id = PermitId(rand::random());
        lock(&self.waiting).insert(id, sender);
        WaitingRequest {
            permits: Arc::clone(self),
            id,
            heard,
            session,
            goes: false,
        }
    }

    /// The pipeline settled the request: without a turn, or long after its turn.
    pub(crate) fn tell_verdict(&self, id: PermitId, verdict: Verdict) {
        if let Some(to) = lock(&self.waiting).get(&id) {
            // It may have gone meanwhile.
            to.send(WaitOutcome::Settled(verdict)).ok();
        }
    }

    /// The turn of a request has come. Returns whether its caller takes it.
    pub(crate) async fn offer_turn(&self, id: PermitId, leave_by: LeaveBy) -> bool {
        let (goes, answered) = oneshot::channel();
        let told = match lock(&self.waiting).get(&id) {
            Some(to) => to
                .send(WaitOutcome::TurnOffer(TurnOffer { leave_by, goes }))
                .is_ok(),
            None => false,
        };
        told && answered.await.is_ok()
    }

    /// The permit counts until its caller ends it: receives how.
    pub(crate) fn open(&self, id: PermitId) -> oneshot::Receiver<PermitEnd> {
        let (ends, end) = oneshot::channel();
        lock(&self.open).insert(id, ends);
        end
    }

    /// Whether [`MOST_OPEN`] permits count already: no other one may be given.
    pub(crate) fn are_too_many(&self) -> bool {
        lock(&self.open).len() >= MOST_OPEN
    }

    /// The permit counts no longer.
    pub(crate) fn close(&self, id: PermitId) {
        lock(&self.open).remove(&id);
    }

    /// The caller ends its permit. Returns whether the permit still counted.
    pub(crate) fn end(&self, id: PermitId, end: PermitEnd) -> bool {
        let open = lock(&self.open).remove(&id);
        open.is_some_and(|open| open.send(end).is_ok())
    }

    /// Whether the permit was given, and this is the first that its caller says of it.
    pub(crate) fn take_unreported(&self, id: PermitId) -> bool {
        lock(&self.unreported).take(id)
    }

    /// A caller reports that it made its call this long after its permit. Believed once for each permit that was given,
    /// and up to a bound: returns that bound if it says more.
    pub(crate) fn record_use(&self, id: PermitId, took: Duration, now: Mono) -> Option<Duration> {
        let most = self.use_within * BELIEVED;
        if !self.take_unreported(id) {
            return None;
        }
        lock(&self.used).record(took.min(most), now);
        (took > most).then_some(most)
    }

    /// By how much the time from a permit to the call varies: as configured, or more where callers report it.
    ///
    /// Calls of routes leave at their slots, so what counts is how late callers are, and not only by how much that
    /// varies: no more than the median and the spread together.
    pub(crate) fn use_spread(&self, now: Mono) -> Spread {
        let reported = lock(&self.used).spread(now);
        let median = reported.map_or(Duration::ZERO, |seen| seen.median);
        let latest = reported.map_or(Duration::ZERO, |seen| seen.median + seen.spread);
        Spread {
            median,
            spread: latest.clamp(self.use_within, self.use_within * BELIEVED),
            is_of_few: false,
        }
    }
}

/// The permits that were given last, and that no caller has reported about.
#[derive(Debug, Default)]
struct UnreportedPermits {
    ids: HashSet<PermitId>,
    /// The oldest first. Some of them may be reported.
    order: VecDeque<PermitId>,
}

impl UnreportedPermits {
    fn add(&mut self, id: PermitId) {
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id);
        self.ids.insert(id);
    }

    fn take(&mut self, id: PermitId) -> bool {
        self.ids.remove(&id)
    }
}

/// A request that waits for its turn. Dropped without one, it is settled as if it had never come.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    permits: Arc<Permits>,
    pub(crate) id: PermitId,
    pub(crate) heard: mpsc::UnboundedReceiver<WaitOutcome>,
    /// The session of its delivery. It ends when this is dropped.
    pub(crate) session: SettlementSender,
    goes: bool,
}

impl WaitingRequest {
    /// The caller takes its turn. Returns whether the turn is still its own.
    pub(crate) fn take_turn(mut self, turn: TurnOffer) -> bool {
        self.goes = turn.goes.send(()).is_ok();
        if self.goes {
            lock(&self.permits.unreported).add(self.id);
        }
        self.goes
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        lock(&self.permits.waiting).remove(&self.id);
        if !self.goes {
            self.session.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits_of() -> (Arc<Permits>, SettlementSender, LeaveBy) {
        let leave_by = LeaveBy::any_time();
        (
            Permits::new(Duration::from_millis(5)),
            SettlementSender::new().0,
            leave_by,
        )
    }

    #[test]
    fn an_id_is_read_as_it_is_written() {
        for id in [0, 1, 0xdead_beef, u64::MAX] {
            assert_eq!(PermitId(id).to_string().parse(), Ok(PermitId(id)));
        }
        for wrong in [
            "",
            "1",
            "+00000000000000f",
            "0x0000000000000f",
            "00000000000000000",
        ] {
            assert_eq!(wrong.parse::<PermitId>(), Err(InvalidPermitId), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_turn_is_taken_by_a_caller_that_is_there() {
        let (permits, sink, leave_by) = permits_of();
        let mut waits = permits.wait(sink);
        let id = waits.id;
        let turn = permits.offer_turn(id, leave_by);
        let takes = async {
            let Some(WaitOutcome::TurnOffer(turn)) = waits.heard.recv().await else {
                panic!("a turn");
            };
            waits.take_turn(turn)
        };
        assert_eq!(futures::join!(turn, takes), (true, true));
        assert!(lock(&permits.waiting).is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_left_takes_nothing_and_its_delivery_is_stale() {
        let (permits, sink, leave_by) = permits_of();
        let waits = permits.wait(sink.clone());
        let id = waits.id;
        drop(waits);
        assert!(!permits.offer_turn(id, leave_by).await);
        // It leaves while its turn is on the way.
        let mut waits = permits.wait(sink.for_another_session());
        let turn = permits.offer_turn(waits.id, leave_by);
        let leaves = async {
            let heard = waits.heard.recv().await;
            drop((waits, heard));
        };
        assert!(!futures::join!(turn, leaves).0);
    }

    #[tokio::test]
    async fn a_permit_ends_once() {
        let (permits, ..) = permits_of();
        let end = permits.open(PermitId(7));
        assert!(permits.end(PermitId(7), PermitEnd::Unused));
        assert!(!permits.end(PermitId(7), PermitEnd::Used));
        assert_eq!(end.await, Ok(PermitEnd::Unused));
        let end = permits.open(PermitId(8));
        permits.close(PermitId(8));
        assert!(!permits.end(PermitId(8), PermitEnd::Used) && end.await.is_err());
    }

    fn report(permits: &Permits, id: u64, millis: u64, now: Mono) {
        lock(&permits.unreported).add(PermitId(id));
        permits.record_use(PermitId(id), Duration::from_millis(millis), now);
    }

    #[test]
    fn reports_widen_the_way_and_never_narrow_it() {
        let (permits, ..) = permits_of();
        let now = Mono::from_micros(1_000_000);
        assert_eq!(permits.use_spread(now).spread, Duration::from_millis(5));
        // A report about no permit, or a second one, counts for nothing.
        report(&permits, 0, 1, now);
        permits.record_use(PermitId(0), Duration::from_millis(90), now);
        permits.record_use(PermitId(u64::MAX), Duration::from_millis(90), now);
        for number in 1..40_u64 {
            report(&permits, number, number % 2, now);
        }
        assert_eq!(permits.use_spread(now).spread, Duration::from_millis(5));
        for number in 40..240_u64 {
            report(&permits, number, number % 20, now);
        }
        assert!(permits.use_spread(now).spread >= Duration::from_millis(19));
        // All of them are late, by nearly the same.
        let (permits, ..) = permits_of();
        for number in 0..200_u64 {
            report(&permits, number, 17 + number % 3, now);
        }
        assert!(permits.use_spread(now).spread >= Duration::from_millis(19));
    }

    #[test]
    fn no_more_permits_count_than_may() {
        let (permits, ..) = permits_of();
        let ends: Vec<_> = (0..MOST_OPEN as u64)
            .map(|id| {
                assert!(!permits.are_too_many(), "{id}");
                permits.open(PermitId(id))
            })
            .collect();
        assert!(permits.are_too_many());
        assert!(permits.end(PermitId(7), PermitEnd::Used));
        assert!(!permits.are_too_many(), "one has ended");
        drop(ends);
    }

    /// A caller that reports the length of its calls took a fifth of the rate from all replicas, for minutes.
    #[test]
    fn a_report_is_believed_up_to_a_bound() {
        let (permits, ..) = permits_of();
        let now = Mono::from_micros(1_000_000);
        for number in 0..200_u64 {
            lock(&permits.unreported).add(PermitId(number));
            let said = permits.record_use(PermitId(number), Duration::from_millis(800), now);
            assert_eq!(said, Some(Duration::from_millis(20)));
        }
        assert_eq!(permits.use_spread(now).spread, Duration::from_millis(20));
    }
}
