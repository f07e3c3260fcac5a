//! A row of the table, as a line of JSON that `tests/reliability` reads.

use std::fs::File;
use std::io::Write as _;

use serde_json::{Value, json};

use super::books::Sums;
use crate::support::soak::soak;

/// Names the file that rows are appended to.
const FILE: &str = "SLUICED_DRILLS";

/// The name of the row, and the fault in words.
#[derive(Debug)]
pub(super) struct Row {
    name: &'static str,
    fault: &'static str,
}

impl Row {
    pub(super) const fn of(name: &'static str, fault: &'static str) -> Self {
        Self { name, fault }
    }

    /// Prints it, and appends it to the file.
    pub(super) fn write(&self, done: &str, sums: &Sums, seconds: Option<f64>) {
        eprintln!("{}: {done}: {sums:?}, back after {seconds:?} s", self.name);
        append(&json!({
            "row": self.name,
            "fault": self.fault,
            "done": done,
            "long": soak(),
            "sums": sums,
            "seconds": seconds,
        }));
    }
}

/// Appends a line to the file that the variable names, if there is one.
pub(super) fn append(row: &Value) {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let file = File::options().create(true).append(true).open(path);
    let mut file = file.expect("the file of the rows");
    // In one write: other rows may be written at the same time.
    file.write_all(format!("{row}\n").as_bytes())
        .expect("the file of the rows takes them");
}
