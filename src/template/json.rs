//! JSON for templates: no integer is rounded silently.

use std::collections::BTreeMap;
use std::fmt;

use minijinja::value::Value;
use minijinja::{Error, ErrorKind};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::fault::TOO_LARGE;
use crate::ports::downstream::Undecodable;

/// The value that a message's body is.
pub(super) fn parse(body: &[u8]) -> Result<Value, Undecodable> {
    let undecodable = |error: &serde_json::Error| Undecodable {
        what: "body".to_owned(),
        // The error's own text can quote the body.
        why: format!(
            "is no JSON, which the templates need (line {}, column {})",
            error.line(),
            error.column()
        ),
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = Exact
        .deserialize(&mut json)
        .map_err(|error| undecodable(&error))?;
    json.end().map_err(|error| undecodable(&error))?;
    Ok(value)
}

/// Reads JSON without rounding an integer silently. Nesting is bounded by serde_json (128).
#[derive(Clone, Copy)]
struct Exact;

impl<'de> DeserializeSeed<'de> for Exact {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Exact {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// An integer arrives as a double only if 64 bits cannot hold it: then it may be rounded.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() >= EXACT {
            return Ok(Value::from(Error::new(
                ErrorKind::InvalidOperation,
                TOO_LARGE,
            )));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::from(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map: BTreeMap<String, Value> = BTreeMap::new();
        while let Some(name) = fields.next_key()? {
            map.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::from(map))
    }
}
