//! `config/default.toml` is made from the table of keys, its examples load, and the types agree with it.

use super::{Files, GOOD, lines};
use crate::schema::{KeySpec, Need, Shape, TableKind};
use crate::types::{LIMIT, ROOT};
use crate::{Needs, load_with, reference};

const DEFAULT: &str = include_str!("../../../../config/default.toml");

/// `default.toml` with its examples switched on.
pub(super) fn uncommented() -> String {
    let switch = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    let lines: Vec<_> = DEFAULT.lines().map(switch).collect();
    let all = "[\"provider\", \"sender\", \"campaign\", \"quota\", \"recipient\", \"calls\", \"repeats\"]";
    // Those of the route, which comes before the callers.
    lines.join("\n").replacen("[\"provider\"]", all, 1)
}

#[test]
fn the_reference_is_what_the_table_says() {
    assert!(
        DEFAULT == reference(),
        "config/default.toml is stale; write it anew: `sluiced config default > config/default.toml`"
    );
}

#[test]
fn the_defaults_alone_only_lack_a_route() {
    assert_eq!(
        lines(&[""], &[]),
        [
            "configuration: routes: no route: nothing would be consumed; write a table [routes.NAME] with queue, limits and downstream, in a file that --config names"
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
    let secrets = [
        "rabbitmq", "redis", "provider", "mail", "proxy", "infobip", "callers",
    ];
    let keys = ["rabbitmq-key", "redis-key", "client-key", "callers-key"];
    for name in secrets.into_iter().chain(keys) {
        files.write(name, "secret\n");
    }
    let directory = ca.trim_end_matches("/ca.pem").to_owned();
    let text = text.replace("/etc/sluiced/ca.pem", &ca);
    let text = text.replace("/etc/sluiced/client.pem", &client);
    let text = text.replace("/etc/sluiced/callers.pem", &client);
    // Certificates are for TLS.
    let text = text.replace("redis://127", "rediss://127");
    let files = Files::new(&[&text]);
    let loaded = files
        .load(&[("CREDENTIALS_DIRECTORY", &directory)])
        .map_err(|faults| faults.to_string())
        .expect("the examples load");
    assert_eq!(loaded.warnings.all(), []);
    assert_eq!(loaded.settings.limits.len(), 7);
}

/// The examples that exclude each other are indented in a comment: the lines from `mode` on.
fn indented(mode: &str) -> String {
    let first = format!("#   mode = \"{mode}\"");
    let lines = DEFAULT.lines().skip_while(|line| *line != first);
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

/// Every key has a comment, in the table of keys and so in the reference.
#[test]
fn every_key_has_a_comment() {
    ROOT.visit(&mut |key| assert!(!key.doc.is_empty() || key.shape.is_table(), "{}", key.name));
}

/// Writing out every default changes only its place, and the types know each word of a choice.
#[test]
fn the_table_and_the_types_agree() {
    let Shape::Kinds { kinds, .. } = &LIMIT else {
        panic!("a limit has kinds");
    };
    let required = |kind: &TableKind| -> String {
        let lines = kind.keys().filter_map(|key| match key.need {
            Need::Required(value) => Some(format!("{} = {value}\n", key.name)),
            _ => None,
        });
        lines.collect()
    };
    for kind in *kinds {
        let bare = format!("[limits.x]\nkind = \"{}\"\n{}", kind.name, required(kind));
        let plain = Files::new(&[GOOD, &bare]).load(&[]).expect("it loads");
        for key in kind.keys() {
            let values: Vec<String> = match (&key.shape, key.need) {
                (Shape::Choice(words), _) => words.iter().map(|w| format!("{w:?}")).collect(),
                (_, Need::Required(_)) => continue,
                (_, Need::Default(value) | Need::Optional(value) | Need::Apart(value)) => {
                    vec![value.to_owned()]
                }
            };
            for value in values {
                let more = format!("[limits.x]\n{} = {value}\n", key.name);
                let loaded = Files::new(&[GOOD, &bare, &more]).load(&[]).expect(&more);
                let same = format!("{:?}", loaded.settings) == format!("{:?}", plain.settings);
                let default = matches!(key.need, Need::Default(default) if default == value);
                assert_eq!(same, default, "{more}");
            }
        }
    }
}

/// The types know each word of every choice: no fault reports that they disagree.
#[test]
fn the_types_know_every_word() {
    fn words(shape: &Shape, path: &str, all: &mut Vec<String>) {
        for KeySpec { name, shape, .. } in shape.keys() {
            if let Shape::Choice(words) = shape {
                let lines = words
                    .iter()
                    .map(|word| format!("{path}.{name} = \"{word}\""));
                all.extend(lines.map(|line| line.trim_start_matches('.').to_owned()));
            }
            words(shape, &format!("{path}.{name}"), all);
        }
        if let Shape::Named { of, example } = shape {
            words(of, &format!("{path}.{example}"), all);
        }
    }
    let mut all = Vec::new();
    words(&ROOT, "", &mut all);
    assert!(all.len() > 15, "{all:?}");
    for line in all.iter().filter(|line| !line.starts_with("limits")) {
        let extra = crate::Extra {
            name: "words".to_owned(),
            text: format!("{line}\n"),
        };
        let files = Files::new(&[GOOD]);
        let said = load_with(Needs::All, &files.paths, Some(extra), std::iter::empty());
        let said = said.map_or_else(|faults| faults.to_string(), |_| String::new());
        assert!(!said.contains("disagree"), "{line}: {said}");
    }
}

#[test]
fn the_configurations_that_come_along_load_without_a_warning() {
    for text in [
        include_str!("../../../../config/sms.toml"),
        include_str!("../../../../config/embedded.toml"),
    ] {
        assert_eq!(lines(&[text], &[]), Vec::<String>::new());
    }
}
