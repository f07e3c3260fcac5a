//! `sluiced throttle`: one question of a script or a cron job, with the answer of `CL.THROTTLE`. Either to a `gcra`
//! limit of its own in Redis, with the arguments of `CL.THROTTLE`; or to a limit that routes share (`--limit`, see
//! `turn`): then it waits for its turn.
//!
//! ```text
//! sluiced throttle user123 200 500 60 2
//!                  |       |   |   |  +- take 2 units (1 if left out, 0 only looks)
//!                  |       |   +---+---- 500 units in 60 seconds
//!                  |       +------------ and up to 200 more at once
//!                  +-------------------- of this key
//! ```
//!
//! It prints what it found with labels, as JSON with `--json`, or with `--plain` as the five numbers of
//! `CL.THROTTLE`, one a line: 1 if limited, 0 if not; the limit; what remains; after how many seconds to try
//! again (-1 if it was not limited, or if it never fits); after how many seconds all units are there again.
//! Seconds lose their fraction, as in `CL.THROTTLE`: the true time is up to a second later. The exit code is 0 for any
//! result. With
//! `--fail` it is 1 if it was limited, so that `sluiced throttle --fail … && send` works. Any other failure
//! is 1 too and prints no result.

mod turn;

use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use secrecy::SecretString;
use serde_json::json;

use super::exit::{Exit, Refusal, load_configuration, only_one_of};
use super::shell;
use crate::wire;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::{Fit, Room, Rule, Ticket};
use sluiced_core::rate::{Cost, Rate, Span, parse_duration};
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::limits::{Candidate, Charge, KeyedLimit, LimitKey, LimitStore, limit_key};
use sluiced_ports::store::StoreError;
use sluiced_settings::Needs;
use turn::PermitRequest;

/// The name of the limit in the store; its keys are those of the callers. No limit of a configuration has a colon in
/// its name.
const LIMIT: &str = ":throttle";

/// The arguments of `sluiced throttle`.
#[derive(Args, Clone, Debug)]
pub struct ThrottleArgs {
    /// The key
    #[arg(required_unless_present = "limit")]
    pub key: Option<String>,
    /// Units that may come at once beyond the first one
    #[arg(required_unless_present = "limit", conflicts_with = "limit")]
    pub max_burst: Option<u32>,
    /// The units that come back within PERIOD
    #[arg(required_unless_present = "limit")]
    pub count: Option<NonZeroU32>,
    /// The time in which COUNT units come back, in seconds
    #[arg(required_unless_present = "limit")]
    pub period: Option<NonZeroU64>,
    /// How many units to take; 0 only looks
    #[arg(default_value_t = 1)]
    pub quantity: u32,
    /// A limit of the configuration, shared with its routes: waits for a turn, through callers that name it. KEY is one
    /// of its keys, if it has keys
    #[arg(long, value_name = "NAME", requires = "config", conflicts_with = "redis", add = shell::limits())]
    pub limit: Option<String>,
    /// With --limit: how many units to take
    #[arg(long, value_name = "N", requires = "limit", default_value_t = NonZeroU32::MIN)]
    pub units: NonZeroU32,
    /// With --limit: how long to wait for the turn (10s, or the max_wait of the callers if that is less)
    #[arg(long, value_name = "DURATION", requires = "limit", value_parser = length)]
    pub wait: Option<Duration>,
    /// Where Redis is: `redis://user:password@host:port/db`
    #[arg(long, value_name = "URL")]
    pub redis: Option<SecretString>,
    /// A configuration file whose [redis] is used instead; may repeat
    #[arg(
        long,
        env = "SLUICED_CONFIG",
        value_name = "FILE",
        required_unless_present = "redis"
    )]
    pub config: Vec<PathBuf>,
    /// Print JSON, with exact microseconds
    #[arg(long)]
    pub json: bool,
    /// Print the five numbers of CL.THROTTLE, one a line: limited (1 or 0), limit, remaining, and in whole seconds,
    /// without the fraction as CL.THROTTLE has it, when to try again (-1: at once, or never) and when all units are
    /// there again
    #[arg(long, conflicts_with = "json")]
    pub plain: bool,
    /// Exit with 1 if it was limited
    #[arg(long)]
    pub fail: bool,
}

fn length(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|why| format!("it is {why}"))
}

/// The result.
#[derive(Default)]
struct ThrottleResult {
    limited: bool,
    /// When it fits; `None`: it fits, or never does.
    retry_after: Option<Duration>,
    /// The most units at once; `None`: not known, like the next two.
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after: Option<Duration>,
    /// When the next unit fits, where nothing is left.
    next: Option<Duration>,
    /// The turn has come, and the call must arrive within this.
    use_within: Option<Duration>,
}

/// Asks, and writes the result to `out`.
pub(super) async fn run(
    args: &ThrottleArgs,
    env: impl Iterator<Item = (String, String)>,
    out: &mut (impl Write + Send),
) -> Result<Exit, Refusal> {
    let answer = match &args.limit {
        Some(limit) => {
            // The token of its callers is read when they are asked; it needs no other secret.
            let loaded = load_configuration(Needs::Nothing, &args.config, env)?;
            let wanted = PermitRequest {
                limit,
                key: args.key.as_deref(),
                units: args.units.get(),
                wait: args.wait,
            };
            let callers = turn::callers(&loaded, wanted)?;
            turn::ask(&loaded, callers, wanted).await?
        }
        None => ask_own_limit(args, env).await?,
    };
    write(args, &answer, out)?;
    Ok(if args.fail && answer.limited {
        Exit::Failed
    } else {
        Exit::Done
    })
}

/// A limit of scripts alone.
async fn ask_own_limit(
    args: &ThrottleArgs,
    env: impl Iterator<Item = (String, String)>,
) -> Result<ThrottleResult, Refusal> {
    let of_all = args.key.as_ref().zip(args.max_burst);
    let rate = args.count.zip(args.period);
    // The arguments are required without --limit.
    let Some(((key, burst), (count, period))) = of_all.zip(rate) else {
        let why = "write KEY MAX_BURST COUNT PERIOD, or --limit NAME";
        return Err(Refusal::Arguments(why.to_owned()));
    };
    let rule = rule(burst, count, period).map_err(Refusal::Arguments)?;
    only_one_of("--redis", args.redis.is_some(), &args.config)?;
    let options = match &args.redis {
        Some(url) => wire::redis_at(url.clone()),
        None => {
            let needs = Needs::Section("redis");
            wire::redis_of(&load_configuration(needs, &args.config, env)?)?
        }
    };
    let store = wire::store(&options).await?;
    let mut found = ask(args, key, rule, &*store).await?;
    found.limit = Some(u64::from(burst) + 1);
    Ok(found)
}

fn rule(burst: u32, count: NonZeroU32, period: NonZeroU64) -> Result<Rule, String> {
    let window = Duration::from_secs(period.get());
    let rate = Rate::new(count, window).map_err(|e| e.to_string())?;
    // The caller acts at once, so nothing is kept for lateness.
    let gcra = Gcra::new(rate, burst, Duration::ZERO).map_err(|e| e.to_string())?;
    Ok(Rule::Gcra(gcra))
}

async fn ask(
    args: &ThrottleArgs,
    key: &str,
    rule: Rule,
    store: &dyn LimitStore,
) -> Result<ThrottleResult, StoreError> {
    let limit = Arc::new(KeyedLimit::new(LIMIT, rule, LostWait::For(Duration::ZERO)));
    let key = limit_key(&[key]);
    let Some(units) = NonZeroU32::new(args.quantity) else {
        return look_at_key(store, &limit, key, false).await;
    };
    let candidate = Candidate {
        charges: vec![Charge {
            limit: Arc::clone(&limit),
            key,
            cost: Cost::new(units),
        }],
        was_denied: true,
        slots: Cost::ONE,
        ticket: Ticket(0),
        died: StoreTime::default(),
        others_wait: false,
    };
    let mut answer = store.admit(&[candidate], 1).await?;
    let now = answer.now;
    let reset_after = |room: Room| room.reset_at.since(now);
    match answer.decisions.pop() {
        Some(Decision::Granted { after }) => {
            let room = after.first().map(|pass| pass.room).unwrap_or_default();
            // For people only: CL.THROTTLE does not return when the next unit is available.
            let next = if room.remaining == 0 && !args.json && !args.plain {
                look_at_key(store, &limit, key, false).await?.next
            } else {
                None
            };
            Ok(ThrottleResult {
                next,
                ..ThrottleResult::of(false, room.remaining, reset_after(room))
            })
        }
        Some(Decision::Denied { until, room, .. }) => Ok(ThrottleResult {
            retry_after: Some(until.since(now)),
            ..ThrottleResult::of(true, room.remaining, reset_after(room))
        }),
        // More than it ever holds. (This limit has no policy, so none is outdated or paused.)
        _ => look_at_key(store, &limit, key, true).await,
    }
}

/// What is left, without taking any of it.
async fn look_at_key(
    store: &dyn LimitStore,
    limit: &Arc<KeyedLimit>,
    key: LimitKey,
    limited: bool,
) -> Result<ThrottleResult, StoreError> {
    let look = store.look(limit, key).await?;
    let since = |at: StoreTime| at.since(look.now);
    Ok(ThrottleResult {
        next: match look.fits {
            Fit::At(at) => Some(since(at)),
            Fit::Now | Fit::Full => None,
        },
        ..ThrottleResult::of(limited, look.room.remaining, since(look.room.reset_at))
    })
}

impl ThrottleResult {
    fn of(limited: bool, remaining: u64, reset_after: Duration) -> Self {
        Self {
            limited,
            remaining: Some(remaining),
            reset_after: Some(reset_after),
            ..Self::default()
        }
    }
}

fn write(args: &ThrottleArgs, answer: &ThrottleResult, out: &mut impl Write) -> io::Result<()> {
    if args.json {
        writeln!(out, "{}", as_json(answer))
    } else if args.plain {
        write_plain(answer, out)
    } else {
        write_in_words(answer, out)
    }
}

fn as_json(answer: &ThrottleResult) -> serde_json::Value {
    json!({
        "limited": answer.limited,
        "limit": answer.limit,
        "remaining": answer.remaining,
        "retry_after_us": answer.retry_after.map(micros),
        "reset_after_us": answer.reset_after.map(micros),
        "use_within_us": answer.use_within.map(micros),
        "never": answer.limited && answer.retry_after.is_none(),
    })
}

fn write_plain(answer: &ThrottleResult, out: &mut impl Write) -> io::Result<()> {
    let retry_after = answer.retry_after.map(|wait| wait.as_secs().to_string());
    let (retry, reset) = (
        retry_after.as_deref().unwrap_or("-1"),
        answer.reset_after.unwrap_or_default().as_secs(),
    );
    let (limited, remaining) = (u8::from(answer.limited), answer.remaining.unwrap_or(0));
    let limit = answer.limit.unwrap_or(0);
    writeln!(out, "{limited}\n{limit}\n{remaining}\n{retry}\n{reset}")
}

fn write_in_words(answer: &ThrottleResult, out: &mut impl Write) -> io::Result<()> {
    let span = |seconds| Span(Duration::from_secs(seconds)).to_string();
    let retry = match answer.retry_after.map(seconds) {
        Some(wait) => format!("after {}", span(wait)),
        None if answer.limited => "never: more than the limit ever holds".to_owned(),
        None => match answer.next.map(seconds) {
            Some(wait) if wait > 0 => format!("after {}", span(wait)),
            _ => "at once".to_owned(),
        },
    };
    let limited = if answer.limited { "yes" } else { "no" };
    writeln!(out, "limited    {limited}")?;
    if let Some(within) = answer.use_within {
        return writeln!(
            out,
            "call       within {:.1} ms",
            within.as_secs_f64() * 1e3
        );
    }
    if let Some(limit) = answer.limit {
        writeln!(out, "limit      {limit}")?;
    }
    if let Some(remaining) = answer.remaining {
        writeln!(out, "remaining  {remaining}")?;
    }
    writeln!(out, "try again  {retry}")?;
    match answer.reset_after.map(seconds) {
        Some(reset) => writeln!(out, "all back   after {}", span(reset)),
        None => Ok(()),
    }
}

/// Rounded up: never a moment too early.
fn seconds(time: Duration) -> u64 {
    micros(time).div_ceil(1_000_000)
}
