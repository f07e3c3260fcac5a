//! `sluiced try`: what would happen to a message, and why it waits. Makes no call and takes no units.
//!
//! The message comes from stdin, or with `--peek` it is the first one of the route's queue, which is given
//! back. For each limit of the route it prints the key and the cost that the templates make from the message
//! and the current answer of the limit; then what is before it (`ahead`) and the request that would be sent,
//! without secrets (`rendered`).

mod ahead;
pub(super) mod rendered;

use std::io::{self, IsTerminal as _, Read as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};

use self::ahead::Ahead;
use super::exit::{Exit, Refusal, find_named};
use super::limits::{LimitsLocation, OpenLimits, key};
use super::shell;
use super::text::{counted, printable, rough, state_in_words};
use crate::wire::{self, PlannedLimit, RenderedMessage, StoredLimit, Trial};
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_core::limits::admission::Charge;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::limits::{KeyText, LimitInputs};
use sluiced_ports::message::{HeaderValue, Message};
use sluiced_settings::types::{QueueBackend, Route, Settings};

/// The id of a message whose publisher gave none: a real one is made when it comes.
pub(super) const MADE_ID: &str = "made-when-it-comes";

/// The arguments of `sluiced try`.
#[derive(Args, Clone, Debug)]
pub struct TryArgs {
    /// A configuration file, as for `sluiced run`; may repeat
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// The route; it can be left out where there is one
    #[arg(long, value_name = "NAME", add = shell::routes())]
    route: Option<String>,
    /// Look at the first message of the route's queue instead of one on stdin; it is given back
    #[arg(long, conflicts_with_all = ["id", "headers"])]
    peek: bool,
    /// The message id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// A header of the message; may repeat
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The answer of a limit about the message.
struct LimitAnswer {
    limit: String,
    key: Option<String>,
    cost: u32,
    /// For a person.
    now: String,
    /// Until it could pass; `None`: it is not known.
    wait: Option<Duration>,
    /// The message would be settled without a call.
    is_end: bool,
}

/// Writes what would happen to the message to `out`.
pub(super) async fn run(args: &TryArgs, out: &mut (impl Write + Send)) -> Result<Exit, Refusal> {
    let opened = LimitsLocation::of(args.config.clone()).open().await?;
    let loaded = opened.require_configuration("a configuration is needed")?;
    let (name, route) = choose_route(&loaded.settings, args.route.as_deref())?;
    let trial = Trial::new(loaded, name, route)?;
    let message = if args.peek {
        peeked(&wire::rabbit_of(loaded)?, &loaded.settings, route).await?
    } else {
        read(args)?
    };
    trial.check_size(&message).map_err(|why| {
        Refusal::Failed(format!(
            "route {name}: it is too large: {why}; it would be a dead letter"
        ))
    })?;
    let inputs = trial.limit_inputs_at(&message, 1).map_err(|why| {
        Refusal::Failed(format!(
            "route {name}: a limit cannot count it: {why}; it would be a dead letter (`on_invalid`)"
        ))
    })?;
    let request = trial.request(&message).map_err(|why| {
        Refusal::Failed(format!(
            "route {name}: no request can be made of it: {why}; it would be a dead letter"
        ))
    })?;
    let answers = answers(&opened, &trial, &inputs).await?;
    let paced = trial.route.limits.iter().find(|limit| limit.rule.is_none());
    let paced_name = paced.map(|limit| limit.name.as_str());
    let ahead = Ahead::of(opened.replicas().await?, name, paced_name, args.peek);
    if args.json {
        writeln!(out, "{:#}", as_json(name, &answers, &ahead, &request))?;
    } else {
        write(name, &answers, &ahead, &request, out)?;
    }
    Ok(Exit::Done)
}

/// The route of this name, or the only one.
pub(super) fn choose_route<'a>(
    settings: &'a Settings,
    name: Option<&str>,
) -> Result<(&'a str, &'a Route), Refusal> {
    let routes = &settings.routes;
    match (name, routes.first_key_value()) {
        (Some(name), _) => find_named("route", name, routes),
        (None, Some((name, route))) if routes.len() == 1 => Ok((name, route)),
        (None, _) => {
            let names: Vec<&str> = routes.keys().map(String::as_str).collect();
            Err(Refusal::Arguments(format!(
                "which route? --route one of: {}",
                names.join(", ")
            )))
        }
    }
}

fn read(args: &TryArgs) -> Result<Message, Refusal> {
    if io::stdin().is_terminal() {
        return Err(Refusal::Arguments(
            "the message is read from stdin: `sluiced try --config FILE < message.json`, or --peek"
                .to_owned(),
        ));
    }
    let mut body = Vec::new();
    io::stdin().read_to_end(&mut body)?;
    let headers = args.headers.iter().cloned();
    let mut message = Message {
        body: Bytes::from(body),
        headers: headers
            .map(|(name, value)| (name, HeaderValue::Text(value)))
            .collect(),
        ..Message::default()
    };
    message.properties.message_id.clone_from(&args.id);
    if args.id.is_none() {
        message.made_id = Some(MADE_ID.to_owned());
    }
    Ok(message)
}

async fn peeked(
    options: &sluiced_amqp::rabbit::RabbitOptions,
    settings: &Settings,
    route: &Route,
) -> Result<Message, Refusal> {
    if settings.backend.queue == QueueBackend::Embedded {
        return Err(Refusal::Arguments(
            "--peek needs RabbitMQ; give the message on stdin".to_owned(),
        ));
    }
    let queue = &route.queue;
    let none = |why: &str| Refusal::Failed(format!("{queue}: {why}"));
    let opened = Letters::open(options, queue).await?;
    let mut letters = opened.ok_or_else(|| none("there is no such queue"))?;
    let first = letters.first().await?;
    let message = first.as_ref().map(|letter| letter.message.clone());
    // It stays in its queue: messages that were not acknowledged are returned at the end.
    if let Some(first) = first {
        letters.leave(first).await?;
    }
    letters.close().await?;
    message.ok_or_else(|| none("no message is ready; those that replicas hold are not seen"))
}

/// The current answers of the limits of the route, and its opening hours.
async fn answers(
    opened: &OpenLimits,
    trial: &Trial,
    inputs: &LimitInputs,
) -> Result<Vec<LimitAnswer>, Refusal> {
    let free = |limit: &str, now: String, wait| LimitAnswer {
        limit: limit.to_owned(),
        key: None,
        cost: 0,
        now,
        wait: Some(wait),
        is_end: false,
    };
    let (mut answers, mut now) = (Vec::new(), None);
    for (limit, charge) in trial.route.limits.iter().zip(&inputs.charges) {
        if let Some(charge) = charge {
            let queue = trial.route.rules.queue.as_str();
            let (at, answer) = answer(opened, limit, queue, charge).await?;
            now = now.max(Some(at));
            answers.push(answer);
        } else {
            let why = "does not count it: its key is none".to_owned();
            answers.push(free(&limit.name, why, Duration::ZERO));
        }
    }
    let rules = &trial.route.rules;
    let zoned = rules.own_hours.as_ref().zip(inputs.zone.clone());
    let own_hours = zoned.map(|(hours, zone)| hours.in_zone(zone));
    if let (Some(hours), Some(now)) = (own_hours.as_ref().or(rules.hours.as_ref()), now) {
        let wait = hours.opens(now).since(now);
        let what = match wait.is_zero() {
            true => "open".to_owned(),
            false => format!("closed for another {}", rough(wait)),
        };
        answers.push(free("opening hours", what, wait));
    }
    Ok(answers)
}

/// The current answer of a limit, and the store's time.
async fn answer(
    opened: &OpenLimits,
    limit: &PlannedLimit,
    queue: &str,
    charge: &Charge<(), KeyText>,
) -> Result<(StoreTime, LimitAnswer), Refusal> {
    let name = &limit.name;
    let found = opened.policy(name).await?.inspect().await?;
    let paused = found
        .policy
        .as_ref()
        .and_then(|policy| policy.paused_until(found.now));
    let blocked = paused
        .max(found.frozen_until)
        .map(|until| until.since(found.now));
    let stored = StoredLimit {
        found: found.clone(),
        lost: None,
    };
    let mut answer = LimitAnswer {
        limit: name.clone(),
        key: charge.key.0.as_deref().map(str::to_owned),
        cost: charge.cost.get(),
        now: state_in_words(&stored.state()),
        wait: Some(blocked.unwrap_or_default()),
        is_end: false,
    };
    if blocked.is_some() || limit.rule.is_none() {
        if blocked.is_none() {
            answer.now = "passes with the next free slot".to_owned();
        }
        return Ok((found.now, answer));
    }
    let queue = limit.limit.is_of_queue().then_some(queue);
    let key = charge.key.0.as_deref();
    let Some(key_state) = key::look_up(opened, name, queue, key, &found).await? else {
        return Ok((found.now, answer));
    };
    (answer.now, answer.wait) = key_state.fits(charge.cost.get());
    if let Some(why) = key_state.why_uncalled() {
        (answer.now, answer.wait, answer.is_end) = (why.to_owned(), None, true);
    }
    Ok((found.now, answer))
}

/// Until all limits grant it and the messages before it have been sent. `None`: it is not known.
fn longest(answers: &[LimitAnswer], ahead: &Ahead) -> Option<Duration> {
    if ahead.stands.is_some() {
        return None;
    }
    Some(ahead.wait()?.max(of_limits(answers)?))
}

/// Until all limits grant it. `None`: it is not known.
fn of_limits(answers: &[LimitAnswer]) -> Option<Duration> {
    let mut waits = answers.iter().map(|answer| answer.wait);
    waits.try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?)))
}

/// When it would be sent, for a person.
fn when(answers: &[LimitAnswer], ahead: &Ahead) -> String {
    if let Some(why) = &ahead.stands {
        return printable(why);
    }
    let wait = of_limits(answers).map(|wait| wait.max(ahead.wait().unwrap_or_default()));
    let limits = match wait {
        Some(wait) if wait < Duration::from_secs(1) => None,
        Some(wait) => Some(format!("in {} at the earliest", rough(wait))),
        None => Some("once a call has ended".to_owned()),
    };
    match (limits, ahead.unknown()) {
        (Some(limits), Some(before)) => format!("{limits}, and {before}"),
        (limits, before) => limits.or(before).unwrap_or_else(|| "now".to_owned()),
    }
}

fn write(
    route: &str,
    answers: &[LimitAnswer],
    ahead: &Ahead,
    request: &RenderedMessage,
    out: &mut impl Write,
) -> Result<(), Refusal> {
    writeln!(out, "route {route}\n")?;
    for answer in answers {
        let key = answer
            .key
            .as_ref()
            .map(|key| format!(" key {}", printable(key)))
            .unwrap_or_default();
        let cost = match answer.cost {
            0 => String::new(),
            n => format!(" costs {}", counted(n.into(), "unit")),
        };
        let colon = if (&*key, &*cost) == ("", "") { "" } else { ":" };
        writeln!(
            out,
            "  {:<16}{key}{cost}{colon} {}",
            answer.limit, answer.now
        )?;
    }
    for (what, how) in ahead.lines() {
        writeln!(out, "  {what:<16} {how}")?;
    }
    let end = answers.iter().find(|answer| answer.is_end);
    let goes = end.map_or_else(
        || format!("go {}", when(answers, ahead)),
        |end| format!("not go: limits.{}", end.limit),
    );
    writeln!(out, "\nit would {goes}\n")?;
    rendered::write(request, out)?;
    Ok(())
}

fn as_json(
    route: &str,
    answers: &[LimitAnswer],
    ahead: &Ahead,
    request: &RenderedMessage,
) -> Value {
    let limits = answers.iter().map(|answer| {
        json!({
            "limit": answer.limit,
            "key": answer.key,
            "cost": answer.cost,
            "now": answer.now,
            "wait_us": answer.wait.map(micros),
        })
    });
    json!({
        "route": route,
        "limits": limits.collect::<Vec<_>>(),
        "fleet": ahead.as_json(),
        "wait_us": longest(answers, ahead).map(micros),
        "request": rendered::as_json(request),
    })
}

#[cfg(test)]
mod tests;
