//! What a call would send, for a person and for programs: a request of HTTP, or `submit_sm` of SMPP. Without secrets.

use std::io::{self, Write};

use bytes::Bytes;
use http::{HeaderMap, Request};
use serde_json::{Map, Value, json};

use super::super::text::printable;
use crate::wire::RenderedMessage;
use sluiced_pdu::Address;
use sluiced_smpp::Submission;
use sluiced_template::sms::Encoding;

/// Values of headers with one of these words in their names are not shown.
const SECRET: [&str; 6] = ["auth", "cookie", "key", "password", "secret", "token"];
/// This much of a body is shown, in characters.
const SHOWN: usize = 2000;

/// For a person.
pub(super) fn write(rendered: &RenderedMessage, out: &mut impl Write) -> io::Result<()> {
    match rendered {
        RenderedMessage::Http(request) => write_request(request, out),
        RenderedMessage::Smpp(submission) => write_submission(submission, out),
    }
}

/// For programs.
pub(super) fn as_json(rendered: &RenderedMessage) -> Value {
    match rendered {
        RenderedMessage::Http(request) => json!({
            "method": request.method().as_str(),
            "url": request.uri().to_string(),
            "headers": shown(request.headers()).collect::<Vec<_>>(),
            "body": String::from_utf8_lossy(request.body()),
        }),
        RenderedMessage::Smpp(submission) => submission_as_json(submission),
    }
}

/// For comparison: with headers by their names, and with secrets.
pub(in crate::cli) fn as_comparable_json(rendered: &RenderedMessage) -> Value {
    let RenderedMessage::Http(request) = rendered else {
        return as_json(rendered);
    };
    let mut headers = Map::new();
    for name in request.headers().keys() {
        let values = request.headers().get_all(name).iter();
        let texts: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        headers.insert(name.to_string(), texts.join(", ").into());
    }
    json!({
        "method": request.method().as_str(),
        "url": request.uri().to_string(),
        "headers": headers,
        "body": String::from_utf8_lossy(request.body()),
    })
}

fn write_request(request: &Request<Bytes>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{} {}", request.method(), request.uri())?;
    for (name, value) in shown(request.headers()) {
        writeln!(out, "{name}: {}", printable(&value))?;
    }
    writeln!(out)?;
    write_text(&String::from_utf8_lossy(request.body()), out)
}

fn write_text(text: &str, out: &mut impl Write) -> io::Result<()> {
    let shown: String = text.chars().take(SHOWN).collect();
    writeln!(out, "{}", printable(&shown))?;
    if shown.len() < text.len() {
        writeln!(out, "... and {} bytes more", text.len() - shown.len())?;
    }
    Ok(())
}

fn shown(headers: &HeaderMap) -> impl Iterator<Item = (&str, String)> {
    headers.iter().map(|(name, value)| {
        let name = name.as_str();
        let hidden = value.is_sensitive() || SECRET.iter().any(|word| name.contains(word));
        let value = if hidden {
            "(hidden)".to_owned()
        } else {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        };
        (name, value)
    })
}

fn write_submission(submission: &Submission, out: &mut impl Write) -> io::Result<()> {
    let parts = &submission.parts;
    let encoding = encoding(submission);
    writeln!(out, "submit_sm: {} in {encoding}", parts.len())?;
    // They differ only in their texts.
    if let Some(first) = parts.first() {
        let party = |address: &Address| {
            let digits = String::from_utf8_lossy(&address.digits).into_owned();
            format!(
                "{} (TON {}, NPI {})",
                printable(&digits),
                address.ton,
                address.npi
            )
        };
        writeln!(out, "source: {}", party(&first.source))?;
        writeln!(out, "destination: {}", party(&first.destination))?;
        writeln!(out, "data_coding: {}", first.data_coding)?;
        writeln!(out, "registered_delivery: {}", first.registered_delivery)?;
        for (name, text) in [
            ("service_type", &first.service_type),
            ("validity", &first.validity),
        ] {
            if !text.is_empty() {
                let text = String::from_utf8_lossy(text);
                writeln!(out, "{name}: {}", printable(&text))?;
            }
        }
        for tlv in &first.tlvs {
            writeln!(
                out,
                "parameter 0x{:04x}: {} octets",
                tlv.tag,
                tlv.value.len()
            )?;
        }
    }
    writeln!(out)?;
    write_text(&submission.text, out)
}

fn submission_as_json(submission: &Submission) -> Value {
    let parts = submission.parts.iter().map(|part| {
        let party = |address: &Address| {
            json!({
                "address": String::from_utf8_lossy(&address.digits),
                "ton": address.ton,
                "npi": address.npi,
            })
        };
        json!({
            "source": party(&part.source),
            "destination": party(&part.destination),
            "esm_class": part.esm_class,
            "data_coding": part.data_coding,
            "registered_delivery": part.registered_delivery,
            "validity": String::from_utf8_lossy(&part.validity),
            "service_type": String::from_utf8_lossy(&part.service_type),
            "octets": part.content().len(),
            "parameters": part.tlvs.iter().map(|tlv| format!("0x{:04x}", tlv.tag)).collect::<Vec<_>>(),
        })
    });
    json!({
        "encoding": encoding(submission),
        "text": submission.text,
        "submit_sm": parts.collect::<Vec<_>>(),
    })
}

const fn encoding(submission: &Submission) -> &'static str {
    match submission.encoding {
        Encoding::Gsm7 => "gsm7",
        Encoding::Latin1 => "latin1",
        Encoding::Ucs2 => "ucs2",
    }
}
