//! Messages that die in a row, because they cannot be sent.
//!
//! Problem: a wrong template makes a dead letter of each message as fast as they come, and a backlog is gone in
//! seconds. So after `most` dead letters in a row, messages that cannot be sent are set aside for [`ASIDE`], and come
//! back. Messages that can be sent pass, because one publisher's wrong messages must not hold up the others; the first
//! of them ends this, and wrong messages die again. If all messages are wrong, setting them aside would only move a
//! backlog in a circle, so within [`ASIDE`] a replica sets aside no more than `MOST_ASIDE` messages, and then takes
//! none. Each replica decides for itself.
//! Rejections by the downstream are counted in `breaker`, because calls end much later than messages are read.

use std::num::NonZeroU32;
use std::time::Duration;

use super::time::Mono;

/// For this long a message is set aside: one rung of the ladder, so it takes one trip.
pub const ASIDE: Duration = Duration::from_secs(64);
/// In that time a replica sets aside about this many: 150 a second. A thousand wrong messages before a right one
/// cost a few seconds, and a million wrong ones no more of the broker than that.
const MOST_ASIDE: u32 = 10_000;

/// Whether a message that cannot be sent dies now, or is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnfit {
    /// The message is a dead letter.
    Dies,
    /// The message comes back after [`ASIDE`].
    IsSetAside,
}

/// Messages of one route that cannot be sent, as one replica saw them.
#[derive(Clone, Copy, Debug)]
pub struct UnfitRun {
    /// None dies after this many in a row; `None`: all die.
    most: Option<NonZeroU32>,
    in_a_row: u32,
    /// When the present interval of [`ASIDE`] began, and how many messages were set aside in it.
    interval_began: Option<Mono>,
    aside: u32,
}

impl UnfitRun {
    /// Nothing died yet.
    #[must_use]
    pub const fn new(most: Option<NonZeroU32>) -> Self {
        Self {
            most,
            in_a_row: 0,
            interval_began: None,
            aside: 0,
        }
    }

    /// How many died since one could be sent.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Whether so many died in a row that none dies.
    #[must_use]
    pub fn sets_aside(&self) -> bool {
        self.most.is_some_and(|most| self.in_a_row >= most.get())
    }

    /// A message cannot be sent.
    pub fn record_unfit(&mut self, now: Mono) -> WhenUnfit {
        if !self.sets_aside() {
            self.in_a_row = self.in_a_row.saturating_add(1);
            return WhenUnfit::Dies;
        }
        if self
            .interval_began
            .is_none_or(|began| now.since(began) >= ASIDE)
        {
            self.interval_began = Some(now);
            self.aside = 0;
        }
        self.aside = self.aside.saturating_add(1);
        WhenUnfit::IsSetAside
    }

    /// A message can be sent.
    pub const fn record_fit(&mut self) {
        self.in_a_row = 0;
    }

    /// For how long no message is taken, because this many were set aside already; `None`: they are taken.
    #[must_use]
    pub fn pause_left(&self, now: Mono) -> Option<Duration> {
        let interval_left = ASIDE.checked_sub(now.since(self.interval_began?))?;
        let is_full = self.sets_aside() && self.aside >= MOST_ASIDE;
        (is_full && !interval_left.is_zero()).then_some(interval_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Mono = Mono::from_micros(7_000_000);

    fn setting_aside(most: u32) -> UnfitRun {
        let mut dying = UnfitRun::new(NonZeroU32::new(most));
        for _ in 0..most {
            assert_eq!(dying.record_unfit(START), WhenUnfit::Dies);
        }
        dying
    }

    #[test]
    fn after_so_many_in_a_row_none_dies_until_one_can_be_sent() {
        let mut dying = UnfitRun::new(NonZeroU32::new(3));
        for is_fit in [false, false, true, false, false] {
            assert!(!dying.sets_aside());
            if is_fit {
                dying.record_fit();
            } else {
                assert_eq!(dying.record_unfit(START), WhenUnfit::Dies);
            }
        }
        assert_eq!(dying.record_unfit(START), WhenUnfit::Dies);
        for _ in 0..50 {
            assert!(dying.sets_aside());
            assert_eq!(dying.record_unfit(START), WhenUnfit::IsSetAside);
            assert_eq!((dying.in_a_row(), dying.pause_left(START)), (3, None));
        }
        dying.record_fit();
        assert!(!dying.sets_aside());
        assert_eq!(dying.record_unfit(START), WhenUnfit::Dies);
    }

    #[test]
    fn a_backlog_of_wrong_messages_does_not_move_in_a_circle() {
        let mut dying = setting_aside(3);
        let (mut now, mut aside) = (START, 0_u64);
        let end = START + ASIDE * 10;
        while now < end {
            match dying.pause_left(now) {
                Some(rest) => now = now + rest,
                None => {
                    assert_eq!(dying.record_unfit(now), WhenUnfit::IsSetAside);
                    aside += 1;
                    now = now + Duration::from_micros(200);
                }
            }
        }
        let most = u64::from(MOST_ASIDE) * 10;
        assert!(aside <= most, "{aside} of {most}");
        // It goes on in each minute: those behind have their turn.
        assert!(aside >= most - u64::from(MOST_ASIDE), "{aside} of {most}");
    }

    #[test]
    fn one_that_can_be_sent_ends_a_rest_and_the_bound_stays() {
        let mut dying = setting_aside(1);
        for _ in 0..MOST_ASIDE {
            assert_eq!(dying.record_unfit(START), WhenUnfit::IsSetAside);
        }
        let later = START + Duration::from_secs(4);
        assert_eq!(
            dying.pause_left(later),
            Some(ASIDE - Duration::from_secs(4))
        );
        dying.record_fit();
        assert_eq!(dying.pause_left(later), None);
        assert_eq!(dying.record_unfit(later), WhenUnfit::Dies);
        assert_eq!(
            dying.pause_left(later),
            Some(ASIDE - Duration::from_secs(4))
        );
        assert_eq!(dying.pause_left(START + ASIDE), None);
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut dying = UnfitRun::new(None);
        (0..1000).for_each(|_| assert_eq!(dying.record_unfit(START), WhenUnfit::Dies));
        assert_eq!((dying.pause_left(START), dying.sets_aside()), (None, false));
    }
}
