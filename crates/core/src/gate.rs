//! Whether a route sends, and whether it consumes.
//!
//! Problem: some reasons to wait hold for a route as a whole. Outside its opening hours, while an operator paused it,
//! while its downstream is away, or while one of its keyed limits grants nothing, every message would be denied by
//! itself and go through a wait queue. So this is decided once for the route. The messages that the replica holds stay
//! in memory, the route stops consuming (its *tap* closes), and the other routes of the limit go on.
//!
//! [`Gate`] collects the reasons. [`SendRule`] is what follows for messages: `pipeline::pacer` holds those of a shut
//! route in its scheduler, and looks again before each call. [`Gate::decide_tap`] decides from that, and from the
//! availability of the paced limit, whether the route consumes. At an opening not all messages wake at once: the tap
//! opens a moment before, and the schedule of the limit paces them.

mod sends;
mod tap;

use std::time::Duration;

use super::breaker::{AwayFor, Breaker, BreakerReport, BreakerRule, BreakerStatus, Evidence};
use super::hours::{OpeningHours, Stretch};
use super::leases::Slot;
use super::scheduler::ASKED_AGAIN;
use super::time::{Mono, StoreTime};

pub use sends::{GateChange, SendRule, ShutReason};
pub use tap::{OnDenied, Tap, TapDecision, TapRule};

/// The local clock may drift from the store's: a change of the hours is computed again after this.
const REVIEW_AGAIN: Duration = Duration::from_secs(10);

/// Whether an operator paused a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePause {
    /// The store has not said it yet: the gate is shut.
    Unknown,
    /// It is not paused.
    None,
    /// It is paused until then, on the store's clock.
    Until(StoreTime),
}

/// What the end of a call means for the breaker of its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerEffect {
    /// What to report to the store.
    pub report: Option<BreakerReport>,
    /// The call failed because the downstream is away: the failure says nothing about its message.
    pub away: Option<DownstreamOutage>,
    /// The gate may have changed.
    pub gate_may_change: bool,
    /// The call opened the breaker, or kept it open.
    pub kept_breaker_open: bool,
}

/// A call failed because the downstream is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownstreamOutage {
    /// The message of the call was the probe. Until this time other messages go before it: one of them may succeed
    /// where it fails.
    pub behind_others: Option<Mono>,
}

/// How a downstream stands, as far as this replica knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownstreamState {
    /// For which replicas it is away; `None`: for none.
    pub away: Option<AwayFor>,
    /// This many messages were rejected in a row, if these keep the breaker open.
    pub rejections: Option<u32>,
}

/// Why one route waits, if it does, and whether it consumes.
#[derive(Debug)]
pub struct Gate {
    /// `None`: always open.
    hours: Option<OpeningHours>,
    /// The last result of the hours, by the store's clock; `None` until that clock is known.
    stretch: Option<Stretch>,
    /// `None`: calls never stop because the downstream is away.
    breaker: Option<Breaker>,
    /// By an operator. May be over.
    pause: RoutePause,
    /// Until when an operator paused its keyed limits.
    limits_paused_until: Option<Mono>,
    /// Until when a keyed limit that is for all messages is not asked.
    ask_again_at: Option<Mono>,
    /// Until when that limit grants no more, according to its answer.
    used_up_until: Option<Mono>,
    sends: SendRule,
    /// When to review it; `None`: at once.
    next_review: Option<Mono>,
    tap: Tap,
}

/// When a reason to wait begins or ends by itself, by the clock of this replica.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// When the hours begin or end; `None`: never, or not known.
    hours: Option<Mono>,
    /// Until when an operator paused the route.
    paused: Option<Mono>,
    /// Until when the breaker blocks.
    away: Option<Mono>,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunCall {
    /// Its slot. The call leaves before the route shuts.
    pub slot: Slot,
    /// Whether it is the probe of the breaker.
    pub is_probe: bool,
}

impl Gate {
    /// Makes a gate with its tap closed. With hours it sends nothing until the store's time is known.
    #[must_use]
    pub fn new(hours: Option<OpeningHours>, breaker: Option<BreakerRule>) -> Self {
        let sends = match hours {
            None => SendRule::All(None),
            Some(_) => SendRule::Nothing(Mono::NEVER, ShutReason::Hours),
        };
        Self {
            hours,
            stretch: None,
            breaker: breaker.map(Breaker::new),
            pause: RoutePause::None,
            limits_paused_until: None,
            ask_again_at: None,
            used_up_until: None,
            sends,
            next_review: None,
            tap: Tap::Closed,
        }
    }

    /// As of the last review.
    #[must_use]
    pub const fn sends(&self) -> SendRule {
        self.sends
    }

    /// Whether the breaker limits what is sent.
    #[must_use]
    pub fn breaker_limits_calls(&self) -> bool {
        self.breaker
            .as_ref()
            .is_some_and(|breaker| !breaker.is_closed())
    }

    /// Whether the breaker allows only its probe. After the probe, calls begin again, one more at a time.
    #[must_use]
    pub fn breaker_is_open(&self) -> bool {
        self.breaker.as_ref().is_some_and(Breaker::is_open)
    }

    /// The version of the breaker's status that this replica knows.
    #[must_use]
    pub fn breaker_version(&self) -> u64 {
        self.breaker.as_ref().map_or(0, Breaker::version)
    }

    /// An operator paused keyed limits of the route, the last of them until then; `None`: none is paused.
    pub fn pause_limits(&mut self, until: Option<Mono>) {
        self.limits_paused_until = until;
        self.next_review = None;
    }

    /// A keyed limit that is for all messages grants no more before `until`, as it says at `now`. Messages that it
    /// granted are sent. Until then a held message asks every [`ASKED_AGAIN`], and the tap stays closed until a message
    /// passes.
    pub fn note_used_up(&mut self, until: Mono, now: Mono) {
        self.ask_again_at = self.ask_again_at.max(Some(until.min(now + ASKED_AGAIN)));
        self.used_up_until = self.used_up_until.max(Some(until));
        self.next_review = None;
    }

    /// An operator paused the route, or ended a pause; or it is not known whether one did.
    pub fn pause(&mut self, pause: RoutePause) {
        self.pause = pause;
        self.next_review = None;
    }

    /// A keyed limit that was used up may grant again.
    pub fn forget_used_up(&mut self) {
        (self.ask_again_at, self.used_up_until) = (None, None);
        self.next_review = None;
    }

    /// A slot is due for a message of the route. Begins its call, which leaves before the route shuts. `None`: the gate
    /// was shut while the limits of the message were asked.
    pub fn begin_call(&mut self, slot: Slot, now: Mono) -> Option<BegunCall> {
        let leave_by = self.sends().leave_by(slot.leave_by)?;
        Some(BegunCall {
            slot: Slot { leave_by, ..slot },
            is_probe: self.note_call(now),
        })
    }

    /// A call was started. Returns whether it is the probe.
    pub(crate) fn note_call(&mut self, now: Mono) -> bool {
        if self.ask_again_at.is_none_or(|asked| asked <= now) {
            self.used_up_until = None;
        }
        let Some(breaker) = self.breaker.as_mut().filter(|breaker| !breaker.is_closed()) else {
            return false;
        };
        self.next_review = None;
        breaker.note_call(now)
    }

    /// A call was started and did not leave; `is_probe`: as in [`BegunCall`]. Returns whether the gate
    /// may have changed.
    pub fn note_unsent(&mut self, is_probe: bool) -> bool {
        let Some(breaker) = self.breaker.as_mut().filter(|breaker| !breaker.is_closed()) else {
            return false;
        };
        if is_probe {
            breaker.note_unsent();
        }
        self.next_review = None;
        true
    }

    /// A call ended, and showed this about the downstream; `is_probe`: as in [`BegunCall`].
    pub fn note_call_end(
        &mut self,
        evidence: Evidence,
        is_probe: bool,
        now: Mono,
    ) -> BreakerEffect {
        let Some(breaker) = &mut self.breaker else {
            return BreakerEffect::default();
        };
        let was_closed = breaker.is_closed();
        let pauses = breaker.pauses_alone();
        let report = breaker.note_call_end(evidence, is_probe, now);
        let kept_breaker_open =
            report == Some(BreakerReport::Failed) || breaker.pauses_alone() > pauses;
        let behind = now + breaker.rule().pause.max;
        let away = breaker.is_open().then_some(DownstreamOutage {
            behind_others: is_probe.then_some(behind),
        });
        let gate_may_change = !(was_closed && breaker.is_closed());
        if gate_may_change {
            self.next_review = None;
        }
        BreakerEffect {
            report,
            away,
            gate_may_change,
            kept_breaker_open,
        }
    }

    /// What to ask the store about the breaker now, if anything. `waiting`: messages of the route that are
    /// not called yet. Without one there is nothing to probe with: another replica should make the probe.
    pub fn ask(&mut self, waiting: u64, now: Mono) -> Option<BreakerReport> {
        let breaker = self.breaker.as_mut().filter(|_| waiting > 0)?;
        let report = breaker.ask(now)?;
        self.next_review = None;
        Some(report)
    }

    /// A message came: there may be something to probe with.
    pub fn note_arrival(&mut self) {
        if self.breaker_limits_calls() {
            self.next_review = None;
        }
    }

    /// Whether the breaker needs a message for the probe.
    #[must_use]
    pub fn needs_probe(&self, now: Mono) -> bool {
        self.breaker
            .as_ref()
            .is_some_and(|breaker| breaker.needs_probe(now))
    }

    /// The store answered about the breaker; `None`: it did not.
    pub fn note_answer(&mut self, status: Option<&BreakerStatus>, now: Mono) {
        self.next_review = None;
        let Some(breaker) = &mut self.breaker else {
            return;
        };
        let Some(status) = status else {
            return breaker.note_no_answer(now);
        };
        let until = status.until.map(|at| now + at.since(status.now));
        breaker.update(status, until, now);
    }

    /// How the downstream stands.
    #[must_use]
    pub fn downstream_state(&self) -> DownstreamState {
        let breaker = self.breaker.as_ref();
        DownstreamState {
            away: breaker.and_then(Breaker::away_for),
            rejections: breaker.and_then(Breaker::rejections),
        }
    }

    /// Decides what the route sends, if anything changed. `in_flight`: its calls that have not ended.
    pub fn review(
        &mut self,
        store_now: Option<StoreTime>,
        in_flight: u64,
        now: Mono,
    ) -> Option<GateChange> {
        if self.next_review.is_some_and(|at| now < at) {
            return None;
        }
        let later = |at: &Mono| *at > now;
        self.limits_paused_until = self.limits_paused_until.filter(later);
        self.ask_again_at = self.ask_again_at.filter(later);
        let hours_and_time = self.hours.as_ref().zip(store_now);
        let stretch = hours_and_time.map(|(hours, at)| hours.stretch(at));
        let changes = self.changes(stretch, store_now, in_flight, now);
        let sends_now = if self.hours.is_some() && stretch.is_none() {
            self.sends
        } else {
            self.decide(stretch, changes)
        };
        self.next_review = self.after_review(changes, store_now, now);
        let sends_before = std::mem::replace(&mut self.sends, sends_now);
        let hours = self.note_hours(stretch);
        (sends_before != sends_now || hours.is_some()).then_some(GateChange {
            was: sends_before,
            is: sends_now,
            hours,
        })
    }

    fn changes(
        &self,
        stretch: Option<Stretch>,
        store_now: Option<StoreTime>,
        in_flight: u64,
        now: Mono,
    ) -> Changes {
        let by_own_clock = |at: StoreTime| store_now.map(|store_now| now + at.since(store_now));
        let paused = match self.pause {
            RoutePause::None => None,
            RoutePause::Unknown => Some(Mono::NEVER),
            RoutePause::Until(until) => Some(by_own_clock(until).unwrap_or(Mono::NEVER)),
        };
        let breaker = self.breaker.as_ref();
        Changes {
            hours: stretch
                .and_then(|stretch| stretch.until)
                .and_then(by_own_clock),
            paused: paused.filter(|until| *until > now),
            away: breaker.and_then(|breaker| breaker.blocked(in_flight, now)),
        }
    }

    /// When to review it after a review at `now`, if nothing happens before; `None`: at once.
    fn after_review(
        &self,
        changes: Changes,
        store_now: Option<StoreTime>,
        now: Mono,
    ) -> Option<Mono> {
        let by_store = self.hours.is_some() || changes.paused.is_some();
        if by_store && store_now.is_none() {
            // The store's time is not known yet: it may be known at the next review.
            return None;
        }
        let latest = if by_store {
            now + REVIEW_AGAIN
        } else {
            Mono::NEVER
        };
        let Changes {
            hours,
            paused,
            away,
        } = changes;
        let due = self.breaker.as_ref().and_then(Breaker::due);
        let times = [
            hours,
            paused,
            away,
            self.limits_paused_until,
            self.ask_again_at,
            due,
        ];
        let to_come = times.into_iter().flatten().filter(|at| *at > now);
        Some(to_come.fold(latest, Mono::min))
    }

    /// Keeps what the hours say, if that is known. Returns it if they began or ended, or are known for the first
    /// time.
    fn note_hours(&mut self, stretch: Option<Stretch>) -> Option<Stretch> {
        let is_open = |stretch: Stretch| stretch.open;
        let turned = stretch.map(is_open) != self.stretch.map(is_open);
        self.stretch = stretch.or(self.stretch);
        stretch.filter(|_| turned)
    }

    fn decide(&self, stretch: Option<Stretch>, changes: Changes) -> SendRule {
        let shut = stretch.is_some_and(|stretch| !stretch.open);
        let hours = changes.hours.filter(|_| shut);
        let closed = hours
            .max(self.limits_paused_until)
            .max(changes.paused)
            .max(changes.away);
        let why = if changes.away.is_some() {
            ShutReason::Away
        } else if changes.paused.is_some() {
            ShutReason::Paused
        } else if closed == hours {
            ShutReason::Hours
        } else {
            ShutReason::Limit
        };
        match (closed, self.ask_again_at) {
            (Some(closed), spent) => {
                SendRule::Nothing(spent.map_or(closed, |at| at.max(closed)), why)
            }
            (None, Some(opening)) => SendRule::OnlyPermitted {
                opening,
                end: changes.hours,
            },
            (None, None) => SendRule::All(changes.hours),
        }
    }

    /// When to [review](Self::review) it, if nothing happens before; `None`: at once.
    #[must_use]
    pub const fn next_review(&self) -> Option<Mono> {
        self.next_review
    }
}

#[cfg(test)]
mod tests;
