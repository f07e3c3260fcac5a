//! Forms of text without a type: addresses, URLs, names. Each check names a valid form, and never repeats
//! a text that may hold a secret.

use std::net::IpAddr;
use std::net::SocketAddr;

use http::{HeaderValue, Method};
use tracing_subscriber::filter::Targets;
use url::Url;

use super::made::{Makeable, Octet, OrMade, Priority};
use super::schema::{Form, Shape, hint, nearest};
use super::text::TextError;
use super::urls::is_encoded;
use sluiced_core::rate::Cost;
use sluiced_core::zone::Zone;
use sluiced_pdu::CommandStatus;
use sluiced_template::{self as template, About, WrongTemplate};

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
/// The same, or a template that makes one.
pub(super) const ZONE_OF: Shape = Shape::Text(Form {
    check: or_made::<Zone>,
    pattern: r"\{\{|\{%|^[A-Za-z0-9_+/-]+$",
});
/// The priority of a route, or a template that makes one.
pub(super) const PRIORITY: Shape = Shape::WholeOr(
    0,
    Form {
        check: or_made::<Priority>,
        pattern: r"\{\{|\{%|^ *[0-9] *$",
    },
);
/// A template over a message.
pub(super) const TEMPLATE: Shape = Shape::Text(form(template));
/// A template over a message and the answer to its call.
pub(super) const ANSWER_TEMPLATE: Shape = Shape::Text(form(|text| wrong_in(text, About::Answer)));
/// The body of a call: a template that may hold a key of an API.
pub(super) const BODY: Shape = Shape::Hidden(form(|text| wrong_in(text, About::Call)));
/// A whole number of units, or a template that makes one.
pub(super) const COST: Shape = Shape::WholeOr(
    1,
    Form {
        check: or_made::<Cost>,
        pattern: r"\{\{|\{%|^ *[0-9]+ *$",
    },
);
/// A number of one octet, or a template that makes one.
pub(super) const OCTET: Shape = Shape::WholeOr(
    0,
    Form {
        check: or_made::<Octet>,
        pattern: r"\{\{|\{%|^ *[0-9]+ *$",
    },
);
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
pub(super) const HEADER: Shape = Shape::Hidden(form(header));
/// What is signed: a template over a request.
pub(super) const SIGNED: Shape = Shape::Hidden(form(|text| wrong_in(text, About::Request)));
/// A header with a signature.
pub(super) const SIGNATURE_HEADER: Shape =
    Shape::Hidden(form(|text| wrong_in_header(text, About::Signature)));
/// An answer of a downstream, or none.
pub(super) const ANSWER: Shape = Shape::Text(form(answer));
/// An answer that says that the message was taken.
pub(super) const GOOD_ANSWER: Shape = Shape::Text(form(good_answer));
/// A user of HTTP's basic authentication.
pub(super) const USER: Shape = Shape::Text(form(user));
pub(super) const AMQP_URL: Shape = Shape::Url(form(|text| {
    server(text, ["amqp", "amqps"], "amqp://user@host:5672/%2f")
}));
pub(super) const MANAGEMENT_URL: Shape = Shape::Url(form(|text| {
    server(text, ["http", "https"], "http://user@host:15672")
}));
pub(super) const REDIS_URL: Shape = Shape::Url(form(redis));
/// Where tokens are asked for.
pub(super) const TOKEN_URL: Shape = Shape::Url(form(|text| {
    let example = "https://auth.example.com/oauth/token";
    server(text, ["http", "https"], example)?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    check(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this URL are not used; write client_id and client_secret_file beside it",
    )
}));
/// Where metadata of an instance is asked for.
pub(super) const METADATA_URL: Shape = Shape::Url(form(|text| {
    server(text, ["http", "https"], "http://169.254.169.254")
}));
pub(super) const HTTP_URL: Shape = Shape::Url(form(call));
/// Hosts that a message may name.
pub(super) const ALLOWED_HOST: Shape = Shape::Text(form(allowed_host));
/// A host, or hosts, that are called without a proxy.
pub(super) const NO_PROXY: Shape = Shape::Text(form(without_proxy));
pub(super) const PROXY_URL: Shape = Shape::Url(form(|text| {
    let example = "http://proxy.example:3128";
    server(text, ["http", "https"], example)?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    check(
        url.scheme() == "http",
        format!(
            "proxies are asked over http:// only (calls to https:// are encrypted all the way); write one such as \"{example}\""
        ),
    )?;
    check(
        url.password().is_none(),
        "write the password into a file, and its name into proxy_password_file",
    )
}));
pub(super) const SMPP_URL: Shape = Shape::Url(form(|text| {
    server(text, ["smpp", "smpps"], "smpp://host:2775")?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    check(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this URL are not used; write system_id and password_file beside it",
    )
}));
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

/// All faults of a template about a message.
fn template(text: &str) -> Result<(), String> {
    wrong_in(text, About::Message)
}

fn wrong_in(text: &str, about: About) -> Result<(), String> {
    let wrong = template::check(text, about).into_iter().map(|wrong| {
        let near = match &wrong {
            WrongTemplate::Variable { name, .. } => {
                nearest(name, about.fields()).map(|near| (name, near))
            }
            _ => None,
        };
        near.map_or_else(
            || wrong.to_string(),
            |(name, near)| format!("templates know no `{name}`; did you mean `{near}`?"),
        )
    });
    let wrong: Vec<_> = wrong.collect();
    check(wrong.is_empty(), wrong.join("; "))
}

/// A value, or a template that makes it.
fn or_made<T: Makeable>(text: &str) -> Result<(), String> {
    match text.parse::<OrMade<T>>().map_err(|TextError(why)| why)? {
        OrMade::Fixed(_) => Ok(()),
        OrMade::Made(made) => template(made.as_str()),
    }
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

/// It is a column of tables, and a word of log lines.
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
    let known = Method::from_bytes(upper.as_bytes()).is_ok();
    let right = if known { upper.as_str() } else { "POST" };
    let message = format!("`{text}` is no method; write \"{right}\"");
    check(known && upper == text, message)
}

fn header(text: &str) -> Result<(), String> {
    wrong_in_header(text, About::Call)
}

fn wrong_in_header(text: &str, about: About) -> Result<(), String> {
    check(
        HeaderValue::from_str(text).is_ok(),
        "a header's value must be visible ASCII on one line",
    )?;
    wrong_in(text, about)
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

fn server(text: &str, schemes: [&str; 2], example: &str) -> Result<(), String> {
    is_encoded(text)?;
    let right = format!("write one such as \"{example}\"");
    let url = Url::parse(text).map_err(|reason| format!("this is no URL ({reason}); {right}"))?;
    let known = schemes.join(":// or ");
    check(
        schemes.contains(&url.scheme()),
        format!("this URL must start with {known}://; {right}"),
    )?;
    check(
        url.host_str().is_some_and(|host| !host.is_empty()),
        format!("this URL has no host; {right}"),
    )
}

/// A pattern of hosts, perhaps with a port.
fn allowed_host(text: &str) -> Result<(), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let below = host.strip_prefix("*.").unwrap_or(host);
    let address = host.trim_matches(['[', ']']);
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    let is_name = !below.is_empty() && below.chars().all(fine);
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    check(
        (host == "*" || is_name || address.parse::<IpAddr>().is_ok()) && is_port,
        "write a host in small letters (\"hooks.example.com\"), all names below one (\"*.example.com\") or \"*\", perhaps with a port (\"*:8443\")",
    )
}

fn without_proxy(text: &str) -> Result<(), String> {
    let is_name = |text: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        !text.is_empty() && text.chars().all(fine)
    };
    let is_network = |(address, bits): (&str, &str)| {
        let most = match address.parse() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    };
    let is_address = text.parse::<IpAddr>().is_ok();
    check(
        is_name(text) || is_address || text.split_once('/').is_some_and(is_network),
        "write a name (\"internal.example\", with all names below it), an address, or a network (\"10.0.0.0/8\")",
    )
}

/// A server of Redis, with the number of a database or without one.
fn redis(text: &str) -> Result<(), String> {
    let example = "redis://host:6379/0";
    server(text, ["redis", "rediss"], example)?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    let database = url.path().trim_matches('/');
    check(
        database.is_empty() || database.parse::<u32>().is_ok(),
        format!("this URL names a database that is no number; write one such as \"{example}\""),
    )
}

/// The URL of a call, perhaps a template. Whether a host from a message is allowed is checked with `allowed_hosts`.
fn call(text: &str) -> Result<(), String> {
    let right = "write one such as \"http://127.0.0.1:8080/send\"";
    if template::first_tag(text) == Some(0) {
        return wrong_in(text, About::Call);
    }
    let lower = text.to_ascii_lowercase();
    check(
        lower.starts_with("http://") || lower.starts_with("https://"),
        format!("this URL must start with http:// or https://; {right}"),
    )?;
    if template::is_template(text) {
        return wrong_in(text, About::Call);
    }
    let url = Url::parse(text).map_err(|reason| format!("this is no URL ({reason}); {right}"))?;
    check(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this URL are not used; write them as a table auth beside it",
    )
}
