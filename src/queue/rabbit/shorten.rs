//! Makes the properties of a copy fit a frame.
//!
//! A message may carry headers up to the size of a frame, and a copy adds ours. The broker ends a
//! connection that sends a larger frame, and all routes publish on one. So the largest headers stay
//! behind, and a header of ours names them.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::protocol::basic::gen_properties;
use lapin::types::generation::gen_value;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::ports::message::header;

/// What a header frame has besides the properties.
const OVERHEAD: usize = 8 + 12;
/// For the names of those that stay behind.
const NAMES: usize = 512;

/// The properties without their largest headers, if they are too large for a frame.
pub(super) fn shortened(properties: &BasicProperties, frame_max: usize) -> Option<BasicProperties> {
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
                bytes(name, value),
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
    let names = AMQPValue::LongString(names.as_str().into());
    headers.insert(header::SHORTENED.into(), names);
    Some(properties.clone().with_headers(FieldTable::from(headers)))
}

/// The size of a header on the wire.
fn bytes(name: &ShortString, value: &AMQPValue) -> usize {
    let value = gen_value(value)(Vec::new().into());
    1 + name.as_str().len() + value.map_or(0, |written| written.into_inner().0.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(sizes: &[(&str, usize)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, size) in sizes {
            table.insert(
                (*name).into(),
                AMQPValue::LongString(vec![b'x'; *size].into()),
            );
        }
        BasicProperties::default()
            .with_message_id("m1".into())
            .with_headers(table)
    }

    fn names(properties: &BasicProperties) -> Vec<String> {
        let headers = properties.headers().iter().flatten();
        headers.map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let properties = with(&[("a", 4000)]);
        let written = gen_properties(&properties)(Vec::new().into())
            .unwrap()
            .into_inner()
            .0;
        assert!(shortened(&properties, written.len() + OVERHEAD).is_none());
        assert!(shortened(&properties, written.len() + OVERHEAD - 1).is_some());
    }

    #[test]
    fn the_largest_of_the_publisher_stay_behind() {
        let ours = "x-sluiced-detail";
        let properties = with(&[("a", 100), ("b", 5000), ("c", 3000), (ours, 4000)]);
        let short = shortened(&properties, 8192).expect("it is too large");
        assert_eq!(names(&short), ["a", "c", ours, header::SHORTENED]);
        let table = short.headers().clone().unwrap_or_default();
        let said = table.inner().get(header::SHORTENED);
        assert_eq!(said, Some(&AMQPValue::LongString("b".into())));
        assert_eq!(short.message_id(), properties.message_id());
        assert!(shortened(&short, 8192).is_none(), "it fits");
    }

    #[test]
    fn any_size_fits_in_the_end() {
        for count in [1, 10, 100, 1000] {
            let owned: Vec<String> = (0..count).map(|n| format!("header-{n}")).collect();
            let sizes: Vec<(&str, usize)> = owned
                .iter()
                .map(|name| (&**name, 200_000 / count))
                .collect();
            let short = shortened(&with(&sizes), 131_072).expect("it is too large");
            assert!(shortened(&short, 131_072).is_none(), "{count}");
        }
    }
}
