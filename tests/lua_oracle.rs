//! The scripts in Redis against the decision in Rust: the same replies and the same state, to the
//! microsecond, over random sequences. Redis' clock cannot be set, so its steps are made by moving
//! the times in the state instead.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sluiced::core::rate::{Cost, MAX_UNITS, MAX_WINDOW, Rate};
use sluiced::core::schedule::{self, Ask, Grant, Pace, Schedule, Sight, Turn};
use sluiced::core::standing::{self, Amendment, Declaration, Revision, Standing};
use sluiced::core::time::StoreTime;
use sluiced::limiter::redis::{Family, RedisOptions, RedisPaceStore, RedisStandings};
use sluiced::ports::pace::{PaceStore, PacedLimit};
use sluiced::ports::standing::StandingStore;
use support::redis::RedisServer;
use support::wait::eventually;
use tokio::runtime::Runtime;

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
    "epoch",
    "run",
];
const NUMBERS: usize = FIELDS.len() - 1;

struct World {
    runtime: Runtime,
    store: Arc<RedisPaceStore>,
    standings: RedisStandings,
    run: String,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let server = RedisServer::shared();
        let runtime = Runtime::new().unwrap();
        let options = RedisOptions {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(5),
            ..RedisOptions::single(server.url(), "oracle")
        };
        let store = runtime.block_on(async {
            let store = RedisPaceStore::connect(&options, Arc::new(())).unwrap();
            let link = store.link();
            eventually(Duration::from_secs(10), "a connection", || {
                link.borrow().is_up()
            })
            .await;
            Arc::new(store)
        });
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("server")
            .query(&mut server.connection())
            .unwrap();
        let run = info.get("run_id").unwrap();
        World {
            runtime,
            standings: RedisStandings::new(Arc::clone(&store), Family::Paced),
            store,
            run,
        }
    })
}

#[derive(Clone, Debug)]
enum Event {
    Ask {
        pace: usize,
        want: u64,
        /// Relative to the last answer's time, as is the prediction.
        turn: Option<(i64, u64, u64)>,
        sight: Seen,
        predicted: i64,
        /// How many epochs ago it was known, or none that ever was.
        epoch: usize,
        lead: u64,
    },
    /// Asks with the turn of the last answer.
    Heed {
        pace: usize,
        want: u64,
    },
    Freeze(u64),
    GiveBack {
        pace: usize,
        from: u32,
    },
    DeleteKey,
    DeleteField(usize),
    SpoilField(usize),
    OtherRun,
    /// Moves all times in the state: time goes on (below zero) or the clock steps back.
    Shift(i64),
}

#[derive(Clone, Copy, Debug)]
enum Seen {
    Young,
    Steady,
    Stepped,
}

fn event() -> impl Strategy<Value = Event> {
    let near = prop_oneof![
        Just(0_i64),
        -200_000..200_000_i64,
        -10_000_000_000..10_000_000_000_i64
    ];
    let want = prop_oneof![0..3_u64, 0..300_u64, Just(1 << 52)];
    let turn = (
        near.clone(),
        0..500_u64,
        prop_oneof![Just(0_u64), 0..300_000_u64],
    );
    let seen = prop_oneof![
        1 => Just(Seen::Young),
        20 => Just(Seen::Steady),
        1 => Just(Seen::Stepped),
    ];
    let ask = (
        0..4_usize,
        want.clone(),
        prop::option::of(turn),
        seen,
        prop_oneof![8 => Just(0_i64), 1 => near],
        prop_oneof![8 => Just(0_usize), 1 => 1..4_usize],
        0..200_000_u64,
    )
        .prop_map(
            |(pace, want, turn, sight, predicted, epoch, lead)| Event::Ask {
                pace,
                want,
                turn,
                sight,
                predicted,
                epoch,
                lead,
            },
        );
    prop_oneof![
        12 => ask,
        12 => (0..2_usize, want).prop_map(|(pace, want)| Event::Heed { pace, want }),
        2 => prop_oneof![0..3_000_000_u64, Just(u64::MAX)].prop_map(Event::Freeze),
        3 => (0..2_usize, 0..40_u32).prop_map(|(pace, from)| Event::GiveBack { pace, from }),
        1 => Just(Event::DeleteKey),
        1 => (0..FIELDS.len()).prop_map(Event::DeleteField),
        1 => (0..FIELDS.len()).prop_map(Event::SpoilField),
        1 => Just(Event::OtherRun),
        8 => prop_oneof![-200_000..0_i64, -3_000_000..3_000_000_i64, -10_000_000_000..10_000_000_000_i64]
            .prop_map(Event::Shift),
    ]
}

fn paces() -> [PacedLimit; 4] {
    let second = Duration::from_secs(1);
    let ms = Duration::from_millis;
    let extreme = |units, window, horizon| (units, window, ms(5), horizon);
    [
        (400, second, ms(5), ms(150)),
        (7, second * 3, ms(5), ms(150)),
        extreme(MAX_UNITS, ms(1), ms(500)),
        extreme(1, MAX_WINDOW, ms(60_000)),
    ]
    .map(|(units, window, headroom, horizon)| {
        let rate = Rate::new(NonZeroU32::new(units).unwrap(), window).unwrap();
        let pace = Pace::new(rate, headroom, horizon);
        // One of them for messages that take up to three units.
        let dearest = if units == 7 { 3 } else { 1 };
        let pace = pace.with_costs_up_to(Cost::new(NonZeroU32::new(dearest).unwrap()));
        PacedLimit::new("provider", pace)
    })
}

/// The state as Redis has it. A part of one is no schedule of any run.
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
        epoch: get("epoch"),
        run: hash
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

fn play(events: &[Event]) -> Result<(), TestCaseError> {
    let World {
        runtime,
        store,
        run,
        ..
    } = world();
    let connection = &mut RedisServer::shared().connection();
    () = redis::cmd("DEL").arg(KEY).query(connection).unwrap();
    let paces = paces();
    let first = runtime
        .block_on(store.lease(&paces[0], clock_ask()))
        .unwrap();
    let (mut now, mut turn, mut last): (_, _, Option<Grant>) = (first.now, first.turn, None);
    let mut epochs = vec![first.epoch];
    for event in events {
        let mut state = read(connection);
        match event.clone() {
            Event::DeleteKey => () = redis::cmd("DEL").arg(KEY).query(connection).unwrap(),
            Event::DeleteField(i) => {
                () = redis::cmd("HDEL")
                    .arg(KEY)
                    .arg(FIELDS[i])
                    .query(connection)
                    .unwrap();
            }
            Event::SpoilField(i) if state.is_some() => write(connection, FIELDS[i], "spoiled"),
            Event::OtherRun if state.is_some() => write(connection, "run", "another"),
            Event::SpoilField(_) | Event::OtherRun => {}
            Event::Shift(by) => shift(connection, by),
            Event::Ask { .. } | Event::Heed { .. } => {
                let (pace, ask) = match event.clone() {
                    Event::Heed { pace, want } => (
                        pace,
                        Ask {
                            want,
                            turn,
                            sight: Sight::Steady {
                                epoch: epochs[epochs.len() - 1],
                                predicted: now,
                            },
                            ..clock_ask()
                        },
                    ),
                    Event::Ask {
                        pace,
                        want,
                        turn,
                        sight,
                        predicted,
                        epoch,
                        lead,
                    } => {
                        let epoch = epochs.iter().rev().nth(epoch).map_or(7, |epoch| *epoch);
                        let predicted = near(now, predicted);
                        let ask = Ask {
                            want,
                            turn: turn.map(|(by, share, slip)| Turn {
                                at: near(now, by),
                                share,
                                slip,
                            }),
                            sight: match sight {
                                Seen::Young => Sight::Young,
                                Seen::Steady => Sight::Steady { epoch, predicted },
                                Seen::Stepped => Sight::Stepped { epoch, predicted },
                            },
                            lead: Duration::from_micros(lead),
                        };
                        (pace, ask)
                    }
                    _ => unreachable!("only asks get here"),
                };
                let limit = &paces[pace];
                let answer = runtime.block_on(store.lease(limit, ask.clone())).unwrap();
                let expected = schedule::lease(&mut state, &limit.pace, run, &ask, answer.now);
                prop_assert_eq!(&answer, &expected, "{:?}", ask);
                prop_assert_eq!(read(connection), state, "{:?}", ask);
                (now, turn) = (answer.now, answer.turn.or(turn));
                if !epochs.contains(&answer.epoch) {
                    epochs.push(answer.epoch);
                }
                last = answer.grant.or(last);
            }
            Event::Freeze(length) => {
                let length = Duration::from_micros(length);
                let told = runtime.block_on(store.freeze(&paces[0], length)).unwrap();
                let expected = schedule::freeze(&mut state, length, told.now);
                prop_assert_eq!(told, expected);
                let mut kept = read(connection);
                // A state that lacked nothing but this field is whole again, and rightly so.
                if let (Some(kept), Some(state)) = (&mut kept, &state)
                    && state.run.is_empty()
                {
                    kept.run.clear();
                }
                prop_assert_eq!(kept, state);
            }
            Event::GiveBack { pace, from } => {
                let limit = &paces[pace];
                if let Some(tail) = last.and_then(|grant| grant.tail(&limit.pace, from)) {
                    let taken = runtime.block_on(store.give_back(limit, tail)).unwrap();
                    let expected = schedule::give_back(&mut state, &limit.pace, run, &tail);
                    prop_assert_eq!(taken, expected);
                    prop_assert_eq!(read(connection), state);
                    last = None;
                }
            }
        }
        check_ttl(connection)?;
    }
    Ok(())
}

const fn clock_ask() -> Ask {
    Ask {
        want: 0,
        turn: None,
        sight: Sight::Young,
        lead: Duration::ZERO,
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
        cases: 400,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        ..ProptestConfig::default()
    })]

    #[test]
    fn lua_decides_as_rust_does(events in prop::collection::vec(event(), 1..50)) {
        play(&events)?;
    }
}

#[test]
fn the_time_to_live_outlasts_two_periods_and_a_freeze() {
    let World { runtime, store, .. } = world();
    let connection = &mut RedisServer::shared().connection();
    let paces = paces();
    let day = 24 * 3600 * 1000;
    let limit = |i: usize, name: &str| PacedLimit::new(name, paces[i].pace);
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
            sight: Sight::Stepped {
                epoch: clock.epoch,
                predicted: clock.now,
            },
            ..clock_ask()
        };
        runtime.block_on(store.lease(&limit, ask)).unwrap();
        assert!(ttl(connection) > least + 7_200_000 - 60_000);
    }
}

/// What operators and replicas say about a limit.
#[derive(Clone, Debug)]
enum Word {
    Declare {
        file: usize,
        speaks: bool,
        /// With what it heard: nothing, the last answer, or one of long ago.
        known: Option<usize>,
    },
    Set {
        terms: usize,
        late: bool,
    },
    Pause(u64),
    Resume,
    /// A replica asks for slots, knowing this or an older standing.
    Ask {
        late: bool,
    },
    Lose,
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        4 => (0..3_usize, any::<bool>(), prop::option::of(0..4_usize))
            .prop_map(|(file, speaks, known)| Word::Declare { file, speaks, known }),
        3 => (0..3_usize, prop::bool::weighted(0.2))
            .prop_map(|(terms, late)| Word::Set { terms, late }),
        2 => prop_oneof![0..2_u64, Just(u64::MAX)].prop_map(Word::Pause),
        2 => Just(Word::Resume),
        3 => prop::bool::weighted(0.3).prop_map(|late| Word::Ask { late }),
        1 => Just(Word::Lose),
    ]
}

/// Only what these tests keep: others share the server.
fn forget(connection: &mut redis::Connection) {
    for part in ["standing", "replicas", "paced", "paced:2"] {
        let key = format!("oracle:{{words}}:{part}");
        redis::cmd("DEL").arg(key).query::<()>(connection).unwrap();
    }
}

/// What the store keeps, as `inspect` shows it, but for times of writing, which Redis' clock gives.
fn kept(world: &World) -> Option<Standing> {
    let found = world.runtime.block_on(world.standings.inspect("words"));
    found.unwrap().standing
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn words_are_the_same_in_redis_and_in_rust(words in prop::collection::vec(word(), 1..24)) {
        const FILES: [&str; 3] = ["kind=paced rate=400/1s", "kind=paced rate=300/1s", ""];
        let world = world();
        let mut connection = RedisServer::shared().connection();
        forget(&mut connection);
        let (mut state, mut row): (Option<Standing>, Option<Schedule>) = (None, None);
        let mut heard: Vec<Standing> = Vec::new();
        for word in words {
            match word {
                Word::Declare { file, speaks, known } => {
                    let known = known.and_then(|ago| heard.iter().rev().nth(ago).cloned());
                    let declaration = Declaration {
                        replica: "host:1".to_owned(),
                        file: FILES[file].to_owned(),
                        speaks,
                        known,
                    };
                    let told = world.runtime.block_on(world.standings.declare("words", &declaration)).unwrap();
                    // Where the decision made a new revision, that was Redis' time.
                    let fresh = Some(told.revision) != state.as_ref().map(|s| s.revision);
                    let now = if fresh { told.revision.since() } else { StoreTime::default() };
                    let expected = standing::declare(&mut state, &declaration, now);
                    prop_assert_eq!(&told, &expected);
                    heard.push(told);
                }
                Word::Set { terms, late } => {
                    let over = state.as_ref().map_or(Revision::NONE, |s| s.revision);
                    let over = if late { Revision::new(over.number() + 1) } else { over };
                    let amendment = Amendment { over, terms: FILES[terms], file: FILES[0], by: "op" };
                    let told = world.runtime.block_on(world.standings.set("words", amendment)).unwrap();
                    let now = told.map_or(StoreTime::default(), |said| said.revision.since());
                    let done = standing::set(&mut state, &amendment, now);
                    prop_assert_eq!(told.is_some(), done);
                }
                Word::Pause(seconds) => {
                    let length = Duration::from_secs(seconds);
                    let told = world.runtime.block_on(world.standings.pause("words", length, "op")).unwrap();
                    let now = told.map_or(StoreTime::default(), |(said, _)| said.revision.since());
                    let until = standing::pause(&mut state, length, "op", now);
                    prop_assert_eq!(told.map(|(_, until)| until), until);
                }
                Word::Resume => {
                    let told = world.runtime.block_on(world.standings.resume("words")).unwrap();
                    let now = told.map_or(StoreTime::default(), |(said, _)| said.revision.since());
                    let was = standing::resume(&mut state, now);
                    let thawed = schedule::thaw(&mut row, now);
                    prop_assert_eq!(told.map(|(_, was)| was), was.map(|was| was || thawed));
                }
                Word::Ask { late } => {
                    let pace = paces()[0].pace;
                    let known = state.as_ref().map_or(Revision::NONE, |s| s.revision);
                    let known = if late { Revision::new(known.number() + 1) } else { known };
                    let ask = Ask { want: 3, turn: None, sight: Sight::Young, lead: Duration::ZERO };
                    let limit = PacedLimit { known, ..PacedLimit::new("words", pace) };
                    let told = world.runtime.block_on(world.store.lease(&limit, ask.clone())).unwrap();
                    let asker = (&pace, known);
                    let expected = standing::lease_under(state.as_ref(), &mut row, asker, &world.run, &ask, told.now);
                    prop_assert_eq!(told, expected);
                }
                Word::Lose => {
                    forget(&mut connection);
                    (state, row) = (None, None);
                }
            }
            prop_assert_eq!(kept(world), state.clone());
        }
        let lives: i64 = redis::cmd("PTTL").arg("oracle:{words}:standing").query(&mut connection).unwrap();
        prop_assert!(lives < 0, "what an operator said must stay: {}", lives);
    }
}
