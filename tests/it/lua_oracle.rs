//! The scripts in Redis against the decision in Rust: the same replies and the same state, to the
//! microsecond, over random sequences. Redis' clock cannot be set, so its steps are made by moving
//! the times in the state instead.

mod breaker;
mod owner;
mod schedule;
mod updates;

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support::redis::RedisServer;
use crate::support::wait::eventually;
use sluiced_core::rate::{Cost, MAX_UNITS, MAX_WINDOW, Rate};
use sluiced_core::schedule::{Ask, ClockView, Pace};
use sluiced_ports::store::{PacedRow, Store as _};
use sluiced_settings::text::Length;
use sluiced_store::redis::{RedisOptions, RedisStore};
use tokio::runtime::Runtime;

struct World {
    runtime: Runtime,
    store: Arc<RedisStore>,
    run: String,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let server = RedisServer::shared();
        let runtime = Runtime::new().unwrap();
        let mut options = RedisOptions::single(server.url(), "oracle");
        options.settings.connect_timeout = Length(Duration::from_secs(5));
        options.settings.response_timeout = Length(Duration::from_secs(5));
        let store = runtime.block_on(async {
            let store = RedisStore::connect(&options).unwrap();
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
            store,
            run,
        }
    })
}

fn paces() -> [PacedRow; 4] {
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
        PacedRow::new("provider", pace)
    })
}

const fn clock_ask() -> Ask {
    Ask {
        want: 0,
        sums: Vec::new(),
        turn: None,
        clock_view: ClockView::Unproven,
        lead: Duration::ZERO,
    }
}
