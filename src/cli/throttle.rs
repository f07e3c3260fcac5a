//! `sluiced throttle`: one question to a `gcra` budget in Redis, with the arguments and the answer
//! of `CL.THROTTLE`, for scripts and cron jobs.
//!
//! ```text
//! sluiced throttle user123 200 500 60 2
//!                  |       |   |   |  +- take 2 units (1 if left out, 0 only looks)
//!                  |       |   +---+---- 500 units in 60 seconds
//!                  |       +------------ and up to 200 more at once
//!                  +-------------------- of the budget with this key
//! ```
//!
//! It prints five numbers, one a line: 1 if limited, 0 if not; the limit; what remains; after how
//! many seconds to try again (-1 if it was not limited, or if it never fits); after how many
//! seconds the budget is full again. The exit code is 0 for any answer. With `--fail` it is 1 if it
//! was limited, so that `sluiced throttle --fail … && send` works. Any other failure is 1 too and
//! prints no numbers.

use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use secrecy::SecretString;
use serde_json::json;

use super::exit::Exit;
use crate::cli::check;
use crate::core::budget::gcra::Gcra;
use crate::core::budget::{Rule, Usage};
use crate::core::rate::{Cost, Rate};
use crate::core::time::micros;
use crate::limiter::key::budget_key;
use crate::ports::budget::{BudgetLimit, BudgetStore, Claim, Lost, Petition, Ruling, Ticket};
use crate::settings;
use crate::wire;

/// The name of the limit in the store; the key tells the budgets apart.
const LIMIT: &str = "throttle";

/// The arguments of `sluiced throttle`.
#[derive(Args, Clone, Debug)]
pub struct ThrottleArgs {
    /// The key of the budget
    pub key: String,
    /// Units that may come at once beyond the first one
    pub max_burst: u32,
    /// So many units …
    pub count: NonZeroU32,
    /// … in so many seconds
    pub period: NonZeroU64,
    /// How many units to take; 0 only looks
    #[arg(default_value_t = 1)]
    pub quantity: u32,
    /// Where Redis is: `redis://user:password@host:port/db`
    #[arg(long, value_name = "URL")]
    pub redis: Option<SecretString>,
    /// A configuration file whose [redis] is used instead; may repeat
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "redis",
        conflicts_with = "redis"
    )]
    pub config: Vec<PathBuf>,
    /// Print JSON, with exact microseconds
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 if it was limited
    #[arg(long)]
    pub fail: bool,
}

/// What was found out.
struct Answer {
    limited: bool,
    /// It costs more than the budget ever holds.
    never: bool,
    usage: Usage,
}

/// Asks and writes the answer to `out`, what went wrong to `err`.
///
/// # Errors
/// When `out` or `err` cannot be written to.
pub async fn run(
    args: &ThrottleArgs,
    env: impl Iterator<Item = (String, String)>,
    out: &mut (impl Write + Send),
    err: &mut (impl Write + Send),
    colour: bool,
) -> io::Result<Exit> {
    let rule = match rule(args) {
        Ok(rule) => rule,
        Err(why) => {
            writeln!(err, "sluiced throttle: {why}")?;
            return Ok(Exit::WrongArguments);
        }
    };
    let options = match &args.redis {
        Some(url) => Ok(wire::redis_at(url.clone())),
        None => match settings::load(&args.config, env) {
            Ok(loaded) => wire::redis_of(&loaded),
            Err(faults) => {
                check::report(&faults, err, colour)?;
                return Ok(Exit::WrongConfiguration);
            }
        },
    };
    let store = match options {
        Ok(options) => wire::budgets(&options).await,
        Err(why) => Err(why),
    };
    let answer = match store {
        Ok(store) => ask(args, rule, &*store).await.map_err(|e| e.to_string()),
        Err(why) => Err(why.to_string()),
    };
    match answer {
        Ok(answer) => {
            write(args, &answer, out)?;
            Ok(if args.fail && answer.limited {
                Exit::Failed
            } else {
                Exit::Done
            })
        }
        Err(why) => {
            writeln!(err, "sluiced throttle: {why}")?;
            Ok(Exit::Failed)
        }
    }
}

fn rule(args: &ThrottleArgs) -> Result<Rule, String> {
    let window = Duration::from_secs(args.period.get());
    let rate = Rate::new(args.count, window).map_err(|e| e.to_string())?;
    // The caller acts at once, so nothing is kept for lateness.
    let gcra = Gcra::new(rate, args.max_burst, Duration::ZERO).map_err(|e| e.to_string())?;
    Ok(Rule::Gcra(gcra))
}

async fn ask(
    args: &ThrottleArgs,
    rule: Rule,
    store: &dyn BudgetStore,
) -> Result<Answer, crate::ports::pace::StoreError> {
    let limit = Arc::new(BudgetLimit::new(LIMIT, rule, Lost::Open));
    let key = budget_key(&[&args.key]);
    let Some(units) = NonZeroU32::new(args.quantity) else {
        let usage = store.look(&limit, key).await?.usage;
        let usage = Usage {
            retry_after: Duration::ZERO,
            ..usage
        };
        return Ok(Answer {
            limited: false,
            never: false,
            usage,
        });
    };
    let petition = Petition {
        claims: vec![Claim {
            limit,
            key,
            cost: Cost::new(units),
            held: None,
        }],
        reserve: None,
        ticket: Ticket(0),
    };
    let ruling = store.admit(&[petition], None).await?.rulings.pop();
    Ok(match ruling {
        Some(Ruling::Denied { usage, .. }) => Answer {
            limited: true,
            never: false,
            usage,
        },
        Some(Ruling::Never { usage, .. }) => Answer {
            limited: true,
            never: true,
            usage,
        },
        Some(Ruling::Granted { passes }) => Answer {
            limited: false,
            never: false,
            usage: passes.first().map(|pass| pass.usage).unwrap_or_default(),
        },
        // Nobody sets other terms of this limit, or pauses it, and nobody holds a place.
        Some(Ruling::Outdated { .. } | Ruling::Paused { .. } | Ruling::Late { .. }) | None => {
            Answer {
                limited: true,
                never: false,
                usage: Usage::default(),
            }
        }
    })
}

fn write(args: &ThrottleArgs, answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    let usage = &answer.usage;
    let waits = answer.limited && !answer.never;
    if args.json {
        let answer = json!({
            "limited": answer.limited,
            "limit": usage.limit,
            "remaining": usage.remaining,
            "retry_after_us": waits.then(|| micros(usage.retry_after)),
            "reset_after_us": micros(usage.reset_after),
            "never": answer.never,
        });
        return writeln!(out, "{answer}");
    }
    writeln!(out, "{}", u8::from(answer.limited))?;
    writeln!(out, "{}", usage.limit)?;
    writeln!(out, "{}", usage.remaining)?;
    if waits {
        writeln!(out, "{}", seconds(usage.retry_after))?;
    } else {
        writeln!(out, "-1")?;
    }
    writeln!(out, "{}", seconds(usage.reset_after))
}

/// Rounded up: never a moment too early.
fn seconds(time: Duration) -> u64 {
    micros(time).div_ceil(1_000_000)
}
