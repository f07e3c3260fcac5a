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
//! One replica can be the reason itself: its template, its token or its way to the downstream is wrong, and the calls
//! of the others succeed. So when another replica's call closed the breaker, a replica whose own calls had failed
//! tries one call. If that fails too, it stands *alone*: it sends nothing, tries one call after each of its own
//! growing pauses, and reports nothing to the store, so the others go on. While the breaker is open, replicas whose
//! own calls did not fail are the first to probe.
//!
//! Two parts, both pure. [`Breaker`] is the replica's side: it counts what its calls show, and returns what
//! to ask the store. [`report`] is the decision of the store about the status that all replicas share
//! ([`StoredBreaker`]); `lua/breaker.lua` is the same inside Redis.

mod stored;

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;
use super::time::Mono;

pub use stored::{BreakerReport, BreakerStatus, StoredBreaker, report};

/// Calls that must succeed before the ramp is over: at first one call at a time, with each that succeeds one more.
const RAMP: u64 = 64;
/// After a question that the store did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A replica whose own calls failed asks for the probe this much later than others: it may be the reason itself.
const AFTER_OTHERS: Duration = Duration::from_millis(200);

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
pub enum Evidence {
    /// The downstream took the message.
    Accepted,
    /// The downstream refused this message for good.
    Rejected,
    /// The downstream asked to wait.
    Alive,
    /// No connection, no answer in time, an error of its own (5xx), or it refuses the credentials (401, 403, 407).
    Away,
    /// Nothing of that: the call was cut off, or its failure may be about its message alone.
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
    report_unconfirmed: bool,
    /// Calls of this replica opened the breaker, or kept it open, and none of them succeeded since.
    failing: bool,
    /// The breaker is open for this replica only: calls of others succeed.
    alone: bool,
    /// Pauses while it was alone, since its last call that succeeded.
    pauses_alone: u32,
    state: BreakerState,
}

/// For which replicas a breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwayFor {
    /// For the fleet.
    All,
    /// For this replica: calls of others succeed.
    ThisReplica,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed,
    /// Nothing is sent. At that time the store is asked for the probe, or a replica that is alone makes one.
    Open(Mono),
    /// The store was asked, or sent a report; without an answer it is asked again at that time.
    Asking(Mono),
    /// This replica may make one call, before that time.
    Probe(Mono),
    /// The call is in flight; after `lost` it is lost. It could be made before `until`.
    Probing {
        lost: Mono,
        until: Mono,
    },
    /// Only this many calls at a time.
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
            report_unconfirmed: false,
            failing: false,
            alone: false,
            pauses_alone: 0,
            state: BreakerState::Closed,
        }
    }

    /// For which replicas it is open, as far as is known; `None`: it is closed, or closing.
    #[must_use]
    pub const fn away_for(&self) -> Option<AwayFor> {
        // Before its own call failed again, the outage may be over for this replica, too.
        if self.alone && self.pauses_alone > 0 {
            Some(AwayFor::ThisReplica)
        } else if self.known_open {
            Some(AwayFor::All)
        } else {
            None
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

    /// Whether it needs a message for the probe: the pause is over, or the store has just been asked or has
    /// just allowed it.
    #[must_use]
    pub fn needs_probe(&self, now: Mono) -> bool {
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

    /// A call ended; `is_probe`: as [`Self::note_call`] returned. Returns what must be reported to the store.
    pub fn note_call_end(
        &mut self,
        evidence: Evidence,
        is_probe: bool,
        now: Mono,
    ) -> Option<BreakerReport> {
        // It was in flight when the breaker opened, and says nothing about the probe.
        if matches!(self.state, BreakerState::Probing { .. }) && !is_probe {
            return None;
        }
        match evidence {
            Evidence::Accepted => self.rejected = 0,
            Evidence::Rejected => self.rejected = self.rejected.saturating_add(1),
            Evidence::Alive | Evidence::Away | Evidence::Unclear => {}
        }
        let refuses_all = self.rejections().is_some();
        match (self.state, evidence) {
            (
                BreakerState::Probing { .. } | BreakerState::Closed | BreakerState::Ramp(_),
                Evidence::Rejected,
            ) if refuses_all => self.fails(now),
            (BreakerState::Probing { until, .. }, Evidence::Rejected) => {
                self.state = BreakerState::Probe(until);
                None
            }
            (BreakerState::Probing { .. }, Evidence::Accepted | Evidence::Alive) => {
                self.passes(now)
            }
            (BreakerState::Probing { .. }, Evidence::Away) => self.fails(now),
            (BreakerState::Probing { .. }, Evidence::Unclear) => {
                self.state = BreakerState::Open(now);
                None
            }
            // These are calls that were in flight when it opened.
            (BreakerState::Open(_) | BreakerState::Asking(_) | BreakerState::Probe(_), _)
            | (_, Evidence::Unclear) => None,
            (
                BreakerState::Closed | BreakerState::Ramp(_),
                Evidence::Accepted | Evidence::Rejected | Evidence::Alive,
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
            (BreakerState::Closed | BreakerState::Ramp(_), Evidence::Away) => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                let failures = self.rule.failures;
                let opens = failures.is_some_and(|most| self.in_a_row >= most.get());
                opens.then(|| self.fails(now)).flatten()
            }
        }
    }

    /// Calls of this replica failed in a row, or the probe did.
    fn fails(&mut self, now: Mono) -> Option<BreakerReport> {
        self.failing = true;
        if !self.alone {
            return Some(self.report(BreakerReport::Failed, now));
        }
        self.pauses_alone = self.pauses_alone.saturating_add(1);
        self.state = BreakerState::Open(now + self.rule.pause.ceiling(self.pauses_alone));
        None
    }

    /// The probe succeeded.
    fn passes(&mut self, now: Mono) -> Option<BreakerReport> {
        (self.failing, self.pauses_alone) = (false, 0);
        if !std::mem::take(&mut self.alone) {
            return Some(self.report(BreakerReport::Passed, now));
        }
        (self.in_a_row, self.rejected, self.state) = (0, 0, BreakerState::Ramp(1));
        None
    }

    /// Until when nothing may be sent while `in_flight` calls have not ended; `None`: a call may be sent.
    #[must_use]
    pub fn blocked(&self, in_flight: u64, now: Mono) -> Option<Mono> {
        match self.state {
            BreakerState::Closed | BreakerState::Probe(_) => None,
            BreakerState::Ramp(at_once) if in_flight < at_once => None,
            // The end of a call opens it.
            BreakerState::Ramp(_) => Some(now + self.rule.probe),
            BreakerState::Open(until)
            | BreakerState::Asking(until)
            | BreakerState::Probing { lost: until, .. } => Some(until),
        }
    }

    /// A call was started. Returns whether it is the probe.
    pub fn note_call(&mut self, now: Mono) -> bool {
        let BreakerState::Probe(until) = self.state else {
            return false;
        };
        let lost = now + self.rule.probe;
        self.state = BreakerState::Probing { lost, until };
        true
    }

    /// The probe was started and did not leave, because its slot had passed: it must still be made.
    pub const fn note_unsent(&mut self) {
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

    /// How many pauses this replica made by itself since its last call that succeeded.
    #[must_use]
    pub const fn pauses_alone(&self) -> u32 {
        self.pauses_alone
    }

    /// What to ask the store now, if anything is due: for the probe, or a report again that it did not
    /// answer.
    pub fn ask(&mut self, now: Mono) -> Option<BreakerReport> {
        let due = self.due().is_some_and(|due| due <= now);
        if due && self.alone {
            self.state = BreakerState::Probe(now + self.rule.probe);
            return None;
        }
        let report = if self.report_unconfirmed {
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

    /// When it opens, and for how long.
    #[must_use]
    pub const fn rule(&self) -> &BreakerRule {
        &self.rule
    }

    /// The store answered; `until` is the end of the pause on this replica's clock.
    pub fn update(&mut self, status: &BreakerStatus, until: Option<Mono>, now: Mono) {
        self.known_open = until.is_some();
        let newer = status.version != self.version;
        self.version = status.version;
        // A report that calls failed gives the status another version, from any replica.
        self.report_unconfirmed &= !newer;
        match (until, self.state) {
            // The answer to an earlier question, before the store received the report.
            (None, _) if self.report_unconfirmed => {}
            (None, BreakerState::Closed | BreakerState::Ramp(_)) => {}
            (None, _) if self.alone => {}
            // Another replica's call succeeded, and this replica's own calls did not: it tries one at once.
            (None, _) if self.failing => {
                self.alone = true;
                self.state = BreakerState::Probe(now + self.rule.probe);
            }
            (None, _) => (self.in_a_row, self.rejected, self.state) = (0, 0, BreakerState::Ramp(1)),
            (Some(until), _) if status.may_probe => self.state = BreakerState::Probe(until),
            // The answer belongs to a `Look`, or to an earlier question: this replica still has the probe.
            (Some(_), BreakerState::Probe(_) | BreakerState::Probing { .. }) if !newer => {}
            (Some(until), _) => {
                self.alone = false;
                let late = if self.failing {
                    AFTER_OTHERS
                } else {
                    Duration::ZERO
                };
                self.state = BreakerState::Open(until + late);
            }
        }
    }

    /// The store did not answer.
    pub fn note_no_answer(&mut self, now: Mono) {
        if let BreakerState::Asking(_) = self.state {
            self.state = BreakerState::Open(now + ASK_AGAIN);
        }
    }

    fn report(&mut self, report: BreakerReport, now: Mono) -> BreakerReport {
        self.report_unconfirmed = report == BreakerReport::Failed;
        self.state = BreakerState::Asking(now + ASK_AGAIN);
        report
    }
}

#[cfg(test)]
mod tests;
