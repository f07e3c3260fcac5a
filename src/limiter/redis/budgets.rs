//! Budgets in Redis, shared by every replica.
//!
//! One string per key, and one script for a whole batch of petitions, so that a decision is one
//! round trip and atomic. All keys share one hash tag: a cluster keeps them in one slot.
//!
//! The store remembers the epoch of the last answer, and asks once a second even if nobody wants
//! anything, so that a loss is noticed while somebody still knows what was there. It also watches
//! the clock of Redis: an answer whose time cannot be explained by how long it travelled shows
//! that the clock stepped. Such an answer is thrown away, so that nothing that it granted is used,
//! and the next question begins a new epoch.

mod reply;
mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::FromRedisValue;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use self::reply::Reply;
use super::batch::{Batch, Composed, Place, era_key};
use super::connection::Connection;
use super::scripts::{Arg, Call};
use super::{STORE, StoreEvents};
use crate::core::budget::admit::IfLate;
use crate::core::budget::epoch::Witness;
use crate::core::budget::{Usage, record};
use crate::core::rate::Cost;
use crate::core::time::{Mono, StoreTime, micros};
use crate::ports::budget::{
    BudgetKey, BudgetLimit, CallUnderWay, Claim, Epoch, HEARTBEAT, Look, MAX_BATCH, Made, Petition,
    Refund, Rulings, Ticket,
};
use crate::ports::clock::Clock;
use crate::ports::pace::StoreError;

/// How heavy a call may be, in microseconds of Redis, roughly: others wait for it. A larger batch
/// goes in several calls, one after the other.
const WEIGHT_MAX: u64 = 1_000;
/// What no travelling time and no drift explains is a step of the clock.
const STEP: u64 = 100_000;
/// Clocks may drift apart by one part in this many.
const DRIFT: u64 = 1_000;

/// The scripts, and what is remembered of Redis.
pub(super) struct Budgets {
    connection: Arc<Connection>,
    events: Arc<dyn StoreEvents>,
    prefix: String,
    admit: Composed,
    refund: Composed,
    confirm: Composed,
    renew: Composed,
    release: Composed,
    look: Composed,
    clock: Clock,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    witness: Witness,
    mark: Option<Mark>,
}

/// A reading of the store's clock, somewhere between sending and receiving.
#[derive(Clone, Copy)]
struct Mark {
    sent: Mono,
    store: StoreTime,
    received: Mono,
}

impl Mark {
    /// By how much more the store's clock has moved than ours can explain, in microseconds.
    fn stepped(&self, next: &Self) -> u64 {
        let at = |time: Mono| i128::from(time.as_micros());
        let moved = i128::from(next.store.as_micros()) - i128::from(self.store.as_micros());
        let least = at(next.sent) - at(self.received);
        let most = at(next.received) - at(self.sent);
        let drift = most.max(0) / i128::from(DRIFT);
        let apart = (least - moved).max(moved - most) - drift;
        u64::try_from(apart).unwrap_or(0)
    }
}

/// What one petition asks, with its cells.
struct Asking<'a> {
    reserve: Option<IfLate>,
    ticket: Ticket,
    claims: Vec<(Place, &'a Claim)>,
}

impl Budgets {
    pub(super) fn new(
        connection: Arc<Connection>,
        events: Arc<dyn StoreEvents>,
        prefix: String,
    ) -> Self {
        Self {
            connection,
            events,
            prefix,
            admit: Composed::new(include_str!("../../../lua/admit.lua")),
            refund: Composed::new(include_str!("../../../lua/refund.lua")),
            confirm: Composed::new(include_str!("../../../lua/confirm.lua")),
            renew: Composed::new(include_str!("../../../lua/renew.lua")),
            release: Composed::new(include_str!("../../../lua/release.lua")),
            look: Composed::new(include_str!("../../../lua/look.lua")),
            clock: Clock::start(),
            memory: Mutex::default(),
        }
    }

    /// Asks once a second for as long as it is polled.
    async fn beat(self: Arc<Self>) {
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            // The connection's own supervision tells what is wrong.
            drop(self.ask(Batch::around(StoreTime::default()), &[]).await);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // Nothing panics while it is held; the memory is whole in any case.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's time, as far as the last answer tells.
    fn now(&self) -> Option<StoreTime> {
        let mark = self.lock().mark?;
        Some(mark.store + self.clock.now().since(mark.received))
    }

    /// The store's time for looking up calendars; asks if nothing is known yet.
    async fn around(&self, predicted: Option<StoreTime>) -> Result<StoreTime, StoreError> {
        match self.now().or(predicted) {
            Some(now) => Ok(now),
            None => Ok(self
                .ask(Batch::around(StoreTime::default()), &[])
                .await?
                .now),
        }
    }

    async fn call<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &Composed,
        batch: &Batch<'_>,
        arguments: Vec<Arg<'_>>,
    ) -> Result<T, StoreError> {
        let keys = batch.keys(&self.prefix);
        let call = Call::new(
            name,
            script.script(batch),
            era_key(&self.prefix),
            keys,
            arguments,
        );
        let answer = self.connection.call(&call).await;
        self.events.asked(name, answer.is_ok());
        answer
    }

    /// Calls the script about petitions.
    async fn ask(&self, batch: Batch<'_>, asking: &[Asking<'_>]) -> Result<Rulings, StoreError> {
        let witness = self.lock().witness;
        let mut args = batch.arguments(witness);
        args.push(Arg::Number(asking.len() as u64));
        let cell = batch.cells();
        for petition in asking {
            args.push(Arg::Number(match petition.reserve {
                None => 1,
                Some(IfLate::Grant) => 2,
                Some(IfLate::Wait { .. }) => 3,
            }));
            let ahead = petition.reserve.unwrap_or(IfLate::Grant).ahead();
            args.push(Arg::Number(micros(ahead)));
            args.push(Arg::Hex(petition.ticket.0));
            args.push(Arg::Number(petition.claims.len() as u64));
            for (place, claim) in &petition.claims {
                args.push(cell(*place));
                args.push(Arg::Number(u64::from(claim.cost.get())));
                match claim.held.filter(|held| held.at > StoreTime::default()) {
                    Some(held) => {
                        args.push(Arg::Time(Some(held.at)));
                        args.push(Arg::Number(held.epoch.0));
                    }
                    None => args.push(Arg::Number(0)),
                }
            }
        }
        let names = batch.names();
        let sent = self.clock.now();
        let reply: Vec<u64> = self.call("admit", &self.admit, &batch, args).await?;
        let received = self.clock.now();
        let rulings = Reply(reply.into_iter())
            .rulings(names, asking)
            .ok_or_else(|| StoreError::Refused {
                store: STORE,
                reason: "the script about budgets answered something else".to_owned(),
            })?;
        let mark = Mark {
            sent,
            store: rulings.now,
            received,
        };
        self.remember(mark, rulings.epoch, witness)?;
        Ok(rulings)
    }

    /// Learns from an answer. An error if the clock stepped: what it granted must not be used.
    fn remember(&self, mark: Mark, epoch: Epoch, asked: Witness) -> Result<(), StoreError> {
        let mut memory = self.lock();
        let apart = memory.mark.map_or(0, |last| last.stepped(&mark));
        if asked.stepped {
            memory.witness.stepped = false;
        }
        memory.witness.known = memory.witness.known.max(epoch);
        memory.mark = Some(mark);
        if apart > STEP {
            memory.witness.stepped = true;
            drop(memory);
            let step = Duration::from_micros(apart);
            warn!(
                ?step,
                "the clock of Redis stepped: budgets begin a new epoch"
            );
            return Err(StoreError::Unreachable {
                store: STORE,
                reason: format!("its clock stepped by {step:?}"),
            });
        }
        Ok(())
    }

    async fn rule(
        &self,
        petitions: &[Petition],
        predicted: Option<StoreTime>,
    ) -> Result<Rulings, StoreError> {
        let around = self.around(predicted).await?;
        let mut all: Option<Rulings> = None;
        let mut rest = petitions;
        loop {
            let (mut batch, mut asking, mut weight) = (Batch::around(around), Vec::new(), 0);
            for petition in rest.iter().take(MAX_BATCH) {
                let weighs = |claim: &Claim| batch.weight(&claim.limit, claim.key);
                let own: u64 = petition.claims.iter().map(weighs).sum();
                if !asking.is_empty() && weight + own > WEIGHT_MAX {
                    break;
                }
                let mut claims = Vec::with_capacity(petition.claims.len());
                for claim in &petition.claims {
                    claims.push((batch.place(&claim.limit, claim.key), claim));
                }
                weight += own;
                asking.push(Asking {
                    reserve: petition.reserve,
                    ticket: petition.ticket,
                    claims,
                });
            }
            rest = &rest[asking.len()..];
            let rulings = self.ask(batch, &asking).await?;
            let all = match &mut all {
                // Of several answers the first one's time is the careful one.
                Some(all) => {
                    all.epoch = rulings.epoch;
                    all.changed.retain(|(name, _)| {
                        let mut later = rulings.changed.iter();
                        later.all(|(changed, _)| changed != name)
                    });
                    all.changed.extend(rulings.changed);
                    all.blind = rulings.blind;
                    all.rulings.extend(rulings.rulings);
                    all
                }
                None => all.insert(rulings),
            };
            if rest.is_empty() {
                return Ok(all.clone());
            }
        }
    }

    /// Looks at one budget. Writes nothing, and does not make the heart beat.
    async fn look_at(
        &self,
        limit: &BudgetLimit,
        key: BudgetKey,
        around: StoreTime,
    ) -> Result<Look, StoreError> {
        let mut batch = Batch::around(around);
        batch.place(limit, key);
        let mut args = batch.arguments(self.lock().witness);
        args.push(Arg::Number(u64::from(Cost::ONE.get())));
        type Reply = (u64, u64, u64, u64, u64, u64, String);
        let reply: Reply = self.call("look", &self.look, &batch, args).await?;
        let (now, epoch, most, remaining, retry, reset, state) = reply;
        let now = StoreTime::from_micros(now);
        Ok(Look {
            now,
            usage: Usage {
                limit: most,
                remaining,
                retry_after: Duration::from_micros(retry),
                reset_after: Duration::from_micros(reset),
            },
            state: record::read(&state, &limit.terms().rule, Epoch(epoch), now),
        })
    }

    async fn take_back(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        let around = self.around(None).await?;
        let mut batch = Batch::around(around);
        let places: Vec<Place> = refunds
            .iter()
            .map(|refund| batch.place(&refund.limit, refund.key))
            .collect();
        let mut args = batch.arguments(self.lock().witness);
        args.push(Arg::Number(refunds.len() as u64));
        let cell = batch.cells();
        for (refund, place) in refunds.iter().zip(places) {
            args.push(cell(place));
            args.push(Arg::Time(Some(refund.booked.at)));
            args.push(Arg::Number(refund.booked.epoch.0));
            args.push(Arg::Number(refund.taken as u64));
            args.push(Arg::Number(u64::from(refund.cost.get())));
            args.push(Arg::Hex(refund.ticket.0));
        }
        self.call("refund", &self.refund, &batch, args).await
    }

    async fn note(&self, made: &[Made]) -> Result<usize, StoreError> {
        let around = self.around(None).await?;
        let mut batch = Batch::around(around);
        let places: Vec<Place> = made
            .iter()
            .map(|made| batch.place(&made.limit, made.key))
            .collect();
        let mut args = batch.arguments(self.lock().witness);
        args.push(Arg::Number(made.len() as u64));
        let cell = batch.cells();
        for (made, place) in made.iter().zip(places) {
            args.push(cell(place));
            args.push(Arg::Time(Some(made.granted.at)));
            args.push(Arg::Number(made.granted.epoch.0));
        }
        self.call("confirm", &self.confirm, &batch, args).await
    }

    async fn about_calls<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &Composed,
        calls: &[CallUnderWay],
    ) -> Result<T, StoreError> {
        // Calls under way follow no calendar.
        let mut batch = Batch::around(StoreTime::default());
        let places: Vec<Place> = calls
            .iter()
            .map(|(limit, key, _)| batch.place(limit, *key))
            .collect();
        let mut args = batch.arguments(self.lock().witness);
        args.push(Arg::Number(calls.len() as u64));
        let cell = batch.cells();
        for ((_, _, ticket), place) in calls.iter().zip(places) {
            args.push(cell(place));
            args.push(Arg::Hex(ticket.0));
        }
        self.call(name, script, &batch, args).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mark(sent: u64, store: u64, received: u64) -> Mark {
        Mark {
            sent: Mono::from_micros(sent),
            store: StoreTime::from_micros(store),
            received: Mono::from_micros(received),
        }
    }

    #[test]
    fn a_slow_answer_is_no_step_of_the_clock() {
        let last = mark(1_000, 501_000, 2_000);
        // Two seconds on the way, at either end.
        for store in [511_000, 2_510_000] {
            assert_eq!(last.stepped(&mark(11_000, store, 2_011_000)), 0);
        }
        assert!(last.stepped(&mark(11_000, 2_900_000, 2_011_000)) > STEP);
        assert!(last.stepped(&mark(11_000, 300_000, 2_011_000)) > STEP);
        // Answers that overtook one another.
        assert_eq!(mark(5_000, 505_500, 6_000).stepped(&last), 0);
        // An hour of drift.
        let hour = 3_600_000_000;
        assert_eq!(last.stepped(&mark(hour, hour + 600_000, hour + 500)), 0);
    }
}
