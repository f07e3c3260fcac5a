//! The limits that are asked, and how often each case occurred.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::calendar::CalendarUnit;
use sluiced_core::limits::Rule;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::once::OnUnknown;
use sluiced_core::limits::token_bucket::{Refill, Start};
use sluiced_ports::limits::KeyedLimit;
use sluiced_store::redis::RedisStore;
use tokio::runtime::Runtime;

use crate::limits::rules::*;
use crate::support::redis::RedisServer;

pub(super) const KEYS: [&str; 2] = ["a", "b"];
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// What happened to messages, units and states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sight {
    Granted,
    /// Sent away until the next return of its key.
    NextReturn,
    /// Found a limit full.
    Full,
    Closed,
    /// Units came back.
    Back,
    /// An answer was written down.
    Quota,
    /// Something was owed after it.
    Owed,
    /// A state lay ahead of now.
    Ahead,
    Repeat,
    Unknown,
    /// A message asked again.
    Again,
}

pub(super) struct World {
    pub(super) prefix: &'static str,
    /// How often each was seen.
    pub(super) seen: RefCell<BTreeMap<Sight, usize>>,
    pub(super) runtime: Runtime,
    pub(super) store: Arc<RedisStore>,
    /// The rules that limits have at first, and may get.
    pub(super) rules: Vec<Rule>,
    pub(super) limits: Vec<Arc<KeyedLimit>>,
}

fn rules() -> Vec<Rule> {
    let (steps, bits) = (Refill::Stepped, Refill::Continuous);
    let year = "1/366d";
    vec![
        gcra("7/3s", 0, 5 * MS),
        gcra("400/1s", 9, 5 * MS),
        gcra(year, 0, MS),
        gcra("10000000/1ms", 100, MS),
        bucket([5, 3, 0], 7 * MS, bits, Start::Full),
        bucket([5, 3, 4], 700 * MS, bits, Start::Empty),
        bucket([50, 30, 4], 700 * MS, steps, Start::Full),
        bucket([10_000_000, 10_000_000, 0], 70 * MS, bits, Start::Full),
        first_call("5/2s", 5 * MS),
        first_call("500/2s", 5 * MS),
        aligned("5/300ms", 10 * MS),
        aligned("2/1d", MS),
        calendar(5, CalendarUnit::Minute, MS),
        calendar(5, CalendarUnit::Month, MS),
        log("5/400ms", 5 * MS),
        log("40/1h", 5 * MS),
        log("2/1ms", MS),
        concurrency(5, 400 * MS),
        concurrency(2, DAY),
        once(900 * MS, 400 * MS, OnUnknown::Resend),
        once(DAY, 300 * MS, OnUnknown::DeadLetter),
        once(900 * MS, DAY, OnUnknown::DeadLetter),
    ]
}

/// Where the rules of each kind begin and end.
pub(super) const KINDS: [Range<usize>; 6] = [0..4, 4..8, 8..14, 14..17, 17..19, 19..22];
/// How many rules there are.
pub(super) const RULES: usize = KINDS[KINDS.len() - 1].end;

fn limits(rules: &[Rule]) -> Vec<Arc<KeyedLimit>> {
    let named = |(i, rule): (usize, &Rule)| {
        let lost_wait = match i % 3 {
            0 => LostWait::Forever,
            1 => LostWait::For(Duration::from_secs(1)),
            _ => LostWait::For(Duration::ZERO),
        };
        waiting(&format!("limit-{i}"), rule.clone(), lost_wait)
    };
    rules.iter().enumerate().map(named).collect()
}

impl World {
    /// With a prefix of its own: a store has one generation, which others would change.
    pub(super) fn new(prefix: &'static str) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = Arc::new(runtime.block_on(established(RedisServer::shared(), prefix)));
        let rules = rules();
        Self {
            prefix,
            seen: RefCell::default(),
            runtime,
            store,
            limits: limits(&rules),
            rules,
        }
    }

    pub(super) fn saw(&self, what: Sight, count: usize) {
        *self.seen.borrow_mut().entry(what).or_default() += count;
    }
}
