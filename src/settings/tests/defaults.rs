//! `default.toml`, the schema and the types say the same.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::{Files, GOOD, lines};
use crate::settings::load::DEFAULTS;
use crate::settings::schema::{self, Key, Kind, Need, ROOT, Shape, limits, routes};
use crate::settings::tree;
use crate::settings::types::{
    Admin, Backend, Basic, Bearer, Concurrency, Counting, Embedded, FixedWindow, Gcra, Http, Log,
    Outcomes, Paced, RabbitMq, Redis, Retry, Route, Service, Settings, SlidingLog, TokenBucket,
};

/// `default.toml` with its examples switched on.
fn uncommented() -> String {
    let switch = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    let lines: Vec<_> = DEFAULTS.lines().map(switch).collect();
    lines.join("\n")
}

#[test]
fn the_defaults_alone_only_lack_a_route() {
    assert_eq!(
        lines(&[""], &[]),
        [
            "configuration: routes: no route: nothing would be consumed; write a table [routes.NAME] with queue, limits and downstream"
        ]
    );
}

#[test]
fn the_commented_examples_are_true() {
    let ca = "-----BEGIN CERTIFICATE-----\n";
    let text = uncommented();
    let files = Files::new(&[""]);
    let ca = files.write("ca.pem", ca);
    let client = files.write("client.pem", "-----BEGIN CERTIFICATE-----\n");
    for name in ["rabbitmq", "redis", "redis-key", "provider", "mail"] {
        files.write(name, "secret\n");
    }
    let directory = ca.trim_end_matches("/ca.pem").to_owned();
    let text = text.replace("/etc/sluiced/ca.pem", &ca);
    let text = text.replace("/etc/sluiced/client.pem", &client);
    // Certificates are for TLS.
    let text = text.replace("redis://127", "rediss://127");
    let files = Files::new(&[&text]);
    let loaded = files
        .load(&[("CREDENTIALS_DIRECTORY", &directory)])
        .map_err(|faults| faults.to_string())
        .expect("the examples load");
    assert_eq!(loaded.warnings.all(), []);
    assert_eq!(loaded.settings.routes.len(), 2);
}

/// The examples that exclude each other stand indented in a comment: the lines from `mode` on.
fn indented(mode: &str) -> String {
    let first = format!("#   mode = \"{mode}\"");
    let lines = DEFAULTS.lines().skip_while(|line| *line != first);
    let lines = lines.map_while(|line| line.strip_prefix("#   "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_modes_of_redis_load_as_they_are_shown() {
    let files = Files::new(&[""]);
    let sentinel = files.write("sentinel", "secret\n");
    let directory = sentinel.trim_end_matches("/sentinel").to_owned();
    for (mode, keys) in [("sentinel", 5), ("cluster", 2)] {
        let text = indented(mode);
        assert_eq!(text.lines().count(), keys, "{text}");
        let text = format!("[redis]\n{text}\n{GOOD}");
        let said = lines(&[&text], &[("CREDENTIALS_DIRECTORY", &directory)]);
        assert_eq!(said, Vec::<String>::new());
    }
}

/// Every key of the schema stands in `default.toml`, with its default if it has one.
#[test]
fn every_key_is_documented_with_its_default() {
    let text = uncommented();
    let (root, errors) = tree::parse(0, &text);
    assert!(errors.is_empty());
    let (live, _) = tree::parse(0, DEFAULTS);
    documented(&[&root], &ROOT, "");
    compare(&root, &ROOT, "");
    built_in(&live, &ROOT, "");
}

/// Every key stands in one of `nodes`, which are tables of the same shape.
fn documented(nodes: &[&tree::Node], shape: &Shape, path: &str) {
    let below = |name: &str| -> Vec<&tree::Node> {
        let entries = nodes.iter().filter_map(|node| node.entries());
        entries.filter_map(|entries| entries.get(name)).collect()
    };
    let each = |key: &Key| {
        let path = format!("{path}.{}", key.name);
        // The comment of the file that should hold it speaks of it.
        let told = DEFAULTS.contains(&format!("\n#   {} = ", key.name));
        if !told && !matches!(key.name, "token" | "password") {
            assert!(!below(key.name).is_empty(), "{path}");
        }
        documented(&below(key.name), &key.shape, &path);
    };
    match shape {
        Shape::Section(keys) => keys.iter().for_each(each),
        Shape::Kinds { kinds, .. } => kinds.iter().flat_map(Kind::keys).for_each(each),
        Shape::Named(inner) => {
            let entries = nodes.iter().filter_map(|node| node.entries());
            let all: Vec<_> = entries.flat_map(|entries| entries.values()).collect();
            documented(&all, inner, &format!("{path}.*"));
        }
        _ => {}
    }
}

/// A comment stands above every key, but for the second route, which repeats the first one's.
#[test]
fn every_key_has_a_comment() {
    let lines: Vec<_> = DEFAULTS.lines().collect();
    for pair in lines.windows(2) {
        if pair[1].starts_with("#[routes.mail]") {
            return;
        }
        let named = [".headers]", ".auth]", ".weights]"]
            .iter()
            .any(|table| pair[0].contains(table));
        let key = pair[1].split_once(" = ").is_some_and(|(key, _)| {
            let key = key.strip_prefix('#').unwrap_or(key);
            key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        });
        assert!(!key || named || pair[0].starts_with("# "), "{}", pair[1]);
    }
}

/// What the examples show for a key with a default is that default.
fn compare(node: &tree::Node, shape: &Shape, path: &str) {
    let Some(entries) = node.entries() else {
        return;
    };
    let keys: Vec<&Key> = match shape {
        Shape::Section(keys) => keys.iter().collect(),
        Shape::Kinds { kinds, .. } => {
            let kind = entries.get("kind").and_then(tree::Node::text);
            let kinds = kinds.iter().filter(|known| Some(known.name) == kind);
            kinds.flat_map(Kind::keys).collect()
        }
        _ => Vec::new(),
    };
    for (name, child) in entries {
        let path = format!("{path}.{name}");
        if let Some(key) = keys.iter().find(|key| key.name == name)
            && let Need::Default(text) = key.need
        {
            let default = tree::Node::literal(text);
            assert_eq!(child.plain(), default.plain(), "{path}");
        }
        if let Some(below) = shape.below(name) {
            compare(child, below, &path);
        }
    }
}

/// What the schema calls built in stands there, switched on.
fn built_in(node: &tree::Node, shape: &Shape, path: &str) {
    if let Shape::Section(keys) = shape {
        for key in keys.iter() {
            let child = node.entries().and_then(|entries| entries.get(key.name));
            let path = format!("{path}.{}", key.name);
            let wanted = matches!(key.need, Need::BuiltIn);
            assert_eq!(child.is_some(), wanted, "{path}");
            if let Some(child) = child {
                built_in(child, &key.shape, &path);
            }
        }
    }
}

/// What the schema calls a default is what the types do without the key.
#[test]
fn the_schema_and_the_types_have_the_same_defaults() {
    let Shape::Kinds { kinds, .. } = &limits::LIMIT else {
        panic!("a limit has kinds");
    };
    let counted = || kinds.iter().filter(|kind| kind.name != "paced");
    let header = |kind: &Kind| format!("[limits.{}]\nkind = \"{}\"\n", kind.name, kind.name);
    let required = |kind: &Kind| -> String {
        let lines = kind.keys().filter_map(|key| match key.need {
            Need::Required(value) => Some(format!("{} = {value}\n", key.name)),
            _ => None,
        });
        lines.collect()
    };
    let bare: String = counted()
        .map(|kind| header(kind) + &required(kind))
        .collect();
    let plain = Files::new(&[GOOD, &bare]).load(&[]).expect("it loads");
    let mut text = String::new();
    let mut write = |header: &str, keys: &[&Key]| {
        text.push_str(&format!("{header}\n"));
        for key in keys {
            if let Need::Default(value) | Need::Required(value) = key.need
                && !matches!(key.name, "downstream")
            {
                text.push_str(&format!("{} = {value}\n", key.name));
            }
        }
    };
    for kind in counted() {
        write(&header(kind), &kind.keys().collect::<Vec<_>>());
    }
    let mut write =
        |header: &str, keys: &'static [Key]| write(header, &keys.iter().collect::<Vec<_>>());
    write("[limits.provider]", limits::PACED);
    write("[routes.sms]", routes::ROUTE_KEYS);
    write("[routes.sms.retry]", routes::RETRY);
    write("[routes.sms.downstream]\nkind = \"http\"", routes::HTTP);
    write("[routes.sms.downstream.outcomes]", routes::OUTCOMES);
    let explicit = Files::new(&[&text]).load(&[]).expect("it loads");
    assert_eq!(
        format!("{:?}", explicit.settings),
        format!("{:?}", plain.settings)
    );
    let route = &plain.settings.routes["sms"];
    assert_eq!(route.max_attempts, 5);
}

/// Takes the names of a type's fields and refuses everything else.
struct Fields<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("only fields are wanted"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(serde::de::Error::custom("only fields are wanted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn same_fields<'de, T: Deserialize<'de>>(keys: &[Key]) {
    let mut fields = Vec::new();
    assert!(T::deserialize(Fields(&mut fields)).is_err());
    let fields: BTreeSet<_> = fields.into_iter().collect();
    let keys: BTreeSet<_> = keys.iter().map(|key| key.name).collect();
    assert_eq!(fields, keys);
}

#[test]
fn the_schema_and_the_types_have_the_same_keys() {
    let Shape::Section(root) = &ROOT else {
        panic!("the root is a section");
    };
    same_fields::<Settings>(root);
    same_fields::<RabbitMq>(schema::RABBITMQ);
    same_fields::<Redis>(schema::REDIS);
    same_fields::<Admin>(schema::ADMIN);
    same_fields::<Log>(schema::LOG);
    same_fields::<Service>(schema::SERVICE);
    same_fields::<Backend>(schema::BACKEND);
    same_fields::<Embedded>(schema::EMBEDDED);
    same_fields::<Paced>(limits::PACED);
    same_fields::<Gcra>(limits::GCRA);
    same_fields::<TokenBucket>(limits::TOKEN_BUCKET);
    same_fields::<FixedWindow>(limits::FIXED_WINDOW);
    same_fields::<SlidingLog>(limits::SLIDING_LOG);
    same_fields::<Concurrency>(limits::CONCURRENCY);
    same_fields::<Counting>(limits::COUNTED);
    same_fields::<Route>(routes::ROUTE_KEYS);
    same_fields::<Retry>(routes::RETRY);
    same_fields::<Http>(routes::HTTP);
    same_fields::<Outcomes>(routes::OUTCOMES);
    same_fields::<Basic>(routes::BASIC);
    same_fields::<Bearer>(routes::BEARER);
}

#[test]
fn the_configurations_that_come_along_load_without_a_warning() {
    for text in [
        include_str!("../../../config/sms.toml"),
        include_str!("../../../config/embedded.toml"),
    ] {
        assert_eq!(lines(&[text], &[]), Vec::<String>::new());
    }
}
