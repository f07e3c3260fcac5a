//! Whether a message is among the dead letters, for `sluiced find`.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::show::{LABELS, SeekResult, in_short, seek};
use super::{LettersLocation, Refusal};
use crate::cli::text::facts;

/// The dead letters of one message.
pub(in crate::cli) struct FoundLetters {
    letters: Vec<FoundLetter>,
    /// The content of the queues that do not have it.
    missing: Vec<String>,
}

struct FoundLetter {
    title: String,
    facts: Vec<(String, String)>,
    json: Value,
}

/// Looks for a message by its id, among the letters of a route or of all.
pub(in crate::cli) async fn find(
    config: &[PathBuf],
    route: Option<&str>,
    id: &str,
) -> Result<FoundLetters, Refusal> {
    let location = LettersLocation {
        config: config.to_vec(),
        route: route.map(str::to_owned),
        rabbitmq: None,
        queue: None,
        json: false,
    };
    let dead = location.dead_queues()?;
    let mut found = FoundLetters {
        letters: Vec::new(),
        missing: Vec::new(),
    };
    for queue in &dead.queues {
        let see = |letter: &_| Ok(in_short(queue, letter));
        match seek(&dead, queue, None, id, see).await? {
            SeekResult::Missing(why) => found.missing.push(why),
            SeekResult::Found((facts, json)) => found.letters.push(FoundLetter {
                title: format!("letter {} of {queue}", json["number"]),
                facts,
                json,
            }),
        }
    }
    Ok(found)
}

impl FoundLetters {
    /// Whether it is none.
    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// The route of the message, as its letter has it.
    pub(in crate::cli) fn route(&self) -> Option<&str> {
        self.letters
            .iter()
            .find_map(|letter| letter.json["route"].as_str())
    }

    pub(in crate::cli) fn write(&self, out: &mut impl Write) -> Result<(), Refusal> {
        if self.letters.is_empty() {
            writeln!(out, "it is no dead letter: {}", self.missing.join("; "))?;
        }
        for (index, letter) in self.letters.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            writeln!(out, "{}", letter.title)?;
            facts(LABELS, &letter.facts, out)?;
        }
        Ok(())
    }

    pub(in crate::cli) fn as_json(&self) -> Value {
        let letters = self.letters.iter().map(|letter| &letter.json);
        json!(letters.collect::<Vec<_>>())
    }
}
