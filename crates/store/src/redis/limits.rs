//! Keyed limits in Redis, shared by every replica.
//!
//! One string per key, and one script for a whole batch of messages, so that a decision is one round
//! trip and atomic. All keys share one hash tag: a cluster keeps them in one slot.
//!
//! The store remembers what the answers showed (`core::limits::store_watch`), and asks twice a second even
//! without messages, so that a loss is noticed while a replica still knows the earlier count.

mod calls;
mod late;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use redis::{FromRedisValue, Script};
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;
use tokio_util::task::TaskTracker;
use tracing::warn;

use self::late::Part;
use super::batch::{CellIndex, ComposedScript, KeyBatch, askers_key, generation_key};
use super::connection::Connection;
use super::reply::ScriptReply;
use super::scripts::{Arg, ScriptCall};
use super::{refused, unreachable};
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::BEAT;
use sluiced_core::limits::store_watch::StoreWatch;
use sluiced_core::time::{ClockStep, Direction, StoreTime, micros};
use sluiced_ports::clock;
use sluiced_ports::limits::{Candidate, Decisions, GrantedCharge};
use sluiced_ports::lock;
use sluiced_ports::store::StoreError;

/// The scripts, and what is remembered of Redis.
pub(super) struct KeyedScripts {
    connection: Arc<Connection>,
    /// Names this replica in Redis, among those that ask and among those that wait for calls to end.
    replica: String,
    admit: ComposedScript,
    refund: ComposedScript,
    renew: ComposedScript,
    correct: ComposedScript,
    release: ComposedScript,
    look: ComposedScript,
    /// How many other replicas ask, as of the last beat.
    others: AtomicU64,
    /// The beat has ended.
    has_left: AtomicBool,
    watch: Mutex<StoreWatch>,
    /// All questions in flight, including those without a caller.
    questions_in_flight: TaskTracker,
    /// Questions whose callers gave up, but whose answers are still waited for.
    late: TaskTracker,
    /// Where questions run: callers have runtimes of their own, which may end before this one.
    runtime: Handle,
}

impl KeyedScripts {
    /// Must be called on the runtime that the questions shall be asked on.
    pub(super) fn new(connection: Arc<Connection>, replica: String) -> Self {
        Self {
            connection,
            replica,
            admit: ComposedScript::new(include_str!("../../../../lua/admit.lua")),
            refund: ComposedScript::new(include_str!("../../../../lua/refund.lua")),
            renew: ComposedScript::new(include_str!("../../../../lua/renew.lua")),
            correct: ComposedScript::new(include_str!("../../../../lua/correct.lua")),
            release: ComposedScript::new(include_str!("../../../../lua/release.lua")),
            look: ComposedScript::new(include_str!("../../../../lua/look.lua")),
            others: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            watch: Mutex::default(),
            questions_in_flight: late::none(),
            late: late::none(),
            runtime: Handle::current(),
        }
    }

    /// Asks for the time at every beat until this replica leaves, and reports a step of the clock at once.
    async fn beat(self: Arc<Self>) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            if self.has_left.load(Ordering::Relaxed) {
                return;
            }
            let is_unreported = || lock(&self.watch).memory().stepped.is_some();
            let was_unreported = is_unreported();
            // The connection's own supervision logs what is wrong.
            drop(self.ask_time().await);
            let has_left = self.has_left.load(Ordering::Relaxed);
            if !has_left && !was_unreported && is_unreported() {
                drop(self.ask_time().await);
            }
        }
    }

    /// The store's time, as far as the answers show.
    fn now(&self) -> Option<StoreTime> {
        lock(&self.watch).store_time(clock::now())
    }

    /// The store's time for looking up calendars; asks if nothing is known yet.
    async fn around(&self) -> Result<StoreTime, StoreError> {
        match self.now() {
            Some(now) => Ok(now),
            None => Ok(self.ask_time().await?.now),
        }
    }

    /// Asks only for the time.
    async fn ask_time(&self) -> Result<Decisions, StoreError> {
        let batch = KeyBatch::around(StoreTime::default());
        self.ask(batch, &[], 0, false).await
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: &ComposedScript,
        batch: &KeyBatch<'_>,
        arguments: Vec<Arg<'_>>,
    ) -> Result<T, StoreError> {
        let call = self.script_call(script, batch, arguments);
        self.connection.call(&call).await
    }

    fn script_call<'a>(
        &self,
        script: &'a ComposedScript,
        batch: &KeyBatch<'_>,
        arguments: Vec<Arg<'a>>,
    ) -> ScriptCall<'a> {
        let prefix = self.connection.access().prefix();
        let (key, keys) = (generation_key(prefix), batch.keys(prefix));
        ScriptCall::new(script.script(batch), key, keys, arguments)
    }

    /// Reports that this replica no longer asks, once its last questions are answered.
    async fn leave(&self, script: &Script) -> Result<(), StoreError> {
        self.has_left.store(true, Ordering::Relaxed);
        self.finish().await;
        let args = vec![Arg::Text(&self.replica)];
        let key = askers_key(self.connection.access().prefix());
        let call = ScriptCall::new(script, key, Vec::new(), args);
        self.connection.call(&call).await
    }

    /// Asks for candidates, each with its places in the batch.
    async fn ask(
        &self,
        batch: KeyBatch<'_>,
        asking: &[(&Candidate, Vec<CellIndex>)],
        wanted: u64,
        waits_past_timeout: bool,
    ) -> Result<Decisions, StoreError> {
        let reported = lock(&self.watch).memory();
        let mut args = batch.arguments(reported);
        args.push(Arg::Number(wanted));
        args.push(Arg::Text(&self.replica));
        args.push(Arg::Number(asking.len() as u64));
        let cell = batch.cells();
        for (candidate, places) in asking {
            let flags = u64::from(candidate.was_denied) + 2 * u64::from(candidate.others_wait);
            args.push(Arg::Number(flags));
            args.push(Arg::Number(candidate.slots.units()));
            args.push(Arg::Hex(candidate.ticket.0));
            args.push(Arg::Time(Some(candidate.died)));
            args.push(Arg::Number(places.len() as u64));
            for (place, charge) in places.iter().zip(&candidate.charges) {
                args.push(cell(*place));
                args.push(Arg::Number(charge.cost.units()));
            }
        }
        let sent = clock::now();
        let call = self
            .script_call(&self.admit, &batch, args)
            .waits_past_timeout(waits_past_timeout);
        let reply: Vec<u64> = self.connection.call(&call).await?;
        let received = clock::now();
        let charges = asking.iter().map(|(_, places)| places.len());
        let (entered, others, decisions) = ScriptReply::new(reply)
            .answer(charges)
            .ok_or_else(|| refused("the script about limits answered something else"))?;
        if let Some(step) = lock(&self.watch).learn(reported, entered, sent, received) {
            return Err(stepped(step));
        }
        if asking.is_empty() {
            self.others.store(others, Ordering::Relaxed);
        }
        Ok(Decisions {
            now: entered.now,
            alone: asking.is_empty() && others == 0,
            decisions,
        })
    }

    /// Asks for candidates, in several calls if they are too heavy for one. All grants come from
    /// one call, and so from one moment: once a call has granted something, the rest is not
    /// asked.
    async fn decide(
        self: &Arc<Self>,
        candidates: &[Candidate],
        wanted: u64,
    ) -> Result<Decisions, StoreError> {
        if candidates.is_empty() {
            return self.ask_time().await;
        }
        let around = self.around().await?;
        self.wait_for_late_answers().await?;
        let all: Arc<[Candidate]> = candidates.into();
        let mut decisions = Vec::with_capacity(all.len());
        loop {
            let part = Part {
                candidates: Arc::clone(&all),
                from: decisions.len(),
                around,
                wanted,
            };
            let answer = self.ask_part(part).await?;
            let granted = |decision: &Decision| matches!(decision, Decision::Granted { .. });
            // One that takes more slots than are wanted ends the batch, too.
            let named = all[decisions.len()..].iter().zip(&answer.decisions);
            let mut ends = named.map(|(candidate, decision)| {
                let is_large = candidate.slots.units() > wanted;
                granted(decision) || is_large && *decision == Decision::NotAsked
            });
            let enough = ends.any(|ends| ends);
            decisions.extend(answer.decisions);
            if enough || decisions.len() >= all.len() {
                decisions.resize(all.len(), Decision::NotAsked);
                return Ok(Decisions {
                    now: answer.now,
                    alone: answer.alone,
                    decisions,
                });
            }
        }
    }

    /// Calls a script about grants, which are all calls or all units, in several calls if they are too heavy
    /// for one. `first`: the arguments before them. Returns the reply to each part.
    async fn call_with_grants<'a, T: FromRedisValue>(
        &self,
        script: &ComposedScript,
        first: &[Arg<'a>],
        mut granted: &'a [&'a GrantedCharge],
    ) -> Result<Vec<(&'a [&'a GrantedCharge], T)>, StoreError> {
        let mut replies = Vec::new();
        while let Some(next) = granted.first() {
            // Calls in flight follow no calendar.
            let around = if next.is_leased() {
                StoreTime::default()
            } else {
                self.around().await?
            };
            let mut batch = KeyBatch::around(around);
            let charges = granted.iter().map(|taken| taken.charge());
            let places = batch.fill(charges.map(|charge| (&*charge.limit, charge.key)));
            let (part, rest) = granted.split_at(places.len());
            let mut args = batch.arguments(lock(&self.watch).memory());
            args.extend_from_slice(first);
            args.push(Arg::Number(part.len() as u64));
            let cell = batch.cells();
            for (taken, place) in part.iter().zip(places) {
                args.push(cell(place));
                match taken {
                    GrantedCharge::Call { ticket, .. } | GrantedCharge::Claim { ticket, .. } => {
                        args.push(Arg::Hex(ticket.0));
                    }
                    GrantedCharge::Units { charge, at } => {
                        let unused = at.unused(charge.cost);
                        args.push(Arg::Time(Some(unused.at)));
                        args.push(Arg::Number(unused.cost.units()));
                        args.push(Arg::Number(micros(unused.age)));
                    }
                }
            }
            replies.push((part, self.call(script, &batch, args).await?));
            granted = rest;
        }
        Ok(replies)
    }
}

/// The error for an answer that shows a step: it is not used.
fn stepped(ClockStep { direction, by }: ClockStep) -> StoreError {
    match direction {
        Direction::Forward => warn!(
            ?by,
            "the clock of Redis stepped forward: keyed limits wait as after a loss"
        ),
        Direction::Back => warn!(
            ?by,
            "the clock of Redis stepped back: limits of the kind fixed_window wait as after a loss"
        ),
    }
    unreachable(&format!("its clock stepped by {by:?}"))
}
