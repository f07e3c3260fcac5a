//! When the store of keyed limits is asked, and how many grants are wanted.
//!
//! A permit counts from the moment of the decision, and is valid for a part of the headroom. If the
//! question is too early, permits run out before their slots come; if it is too late, slots pass while the
//! answer is on its way; if there is one for each message, the store is asked all the time. So a question
//! leaves when the first slot without a message is one *lead* away: a slow round trip and a little. It
//! wants grants for all slots at which a permit would still be valid. It names more candidates than grants
//! are wanted: those that are denied then cost no slot, and the surplus takes nothing.
//!
//! The next question does not wait for the answer to the last one: with a store far away, the permits
//! would be old before they came. A few questions are in flight at a time, some distance apart.
//!
//! However many slots are near, the number of grants that are wanted at a time has a bound, which works like the
//! congestion window of TCP: it grows by a sixteenth and one after each question that got all that it wanted, and is
//! halved after permits ran out. Otherwise a machine that is slower than its slots would refund most of what it asks
//! for. A route without a paced limit has no slots; the same bound applies, beginning with a few.
//!
//! No I/O and no clock: `now` goes in.

use std::time::Duration;

use crate::backoff::{Backoff, Failures};
use crate::distance::{MARGIN, min_permit_validity};
use crate::jitter::Jitter;
use crate::pacing::Pacing;
use crate::time::{ClockMap, Mono, StoreTime, smoothed};

/// Questions that may be under way at a time.
const IN_FLIGHT_MAX: u32 = 8;
/// The least time between two questions, so that messages share one. If a round trip is shorter, that is the least
/// time.
const GAP: Duration = Duration::from_millis(1);
/// And at least this part of a round trip.
const GAP_PART: u32 = 8;
/// How often a scheduler asks the store of keyed limits at least, so that its mapping of the store's clock stays good.
/// (In Redis a loss is noticed by a beat of the store's own, `limits::generation::BEAT`.)
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// The most candidates in one question: a script must not block the store for long.
pub const BATCH_MAX: usize = 256;
/// Candidates beyond the number that was lately needed for the grants.
const SURPLUS: usize = 4;
/// The most candidates for one wanted grant.
const CANDIDATES_MAX: usize = 16;
/// The most grants that are wanted at a time.
const MOST_WANTED: u64 = BATCH_MAX as u64;
/// Grants that a replica wants first, where nothing paces it.
const FIRST_WANTED: u64 = 8;
/// Pauses after a store that did not answer.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// A mapping of the store's clock that is wrong by no more is good enough.
const GOOD_CLOCK_ERROR: Duration = Duration::from_millis(1);
/// Shares are counted in parts of this.
const SHARE_SCALE: u64 = 1024;
/// Added to a wait for a key: a question that arrives a moment too early is denied once more.
const ARRIVAL_MARGIN: Duration = Duration::from_micros(200);
/// A slow round trip is the mean plus this many times the deviation, as in TCP's timeout (RFC 6298).
const SLOW_DEVIATIONS: u32 = 4;

/// How many candidates of a question were looked at, and how many of them were granted.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerCounts {
    /// Candidates that were looked at.
    pub looked_at: u64,
    /// Candidates that were granted.
    pub granted: u64,
    /// The slots that granted candidates take.
    pub slots: u64,
}

/// A question that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentQuestion {
    /// When it left.
    pub at: Mono,
    /// How many grants it wants, in slots.
    pub wanted: u64,
}

/// The questions of one scheduler.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The shortest time for which a permit is valid.
    permit_validity: Duration,
    /// For how long the store is asked for its time only, before messages are asked for.
    startup_listen: Duration,
    jitter: Jitter,
    clock: ClockMap,
    /// How many questions are in flight.
    in_flight: u32,
    /// The grants that the questions in flight want.
    wanted: u64,
    /// When the last question left.
    last_sent: Option<Mono>,
    /// When the first answer came.
    first_answered: Option<Mono>,
    /// When the last answer came.
    last_answered: Option<Mono>,
    failures: Failures,
    /// Smoothed round trip.
    trip: Duration,
    /// The deviation of round trips from that, smoothed.
    varies: Duration,
    /// Smoothed share of the candidates looked at that were granted, of [`SHARE_SCALE`].
    granted_share: u64,
    /// Grants wanted at a time, at most.
    most_at_once: u64,
    /// Permits ran out since the last question.
    has_run_out: bool,
}

impl Questions {
    /// For permits that are valid for `permit_validity` or longer, and slots of `pacing`.
    #[must_use]
    pub fn of(pacing: &Pacing, permit_validity: Duration, jitter: Jitter) -> Self {
        let most_at_once = if pacing.is_paced() {
            MOST_WANTED
        } else {
            FIRST_WANTED
        };
        Self {
            permit_validity,
            startup_listen: Duration::ZERO,
            jitter,
            clock: ClockMap::default(),
            in_flight: 0,
            wanted: 0,
            last_sent: None,
            first_answered: None,
            last_answered: None,
            failures: Failures::new(BACKOFF),
            trip: Duration::ZERO,
            varies: Duration::ZERO,
            granted_share: SHARE_SCALE,
            most_at_once,
            has_run_out: false,
        }
    }

    /// Until `length` after the first answer, the store is asked only for its time, and about no message.
    #[must_use]
    pub fn with_startup_listen(self, length: Duration) -> Self {
        Self {
            startup_listen: length,
            ..self
        }
    }

    /// No other replica asks the store: this one knows all that is known of it.
    pub const fn skip_startup_listen(&mut self) {
        self.startup_listen = Duration::ZERO;
    }

    /// From now on permits are valid for this long or longer: policies were replaced.
    pub const fn set_permit_validity(&mut self, permit_validity: Duration) {
        self.permit_validity = permit_validity;
    }

    /// Whether the store was asked for long enough to take messages.
    #[must_use]
    pub fn may_begin(&self, now: Mono) -> bool {
        let first = self.first_answered;
        first.is_some_and(|first| now.since(first) >= self.startup_listen)
    }

    /// The mapping to the store's clock.
    #[must_use]
    pub const fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// Since when the store has not answered, if it does not.
    #[must_use]
    pub const fn failing_since(&self) -> Option<Mono> {
        self.failures.since()
    }

    /// From when on the store may be asked. `None`: not before a question is answered.
    #[must_use]
    pub fn open_from(&self) -> Option<Mono> {
        // A store that did not answer is tried by one question at a time.
        let most = match self.failures.since() {
            None if self.last_answered.is_some() => IN_FLIGHT_MAX,
            _ => 1,
        };
        let gap = GAP.min(self.trip).max(self.trip / GAP_PART);
        let apart = self.last_sent.map_or(Mono::default(), |sent| sent + gap);
        (self.in_flight < most).then(|| self.failures.retry_at().max(apart))
    }

    /// Until when messages that need a permit let those pass that need none: the store does not answer. `None`: they
    /// may be asked for now.
    #[must_use]
    pub(super) fn unanswered_until(&self, now: Mono) -> Option<Mono> {
        self.failures.since()?;
        match self.open_from() {
            Some(open) => (open > now).then_some(open),
            // One question tries it.
            None => Some(now + BACKOFF.base),
        }
    }

    /// When the store must be asked although no message needs it, even if only for its time. `None` while
    /// it is being asked.
    #[must_use]
    pub fn next_heartbeat(&self) -> Option<Mono> {
        let open = self.open_from().filter(|_| self.in_flight == 0)?;
        let due = self
            .last_answered
            .map_or(Mono::default(), |at| at + HEARTBEAT);
        Some(due.max(open))
    }

    /// How long before its slot a message should be asked for, at the latest.
    #[must_use]
    pub fn lead(&self) -> Duration {
        // A permit that is asked for any earlier has run out when its slot comes.
        self.needs()
            .min(self.permit_validity.saturating_sub(MARGIN))
    }

    /// How far ahead of their slots messages may be asked for: the rest of a permit is for
    /// lateness.
    #[must_use]
    pub fn reach(&self) -> Duration {
        let lead = self.lead();
        lead + self.permit_validity.saturating_sub(lead) / 2
    }

    /// By how much a question may arrive earlier than the last one, counted from when each left.
    #[must_use]
    pub fn arrival_jitter(&self) -> Duration {
        self.varies + ARRIVAL_MARGIN
    }

    /// A slot that comes sooner than this is of no use to a message that is asked for now: its answer comes
    /// later. A little less than a round trip, because a slot may be used late and the question may leave
    /// late.
    #[must_use]
    pub fn earliest_useful(&self) -> Duration {
        self.trip.min(self.lead()).saturating_sub(MARGIN)
    }

    /// The shortest time for which permits must be valid, with the store as far away as it is.
    #[must_use]
    pub fn needs(&self) -> Duration {
        min_permit_validity(self.slow_trip())
    }

    /// A slow round trip: the mean and four times the deviation. Zero before the first.
    #[must_use]
    pub fn slow_trip(&self) -> Duration {
        self.trip + self.varies * SLOW_DEVIATIONS
    }

    /// Grants that may be wanted beside the grants that are wanted already.
    #[must_use]
    pub const fn may_want(&self) -> u64 {
        self.most_at_once.saturating_sub(self.wanted)
    }

    /// Grants that are wanted by the questions in flight.
    #[must_use]
    pub const fn wanted_in_flight(&self) -> u64 {
        self.wanted
    }

    /// How many candidates to name so that as many messages are granted as are wanted; [`BATCH_MAX`] at most.
    #[must_use]
    pub fn candidates(&self, wanted: u64) -> usize {
        let wanted = usize::try_from(wanted).unwrap_or(BATCH_MAX);
        let whole = usize::try_from(SHARE_SCALE).unwrap_or(usize::MAX);
        let granted = usize::try_from(self.granted_share).unwrap_or(1).max(1);
        let for_all = (wanted * whole).div_ceil(granted);
        // Where hardly any is denied, more candidates would only be sent in vain.
        let surplus = if granted >= whole - whole / 32 {
            for_all / 8
        } else {
            for_all
        };
        (for_all + surplus + SURPLUS)
            .min(wanted * CANDIDATES_MAX + SURPLUS)
            .min(BATCH_MAX)
    }

    /// A question for this many grants was sent.
    pub fn note_sent(&mut self, wanted: u64, now: Mono) {
        if std::mem::take(&mut self.has_run_out) {
            self.most_at_once = (self.most_at_once / 2).max(1);
        }
        self.in_flight += 1;
        self.wanted += wanted;
        self.last_sent = Some(now);
    }

    /// A question was answered. Returns since when the permits count, at the earliest.
    pub fn note_answer(
        &mut self,
        SentQuestion { at: sent, wanted }: SentQuestion,
        decided: StoreTime,
        counts: AnswerCounts,
        now: Mono,
    ) -> Mono {
        self.ended(wanted);
        // The first answer included the loading of its script: it counts only until the second.
        if self.last_answered == self.first_answered {
            (self.trip, self.varies) = (Duration::ZERO, Duration::ZERO);
        }
        self.last_answered = Some(now);
        self.first_answered.get_or_insert(now);
        self.failures.succeeded();
        let trip = now.since(sent);
        self.trip = smoothed(self.trip, trip);
        let apart = trip.min(self.trip * SLOW_DEVIATIONS).abs_diff(self.trip);
        self.varies = (self.varies * 3 + apart) / 4;
        if let Some(share) = (counts.granted * SHARE_SCALE).checked_div(counts.looked_at) {
            self.granted_share = (self.granted_share * 3 + share) / 4;
        }
        if wanted > 0 && counts.slots >= wanted {
            self.most_at_once = (self.most_at_once + self.most_at_once / 16 + 1).min(MOST_WANTED);
        }
        let fine = GOOD_CLOCK_ERROR.min(self.permit_validity / 4);
        self.clock.learn_or_restart(sent, decided, now, fine);
        // It was decided after the question was sent, and not before the time of the mapping.
        let error = self.clock.error(now).unwrap_or_default();
        let mapped = self.clock.to_mono(decided).map(|at| at - error);
        mapped.unwrap_or(sent).clamp(sent, now)
    }

    fn ended(&mut self, wanted: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.wanted = self.wanted.saturating_sub(wanted);
    }

    /// Permits ran out before they were used.
    pub const fn note_run_out(&mut self) {
        self.has_run_out = true;
    }

    /// A question for this many grants was not answered. It may have been decided.
    pub fn note_failure(&mut self, wanted: u64, now: Mono) {
        self.ended(wanted);
        self.failures.failed(now, self.jitter.fraction());
    }

    /// The reason why the store did not decide may be over: it may be asked at once.
    pub fn retry_now(&mut self, now: Mono) {
        self.failures.retry_at_latest(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet 3 ms away reported for minutes that Redis was 99 ms away.
    #[test]
    fn the_round_trip_that_loads_the_script_is_forgotten_with_the_next() {
        let permit_validity = Duration::from_millis(26);
        let mut questions = Questions::of(&Pacing::unpaced(), permit_validity, Jitter::new(1));
        let answered = |questions: &mut Questions, at: u64, trip: u64| {
            let (sent, now) = (Mono::from_micros(at), Mono::from_micros(at + trip));
            questions.note_sent(0, sent);
            let decided = StoreTime::from_micros(1_795_228_193_000_000 + at);
            let sent = SentQuestion {
                at: sent,
                wanted: 0,
            };
            questions.note_answer(sent, decided, AnswerCounts::default(), now);
        };
        answered(&mut questions, 1_000_000, 200_000);
        assert!(questions.needs() > permit_validity);
        answered(&mut questions, 2_000_000, 7_000);
        assert_eq!(questions.slow_trip(), Duration::from_millis(7));
        answered(&mut questions, 3_000_000, 7_000);
        assert!(questions.needs() <= permit_validity);
    }

    /// Found by the simulation: the old mapping was kept, and after a step forward by a day each
    /// denied message waited for a day.
    #[test]
    fn after_a_step_of_the_stores_clock_its_times_are_mapped_anew() {
        const EPOCH: u64 = 1_795_228_193_000_012;
        const DAY: u64 = 86_400_000_000;
        let permit_validity = Duration::from_millis(8);
        let mut questions = Questions::of(&Pacing::unpaced(), permit_validity, Jitter::new(1));
        let mut since = Mono::default();
        for (second, ahead) in [(1, 0), (2, 0), (3, DAY)] {
            let at = second * 1_000_000;
            questions.note_sent(0, Mono::from_micros(at));
            let decided = StoreTime::from_micros(EPOCH + at + 100 + ahead);
            let sent = SentQuestion {
                at: Mono::from_micros(at),
                wanted: 0,
            };
            since = questions.note_answer(
                sent,
                decided,
                AnswerCounts::default(),
                Mono::from_micros(at + 200),
            );
        }
        // A permit is no younger than its decision.
        assert!(since <= Mono::from_micros(3_000_100), "{since:?}");
        let later = StoreTime::from_micros(EPOCH + DAY + 5_000_000);
        let mapped = questions.clock().to_mono(later).unwrap();
        assert!(mapped.as_micros().abs_diff(5_000_000) <= 100, "{mapped:?}");
    }
}
