//! What operators and replicas change about a limit, and what is leased under it.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sluiced_core::policy::{self, Declaration, FileCounts, LimitPolicy, PolicyUpdate};
use sluiced_core::schedule::{self, Ask, Schedule};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, PRESENCE, PacedRow, PolicyStore as _, Store as _};
use tokio::time::Instant;

use super::{World, clock_ask, paces, world};
use crate::support::daemon::LONG;
use crate::support::redis::RedisServer;
use crate::support::soak::longer;

/// What operators and replicas change about a limit.
#[derive(Clone, Debug)]
enum Update {
    Declare {
        file: usize,
        /// Most replicas have it.
        most: bool,
        /// With the policy of the last answer, of a much older one, or of none.
        known: Option<usize>,
    },
    Set {
        text: usize,
        late: bool,
    },
    /// By a replica that knows the current policy whole, or an earlier one.
    Replace {
        text: usize,
        late: bool,
    },
    Pause(u64),
    Resume,
    /// Redis' clock goes back by this many microseconds.
    Back(u64),
    /// A replica asks for slots, knowing this or an older policy.
    Ask {
        late: bool,
    },
    Lose,
}

fn update() -> impl Strategy<Value = Update> {
    prop_oneof![
        4 => (0..FILES.len(), any::<bool>(), prop::option::of(0..4_usize))
            .prop_map(|(file, most, known)| Update::Declare { file, most, known }),
        3 => (0..SET.len(), prop::bool::weighted(0.2))
            .prop_map(|(text, late)| Update::Set { text, late }),
        2 => (0..SET.len(), prop::bool::weighted(0.2))
            .prop_map(|(text, late)| Update::Replace { text, late }),
        2 => prop_oneof![0..2_u64, Just(u64::MAX)].prop_map(Update::Pause),
        2 => Just(Update::Resume),
        // Further than a play lasts: an update is decided a moment before Redis writes it, and the oracle has only the
        // time of writing. In between no such time may pass.
        2 => (600_000_000..90_000_000_000_u64).prop_map(Update::Back),
        3 => prop::bool::weighted(0.3).prop_map(|late| Update::Ask { late }),
        1 => Just(Update::Lose),
    ]
}

/// Only what these tests keep: others share the server.
fn forget(connection: &mut redis::Connection) {
    for part in ["policy", "replicas", "paced", "paced:2"] {
        let key = format!("oracle:{{updates}}:{part}");
        redis::cmd("DEL").arg(key).query::<()>(connection).unwrap();
    }
}

/// What the store keeps, as `inspect` shows it, but for times of writing, which Redis' clock gives.
fn kept(world: &World) -> Option<LimitPolicy> {
    let found = world
        .runtime
        .block_on(world.store.inspect(Family::Paced, "updates"));
    found.unwrap().policy
}

/// A value that an operator sets: for good, until a time that is over, and until one that is far
/// away.
const SET: [&str; 4] = [
    "kind=paced rate=300/1s",
    "",
    "kind=paced rate=200/1s until=1",
    "kind=paced rate=200/1s until=4000000000000000",
];

/// After a loss no file counts for this long (`lua/present.lua`).
const WITHIN: Duration = PRESENCE.saturating_mul(2);

const FILES: [&str; 4] = [
    "kind=paced rate=400/1s",
    "kind=paced rate=300/1s",
    "kind=gcra rate=300/1s",
    "",
];

/// A play: the current policy by the decisions in Rust, and the policies that answers returned.
struct Play<'a> {
    world: &'a World,
    connection: redis::Connection,
    state: Option<LimitPolicy>,
    row: Option<Schedule>,
    heard: Vec<LimitPolicy>,
    /// No file counts before that time: the state was lost.
    whole_from: StoreTime,
}

impl Play<'_> {
    fn start() -> Self {
        let mut connection = RedisServer::shared().connection();
        forget(&mut connection);
        Self {
            world: world(),
            connection,
            state: None,
            row: None,
            heard: Vec::new(),
            whole_from: StoreTime::default(),
        }
    }

    fn policy(&self) -> PolicyOf<'_> {
        PolicyOf::new(&*self.world.store, Family::Paced, "updates")
    }

    fn version(&self) -> PolicyVersion {
        self.state
            .as_ref()
            .map_or(PolicyVersion::NONE, |s| s.version)
    }

    /// The current version, or another one.
    fn known(&self, late: bool) -> PolicyVersion {
        PolicyVersion::new(self.version().number() + u64::from(late))
    }

    fn apply(&mut self, update: Update) -> Result<(), TestCaseError> {
        match update {
            Update::Declare { file, most, known } => self.declare(file, most, known)?,
            Update::Set { text, late } => self.set(text, late)?,
            Update::Replace { text, late } => self.replace(text, late)?,
            Update::Pause(seconds) => self.pause(Duration::from_secs(seconds))?,
            Update::Resume => self.resume()?,
            Update::Back(by) => self.back(by),
            Update::Ask { late } => self.ask(late)?,
            Update::Lose => {
                forget(&mut self.connection);
                (self.state, self.row) = (None, None);
                self.whole_from = StoreTime::default();
            }
        }
        prop_assert_eq!(kept(self.world), self.state.clone());
        Ok(())
    }

    fn declare(
        &mut self,
        file: usize,
        most: bool,
        known: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let store = &self.world.store;
        let other = if most {
            store.withdraw_file(Family::Paced, "updates", "host:2")
        } else {
            let known = PolicyVersion::NONE;
            let other =
                store.declare_presence(Family::Paced, "updates", "host:2", "another file", known);
            futures::FutureExt::boxed(async { other.await.map(drop) })
        };
        self.world.runtime.block_on(other).unwrap();
        let declaration = Declaration {
            replica: "host:1".to_owned(),
            file: FILES[file].to_owned(),
            known: known.and_then(|ago| self.heard.iter().rev().nth(ago).cloned()),
        };
        let known = declaration.known.as_ref();
        if known.is_some_and(|known| known.version > self.version()) {
            self.whole_from = self.time() + WITHIN;
        }
        let waits = self.time() < self.whole_from;
        let declare = self.policy().declare(&declaration);
        let told = self.world.runtime.block_on(declare).unwrap();
        // Where the decision made a new version, that was Redis' time.
        let fresh = Some(told.version) != self.state.as_ref().map(|s| s.version);
        let now = if fresh {
            told.version.since()
        } else {
            self.time()
        };
        let files = FileCounts {
            replicas: 2 - u64::from(most),
            same: u64::from(!waits),
        };
        let expected = policy::declare(&mut self.state, &declaration, files, now);
        prop_assert_eq!(&told, &expected);
        self.heard.push(told);
        Ok(())
    }

    fn set(&mut self, text: usize, late: bool) -> Result<(), TestCaseError> {
        let update = PolicyUpdate {
            replaces: self.known(late),
            text: SET[text],
            file: FILES[0],
            by: "op",
        };
        self.set_over(&update, None)
    }

    fn set_over(
        &mut self,
        update: &PolicyUpdate<'_>,
        known: Option<&LimitPolicy>,
    ) -> Result<(), TestCaseError> {
        let set = self.policy().set(update, known);
        let told = self.world.runtime.block_on(set).unwrap();
        let now = told.map_or(StoreTime::default(), |said| said.version.since());
        let done = policy::set(&mut self.state, update, now);
        prop_assert_eq!(told.is_some(), done);
        Ok(())
    }

    fn replace(&mut self, text: usize, late: bool) -> Result<(), TestCaseError> {
        let earlier = |policy: &&LimitPolicy| policy.version != self.version();
        let known = match late {
            true => self.heard.iter().rev().find(earlier).cloned(),
            false => self.state.clone(),
        };
        let Some(known) = known else {
            return Ok(());
        };
        let update = PolicyUpdate {
            replaces: known.version,
            text: SET[text],
            file: &known.file,
            by: "host:1",
        };
        self.set_over(&update, Some(&known))
    }

    fn pause(&mut self, length: Duration) -> Result<(), TestCaseError> {
        let pause = self.policy().pause(length, "op");
        let told = self.world.runtime.block_on(pause).unwrap();
        let now = told.map_or(StoreTime::default(), |(said, _)| said.version.since());
        let until = policy::pause(&mut self.state, length, "op", now);
        prop_assert_eq!(told.map(|(_, until)| until), until);
        Ok(())
    }

    fn time(&mut self) -> StoreTime {
        let time = redis::cmd("TIME").query(&mut self.connection);
        let (seconds, micros): (u64, u64) = time.unwrap();
        StoreTime::from_micros(seconds * 1_000_000 + micros)
    }

    /// Redis' clock cannot be set: times ahead of it are moved instead.
    fn back(&mut self, by: u64) {
        let Some(state) = &mut self.state else {
            return;
        };
        let by = Duration::from_micros(by);
        let mut times = vec![("remade_at", &mut state.kind_changed_at)];
        times.extend(state.pause.as_mut().map(|p| ("paused_until", &mut p.until)));
        for (field, time) in times {
            if *time > StoreTime::default() {
                *time = *time + by;
                let set = redis::cmd("HSET")
                    .arg("oracle:{updates}:policy")
                    .arg(field)
                    .arg(time.as_micros())
                    .query(&mut self.connection);
                () = set.unwrap();
            }
        }
    }

    fn resume(&mut self) -> Result<(), TestCaseError> {
        let resume = self.policy().resume("ann");
        let told = self.world.runtime.block_on(resume).unwrap();
        let now = told.map_or(StoreTime::default(), |(said, _)| said.version.since());
        let was = policy::resume(&mut self.state, "ann", now);
        let thawed = schedule::thaw(&mut self.row, now);
        prop_assert_eq!(told.map(|(_, was)| was), was.map(|was| was || thawed));
        Ok(())
    }

    fn ask(&mut self, late: bool) -> Result<(), TestCaseError> {
        let (pace, known) = (paces()[0].pace, self.known(late));
        let ask = Ask {
            want: 3,
            ..clock_ask()
        };
        let limit = PacedRow {
            known,
            ..PacedRow::new("updates", pace)
        };
        let lease = self.world.store.lease(&limit, ask.clone());
        let told = self.world.runtime.block_on(lease).unwrap();
        let (state, run) = (self.state.as_ref(), &self.world.run);
        let expected =
            policy::lease_under(state, &mut self.row, (&pace, known), run, &ask, told.now);
        prop_assert_eq!(told, expected);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: longer(60), rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn updates_are_the_same_in_redis_and_in_rust(updates in prop::collection::vec(update(), 1..24)) {
        let mut play = Play::start();
        for update in updates {
            play.apply(update)?;
        }
        let lives: i64 = redis::cmd("PTTL").arg("oracle:{updates}:policy").query(&mut play.connection).unwrap();
        prop_assert!(lives < 0, "what an operator said must stay: {}", lives);
    }
}

/// Redis has forgotten which replicas are there, too: the changed file of the first one that asks is not that of most.
#[test]
fn after_a_loss_no_file_counts_until_each_replica_had_time() {
    let world = world();
    let policy = PolicyOf::new(&*world.store, Family::Paced, "lost-files");
    let declare = |file: usize, known: Option<&LimitPolicy>| {
        let declaration = Declaration {
            replica: "host:1".to_owned(),
            file: FILES[file].to_owned(),
            known: known.cloned(),
        };
        let told = world.runtime.block_on(policy.declare(&declaration));
        told.unwrap()
    };
    let first = declare(0, None);
    assert_eq!(first.text, FILES[0]);
    let mut connection = RedisServer::shared().connection();
    let began = Instant::now();
    for part in ["policy", "replicas"] {
        let key = format!("oracle:{{lost-files}}:{part}");
        redis::cmd("DEL")
            .arg(key)
            .query::<()>(&mut connection)
            .unwrap();
    }
    // What it knew counts on, and its changed file waits for what the others say.
    assert_eq!(declare(1, Some(&first)).text, FILES[0]);
    let end = began + LONG;
    while declare(1, Some(&first)).text == FILES[0] {
        assert!(Instant::now() < end, "it never counts");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(began.elapsed() >= WITHIN, "after {:?}", began.elapsed());
}
