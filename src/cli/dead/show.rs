//! `sluiced dead show LETTER`: everything about one letter. Its body only with `--body`.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Value, json};

use super::counts::absent;
use super::letter::LetterFacts;
use super::{DeadQueues, LettersLocation, Refusal};
use crate::cli::text::{age, counted, facts, in_a_line, printable, size, utc, utc_of};
use sluiced_amqp::rabbit::letters::Letter;
use sluiced_ports::clock;
use sluiced_ports::message::{HeaderValue, Message, header};

/// The value of a header is shown up to here; `--json` shows all of it.
const VALUE: usize = 200;
/// Columns of the labels.
pub(super) const LABELS: usize = 16;

/// The arguments of `sluiced dead show`.
#[derive(Args, Clone, Debug)]
pub struct ShowLetterArgs {
    /// Its number in `sluiced dead list`, or its message id
    letter: String,
    #[command(flatten)]
    location: LettersLocation,
    /// Show the body too
    #[arg(long)]
    body: bool,
}

pub(super) async fn run(
    args: &ShowLetterArgs,
    out: &mut (impl Write + Send),
) -> Result<(), Refusal> {
    let dead = args.location.dead_queues()?;
    let number = args.letter.parse::<u64>().ok();
    if number.is_some() && dead.queues.len() > 1 {
        return Err(Refusal::Arguments(format!(
            "which letter {}? each queue has one; name the route with --route",
            args.letter
        )));
    }
    let mut missing = Vec::new();
    for queue in &dead.queues {
        let found = seek(&dead, queue, number, &args.letter, |letter| {
            write(args, queue, letter, out)
        });
        match found.await? {
            SeekResult::Found(()) => return Ok(()),
            SeekResult::Missing(why) => missing.push(why),
        }
    }
    Err(Refusal::Failed(format!(
        "there is no letter `{}`: {}",
        args.letter,
        missing.join("; ")
    )))
}

/// A letter that was looked for in a queue.
pub(super) enum SeekResult<T> {
    /// The result of reading it.
    Found(T),
    /// What the queue has instead.
    Missing(String),
}

/// Looks for a letter of a queue by its number, or its message id where there is none.
pub(super) async fn seek<T>(
    dead: &DeadQueues,
    queue: &str,
    number: Option<u64>,
    id: &str,
    see: impl FnOnce(&Letter) -> Result<T, Refusal>,
) -> Result<SeekResult<T>, Refusal> {
    let Some(mut letters) = dead.open(queue).await? else {
        return Ok(SeekResult::Missing(absent(queue)));
    };
    // An id may also be a number, and is used if there are not this many letters.
    let number = number.filter(|number| *number <= letters.total().into());
    let mut found = None;
    let mut see = Some(see);
    // All of them are read: a quorum queue puts those that were read behind the others, and their numbers would change.
    while let Some(letter) = letters.next().await? {
        let is_it = match number {
            Some(number) => letter.number == number,
            None => letter.message.id() == Some(id),
        };
        if is_it && let Some(see) = see.take() {
            found = Some(see(&letter)?);
        }
        letters.leave(letter).await?;
    }
    let count = counted(letters.total().into(), "letter");
    letters.close().await?;
    Ok(found.map_or_else(
        || SeekResult::Missing(format!("{queue} has {count}")),
        SeekResult::Found,
    ))
}

fn write(
    args: &ShowLetterArgs,
    queue: &str,
    letter: &Letter,
    out: &mut impl Write,
) -> Result<(), Refusal> {
    if args.location.json {
        return write_json(args, queue, letter, out);
    }
    let message = &letter.message;
    writeln!(out, "letter {} of {queue}", letter.number)?;
    let hint = if args.body { "" } else { "; --body shows it" };
    let body = format!("{}{hint}", size(message.body.len()));
    let all = died(message)
        .into_iter()
        .chain(published(message))
        .chain(other_headers(message))
        .chain([("body".to_owned(), Some(body))]);
    facts(LABELS, &known_in_lines(all), out)?;
    if args.body {
        let text = String::from_utf8_lossy(&message.body);
        writeln!(out, "\n{}", printable(&text))?;
    }
    Ok(())
}

/// A label and its value, if there is one.
type Fact = (String, Option<String>);

fn labelled<const N: usize>(facts: [(&str, Option<String>); N]) -> Vec<Fact> {
    let owned = |(label, value): (&str, Option<String>)| (label.to_owned(), value);
    facts.map(owned).to_vec()
}

/// Why and when it died, and where it is, for `sluiced find`.
pub(super) fn in_short(queue: &str, letter: &Letter) -> (Vec<(String, String)>, Value) {
    let mut json = LetterFacts::of(&letter.message).as_json(letter.number);
    json["dead_letter_queue"] = json!(queue);
    (known_in_lines(died(&letter.message)), json)
}

/// The facts that have a value, each in a line.
fn known_in_lines(facts: impl IntoIterator<Item = Fact>) -> Vec<(String, String)> {
    let known = facts.into_iter();
    known
        .filter_map(|(label, value)| Some((in_a_line(&label, VALUE), in_a_line(&value?, VALUE))))
        .collect()
}

/// Why and when it died, by the headers that sluiced wrote.
fn died(message: &Message) -> Vec<Fact> {
    let facts = LetterFacts::of(message);
    let now = clock::store_time();
    let ago = |died| format!("{} ({} ago)", utc_of(died), age(Some(died), now));
    let header = |name| message.headers.get(name).map(shown);
    labelled([
        ("reason", facts.reason.map(in_words)),
        ("detail", facts.detail.map(str::to_owned)),
        ("unreadable", facts.unreadable.map(str::to_owned)),
        ("last status", facts.last_status.map(|n| n.to_string())),
        ("attempts", facts.attempts.map(|count| count.to_string())),
        ("died", facts.died.map(ago)),
        ("first seen", facts.first_seen.map(utc_of)),
        ("expired at", facts.expires.map(utc_of)),
        ("route", facts.route.map(str::to_owned)),
        ("queue", facts.queue.map(str::to_owned)),
        // How the limit stood that denied it (`denied_headers`).
        ("denied by", header(header::DENIED_BY)),
        ("limit", header(header::LIMIT)),
        ("remaining", header(header::REMAINING)),
        ("answer", header(header::ANSWER)),
    ])
}

/// How it was published.
fn published(message: &Message) -> Vec<Fact> {
    let properties = &message.properties;
    let made = match message.own_id() {
        Some(_) => "",
        None => " (made by sluiced)",
    };
    let exchange = Some(message.exchange.clone()).filter(|text| !text.is_empty());
    let priority = Some(properties.priority).filter(|priority| *priority > 0);
    labelled([
        ("message id", message.id().map(|id| format!("{id}{made}"))),
        ("exchange", exchange),
        ("routing key", Some(message.routing_key.clone())),
        ("published", properties.timestamp.map(utc)),
        ("correlation id", properties.correlation_id.clone()),
        ("content type", properties.content_type.clone()),
        ("content encoding", properties.content_encoding.clone()),
        ("type", properties.kind.clone()),
        ("app id", properties.app_id.clone()),
        ("reply to", properties.reply_to.clone()),
        ("priority", priority.map(|priority| priority.to_string())),
    ])
}

/// The headers that are not shown under another name.
fn other_headers(message: &Message) -> impl Iterator<Item = Fact> {
    let others = message.headers.iter().filter(|(name, _)| !is_shown(name));
    others.map(|(name, value)| (format!("header {name}"), Some(shown(value))))
}

fn write_json(
    args: &ShowLetterArgs,
    queue: &str,
    letter: &Letter,
    out: &mut impl Write,
) -> Result<(), Refusal> {
    let message = &letter.message;
    let mut all = LetterFacts::of(message).as_json(letter.number);
    all["dead_letter_queue"] = json!(queue);
    all["properties"] = json!(message.properties);
    all["exchange"] = json!(message.exchange);
    all["routing_key"] = json!(message.routing_key);
    all["headers"] = json!(message.headers);
    if args.body {
        match std::str::from_utf8(&message.body) {
            Ok(text) => all["body"] = json!(text),
            Err(_) => all["body_base64"] = json!(STANDARD.encode(&message.body)),
        }
    }
    writeln!(out, "{all:#}")?;
    Ok(())
}

/// A reason, and what it means.
fn in_words(reason: &str) -> String {
    let means = match reason {
        "rejected" => "the downstream said that it can never pass",
        "attempts_exhausted" => "every attempt failed",
        "undecodable" => "no request could be made of it",
        "unreadable" => "its properties cannot be read",
        "oversized" => "its body is larger than max_body",
        "expired" => "it was too old before it could be sent",
        "invalid" => "a limit cannot count it",
        "denied" => "its limit denied it, and on_denied = \"dead_letter\"",
        "unknown" => {
            "it may have been accepted, and its `once` limit says on_unknown = \"dead_letter\""
        }
        "throttled" => {
            "the downstream refused it for longer than max_throttled, while it accepted others"
        }
        _ => return reason.to_owned(),
    };
    format!("{reason}: {means}")
}

/// Whether a header of ours is shown under another name.
fn is_shown(name: &str) -> bool {
    matches!(
        name,
        header::REASON
            | header::DETAIL
            | header::ANSWER
            | header::UNREADABLE
            | header::LAST_STATUS
            | header::ATTEMPTS
            | header::DIED
            | header::FIRST_SEEN
            | header::EXPIRES
            | header::ROUTE
            | header::QUEUE
            | header::DENIED_BY
            | header::LIMIT
            | header::REMAINING
            | header::MESSAGE_ID
            | header::COPY
            | "x-sluiced-exchange"
            | "x-sluiced-routing-key"
    )
}

fn shown(value: &HeaderValue) -> String {
    match value {
        HeaderValue::Bool(value) => value.to_string(),
        HeaderValue::Int(value) => value.to_string(),
        HeaderValue::Float(value) => value.to_string(),
        HeaderValue::Text(text) => text.clone(),
        HeaderValue::Opaque => "(bytes, a table or a list)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::judge::DeadReason;

    #[test]
    fn every_reason_has_words() {
        for reason in DeadReason::ALL {
            let words = in_words(reason.label());
            assert!(
                words.starts_with(&format!("{}: ", reason.label())),
                "{words}"
            );
        }
    }
}
