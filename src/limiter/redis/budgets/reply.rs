//! The answer of `lua/admit.lua`, number by number.

use std::sync::Arc;
use std::time::Duration;

use super::Asking;
use crate::core::budget::Usage;
use crate::core::budget::epoch::DOUBT;
use crate::core::time::StoreTime;
use crate::ports::budget::{Blind, Booking, Claim, Epoch, Pass, Ruling, Rulings};

/// The numbers of an answer, in the order that `lua/admit.lua` names.
pub(super) struct Reply(pub(super) std::vec::IntoIter<u64>);

impl Reply {
    fn time(&mut self) -> Option<StoreTime> {
        self.0.next().map(StoreTime::from_micros)
    }

    fn place(&mut self) -> Option<usize> {
        usize::try_from(self.0.next()?).ok()
    }

    fn usage(&mut self) -> Option<Usage> {
        Some(Usage {
            limit: self.0.next()?,
            remaining: self.0.next()?,
            retry_after: Duration::from_micros(self.0.next()?),
            reset_after: Duration::from_micros(self.0.next()?),
        })
    }

    pub(super) fn rulings(
        mut self,
        names: Vec<Arc<str>>,
        asking: &[Asking<'_>],
    ) -> Option<Rulings> {
        let now = self.time()?;
        let epoch = Epoch(self.0.next()?);
        let lost = self.0.next()? > 0;
        let since = self.time()?;
        let doubted = now < since + Duration::from_micros(DOUBT);
        let mut changed = Vec::new();
        for name in names {
            changed.push((name, Epoch(self.0.next()?)));
        }
        changed.retain(|(_, own)| *own != epoch);
        let of = |claim: &Claim| {
            let own = changed.iter().find(|(name, _)| *name == claim.limit.name);
            own.map_or(epoch, |(_, own)| *own)
        };
        let mut rulings = Vec::with_capacity(asking.len());
        for petition in asking {
            let epochs: Vec<Epoch> = petition.claims.iter().map(|(_, c)| of(c)).collect();
            rulings.push(self.ruling(&epochs)?);
        }
        Some(Rulings {
            now,
            epoch,
            changed,
            blind: (lost || doubted).then_some(Blind { since, lost }),
            rulings,
        })
    }

    /// One ruling, given the epoch of each of its claims.
    fn ruling(&mut self, epochs: &[Epoch]) -> Option<Ruling> {
        let claims = epochs.len();
        Some(match self.0.next()? {
            0 => {
                let each = (0..claims).map(|_| {
                    Some(Pass {
                        usage: self.usage()?,
                        at: self.time()?,
                        in_doubt: self.0.next()? > 0,
                    })
                });
                let passes = each.collect::<Option<_>>()?;
                Ruling::Granted { passes }
            }
            1 => {
                let until = self.time()?;
                let by = self.place().filter(|by| *by < claims)?;
                let usage = self.usage()?;
                let booked = (0..self.0.next()?)
                    .map(|_| {
                        let index = self.place()?;
                        let epoch = *epochs.get(index)?;
                        let at = self.time()?;
                        Some((index, Booking { at, epoch }))
                    })
                    .collect::<Option<_>>()?;
                Ruling::Denied {
                    until,
                    by,
                    booked,
                    usage,
                }
            }
            2 => Ruling::Never {
                by: self.place().filter(|by| *by < claims)?,
                usage: self.usage()?,
            },
            3 => Ruling::Outdated {
                by: self.place().filter(|by| *by < claims)?,
            },
            4 => Ruling::Paused {
                until: self.time()?,
                by: self.place().filter(|by| *by < claims)?,
            },
            5 => Ruling::Late {
                until: self.time()?,
                by: self.place().filter(|by| *by < claims)?,
            },
            _ => return None,
        })
    }
}
