//! The replies of `lua/admit.lua` and `lua/look.lua`, number by number.

use sluiced_core::limits::admission::{AfterGrant, Decision};
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::limits::once::NotCalled;
use sluiced_core::limits::store_watch::AnswerHead;
use sluiced_core::limits::{Fit, Lacks, Room};
use sluiced_core::time::StoreTime;

/// The numbers of an answer, in the order that the script names.
pub(super) struct ScriptReply(std::vec::IntoIter<u64>);

impl ScriptReply {
    pub(super) fn new(numbers: Vec<u64>) -> Self {
        Self(numbers.into_iter())
    }

    /// The answer to candidates with this many charges each, and how many other replicas ask; `None` if the
    /// reply has another form.
    pub(super) fn answer(
        mut self,
        charges: impl Iterator<Item = usize>,
    ) -> Option<(AnswerHead, u64, Vec<Decision>)> {
        let entered = AnswerHead {
            now: self.time()?,
            number: self.0.next()?,
            writes: self.0.next()?,
        };
        let others = self.0.next()?;
        let decisions = charges
            .map(|count| self.decision(count))
            .collect::<Option<_>>()?;
        self.0
            .next()
            .is_none()
            .then_some((entered, others, decisions))
    }

    fn decision(&mut self, charges: usize) -> Option<Decision> {
        Some(match self.0.next()? {
            0 => {
                let after_each = (0..charges).map(|_| {
                    Some(AfterGrant {
                        room: self.room()?,
                        next: fit(self.0.next()?),
                    })
                });
                let after = after_each.collect::<Option<_>>()?;
                Decision::Granted { after }
            }
            1 => Decision::Denied {
                by: self.by(charges)?,
                fits: fit(self.0.next()?),
                until: self.time()?,
                lacks: match self.0.next()? {
                    0 => Lacks::Room,
                    1 => Lacks::Debt,
                    2 => Lacks::Quota,
                    _ => return None,
                },
                room: self.room()?,
            },
            2 => Decision::TooCostly {
                by: self.by(charges)?,
                most: self.0.next()?,
            },
            3 => Decision::Outdated {
                by: self.by(charges)?,
            },
            4 => Decision::Closed {
                by: self.by(charges)?,
                until: self.time()?,
                why: closing(self.0.next()?)?,
            },
            5 => Decision::NotAsked,
            6 => Decision::NotCalled {
                by: self.by(charges)?,
                how: match self.0.next()? {
                    0 => NotCalled::Done,
                    1 => NotCalled::Unknown,
                    _ => return None,
                },
            },
            _ => return None,
        })
    }

    fn time(&mut self) -> Option<StoreTime> {
        self.0.next().map(StoreTime::from_micros)
    }

    fn by(&mut self, charges: usize) -> Option<usize> {
        let by = usize::try_from(self.0.next()?).ok()?;
        (by < charges).then_some(by)
    }

    fn room(&mut self) -> Option<Room> {
        Some(Room {
            remaining: self.0.next()?,
            reset_at: StoreTime::from_micros(self.0.next()?),
        })
    }
}

pub(super) const fn fit(number: u64) -> Fit {
    match number {
        0 => Fit::Now,
        1 => Fit::Full,
        at => Fit::At(StoreTime::from_micros(at)),
    }
}

pub(super) const fn closing(number: u64) -> Option<ClosedReason> {
    match number {
        0 => Some(ClosedReason::Paused),
        1 => Some(ClosedReason::Guard),
        2 => Some(ClosedReason::Lost),
        _ => None,
    }
}
