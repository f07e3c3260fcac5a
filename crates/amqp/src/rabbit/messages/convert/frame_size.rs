//! Makes the properties of a copy fit a frame.
//!
//! Problem: a message may carry headers up to the size of a frame, and a copy adds ours. The broker ends a connection
//! that sends a larger frame, and all routes publish on one. So the largest headers are removed, and a header of ours
//! names them.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::protocol::basic::gen_properties;
use lapin::types::generation::gen_value;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use sluiced_ports::message::header;

/// What a header frame has besides the properties.
const OVERHEAD: usize = 8 + 12;
/// Bytes for the names of removed headers.
const NAMES: usize = 512;

/// The properties without their largest headers, if they are too large for a frame.
pub(in crate::rabbit) fn shorten_to_frame(
    properties: &BasicProperties,
    frame_max: usize,
) -> Option<BasicProperties> {
    let written = gen_properties(properties)(Vec::new().into()).ok()?;
    let size = OVERHEAD + written.into_inner().0.len();
    if size <= frame_max {
        return None;
    }
    let mut headers: BTreeMap<ShortString, AMQPValue> = properties
        .headers()
        .clone()
        .unwrap_or_default()
        .inner()
        .clone();
    let mut largest: Vec<(bool, usize, ShortString)> = headers
        .iter()
        .map(|(name, value)| {
            (
                name.as_str().starts_with(header::PREFIX),
                bytes_of(name, value),
                name.clone(),
            )
        })
        .collect();
    // Those of the publisher before ours, the largest first.
    largest.sort_by_key(|(ours, size, _)| (*ours, std::cmp::Reverse(*size)));
    let mut over = size + 1 + header::SHORTENED.len() + 5 + NAMES - frame_max;
    let mut names = String::new();
    for (_, size, name) in largest {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(size);
        headers.remove(&name);
        if names.len() + name.as_str().len() + 2 <= NAMES {
            let comma = if names.is_empty() { "" } else { ", " };
            names = names + comma + name.as_str();
        }
    }
    let removed = AMQPValue::LongString(names.as_str().into());
    headers.insert(header::SHORTENED.into(), removed);
    Some(properties.clone().with_headers(FieldTable::from(headers)))
}

/// The size of a header on the wire.
fn bytes_of(name: &ShortString, value: &AMQPValue) -> usize {
    let value = gen_value(value)(Vec::new().into());
    1 + name.as_str().len() + value.map_or(0, |written| written.into_inner().0.len())
}

#[cfg(test)]
mod tests;
