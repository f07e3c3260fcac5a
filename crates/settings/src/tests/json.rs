//! The JSON schema takes the configurations that load and refuses others.

use serde_json::{Value, json};

use super::GOOD;
use super::defaults::uncommented;
use crate::json_schema;

/// The faults of `value`, by the keywords that this schema uses; patterns are not checked.
fn faults(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut check = |fine: bool, what: &str| {
        if !fine {
            all.push(format!("{path}: {what}"));
        }
    };
    let known = [
        "$schema",
        "title",
        "description",
        "default",
        "examples",
        "type",
        "pattern",
        "enum",
        "const",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "items",
        "properties",
        "required",
        "additionalProperties",
        "anyOf",
        "oneOf",
    ];
    let words = schema.as_object().expect("a schema is an object");
    check(
        words.keys().all(|word| known.contains(&word.as_str())),
        "a word that no test knows",
    );
    let is = |kind: &Value| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    check(schema.get("type").is_none_or(is), "another type");
    check(
        schema.get("const").is_none_or(|c| c == value),
        "another word",
    );
    let one_of = |words: &Value| words.as_array().is_some_and(|words| words.contains(value));
    check(schema.get("enum").is_none_or(one_of), "none of the words");
    let number = value.as_i64();
    let bound = |name: &str| schema.get(name).and_then(Value::as_i64).zip(number);
    check(
        bound("minimum").is_none_or(|(min, n)| n >= min),
        "too small",
    );
    check(
        bound("maximum").is_none_or(|(max, n)| n <= max),
        "too large",
    );
    let of = |name: &str| {
        let all = schema.get(name).and_then(Value::as_array);
        all.map(|all| {
            all.iter()
                .filter(|of| faults(value, of, path).is_empty())
                .count()
        })
    };
    check(
        of("anyOf").is_none_or(|fitting| fitting > 0),
        "none of the shapes",
    );
    check(
        of("oneOf").is_none_or(|fitting| fitting == 1),
        "not one kind",
    );
    for (i, element) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(items) = schema.get("items") {
            all.extend(faults(element, items, &format!("{path}[{i}]")));
        }
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            all.push(format!("{path}: `{name}` is missing"));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let known = schema.get("properties").and_then(|known| known.get(name));
        match known.or_else(|| schema.get("additionalProperties")) {
            Some(Value::Bool(false)) => all.push(format!("{path}: unknown")),
            Some(schema) => all.extend(faults(inner, schema, &path)),
            None => {}
        }
    }
    all
}

fn faults_of(text: &str) -> Vec<String> {
    let value: Value = toml::from_str(text).expect("TOML");
    faults(&value, &json_schema(), "")
}

#[test]
fn what_loads_is_right() {
    for text in [
        GOOD,
        include_str!("../../../../config/sms.toml"),
        include_str!("../../../../config/embedded.toml"),
        include_str!("../../../../config/default.toml"),
        &uncommented(),
    ] {
        assert_eq!(faults_of(text), Vec::<String>::new());
    }
}

#[test]
fn what_is_wrong_is_refused() {
    for (from, to, said) in [
        (
            "[limits",
            "[admin]\nlisten = 5\n[limits",
            ".admin.listen: another type",
        ),
        (
            "[limits",
            "[log]\nformat = \"xml\"\n[limits",
            ".log.format: none of the words",
        ),
        ("[limits", "[lmits", ".lmits: unknown"),
        ("rate = ", "rat = ", ".limits.provider: not one kind"),
        (
            "rate = ",
            "kind = \"gcra\"\nhorizon = \"1s\"\nrate = ",
            ".limits.provider: not one kind",
        ),
        ("queue = \"sms\"\n", "", ".routes.sms: `queue` is missing"),
        (
            "queue =",
            "prefetch = 0\nqueue =",
            ".routes.sms.prefetch: too small",
        ),
        (
            "queue =",
            "prefetch = 70000\nqueue =",
            ".routes.sms.prefetch: too large",
        ),
        (
            "queue =",
            "open = 8\nqueue =",
            ".routes.sms.open: none of the shapes",
        ),
        (
            "kind = \"http\"\n",
            "",
            ".routes.sms.downstream: not one kind",
        ),
    ] {
        assert_eq!(faults_of(&GOOD.replacen(from, to, 1)), [said], "{to}");
    }
}

#[test]
fn every_key_is_described_with_its_default() {
    let schema = json_schema();
    let headroom = &schema["properties"]["limits"]["additionalProperties"]["oneOf"][0]["properties"]
        ["headroom"];
    assert_eq!(headroom["default"], json!("auto"));
    assert!(
        headroom["description"]
            .as_str()
            .is_some_and(|text| text.starts_with("How late a call"))
    );
    let prefetch =
        &schema["properties"]["routes"]["additionalProperties"]["properties"]["prefetch"];
    assert_eq!(
        (&prefetch["examples"], &prefetch["maximum"]),
        (&json!([500]), &json!(65535))
    );
    assert_eq!(prefetch["default"], Value::Null);
}
