//! Messages that were recorded.
//!
//! A trace has one message a line, as JSON, with the time at which it came:
//!
//! ```text
//! {"at": 0, "body": {"to": "+491", "text": "hi"}}
//! {"at": 0.25, "body": {"to": "+492", "text": "hi"}, "headers": {"tenant": "acme"}, "priority": 5}
//! ```
//!
//! `at` is in seconds; only differences count, so times since 1970 are fine. Lines may be in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::arrivals::MAX_MESSAGES;
use crate::cli::trial::MADE_ID;
use sluiced_ports::message::{HeaderValue, Message, Properties};

/// No line is longer.
const LONGEST: u64 = 16 * 1024 * 1024;

/// A message of a trace.
#[derive(Clone, Debug)]
pub(super) struct RecordedMessage {
    /// The message's line, from 1.
    pub(super) line: usize,
    /// In microseconds since the first one.
    pub(super) at: u64,
    pub(super) message: Message,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceLine<'a> {
    at: f64,
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    priority: u8,
}

/// Reads a trace, in the order of its times.
///
/// # Errors
/// Names the wrong line, and its fault.
pub(super) fn read_trace(path: &Path) -> Result<Vec<RecordedMessage>, String> {
    let file = File::open(path).map_err(|why| format!("--trace {}: {why}", path.display()))?;
    lines(BufReader::new(file)).map_err(|why| format!("--trace {}: {why}", path.display()))
}

fn lines(mut input: impl std::io::BufRead) -> Result<Vec<RecordedMessage>, String> {
    let (mut found, mut text) = (Vec::new(), String::new());
    for number in 1.. {
        text.clear();
        let read = input.by_ref().take(LONGEST).read_line(&mut text);
        if read.map_err(|why| format!("line {number}: {why}"))? == 0 {
            break;
        }
        if !text.trim().is_empty() {
            found.push((
                number,
                line(&text).map_err(|why| format!("line {number}: {why}"))?,
            ));
        }
        if found.len() as u64 > MAX_MESSAGES {
            return Err(format!(
                "more than {MAX_MESSAGES} messages; give a part of it"
            ));
        }
    }
    found.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    let first = found
        .first()
        .map(|(_, (at, _))| *at)
        .ok_or("it has no messages")?;
    let recorded = found
        .into_iter()
        .map(|(line, (at, message))| RecordedMessage {
            line,
            at: ((at - first) * 1e6).round() as u64,
            message,
        });
    Ok(recorded.collect())
}

fn line(text: &str) -> Result<(f64, Message), String> {
    let line: TraceLine<'_> = serde_json::from_str(text).map_err(|why| {
        format!("{why}; write {{\"at\": 12.5, \"body\": {{…}}}}, with \"headers\" and \"priority\" where they matter")
    })?;
    if line.at < 0.0 {
        return Err(format!("at {} is before the beginning", line.at));
    }
    let headers = line.headers.into_iter();
    let message = Message {
        body: Bytes::copy_from_slice(line.body.get().as_bytes()),
        headers: headers
            .map(|(name, value)| (name, HeaderValue::Text(value)))
            .collect(),
        properties: Properties {
            priority: line.priority,
            ..Properties::default()
        },
        made_id: Some(MADE_ID.to_owned()),
        ..Message::default()
    };
    Ok((line.at, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_in_order_and_times_count_from_the_first() {
        let text = "{\"at\": 1700000010.5, \"body\": {\"n\":2}}\n\n\
                    {\"at\": 1700000010, \"body\": {\"n\":1}, \"headers\": {\"a\":\"b\"}, \"priority\": 5}\n";
        let read = lines(text.as_bytes()).expect("a trace");
        let times: Vec<_> = read
            .iter()
            .map(|arrival| (arrival.line, arrival.at))
            .collect();
        assert_eq!(times, [(3, 0), (1, 500_000)]);
        assert_eq!(read[0].message.properties.priority, 5);
        assert_eq!(&read[1].message.body[..], b"{\"n\":2}");
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, said) in [
            ("", "no messages"),
            (
                "{\"at\": 1, \"body\": 1}\n{\"at\": 1}",
                "line 2: missing field `body`",
            ),
            ("{\"at\": -1, \"body\": 1}", "line 1: at -1"),
            (
                "{\"at\": 1, \"body\": {}, \"message\": 1}",
                "unknown field `message`",
            ),
            ("[1]", "line 1"),
        ] {
            let why = lines(text.as_bytes()).expect_err(text);
            assert!(why.contains(said), "{why}");
        }
    }
}
