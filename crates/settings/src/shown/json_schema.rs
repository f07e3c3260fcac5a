//! Makes the JSON schema for editors from the table of keys.
//!
//! An editor completes keys and marks wrong ones while a file is written. What a schema cannot say, such as checks
//! across keys, is left to `sluiced check`.

use serde_json::{Map, Value, json};

use crate::schema::{Form, KeySpec, Need, Shape, TableKind};
use crate::types::ROOT;

/// Every valid duration matches this.
const DURATION: &str = "^[ +]*[0-9].*[^0-9. ]";

/// The schema of a configuration file (draft 7).
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = shape(&ROOT);
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("The configuration of sluiced");
    schema
}

fn shape(of: &Shape) -> Value {
    match of {
        Shape::Text(form) | Shape::Hidden(form) | Shape::Url(form) => text(form),
        Shape::Length(_) => json!({ "type": "string", "pattern": DURATION }),
        Shape::Whole(bounds) => {
            json!({ "type": "integer", "minimum": bounds.start(), "maximum": bounds.end() })
        }
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Choice(words) => json!({ "enum": words }),
        Shape::WholeOr(least, form) => {
            json!({ "anyOf": [{ "type": "integer", "minimum": least }, text(form)] })
        }
        Shape::List(of) => json!({ "type": "array", "items": shape(of) }),
        Shape::OneOrMore { most, of } => {
            let list =
                json!({ "type": "array", "items": shape(of), "minItems": 1, "maxItems": most });
            json!({ "anyOf": [shape(of), list] })
        }
        Shape::Section(keys) => object(keys.iter(), None),
        Shape::Named { of, .. } => json!({ "type": "object", "additionalProperties": shape(of) }),
        Shape::Kinds { default, kinds } => {
            let all = kinds
                .iter()
                .map(|kind| object(kind.keys(), Some((kind, *default))));
            json!({ "oneOf": all.collect::<Vec<_>>() })
        }
        Shape::Part { of, own, .. } => {
            let mut schema = shape(of);
            unrequire(&mut schema);
            if let Some(Value::Object(keys)) = schema.get_mut("properties") {
                keys.retain(|name, _| own.iter().all(|(own_name, _)| own_name != name));
            }
            schema
        }
    }
}

/// Nothing is required, but for the kind of a table.
fn unrequire(schema: &mut Value) {
    match schema {
        Value::Object(words) => {
            if let Some(Value::Array(names)) = words.get_mut("required") {
                names.retain(|name| name == "kind");
            }
            words.values_mut().for_each(unrequire);
        }
        Value::Array(all) => all.iter_mut().for_each(unrequire),
        _ => {}
    }
}

fn text(form: &Form) -> Value {
    match form.pattern {
        "" => json!({ "type": "string" }),
        pattern => json!({ "type": "string", "pattern": pattern }),
    }
}

/// A table with these keys; for a kind, its name is required unless it is the default.
fn object(
    keys: impl Iterator<Item = &'static KeySpec>,
    kind: Option<(&TableKind, Option<&str>)>,
) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some((kind, default)) = kind {
        properties.insert(
            "kind".to_owned(),
            json!({ "const": kind.name, "description": text_of(kind.doc) }),
        );
        required.extend((default != Some(kind.name)).then_some("kind"));
    }
    for key in keys {
        properties.insert(key.name.to_owned(), described(key));
        required.extend(matches!(key.need, Need::Required(_)).then_some(key.name));
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn described(key: &KeySpec) -> Value {
    let mut schema = shape(&key.shape);
    if !key.doc.is_empty() {
        schema["description"] = json!(text_of(key.doc));
    }
    match key.need {
        Need::Default(value) => schema["default"] = literal(value),
        Need::Required(value) | Need::Optional(value) | Need::Apart(value) => {
            schema["examples"] = json!([literal(value)]);
        }
    }
    schema
}

fn text_of(doc: &[&str]) -> String {
    let lines: Vec<_> = doc.iter().map(|line| line.trim_start()).collect();
    lines.join("\n")
}

/// A value of the table, which is written in TOML.
fn literal(value: &str) -> Value {
    let table: Option<Map<String, Value>> = toml::from_str(&format!("value = {value}")).ok();
    table
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_default()
}
