//! Forms of URLs and of the names of hosts.

use std::net::IpAddr;

use url::Url;

use super::templates::wrong_in;
use super::{check, form};
use crate::schema::Shape;
use crate::urls::is_encoded;
use sluiced_template::{self as template, About};

pub(crate) const AMQP_URL: Shape = Shape::Url(form(|text| {
    server(text, ["amqp", "amqps"], "amqp://user@host:5672/%2f")
}));
pub(crate) const MANAGEMENT_URL: Shape = Shape::Url(form(|text| {
    server(text, ["http", "https"], "http://user@host:15672")
}));
pub(crate) const REDIS_URL: Shape = Shape::Url(form(redis));
/// Where tokens are asked for.
pub(crate) const TOKEN_URL: Shape = Shape::Url(form(|text| {
    let example = "https://auth.example.com/oauth/token";
    server(text, ["http", "https"], example)?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    check(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this URL are not used; write client_id and client_secret_file beside it",
    )
}));
/// Where metadata of an instance is asked for.
pub(crate) const METADATA_URL: Shape = Shape::Url(form(|text| {
    server(text, ["http", "https"], "http://169.254.169.254")
}));
pub(crate) const HTTP_URL: Shape = Shape::Url(form(call));
/// Hosts that a message may name.
pub(crate) const ALLOWED_HOST: Shape = Shape::Text(form(allowed_host));
/// A host, or hosts, that are called without a proxy.
pub(crate) const NO_PROXY: Shape = Shape::Text(form(without_proxy));
pub(crate) const PROXY_URL: Shape = Shape::Url(form(|text| {
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
pub(crate) const SMPP_URL: Shape = Shape::Url(form(|text| {
    server(text, ["smpp", "smpps"], "smpp://host:2775")?;
    let url = Url::parse(text).map_err(|reason| reason.to_string())?;
    check(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this URL are not used; write system_id and password_file beside it",
    )
}));

fn server(text: &str, schemes: [&str; 2], example: &str) -> Result<(), String> {
    is_encoded(text)?;
    let right = format!("write one such as \"{example}\"");
    let url = Url::parse(text).map_err(|reason| format!("this is no URL ({reason}); {right}"))?;
    let known_schemes = schemes.join(":// or ");
    check(
        schemes.contains(&url.scheme()),
        format!("this URL must start with {known_schemes}://; {right}"),
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
