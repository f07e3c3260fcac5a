//! Leases and freezes, on a state that is also damaged and moved in time.

mod event;

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sluiced_core::schedule::{self, Ask, ClockView, Schedule, Turn};
use sluiced_core::time::StoreTime;
use sluiced_ports::store::{PacedRow, Store as _};

use self::event::{Asked, Event, Seen, event};
use super::{World, clock_ask, paces, world};
use crate::support::redis::RedisServer;
use crate::support::soak::longer;

const KEY: &str = "oracle:{provider}:paced";
const FIELDS: [&str; 12] = [
    "next",
    "rem",
    "line",
    "front",
    "slip",
    "frozen_until",
    "units",
    "period",
    "horizon",
    "last",
    "generation",
    "run",
];
const NUMBERS: usize = FIELDS.len() - 1;

fn sums(costs: &[u64]) -> Vec<u64> {
    let costs = costs.iter().take_while(|cost| **cost > 0);
    let sums = costs.scan(0, |sum, cost| {
        *sum += cost;
        Some(*sum)
    });
    sums.collect()
}

/// The state as Redis has it. A part of a state belongs to no schedule.
fn read(connection: &mut redis::Connection) -> Option<Schedule> {
    let hash: HashMap<String, String> = redis::cmd("HGETALL").arg(KEY).query(connection).unwrap();
    if hash.is_empty() {
        return None;
    }
    let number = |name: &str| hash.get(name).and_then(|text| text.parse::<u64>().ok());
    let whole = FIELDS[..NUMBERS].iter().all(|name| number(name).is_some());
    let get = |name: &str| number(name).unwrap_or(0);
    Some(Schedule {
        next: get("next"),
        rem: get("rem"),
        line: get("line"),
        front: get("front"),
        slip: get("slip"),
        frozen_until: get("frozen_until"),
        units: get("units"),
        period: get("period"),
        horizon: get("horizon"),
        last: get("last"),
        generation: get("generation"),
        run_id: hash
            .get("run")
            .filter(|_| whole)
            .cloned()
            .unwrap_or_default(),
    })
}

fn write(connection: &mut redis::Connection, field: &str, value: &str) {
    () = redis::cmd("HSET")
        .arg(KEY)
        .arg(field)
        .arg(value)
        .query(connection)
        .unwrap();
}

fn shift(connection: &mut redis::Connection, by: i64) {
    for field in ["next", "line", "front", "frozen_until", "last"] {
        let value: Option<String> = redis::cmd("HGET")
            .arg(KEY)
            .arg(field)
            .query(connection)
            .unwrap();
        if let Some(value) = value
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|v| *v > 0)
        {
            write(
                connection,
                field,
                &value.saturating_add_signed(by).to_string(),
            );
        }
    }
}

fn near(now: StoreTime, by: i64) -> StoreTime {
    StoreTime::from_micros(now.as_micros().saturating_add_signed(by))
}

/// A play: what the test remembers between events.
struct Play<'a> {
    world: &'a World,
    connection: redis::Connection,
    paces: [PacedRow; 4],
    now: StoreTime,
    turn: Option<Turn>,
    generations: Vec<u64>,
}

impl Play<'_> {
    /// On a schedule that has just begun.
    fn start() -> Self {
        let world = world();
        let mut connection = RedisServer::shared().connection();
        () = redis::cmd("DEL").arg(KEY).query(&mut connection).unwrap();
        let paces = paces();
        let lease = world.store.lease(&paces[0], clock_ask());
        let first = world.runtime.block_on(lease).unwrap();
        Self {
            world,
            connection,
            paces,
            now: first.now,
            turn: first.turn,
            generations: vec![first.generation],
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        let state = read(&mut self.connection);
        match event {
            Event::DeleteKey => {
                () = redis::cmd("DEL")
                    .arg(KEY)
                    .query(&mut self.connection)
                    .unwrap();
            }
            Event::DeleteField(i) => {
                () = redis::cmd("HDEL")
                    .arg(KEY)
                    .arg(FIELDS[i])
                    .query(&mut self.connection)
                    .unwrap();
            }
            Event::SpoilField(i) if state.is_some() => {
                write(&mut self.connection, FIELDS[i], "spoiled");
            }
            Event::OtherRun if state.is_some() => write(&mut self.connection, "run", "another"),
            Event::SpoilField(_) | Event::OtherRun => {}
            Event::Shift(by) => shift(&mut self.connection, by),
            Event::Ask(asked) => {
                let ask = self.ask_of(&asked);
                self.ask(state, asked.pace, ask)?;
            }
            Event::Heed { pace, want, costs } => {
                let ask = self.heeding(want, &costs);
                self.ask(state, pace, ask)?;
            }
            Event::Freeze(length) => self.freeze(state, Duration::from_micros(length))?,
        }
        check_ttl(&mut self.connection)
    }

    /// With the turn of the last answer.
    fn heeding(&self, want: u64, costs: &[u64]) -> Ask {
        Ask {
            want,
            sums: sums(costs),
            turn: self.turn,
            clock_view: ClockView::Steady {
                generation: self.generations[self.generations.len() - 1],
                predicted: self.now,
            },
            ..clock_ask()
        }
    }

    fn ask_of(&self, asked: &Asked) -> Ask {
        let generation = self.generations.iter().rev().nth(asked.generation);
        let generation = generation.map_or(7, |generation| *generation);
        let predicted = near(self.now, asked.predicted);
        Ask {
            want: asked.want,
            sums: sums(&asked.costs),
            turn: asked.turn.map(|(by, share, slip)| Turn {
                at: near(self.now, by),
                share,
                slip,
            }),
            clock_view: match asked.clock_view {
                Seen::Young => ClockView::Unproven,
                Seen::Steady => ClockView::Steady {
                    generation,
                    predicted,
                },
                Seen::Stepped => ClockView::Stepped {
                    generation,
                    predicted,
                },
            },
            lead: Duration::from_micros(asked.lead),
        }
    }

    fn ask(
        &mut self,
        mut state: Option<Schedule>,
        pace: usize,
        ask: Ask,
    ) -> Result<(), TestCaseError> {
        let limit = &self.paces[pace];
        let lease = self.world.store.lease(limit, ask.clone());
        let answer = self.world.runtime.block_on(lease).unwrap();
        let run = &self.world.run;
        let expected = schedule::lease(&mut state, &limit.pace, run, &ask, answer.now);
        prop_assert_eq!(&answer, &expected, "{:?}", ask);
        prop_assert_eq!(read(&mut self.connection), state, "{:?}", ask);
        (self.now, self.turn) = (answer.now, answer.turn.or(self.turn));
        if !self.generations.contains(&answer.generation) {
            self.generations.push(answer.generation);
        }
        Ok(())
    }

    fn freeze(
        &mut self,
        mut state: Option<Schedule>,
        length: Duration,
    ) -> Result<(), TestCaseError> {
        let freeze = self.world.store.freeze(&self.paces[0], length);
        let told = self.world.runtime.block_on(freeze).unwrap();
        let expected = schedule::freeze(&mut state, length, told.now);
        prop_assert_eq!(told, expected);
        let mut kept = read(&mut self.connection);
        // A state that lacked only this field is complete again, as it should be.
        if let (Some(kept), Some(state)) = (&mut kept, &state)
            && state.run_id.is_empty()
        {
            kept.run_id.clear();
        }
        prop_assert_eq!(kept, state);
        Ok(())
    }
}

/// Every key that a script left has a time to live.
fn check_ttl(connection: &mut redis::Connection) -> Result<(), TestCaseError> {
    let (ttl, kept): (i64, bool) = redis::pipe()
        .cmd("PTTL")
        .arg(KEY)
        .cmd("EXISTS")
        .arg(KEY)
        .query(connection)
        .unwrap();
    prop_assert!(ttl > 0 || !kept, "PTTL {}", ttl);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: longer(400),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        ..ProptestConfig::default()
    })]

    #[test]
    fn lua_decides_as_rust_does(events in prop::collection::vec(event(), 1..50)) {
        let mut play = Play::start();
        for event in events {
            play.happen(event)?;
        }
    }
}

#[test]
fn the_time_to_live_outlasts_two_periods_and_a_freeze() {
    let World { runtime, store, .. } = world();
    let connection = &mut RedisServer::shared().connection();
    let paces = paces();
    let day = 24 * 3600 * 1000;
    let limit = |i: usize, name: &str| PacedRow::new(name, paces[i].pace);
    for (i, least) in [(0, day), (3, 2 * 366 * day)] {
        let limit = limit(i, &format!("ttl-{i}"));
        let key = format!("oracle:{{{}}}:paced", limit.name);
        let ttl = |connection: &mut redis::Connection| -> i64 {
            redis::cmd("PTTL").arg(&key).query(connection).unwrap()
        };
        let clock = runtime.block_on(store.lease(&limit, clock_ask())).unwrap();
        let before = ttl(connection);
        assert!(before > least - 60_000, "{before}");
        runtime
            .block_on(store.freeze(&limit, Duration::from_secs(7200)))
            .unwrap();
        assert!(ttl(connection) > least + 7_200_000 - 60_000);
        // A lease that writes does not cut the freeze short.
        let ask = Ask {
            clock_view: ClockView::Stepped {
                generation: clock.generation,
                predicted: clock.now,
            },
            ..clock_ask()
        };
        runtime.block_on(store.lease(&limit, ask)).unwrap();
        assert!(ttl(connection) > least + 7_200_000 - 60_000);
    }
}
