//! `sluiced plan`: what a route will do with expected messages, or with those of a recorded trace.
//!
//! Problem: a limit that is too low, a key that gets more than its share, a cost that never fits or hours
//! that never open are noticed only when there is a backlog. Here the route runs on a virtual clock first,
//! with the decisions of production (`simulation::plan`); no server is asked, no secret is read, and
//! the same arguments make the same run.
//!
//! By file: `arrivals`, `trace` and `choices` are the input, `messages` draws messages from it; `figures`, `limits`
//! and `findings` are the result; `words` and `plots` show it.

mod arrivals;
mod choices;
mod figures;
mod findings;
mod limits;
mod messages;
mod plots;
mod trace;
mod words;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use self::arrivals::{ArrivalStream, Arrivals, Burst, MAX_MESSAGES, count_messages};
use self::choices::{Choices, CostsOf, KeysOf};
use self::figures::Figures;
use self::findings::{Finding, FindingKind, PlanFacts, PlanOmissions, findings, zone};
use self::messages::{DrawnMessages, draw_messages, messages_of_trace};
use self::trace::read_trace;
use self::words::{PlanHead, time};
use super::exit::{Exit, Refusal, load_configuration, writes_over_no_input};
use super::shell;
use super::trial::choose_route;
use crate::wire::PlannedRoute;
use sluiced_core::gate::OnDenied;
use sluiced_core::rate::Span;
use sluiced_core::time::{StoreTime, micros};
use sluiced_settings::text::Length;
use sluiced_settings::types::{Limit, Route, Settings};
use sluiced_settings::{Loaded, Needs};
use sluiced_simulation::plan::{self as simulation, KeyedRule, Plan};

/// The default begin of a plan: a Monday.
const MONDAY: &str = "2026-01-05T00:00";
/// The default length, which is also added to a trace.
const USUAL: Duration = Duration::from_secs(600);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(31 * 24 * 3600);

/// The arguments of `sluiced plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// A configuration file, as for `sluiced run`; may repeat. Its secrets are not read
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// The route; it can be left out where there is one
    #[arg(long, value_name = "NAME", add = shell::routes())]
    route: Option<String>,
    /// Messages that come at a rate: 300/1s, or 300/1s@1m-5m for a part of the time; may repeat
    #[arg(long, value_name = "RATE")]
    arrivals: Vec<ArrivalStream>,
    /// Messages that come at once: 6000@0s; may repeat
    #[arg(long, value_name = "COUNT@TIME")]
    burst: Vec<Burst>,
    /// Recorded messages, one a line: {"at": SECONDS, "body": {…}, "headers": {…}, "priority": N}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "burst", "keys", "cost"])]
    trace: Option<PathBuf>,
    /// How many keys the messages have, or a file with one key a line: 1000, recipient=1000, recipient=@FILE
    #[arg(long, value_name = "[LIMIT=]KEYS")]
    keys: Vec<KeysOf>,
    /// What a message costs: 3, 1-3, provider=1-3
    #[arg(long, value_name = "[LIMIT=]COST")]
    cost: Vec<CostsOf>,
    /// How long to simulate [default: 10m; with a trace until 10m after its last message]
    #[arg(long = "for", value_name = "TIME")]
    length: Option<Length>,
    /// When it begins, by the clock of the route's time zone [default: the first opening from Monday 2026-01-05]
    #[arg(long, value_name = "YYYY-MM-DDTHH:MM")]
    start: Option<String>,
    /// How many replicas run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    replicas: u32,
    /// Another number makes another run of the same kind
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the plots to this file, as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a plan and writes its result to `out`. The exit code is 0 if the backlog ends within the time, 1 if
/// something stands still or the backlog grows.
pub(super) fn run(
    args: &PlanArgs,
    env: impl Iterator<Item = (String, String)>,
    out: &mut impl Write,
) -> Result<Exit, Refusal> {
    if let Some(svg) = &args.svg {
        let keys = args.keys.iter().filter_map(KeysOf::file);
        let inputs = args.config.iter().chain(&args.trace).chain(keys);
        writes_over_no_input("--svg", svg, inputs)?;
    }
    let Loaded { settings, .. } = load_configuration(Needs::Nothing, &args.config, env)?;
    let (name, whole) = choose_route(&settings, args.route.as_deref())?;
    let (remaining, once) = without_once(&settings, whole)?;
    let route = &remaining;
    let planned = PlannedRoute::new(&settings, name, route)?;
    let asked = plan_inputs(args, &planned, route).map_err(Refusal::Arguments)?;
    let plan = Plan {
        seed: args.seed,
        length: asked.length,
        start: start(args, &planned, route).map_err(Refusal::Arguments)?,
        replicas: args.replicas,
        route: route_of(&planned, route),
        messages: asked.drawn.messages.clone(),
    };
    let outcome = simulation::run(&plan);
    let figures = Figures::new(&plan, &planned, &asked.drawn, &outcome);
    let mut found = findings(&PlanFacts {
        plan: &plan,
        figures: &figures,
        steady: asked.steady,
        why_invalid: asked.drawn.why.as_deref(),
    });
    let of_queue = settings.of_queue(&route.queue).map(|(other, _)| other);
    let omissions = PlanOmissions {
        others: others(&settings, name, &planned),
        same_queue: of_queue.filter(|other| *other != name).collect(),
        assumed: &asked.assumed,
        once: &once,
        tenants_known: args.trace.is_some() || asked.tenants,
    };
    found.extend(omissions.findings(route));
    let head = PlanHead {
        route: name.to_owned(),
        length: time(micros(asked.length)),
        start: begins(args, &planned).then(|| zone(route).show(plan.start)),
        replicas: args.replicas,
        prefetch: planned.rules.prefetch,
        arrivals: asked.arrivals,
        seed: args.seed,
    };
    write(args, &head, &figures, &found, out)?;
    Ok(match is_good(&found) {
        true => Exit::Done,
        false => Exit::Failed,
    })
}

/// Writes what was found, and the picture if one is wanted.
fn write(
    args: &PlanArgs,
    head: &PlanHead,
    figures: &Figures,
    found: &[Finding],
    out: &mut impl Write,
) -> Result<(), Refusal> {
    let ends = is_good(found);
    let verdict = words::verdict(ends, figures);
    if let Some(file) = &args.svg {
        let title = format!("route {}: {}", head.route, head.arrivals);
        let worst = found
            .iter()
            .find(|finding| finding.weight != FindingKind::Note);
        let subtitle = worst.map_or(verdict.as_str(), |finding| finding.text.as_str());
        write_picture(
            file,
            &plots::picture::svg(&title, subtitle, &figures.series),
        )?;
    }
    if args.json {
        let value = words::json(head, figures, found, ends);
        writeln!(out, "{value:#}")?;
    } else {
        write!(out, "{}", words::words(head, figures, found, ends))?;
        write!(
            out,
            "\n{}\n{verdict}",
            plots::terminal::plots(&figures.series)
        )?;
    }
    Ok(())
}

/// Whether nothing that was found is more than a note.
fn is_good(found: &[Finding]) -> bool {
    found
        .iter()
        .all(|finding| finding.weight == FindingKind::Note)
}

fn write_picture(file: &Path, picture: &str) -> Result<(), Refusal> {
    let written = std::fs::write(file, picture);
    written.map_err(|why| Refusal::Failed(format!("--svg {}: {why}", file.display())))
}

/// The route without its `once` limits, and their names: no two messages of a plan are the same.
fn without_once(settings: &Settings, route: &Route) -> Result<(Route, Vec<String>), Refusal> {
    let mut remaining = route.clone();
    let is_once = |name: &String| {
        settings
            .limits
            .get(name)
            .is_some_and(|l| l.as_once().is_some())
    };
    let once: Vec<String> = remaining
        .limits
        .extract_if(.., |name| is_once(name))
        .collect();
    if remaining.limits.is_empty() && !once.is_empty() {
        let name = &once[0];
        return Err(Refusal::Arguments(format!(
            "limits.{name} makes no message wait but repeats, and no other limit does: there is nothing to plan"
        )));
    }
    Ok((remaining, once))
}

/// The input of a plan.
struct PlanInputs {
    length: Duration,
    drawn: DrawnMessages,
    /// In words.
    arrivals: String,
    /// Messages a second that come all the time.
    steady: f64,
    /// Limits whose costs are a guess.
    assumed: Vec<String>,
    /// The tenant of each message is known.
    tenants: bool,
}

fn plan_inputs(
    args: &PlanArgs,
    planned: &PlannedRoute,
    route: &Route,
) -> Result<PlanInputs, String> {
    if let Some(file) = &args.trace {
        let trace = read_trace(file)?;
        let last = trace.last().map_or(0, |arrival| arrival.at);
        let usual = Duration::from_micros(last) + USUAL;
        let length = length(args, usual)?;
        let within = trace.partition_point(|arrival| arrival.at < micros(length));
        return Ok(PlanInputs {
            length,
            drawn: messages_of_trace(planned, route, &trace[..within]),
            arrivals: format!("the trace {}", file.display()),
            steady: 0.0,
            assumed: Vec::new(),
            tenants: true,
        });
    }
    let length = length(args, USUAL)?;
    check_count(args, length)?;
    let choices = Choices::new(&planned.limits, &args.keys, &args.cost)?;
    let arrivals = Arrivals {
        streams: &args.arrivals,
        bursts: &args.burst,
        length,
    };
    let steady = args
        .arrivals
        .iter()
        .filter(|arrival| arrival.during.is_none());
    let arrival_texts: Vec<String> = args
        .arrivals
        .iter()
        .map(ToString::to_string)
        .chain(args.burst.iter().map(ToString::to_string))
        .collect();
    let fair_by = route.fair_by.as_ref().map(|text| text.as_str());
    let assumed = choices.assumed.iter().map(|&name| name.to_owned());
    Ok(PlanInputs {
        length,
        drawn: draw_messages(planned, route, &choices, &arrivals, args.seed),
        arrivals: arrival_texts.join(", "),
        steady: steady.map(|stream| stream.rate.per_second()).sum(),
        assumed: assumed.collect(),
        tenants: choices.keys.iter().any(|(text, _)| Some(*text) == fair_by),
    })
}

/// Whether there are messages within `length`, and not more than a plan takes.
fn check_count(args: &PlanArgs, length: Duration) -> Result<(), String> {
    if args.arrivals.is_empty() && args.burst.is_empty() {
        let why = "what comes? --arrivals 300/1s, --burst 6000@0s, both, or --trace FILE";
        return Err(why.to_owned());
    }
    let of_streams = args
        .arrivals
        .iter()
        .map(|stream| count_messages(stream, length));
    let bursts = args.burst.iter().filter(|burst| burst.at < length);
    let of_bursts = bursts.map(|burst| u64::from(burst.count));
    let within = Span(length);
    match of_streams.chain(of_bursts).sum::<u64>() {
        0 => Err(format!(
            "no message comes within {within}: a longer --for shows some"
        )),
        1..=MAX_MESSAGES => Ok(()),
        all => Err(format!(
            "{all} messages come within {within}, and a plan takes {MAX_MESSAGES}: give a shorter --for"
        )),
    }
}

fn length(args: &PlanArgs, usual: Duration) -> Result<Duration, String> {
    let length = args.length.map_or(usual, Length::get);
    if (SHORTEST..=LONGEST).contains(&length) {
        return Ok(length);
    }
    let wrong = Span(length);
    Err(format!("--for {wrong}: a plan looks at 1s to 31d"))
}

fn start(args: &PlanArgs, planned: &PlannedRoute, route: &Route) -> Result<StoreTime, String> {
    let zone = zone(route);
    if let Some(text) = &args.start {
        return zone.moment(text).ok_or_else(|| {
            format!("--start {text}: write a date and a time, such as 2026-01-05T08:00")
        });
    }
    let monday = zone.moment(MONDAY).unwrap_or_default();
    Ok(planned
        .rules
        .hours
        .as_ref()
        .map_or(monday, |hours| hours.opens(monday)))
}

/// Whether it matters when it begins.
fn begins(args: &PlanArgs, planned: &PlannedRoute) -> bool {
    let calendar = planned.limits.iter().any(|limit| match &limit.limit {
        Limit::FixedWindow(limit) => limit.own.follows_clock(),
        _ => false,
    });
    args.start.is_some() || planned.rules.hours.is_some() || calendar
}

fn route_of(planned: &PlannedRoute, route: &Route) -> simulation::SimulatedRoute {
    let keyed = planned.limits.iter().filter_map(|limit| {
        Some(KeyedRule {
            rule: limit.rule.clone()?,
            for_all: limit.limit.key().is_none(),
        })
    });
    simulation::SimulatedRoute {
        rows: planned.rows.clone(),
        keyed: keyed.collect(),
        prefetch: planned.rules.prefetch,
        max_hold: route.max_hold.get(),
        on_denied: match route.on_denied.into() {
            // Messages that go back to their queue wait there as well.
            OnDenied::Nack => OnDenied::Hold,
            other => other,
        },
        max_age: route.max_age.map(Length::get),
        hours: planned.rules.hours.clone(),
        call: route.call_latency(),
    }
}

/// Limits of the route that other routes name too.
fn others<'a>(
    settings: &'a Settings,
    name: &str,
    planned: &'a PlannedRoute,
) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    for limit in &planned.limits {
        let others = settings.routes.iter().filter(|(other, _)| *other != name);
        let sharing = others.filter(|(_, other)| other.limits.contains(&limit.name));
        found.extend(sharing.map(|(other, _)| (limit.name.as_str(), other.as_str())));
    }
    found
}
