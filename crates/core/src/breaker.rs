//! Whether a downstream can be reached and accepts calls, as the whole fleet sees it.
//!
//! Problem: a provider that is away for a minute, or a token that expired, makes every call fail. If
//! each of them cost an attempt, a backlog would end in the dead letters at full rate. So when calls
//! fail in a row the breaker *opens*: nothing is sent, no attempt is spent, for all replicas. After a
//! pause one replica makes one call, the probe. If it fails, the pause grows; if it succeeds, all
//! replicas go on with one call at a time each, and one more at a time with each call that succeeds
//! (the ramp), until the limits alone decide again.
//!
//! A downstream that rejects each message would empty the backlog into the dead letters just as well. So calls
//! that are rejected in a row, with none accepted between, open the breaker too. A probe that is rejected is
//! the message's fault or the route's: the replica tries the next message, until these are too many in a row.
//!
//! Two parts, both pure. [`Breaker`] is the replica's side: it counts what its calls show, and returns what
//! to ask the store. [`report`] is the decision of the store about the status that all replicas share
//! ([`StoredBreaker`]); `lua/breaker.lua` is the same inside Redis.

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;
use super::time::Mono;
use crate::time::StoreTime;

/// Calls that must succeed before the ramp is over: one at a time at first, then as many more.
const RAMP: u64 = 64;
/// After a question that the store did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// Calls that fail in a row; `None`: they never open it.
    pub failures: Option<NonZeroU32>,
    /// Calls that are rejected in a row, with none accepted between; `None`: they never open it.
    pub rejections: Option<NonZeroU32>,
    /// Before the first probe, and the longest pause before a later one.
    pub pause: Backoff,
    /// After this a probe has certainly ended: the downstream's own timeout, and a little.
    pub probe: Duration,
}

/// What one call shows about the downstream, whatever it means for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It took the message.
    Accepted,
    /// It refused this message for good.
    Rejected,
    /// It asked to wait.
    Alive,
    /// No connection, no answer in time, an error of its own (5xx), or it does not know us (401, 403,
    /// 407).
    Away,
    /// Neither.
    Unclear,
}

/// A replica's side of a breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    rule: BreakerRule,
    /// The version of the status that it knows.
    version: u64,
    /// The store said last that it is open.
    known_open: bool,
    /// Calls that failed since one succeeded.
    in_a_row: u32,
    /// Calls that were rejected since one was accepted.
    rejected: u32,
    /// Calls failed in a row, or the probe did, and the store has not confirmed the report yet.
    unheard: bool,
    state: BreakerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed,
    /// Nothing is sent. The store is asked for the probe at that time.
    Open(Mono),
    /// The store was asked, or sent a report; without an answer it is asked again at that time.
    Asking(Mono),
    /// This replica may make one call, before that time.
    Probe(Mono),
    /// The call is under way; after `lost` it is lost. It could be made before `until`.
    Probing {
        lost: Mono,
        until: Mono,
    },
    /// Only so many calls at a time.
    Ramp(u64),
}

impl Breaker {
    /// Closed, until the store reports otherwise.
    #[must_use]
    pub const fn new(rule: BreakerRule) -> Self {
        Self {
            rule,
            version: 0,
            known_open: false,
            in_a_row: 0,
            rejected: 0,
            unheard: false,
            state: BreakerState::Closed,
        }
    }

    /// Whether failed calls say nothing about their messages: no attempt is spent.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !matches!(self.state, BreakerState::Closed | BreakerState::Ramp(_))
    }

    /// Whether it allows all calls.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed)
    }

    /// Whether the call that is under way is the probe.
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        matches!(self.state, BreakerState::Probing { .. })
    }

    /// Whether it needs a message for the probe: the pause is over, or the store has just been asked or has
    /// just allowed it.
    #[must_use]
    pub fn probes(&self, now: Mono) -> bool {
        match self.state {
            BreakerState::Open(until) => until <= now,
            BreakerState::Asking(_) | BreakerState::Probe(_) => true,
            BreakerState::Closed | BreakerState::Probing { .. } | BreakerState::Ramp(_) => false,
        }
    }

    /// How many calls were rejected in a row, if these are so many that they keep it open.
    #[must_use]
    pub fn rejections(&self) -> Option<u32> {
        let most = self.rule.rejections?.get();
        (self.rejected >= most).then_some(self.rejected)
    }

    /// A call ended. Returns what must be reported to the store.
    pub fn observe(&mut self, sign: Sign, now: Mono) -> Option<BreakerReport> {
        match sign {
            Sign::Accepted => self.rejected = 0,
            Sign::Rejected => self.rejected = self.rejected.saturating_add(1),
            Sign::Alive | Sign::Away | Sign::Unclear => {}
        }
        let refuses_all = self.rejections().is_some();
        match (self.state, sign) {
            (
                BreakerState::Probing { .. } | BreakerState::Closed | BreakerState::Ramp(_),
                Sign::Rejected,
            ) if refuses_all => Some(self.report(BreakerReport::Failed, now)),
            (BreakerState::Probing { until, .. }, Sign::Rejected) => {
                self.state = BreakerState::Probe(until);
                None
            }
            (BreakerState::Probing { .. }, Sign::Accepted | Sign::Alive) => {
                Some(self.report(BreakerReport::Passed, now))
            }
            (BreakerState::Probing { .. }, Sign::Away) => {
                Some(self.report(BreakerReport::Failed, now))
            }
            (BreakerState::Probing { .. }, Sign::Unclear) => {
                self.state = BreakerState::Open(now);
                None
            }
            // These are calls that were under way when it opened.
            (BreakerState::Open(_) | BreakerState::Asking(_) | BreakerState::Probe(_), _)
            | (_, Sign::Unclear) => None,
            (
                BreakerState::Closed | BreakerState::Ramp(_),
                Sign::Accepted | Sign::Rejected | Sign::Alive,
            ) => {
                self.in_a_row = 0;
                if let BreakerState::Ramp(at_once) = self.state {
                    let done = at_once >= RAMP;
                    self.state = if done {
                        BreakerState::Closed
                    } else {
                        BreakerState::Ramp(at_once + 1)
                    };
                }
                None
            }
            (BreakerState::Closed | BreakerState::Ramp(_), Sign::Away) => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                let failures = self.rule.failures;
                let opens = failures.is_some_and(|most| self.in_a_row >= most.get());
                opens.then(|| self.report(BreakerReport::Failed, now))
            }
        }
    }

    /// Until when nothing may be sent while `under_way` calls have not ended; `None`: a call may be sent.
    #[must_use]
    pub fn blocked(&self, under_way: u64, now: Mono) -> Option<Mono> {
        match self.state {
            BreakerState::Closed | BreakerState::Probe(_) => None,
            BreakerState::Ramp(at_once) if under_way < at_once => None,
            // The end of a call opens it.
            BreakerState::Ramp(_) => Some(now + self.rule.probe),
            BreakerState::Open(until)
            | BreakerState::Asking(until)
            | BreakerState::Probing { lost: until, .. } => Some(until),
        }
    }

    /// A call was started. Returns whether it is the probe.
    pub fn sent(&mut self, now: Mono) -> bool {
        let BreakerState::Probe(until) = self.state else {
            return false;
        };
        let lost = now + self.rule.probe;
        self.state = BreakerState::Probing { lost, until };
        true
    }

    /// The probe was started and did not leave, because its slot had passed: it must still be made.
    pub const fn unsent(&mut self) {
        if let BreakerState::Probing { until, .. } = self.state {
            self.state = BreakerState::Probe(until);
        }
    }

    /// When to look again if no event comes.
    #[must_use]
    pub const fn due(&self) -> Option<Mono> {
        match self.state {
            BreakerState::Closed | BreakerState::Ramp(_) => None,
            BreakerState::Open(at)
            | BreakerState::Asking(at)
            | BreakerState::Probe(at)
            | BreakerState::Probing { lost: at, .. } => Some(at),
        }
    }

    /// What to ask the store now, if anything is due: for the probe, or a report again that it did not
    /// answer.
    pub fn ask(&mut self, now: Mono) -> Option<BreakerReport> {
        let due = self.due().is_some_and(|due| due <= now);
        let report = if self.unheard {
            BreakerReport::Failed
        } else {
            BreakerReport::Probe
        };
        due.then(|| self.report(report, now))
    }

    /// The version that it knows, for the store.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    #[must_use]
    pub const fn rule(&self) -> &BreakerRule {
        &self.rule
    }

    /// The store answered; `until` is the end of the pause on this replica's clock. Returns
    /// whether the breaker has opened or closed, according to the store.
    pub fn update(&mut self, status: &BreakerStatus, until: Option<Mono>) -> bool {
        let was = std::mem::replace(&mut self.known_open, until.is_some());
        let newer = status.version != self.version;
        self.version = status.version;
        // A report that calls failed gives the status another version, from any replica.
        self.unheard &= !newer;
        match (until, self.state) {
            // The answer to an earlier question, before the store received the report.
            (None, _) if self.unheard => {}
            (None, BreakerState::Closed | BreakerState::Ramp(_)) => {}
            // A call of some replica succeeded.
            (None, _) => (self.in_a_row, self.rejected, self.state) = (0, 0, BreakerState::Ramp(1)),
            (Some(until), _) if status.may_probe => self.state = BreakerState::Probe(until),
            // Only a look, or the answer to another question: the probe is still ours.
            (Some(_), BreakerState::Probe(_) | BreakerState::Probing { .. }) if !newer => {}
            (Some(until), _) => self.state = BreakerState::Open(until),
        }
        was != self.known_open
    }

    /// The store did not answer.
    pub fn unanswered(&mut self, now: Mono) {
        if let BreakerState::Asking(_) = self.state {
            self.state = BreakerState::Open(now + ASK_AGAIN);
        }
    }

    fn report(&mut self, report: BreakerReport, now: Mono) -> BreakerReport {
        self.unheard = report == BreakerReport::Failed;
        self.state = BreakerState::Asking(now + ASK_AGAIN);
        report
    }
}

/// What the store keeps for a downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBreaker {
    /// Rises with every opening and closing.
    version: u64,
    /// `None`: closed.
    until: Option<StoreTime>,
    /// Pauses since it was closed.
    pauses: u32,
    /// A replica probes; it has finished by then.
    probing: StoreTime,
}

/// What a replica reports or asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerReport {
    /// Calls failed in a row, or the probe did.
    Failed,
    /// May this replica probe?
    Probe,
    /// The probe succeeded.
    Passed,
    /// What is the status?
    Look,
}

impl BreakerReport {
    /// As the script reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Probe => "probe",
            Self::Passed => "passed",
            Self::Look => "look",
        }
    }
}

/// The store's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerStatus {
    pub now: StoreTime,
    pub version: u64,
    /// Open until then; `None`: closed.
    pub until: Option<StoreTime>,
    /// The replica that asked makes the probe, and has finished by `until`.
    pub may_probe: bool,
    /// This report has opened or closed it.
    pub changed: bool,
}

/// A replica that knows the status of version `known` reports. A report of an older status than
/// the store's changes nothing: if several replicas fail together, one of them opens the
/// breaker.
pub fn report(
    stored: &mut StoredBreaker,
    report: BreakerReport,
    known: u64,
    rule: &BreakerRule,
    now: StoreTime,
) -> BreakerStatus {
    let current = known >= stored.version;
    // A pause never lasts longer than its length, whatever the store's clock did.
    let longest = now + rule.pause.ceiling(stored.pauses).max(rule.probe);
    stored.until = stored.until.map(|until| until.min(longest));
    stored.probing = stored.probing.min(longest);
    let mut changed = false;
    match report {
        BreakerReport::Failed if current => {
            stored.pauses = stored.pauses.saturating_add(1);
            stored.until = Some(now + rule.pause.ceiling(stored.pauses));
            changed = true;
        }
        BreakerReport::Passed if current && stored.until.is_some() => {
            (stored.until, stored.pauses) = (None, 0);
            changed = true;
        }
        _ => {}
    }
    if changed {
        stored.version = known + 1;
        stored.probing = StoreTime::default();
    }
    let due = report == BreakerReport::Probe && stored.until.is_some_and(|until| until <= now);
    let may_probe = due && stored.probing <= now;
    if may_probe {
        stored.probing = now + rule.probe;
    }
    BreakerStatus {
        now,
        version: stored.version,
        until: stored.until.map(|until| until.max(stored.probing)),
        may_probe,
        changed,
    }
}

#[cfg(test)]
mod tests;
