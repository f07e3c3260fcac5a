//! Forms of text without a type: addresses, URLs, names. Each check names a valid form, and never repeats
//! a text that may hold a secret.

pub(super) mod templates;
pub(super) mod urls;

use std::net::SocketAddr;

use http::Method;
use tracing_subscriber::filter::Targets;

use super::schema::{Form, Shape, hint};
use sluiced_core::zone::Zone;
use sluiced_pdu::CommandStatus;

const fn form(check: fn(&str) -> Result<(), String>) -> Form {
    Form { check, pattern: "" }
}

const ANY: Form = form(|_| Ok(()));
/// Free text.
pub(super) const TEXT: Shape = Shape::Text(ANY);
/// A name of the tz database.
pub(super) const ZONE: Shape = Shape::Text(Form {
    check: |name| Zone::named(name).map(drop).map_err(|e| e.to_string()),
    pattern: "^[A-Za-z0-9_+/-]+$",
});
/// Free text that may be a secret.
pub(super) const SECRET: Shape = Shape::Hidden(ANY);
pub(super) const LISTEN: Shape = Shape::Text(form(listen));
/// A name of a host, without a port.
pub(super) const HOST_NAME: Shape = Shape::Text(form(host_name));
pub(super) const LOG_LEVEL: Shape = Shape::Text(form(log_level));
pub(super) const PREFIX: Shape = Shape::Text(form(prefix));
pub(super) const INSTANCE: Shape = Shape::Text(form(instance));
pub(super) const FLEET: Shape = Shape::Text(form(fleet));
pub(super) const QUEUE: Shape = Shape::Text(form(queue));
/// An exchange to publish to; empty: the default one.
pub(super) const EXCHANGE: Shape = Shape::Text(form(exchange));
pub(super) const METHOD: Shape = Shape::Text(form(method));
/// An answer of a downstream, or none.
pub(super) const ANSWER: Shape = Shape::Text(form(answer));
/// An answer that says that the message was taken.
pub(super) const GOOD_ANSWER: Shape = Shape::Text(form(good_answer));
/// A user of HTTP's basic authentication.
pub(super) const USER: Shape = Shape::Text(form(user));
/// A status of SMPP, or no answer.
pub(super) const SMPP_ANSWER: Shape = Shape::Text(form(smpp_answer));
/// A status of SMPP that says that the message was taken.
pub(super) const SMPP_GOOD_ANSWER: Shape = Shape::Text(form(|text| {
    smpp_answer(text)?;
    is_given(text)
}));
/// SMPP 3.4, section 5.2.1.
pub(super) const SYSTEM_ID: Shape = Shape::Text(form(|text| short(text, 15)));
/// SMPP 3.4, section 5.2.3.
pub(super) const SYSTEM_TYPE: Shape = Shape::Text(form(|text| short(text, 12)));

/// `Ok` if `fine`, otherwise the message.
fn check(fine: bool, message: impl Into<String>) -> Result<(), String> {
    if fine { Ok(()) } else { Err(message.into()) }
}

/// An IP address with its port, or the name of a host with one.
fn listen(text: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let named = text.rsplit_once(':').is_some_and(|(host, port)| {
        let word = host.contains(|c: char| c.is_ascii_alphabetic()) && host.chars().all(letters);
        word && port.parse::<u16>().is_ok()
    });
    check(
        text.is_empty() || named || text.parse::<SocketAddr>().is_ok(),
        format!(
            "`{text}` is no address; write HOST:PORT, such as \"127.0.0.1:9464\" or \"[::]:9464\", or \"\" for no listener"
        ),
    )
}

fn host_name(text: &str) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    check(
        !text.is_empty() && text.chars().all(letters),
        format!(
            "`{text}` is no name of a host; write one without a port, such as \"sluiced.internal\""
        ),
    )
}

fn log_level(text: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let right =
        "write a level (error, warn, info, debug, trace, off) or \"info,sluiced_amqp=debug\"";
    for part in text.split(',') {
        // A bare text is a level. The filter would take it for a module and log all of that, and nothing else.
        let last = part.rsplit('=').next().unwrap_or_default().trim();
        if !LEVELS.contains(&last.to_lowercase().as_str()) {
            let hint = hint(last, LEVELS, || right.to_owned());
            return Err(format!("`{last}` is no level; {hint}"));
        }
    }
    if text.contains('[') {
        return Err(format!(
            "`{text}` chooses spans, and there are none; {right}"
        ));
    }
    let filter = text.parse::<Targets>().map(drop);
    filter.map_err(|reason| format!("`{text}` is no filter ({reason}); {right}"))
}

/// Braces would move the hash tag that keeps the keys of one script on one node.
fn prefix(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_graphic() && c != '{' && c != '}';
    check(
        !text.is_empty() && text.chars().all(fine),
        "a prefix needs visible ASCII characters and no braces; write one such as \"sluiced\"",
    )
}

/// The name of a replica, which stands in columns of tables and in log lines.
fn instance(text: &str) -> Result<(), String> {
    check(
        (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic()),
        "the name of a replica needs 1 to 64 visible ASCII characters; write one such as \"web-1:sms\"",
    )
}

fn fleet(text: &str) -> Result<(), String> {
    check(
        !text.is_empty() && text.len() <= 300 && !text.chars().any(char::is_control),
        "the name of a fleet needs 1 to 300 bytes on one line; write one such as \"sms-eu\"",
    )
}

/// AMQP's short strings have 255 bytes, and sluiced adds `.wait.<delay>` to the name.
fn queue(text: &str) -> Result<(), String> {
    check(
        (1..=200).contains(&text.len()),
        "a queue's name must have 1 to 200 bytes",
    )?;
    check(
        !text.starts_with("amq."),
        "names that start with `amq.` belong to the broker; name a queue of your own",
    )
}

/// AMQP's short strings have 255 bytes.
fn exchange(text: &str) -> Result<(), String> {
    check(
        text.len() <= 255,
        "an exchange's name has 255 bytes at most",
    )
}

fn method(text: &str) -> Result<(), String> {
    let upper = text.to_ascii_uppercase();
    let is_method = Method::from_bytes(upper.as_bytes()).is_ok();
    let right = if is_method { upper.as_str() } else { "POST" };
    let message = format!("`{text}` is no method; write \"{right}\"");
    check(is_method && upper == text, message)
}

fn answer(text: &str) -> Result<(), String> {
    let classes = [
        "timeout",
        "connection",
        "unreadable",
        "2xx",
        "3xx",
        "4xx",
        "5xx",
    ];
    let code = text
        .parse::<u16>()
        .is_ok_and(|code| (100..=599).contains(&code));
    check(
        classes.contains(&text) || (text.len() == 3 && code),
        format!(
            "`{text}` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\", \"connection\" or \"unreadable\""
        ),
    )
}

fn good_answer(text: &str) -> Result<(), String> {
    answer(text)?;
    is_given(text)
}

fn smpp_answer(text: &str) -> Result<(), String> {
    if matches!(text, "timeout" | "connection") {
        return Ok(());
    }
    let read = text.parse::<CommandStatus>();
    read.map(drop)
        .map_err(|wrong| format!("{wrong}, \"timeout\" or \"connection\""))
}

/// Text of a bind.
fn short(text: &str, most: usize) -> Result<(), String> {
    check(
        text.len() <= most && !text.contains('\0'),
        format!("this has {} octets; SMPP takes {most} at most", text.len()),
    )
}

/// An answer that is there.
fn is_given(text: &str) -> Result<(), String> {
    check(
        !matches!(text, "timeout" | "connection" | "unreadable"),
        format!("`{text}` is no answer, so nothing can have been accepted; take it out"),
    )
}

/// RFC 7617: the first colon ends the user.
fn user(text: &str) -> Result<(), String> {
    check(
        !text.contains(':'),
        "a user's name must not hold a colon; take it out",
    )
}
