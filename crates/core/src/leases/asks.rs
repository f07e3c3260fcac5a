//! When a replica asks the store for slots, and for how many. What follows from its answers is in `answers`.

use std::time::Duration;

use super::{KnownGeneration, LeaseHolder, SentAsk};
use crate::schedule::{Ask, ClockView};
use crate::time::Mono;

/// Two asks are at least this far apart, so that a stream of single messages shares round trips.
const ASK_GAP: Duration = Duration::from_millis(2);
/// After a turn has come by our clock, wait at least this much longer, so that it has come by the
/// store's.
const TURN_MARGIN: Duration = Duration::from_micros(200);
/// Without other asks the clock mapping is checked this often, so that drift stays negligible.
const CHECK_CLOCK: Duration = Duration::from_secs(10);
/// During a wait that is longer than [`LONG_WAIT`], the replica asks this often whether it still has to wait: an
/// operator may have ended the wait, and the notice may be lost.
const CHECK_WAIT: Duration = Duration::from_millis(800);
/// Where many replicas take turns at a fast limit, each of them waits less than this.
const LONG_WAIT: Duration = Duration::from_secs(4);
/// A mapping that is too rough is improved by asks so far apart.
const MAPPING_GAP: Duration = Duration::from_millis(10);

/// What the next message needs of its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHint {
    /// How many it takes. They must lie close together, and slots of other replicas may lie between the slots leased
    /// before and the slots leased now. So all of its slots are asked for again, even if only a few are missing.
    pub slots: u64,
    /// How long before the last of them its keyed limits must be asked.
    pub ahead: Duration,
    /// The costs of the next messages without slots, in their order; empty if they are not known.
    pub costs: Vec<u64>,
}

impl LeaseHint {
    /// One slot, and nothing before it.
    pub const PLAIN: Self = Self {
        slots: 1,
        ahead: Duration::ZERO,
        costs: Vec::new(),
    };

    /// The sums of the first costs, up to this many wanted slots; at least that of the first message.
    fn sums(&self, want: u64, max_cost: u64) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::new();
        for cost in self.costs.iter().map(|cost| cost.min(&max_cost)) {
            match sums.last() {
                None if want > 0 => sums.push(*cost),
                Some(sum) if sum + cost <= want => sums.push(sum + cost),
                _ => break,
            }
        }
        sums
    }
}

impl LeaseHolder {
    /// The ask to send now, if it is time for one. `demand` is what all messages take that could be sent if slots
    /// came: ready ones, asked and permitted ones, and the first of each key that opens soon.
    pub fn ask(&mut self, now: Mono, demand: u64, head: &LeaseHint) -> Option<Ask> {
        if self.next_ask(demand).is_none_or(|at| at > now) {
            return None;
        }
        let clock_view = self.clock_view(now);
        // An ask before the turn, or before the clock is trusted, only reads the clock.
        let lacking = match clock_view {
            ClockView::Steady { .. } if now >= self.next_turn() && self.outdated.is_none() => {
                match demand.saturating_sub(self.leased()) {
                    0 => 0,
                    lacking => lacking.max(head.slots),
                }
            }
            _ => 0,
        };
        let sums = match self.pace.max_cost() {
            1 => Vec::new(),
            // Enough for any message, because slots for a part of one cannot be used.
            max_cost if head.costs.is_empty() => vec![max_cost.min(lacking)],
            // None costs more, unless the rate became lower than its cost meanwhile.
            max_cost => head.sums(lacking, max_cost),
        };
        let want = lacking.max(sums.first().copied().unwrap_or_default());
        let ask = Ask {
            want,
            sums,
            turn: self.turn,
            clock_view,
            lead: self.asks.trip + head.ahead,
        };
        self.asks.in_flight = Some(SentAsk {
            sent: now,
            want,
            pace: self.pace,
            policy_version: self.policy_version,
        });
        self.asks.last = Some(now);
        Some(ask)
    }

    fn clock_view(&self, now: Mono) -> ClockView {
        let trusted = self.clock.held_for(self.pace.distrust(), now) && !self.is_mapping_rough(now);
        match (self.generation, self.clock.to_store(now)) {
            (KnownGeneration::Stepped(generation), Some(predicted)) => ClockView::Stepped {
                generation,
                predicted,
            },
            (KnownGeneration::Steady(generation), Some(predicted)) if trusted => {
                ClockView::Steady {
                    generation,
                    predicted,
                }
            }
            _ => ClockView::Unproven,
        }
    }

    /// When [`LeaseHolder::ask`] should be called next. `None` while an ask is in flight.
    #[must_use]
    pub fn next_ask(&self, demand: u64) -> Option<Mono> {
        if self.asks.in_flight.is_some() {
            return None;
        }
        let Some(checked) = self.clock.checked_at() else {
            return Some(self.asks.failures.retry_at());
        };
        let clock_check = checked + CHECK_CLOCK;
        let routine = self
            .asks
            .due
            .map_or(clock_check, |due| due.min(clock_check));
        let at = match self.asks.failures.since() {
            Some(_) => self.asks.failures.retry_at(),
            None if matches!(self.generation, KnownGeneration::Stepped(_)) => Mono::default(),
            None if !self.slots.is_sure() => Mono::default(),
            None if self.is_mapping_rough(checked) => checked + MAPPING_GAP,
            None if self.outdated.is_some() => self.next_check().min(routine),
            None if demand > self.leased() => self.next_turn().min(routine).min(self.next_check()),
            None if self.shut_until.is_some() => self.next_check().min(routine),
            None => routine,
        };
        Some(self.asks.last.map_or(at, |last| at.max(last + ASK_GAP)))
    }

    /// When to ask whether a wait still applies. A longer one is checked every [`CHECK_WAIT`]; a shorter one, as in
    /// turns among many replicas, only after [`LONG_WAIT`].
    fn next_check(&self) -> Mono {
        let last = self.asks.last.unwrap_or_default();
        let long = self.outdated.is_some() || self.next_turn().since(last) > LONG_WAIT;
        last + if long { CHECK_WAIT } else { LONG_WAIT }
    }

    /// When slots may be asked for: at our turn, at the end of a freeze, once the clock is trusted.
    fn next_turn(&self) -> Mono {
        let horizon = self.pace.horizon();
        let turn = self.turn.and_then(|turn| self.clock.to_mono(turn.at));
        let shut = self.shut_until.and_then(|until| self.clock.to_mono(until));
        let at = match (turn, shut) {
            (Some(turn), _) => turn + self.turn_margin(),
            // Without a turn: shortly before the end of the freeze, each replica at a moment of its own.
            (None, Some(end)) => end - self.jitter.of(horizon / 2),
            (None, None) => Mono::default(),
        };
        at.max(self.clock.trusted_from(self.pace.distrust()))
    }

    /// A wrong mapping must not make the replica ask before its turn.
    fn turn_margin(&self) -> Duration {
        let error = self
            .clock
            .checked_at()
            .and_then(|checked| self.clock.error(checked));
        error
            .unwrap_or_default()
            .clamp(TURN_MARGIN, self.pace.horizon().max(TURN_MARGIN * 2) / 2)
    }
}
