//! The limits that are asked, and what was seen of what they are about.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluiced::core::calendar::CalendarUnit;
use sluiced::core::limits::Rule;
use sluiced::core::limits::once::OnUnknown;
use sluiced::core::limits::token_bucket::{Refill, Start};
use sluiced::limiter::redis::RedisStore;
use sluiced::ports::limits::{KeyedLimit, LostWait};
use tokio::runtime::Runtime;

use crate::limits::rules::*;
use crate::support::redis::RedisServer;

pub(super) const PREFIX: &str = "oracle";
pub(super) const KEYS: [&str; 2] = ["a", "b"];
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// How many messages were granted, sent away with a line, found a limit full, or closed; how often
/// units came back, an answer was written down, something was owed after it, and a state lay ahead of now. How many
/// messages were repeats, of how many it was unknown, and how many asked again.
pub(super) static GRANTED: AtomicUsize = AtomicUsize::new(0);
pub(super) static LINES: AtomicUsize = AtomicUsize::new(0);
pub(super) static FULL: AtomicUsize = AtomicUsize::new(0);
pub(super) static CLOSED: AtomicUsize = AtomicUsize::new(0);
pub(super) static BACK: AtomicUsize = AtomicUsize::new(0);
pub(super) static LEFT: AtomicUsize = AtomicUsize::new(0);
pub(super) static OWED: AtomicUsize = AtomicUsize::new(0);
pub(super) static AHEAD: AtomicUsize = AtomicUsize::new(0);
pub(super) static REPEATS: AtomicUsize = AtomicUsize::new(0);
pub(super) static UNKNOWN: AtomicUsize = AtomicUsize::new(0);
pub(super) static AGAIN: AtomicUsize = AtomicUsize::new(0);

pub(super) struct World {
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

pub(super) fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let store = Arc::new(runtime.block_on(established(RedisServer::shared(), PREFIX)));
        let rules = rules();
        World {
            runtime,
            store,
            limits: limits(&rules),
            rules,
        }
    })
}
