//! Makes `config/default.toml` from the table of keys.
//!
//! The file has every key with its default and what it does. Sections that are always there (such as
//! `[rabbitmq]`) are live, and limits and routes are examples after a `#`. Examples that exclude others are
//! indented, so that removing every `#` before a letter makes a configuration that loads.

use crate::schema::{KeySpec, Need, Shape, TableKind};
use crate::types::ROOT;

const HEADER: &str = "\
# Every key of sluiced with its default, as `sluiced config default` writes it. Files given with --config
# override these values, later files override earlier ones, and variables such as SLUICED__REDIS__URL override
# all files.
#
# Durations are written with their unit (\"250ms\", \"10s\", \"5m\", \"1h30m\", \"2d\"), sizes too (\"64KiB\",
# \"1MiB\"), rates as units per window (\"400/1s\", \"5/1h\").
# A key `…_file` names a file that holds the secret alone; \"credential:NAME\" is the file NAME in
# systemd's $CREDENTIALS_DIRECTORY. Relative paths start at the working directory.
# A line that starts with `#` and no space after it is an example: take the `#` away to use it.
";

/// The text of `config/default.toml`.
#[must_use]
pub fn reference() -> String {
    let mut reference = Reference(HEADER.to_owned());
    for key in ROOT.keys() {
        let live = matches!(key.shape, Shape::Section(_));
        reference.table(key, key.name, if live { "" } else { "#" });
    }
    reference.0
}

struct Reference(String);

impl Reference {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn doc(&mut self, key: &KeySpec) {
        let required = matches!(key.need, Need::Required(_)) && !key.shape.is_table();
        for (i, line) in key.doc.iter().enumerate() {
            let last = i + 1 == key.doc.len();
            let required_mark = if last && required { " Required." } else { "" };
            self.line(&format!("#{line}{required_mark}"));
        }
    }

    /// A table at `path`; `mark` is written before each of its lines.
    fn table(&mut self, key: &KeySpec, path: &str, mark: &str) {
        self.line("");
        self.doc(key);
        match &key.shape {
            Shape::Section(keys) => {
                self.line(&format!("{mark}[{path}]"));
                self.keys(keys.iter(), path, mark);
            }
            Shape::Kinds { kinds, .. } => {
                self.line(&format!("{mark}[{path}]"));
                for (i, kind) in kinds.iter().enumerate() {
                    let mark = if i == 0 { mark } else { "#   " };
                    self.kind(kind, &kinds[..i], path, mark);
                }
            }
            Shape::Named {
                of: Shape::Section(keys),
                example,
            } => {
                let path = format!("{path}.{example}");
                self.line(&format!("{mark}[{path}]"));
                self.keys(keys.iter(), &path, mark);
            }
            Shape::Named {
                of: Shape::Kinds { kinds, .. },
                ..
            } => {
                for (i, kind) in kinds.iter().enumerate() {
                    if i > 0 {
                        self.line("");
                    }
                    let path = format!("{path}.{}", kind.example);
                    self.line(&format!("{mark}[{path}]"));
                    self.kind(kind, &kinds[..i], &path, mark);
                }
            }
            Shape::Part { example, .. } => {
                self.line(&format!("#[{path}]"));
                for line in example.lines() {
                    self.line(&format!("#{line}"));
                }
            }
            Shape::Named { example, .. } => {
                self.line(&format!("{mark}[{path}]"));
                self.line(&format!("{mark}{example}"));
            }
            _ => {}
        }
    }

    /// The keys of a kind. Keys that were written for one of the kinds `before` are not repeated.
    fn kind(&mut self, kind: &TableKind, before: &[TableKind], path: &str, mark: &str) {
        let doc = kind.doc.join("\n#");
        self.line(&format!("# {}:{doc}", kind.name));
        self.line(&format!("{mark}kind = \"{}\"", kind.name));
        self.keys(kind.own.iter(), path, mark);
        let earlier_kind = before.iter().find(|other| !other.shared.is_empty());
        let Some(earlier_kind) = earlier_kind else {
            self.keys(kind.shared.iter(), path, mark);
            return;
        };
        if !kind.shared.is_empty() {
            self.line(&format!("# As for {}.", earlier_kind.name));
        }
        for key in kind.shared {
            self.key(key, mark);
        }
    }

    /// First the values, then the tables, as TOML requires.
    fn keys(
        &mut self,
        keys: impl Iterator<Item = &'static KeySpec> + Clone,
        path: &str,
        mark: &str,
    ) {
        for key in keys.clone().filter(|key| !key.shape.is_table()) {
            self.doc(key);
            self.key(key, mark);
        }
        for key in keys.filter(|key| key.shape.is_table()) {
            self.table(key, &format!("{path}.{}", key.name), mark);
        }
    }

    fn key(&mut self, key: &KeySpec, mark: &str) {
        let (mark, value) = match key.need {
            Need::Default(value) | Need::Required(value) => (mark, value),
            Need::Optional(value) if mark.is_empty() => ("#", value),
            Need::Optional(value) => (mark, value),
            Need::Apart(value) => ("#   ", value),
        };
        self.line(&format!("{mark}{} = {value}", key.name));
    }
}
