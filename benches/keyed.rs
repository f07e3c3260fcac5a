//! The cost of a keyed limit: the same route with one paced limit, and with an additional keyed
//! one.
//!
//! Neither limit binds, so the figure is the share of the throughput that is left when every
//! message must ask Redis by its key. The two take turns on the same servers.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::process::ExitCode;

use common::drain::{Ground, MESSAGES, PREFETCH, pairs};
use common::table::{Table, headline, median};

const KEYS: usize = 1_000;
const KEYED: (&str, &str) = (
    "recipient",
    "kind = \"gcra\"\nrate = \"5000/1s\"\nburst = 5000\nkey = \"{{ body.to }}\"\nlost_wait = \"0s\"",
);

fn main() -> ExitCode {
    headline(&format!(
        "{MESSAGES} small messages to {KEYS} recipients, prefetch {PREFETCH}, one consumer; no limit binds"
    ));
    let ground = Ground::start();
    let mut table = Table::new(&["pair", "paced alone", "with a keyed limit", "ratio"]);
    let mut ratios = Vec::new();
    let measure = |name: String, more: &[(&str, &str)]| {
        let run = ground.measure(&name, KEYS, |queue| ground.sluiced(queue, more));
        run.throughput
    };
    for pair in 1..=pairs() {
        let paced = measure(format!("paced-{pair}"), &[]);
        let keyed = measure(format!("keyed-{pair}"), &[KEYED]);
        ratios.push(keyed / paced);
        table.row(&[
            pair.to_string(),
            format!("{paced:.0}/s"),
            format!("{keyed:.0}/s"),
            format!("{:.2}", keyed / paced),
        ]);
    }
    table.print();
    println!(
        "\nratio: median {:.2} (wanted: at least 0.60)",
        median(&ratios)
    );
    ExitCode::SUCCESS
}
