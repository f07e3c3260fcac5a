//! All limits of a message at once: every charge is granted, or none is.
//!
//! A request is a batch: candidates in order of preference, and how many grants are wanted, in slots. The
//! decision walks the candidates and stops at the first one that takes more slots than are still wanted; the
//! rest is not looked at. For one candidate:
//!
//! 1. Each charge fits now: granted, and each limit takes its cost. A message that fits passes,
//!    whatever else waits: a limit is never idle while a message that fits asks.
//! 2. Otherwise nothing is spent. The answer names the limit with the longest wait, and when to
//!    come back: when it fits, or at the next return of that limit if that is later and the message is
//!    sent away for the first time. The next return then moves on by the time in which the limit frees that cost.
//! 3. A message that can never fit gets an answer of its own, and so does a message that its `once` limit
//!    does not allow a call: a repeat, or one that may have been accepted.
//!
//! The **next return** of a key spreads the messages that come back over the time in which the limit has room for them:
//! they do not come back all at once, and none polls. It promises nothing, so no units are kept for it.

use std::time::Duration;

use super::cell::{Cell, Limit, LimitAccess};
use super::generation::ClosedReason;
use super::once::NotCalled;
use super::rule::NextReturn;
use super::{Fit, Lacks, Owed, Room, Ticket};
use crate::rate::Cost;
use crate::time::StoreTime;

/// How far ahead a next return lies at most.
const RETURN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// What one message takes from one limit. Each crate names limits and keys in its own way: templates name no limit
/// (its place in the route does) and have the key as a text, the store has the limit and the digest of the key,
/// [`decide`] has the limit and the number of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<L, K> {
    /// The limit, as this crate or module names it.
    pub limit: L,
    /// The key of the limit. In [`decide`]: its place in `cells`, counted from 0.
    pub key: K,
    /// Units that the message takes. More than 1 of a `once` limit never fits.
    pub cost: Cost,
}

/// One message of a request.
#[derive(Clone, Debug)]
pub struct Candidate<L, K> {
    /// At least one; each limit at most once.
    pub charges: Vec<Charge<L, K>>,
    /// The message was denied before: the answer is the time when it fits, and it moves no return.
    pub was_denied: bool,
    /// The slots that it takes: it counts for as many of the wanted grants.
    pub slots: Cost,
    /// Names its call in `concurrency` and `once` limits.
    pub ticket: Ticket,
    /// When it last became a dead letter; zero: it never was one.
    pub died: StoreTime,
    /// Other messages of its replica wait for a call to end in one of its `concurrency` limits: the replica
    /// needs a notice when one ends, even if this message is granted.
    pub others_wait: bool,
}

impl<L, K> Candidate<L, K> {
    /// This message, with other names for its limits and keys.
    #[must_use]
    pub fn renamed<'a, M, N>(
        &'a self,
        mut name: impl FnMut(&'a Charge<L, K>) -> (M, N),
    ) -> Candidate<M, N> {
        let charges = self.charges.iter().map(|charge| {
            let (limit, key) = name(charge);
            let cost = charge.cost;
            Charge { limit, key, cost }
        });
        Candidate {
            charges: charges.collect(),
            was_denied: self.was_denied,
            slots: self.slots,
            ticket: self.ticket,
            died: self.died,
            others_wait: self.others_wait,
        }
    }
}

/// A charge whose key is the number of its cell in the batch.
type CellCharge<'a> = Charge<&'a Limit<'a>, usize>;
type CellCandidate<'a> = Candidate<&'a Limit<'a>, usize>;

/// A charge that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterGrant {
    /// What the limit has left for the key.
    pub room: Room,
    /// When another unit fits.
    pub next: Fit,
}

/// The decision about one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every charge is granted, as of the answer's `now`. The call has to arrive at the downstream
    /// within the headroom of each limit from then.
    Granted {
        /// In the order of the charges.
        after: Vec<AfterGrant>,
    },
    /// Nothing was spent.
    Denied {
        /// The charge with the longest wait (an index, counted from 0).
        by: usize,
        /// When the cost fits if nothing else is taken. [`Fit::Full`]: no time is known.
        fits: Fit,
        /// When to come back; not before it fits. Zero if no time is known.
        until: StoreTime,
        /// What that charge waits for.
        lacks: Lacks,
        /// What the limit of that charge has left for its key.
        room: Room,
    },
    /// The message can never pass: it costs more than the limit `by` ever holds.
    TooCostly {
        /// The first such charge (an index).
        by: usize,
        /// The largest cost that the limit can hold, in units.
        most: u64,
    },
    /// The message is not called, because of the `once` limit `by`.
    NotCalled {
        /// The charge of that limit (an index).
        by: usize,
        /// Whether a message of the key was accepted, or that is unknown.
        how: NotCalled,
    },
    /// The store has another version of the policy of the limit `by`. Nothing was decided.
    Outdated {
        /// The first such charge (an index).
        by: usize,
    },
    /// The limit `by` grants nothing before `until`. Nothing was decided.
    Closed {
        /// The charge whose limit stays closed for longest (an index).
        by: usize,
        /// When that limit opens.
        until: StoreTime,
        /// Why it grants nothing.
        why: ClosedReason,
    },
    /// Nothing was decided about the message: it takes more slots than are still wanted, it comes after such a message,
    /// or one of its keys is known to be full.
    NotAsked,
}

/// Decides a batch: grants candidates as long as they take no more than `wanted` slots together. Returns a decision for
/// each candidate, in their order.
///
/// A caller names at most [`BATCH_MAX`](crate::scheduler::BATCH_MAX) candidates. The key of a charge is a place in
/// `cells`; charges with the same limit and key have the same cell.
///
/// # Panics
/// When the key of a charge is no place in `cells`.
pub fn decide(
    candidates: &[CellCandidate<'_>],
    cells: &mut [Cell],
    wanted: u64,
    now: StoreTime,
) -> Vec<Decision> {
    let mut granted = 0;
    let decisions = candidates.iter().map(|candidate| {
        if granted + candidate.slots.units() > wanted {
            // Its slots are not leased. Those behind it are not looked at either: they would always overtake it.
            granted = wanted;
            return Decision::NotAsked;
        }
        if candidate.charges.iter().any(|c| cells[c.key].full) {
            return Decision::NotAsked;
        }
        let decision = decide_one(candidate, cells, now);
        if let Decision::Denied {
            by,
            fits: Fit::Full,
            ..
        } = decision
        {
            cells[candidate.charges[by].key].full = true;
        }
        if matches!(decision, Decision::Granted { .. }) {
            granted += candidate.slots.units();
        }
        decision
    });
    decisions.collect()
}

fn decide_one(candidate: &CellCandidate<'_>, cells: &mut [Cell], now: StoreTime) -> Decision {
    let charges = &candidate.charges;
    if let Some(not_askable) = not_askable(charges, now) {
        return not_askable;
    }
    if let Some(by) = charges
        .iter()
        .position(|c| c.cost.units() > c.limit.rule.max_cost())
    {
        let most = charges[by].limit.rule.max_cost();
        return Decision::TooCostly { by, most };
    }
    for charge in charges {
        note(charge, &mut cells[charge.key], now);
        release_own_claim(candidate, charge, &mut cells[charge.key], now);
    }
    if let Some(decision) = not_called(charges, cells, now) {
        return decision;
    }
    let fit = |charge: &CellCharge<'_>| {
        let state = cells[charge.key].state.as_ref();
        charge.limit.rule.fit(state, now, charge.cost)
    };
    let fits: Vec<Fit> = charges.iter().map(fit).collect();
    if fits.iter().all(|fit| *fit == Fit::Now) {
        let after = charges.iter().map(|charge| {
            let cell = &mut cells[charge.key];
            take(charge, cell, candidate.ticket, now)
        });
        return Decision::Granted {
            after: after.collect(),
        };
    }
    deny(candidate, &fits, cells, now)
}

/// The decision where a limit may not be asked.
fn not_askable(charges: &[CellCharge<'_>], now: StoreTime) -> Option<Decision> {
    let outdated = |charge: &CellCharge<'_>| charge.limit.access == LimitAccess::Outdated;
    if let Some(by) = charges.iter().position(outdated) {
        return Some(Decision::Outdated { by });
    }
    let mut longest: Option<(StoreTime, usize, ClosedReason)> = None;
    for (by, charge) in charges.iter().enumerate() {
        if let LimitAccess::Closed { until, why } = charge.limit.access
            && until > now
            && longest.is_none_or(|(other, ..)| until > other)
        {
            longest = Some((until, by, why));
        }
    }
    longest.map(|(until, by, why)| Decision::Closed { by, until, why })
}

/// Records that a bucket that starts empty was asked for: it fills up from now on.
fn note(charge: &CellCharge<'_>, cell: &mut Cell, now: StoreTime) {
    let rule = charge.limit.rule;
    let cell_state = cell.state.as_ref();
    if cell_state.is_none_or(|state| !rule.is_of(&state.taken))
        && let Some(taken) = rule.initial_state(now)
    {
        cell.put(taken);
    }
}

/// Releases an earlier claim of the message itself, or one that stopped it before it became a dead letter.
fn release_own_claim(
    candidate: &CellCandidate<'_>,
    charge: &CellCharge<'_>,
    cell: &mut Cell,
    now: StoreTime,
) {
    let state = cell.state.as_ref();
    let freed = state.and_then(|state| {
        let rule = charge.limit.rule;
        rule.release_own_claim(&state.taken, candidate.ticket, candidate.died, now)
    });
    if let Some(taken) = freed {
        cell.put(taken);
    }
}

/// The decision where a message is not called whatever the other limits say.
fn not_called(charges: &[CellCharge<'_>], cells: &[Cell], now: StoreTime) -> Option<Decision> {
    charges.iter().enumerate().find_map(|(by, charge)| {
        let state = cells[charge.key].state.as_ref()?;
        let how = charge.limit.rule.reason_not_to_call(&state.taken, now)?;
        Some(Decision::NotCalled { by, how })
    })
}

fn take(charge: &CellCharge<'_>, cell: &mut Cell, ticket: Ticket, now: StoreTime) -> AfterGrant {
    let rule = charge.limit.rule;
    let taken = rule.take(cell.state.as_ref(), now, charge.cost, ticket);
    cell.put(taken);
    if let Some(state) = &mut cell.state {
        state.owed = Owed::default();
        state.quota.units = state.quota.units.saturating_sub(charge.cost.units());
    }
    let state = cell.state.as_ref();
    AfterGrant {
        room: rule.room(state, now),
        next: rule.fit(state, now, Cost::ONE),
    }
}

fn deny(
    candidate: &CellCandidate<'_>,
    fits: &[Fit],
    cells: &mut [Cell],
    now: StoreTime,
) -> Decision {
    let next_return = |charge: &CellCharge<'_>| {
        let state = cells[charge.key].state.as_ref();
        state.map_or(0, |state| state.next_return.at)
    };
    // When each charge lets it come back; charges without a time come last.
    let back = |(charge, fit): (&CellCharge<'_>, &Fit)| match fit {
        Fit::Full => u64::MAX,
        Fit::Now => now.as_micros(),
        Fit::At(at) if candidate.was_denied => at.as_micros(),
        Fit::At(at) => next_return(charge).max(at.as_micros()),
    };
    let times: Vec<u64> = candidate.charges.iter().zip(fits).map(back).collect();
    let latest = times.iter().copied().max().unwrap_or(0);
    let by = times.iter().position(|at| *at == latest).unwrap_or(0);
    let charge = &candidate.charges[by];
    let rule = charge.limit.rule;
    let state = cells[charge.key].state.as_ref();
    let (room, lacks) = (rule.room(state, now), rule.lacks(state, charge.cost, now));
    let full = fits[by] == Fit::Full;
    if !candidate.was_denied && !full {
        let cell = &mut cells[charge.key];
        if let Some(state) = &mut cell.state {
            let end = latest + rule.spacing(charge.cost.units(), now);
            state.next_return = NextReturn {
                at: end.min((now + RETURN_MAX).as_micros()),
                spacing: rule.spacing(1, now),
            };
            cell.changed = true;
        }
    }
    Decision::Denied {
        by,
        fits: fits[by],
        until: StoreTime::from_micros(if full { 0 } else { latest }),
        lacks,
        room,
    }
}
