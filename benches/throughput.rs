//! The throughput with a limit that does not bind, as a share of that of a bare consume-POST-ack loop.
//!
//! The bare loop, sluiced, and sluiced with results of all messages take turns on the same private RabbitMQ, Redis and
//! provider.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::process::ExitCode;

use common::bare;
use common::drain::{Ground, MESSAGES, PREFETCH, RATE, pairs};
use common::table::{Table, headline, median};
use common::watched::Watched;

fn main() -> ExitCode {
    if let Some(code) = bare::run_if_told() {
        return code;
    }
    headline(&format!(
        "{MESSAGES} small messages, prefetch {PREFETCH}, one consumer, limit {RATE} (does not bind)"
    ));
    let ground = Ground::start();
    let mut table = Table::new(&[
        "pair",
        "bare loop",
        "sluiced",
        "ratio",
        "bare µs CPU",
        "sluiced µs CPU",
        "with results",
        "of sluiced",
    ]);
    let mut ratios = Vec::new();
    let mut with_results = Vec::new();
    for pair in 1..=pairs() {
        let bare = ground.measure(&format!("bare-{pair}"), 1, |queue| bare(&ground, queue));
        let ours = ground.measure(&format!("ours-{pair}"), 1, |queue| {
            ground.sluiced(queue, &[])
        });
        let results = ground.measure(&format!("results-{pair}"), 1, |queue| {
            ground.with_results(queue)
        });
        let ratio = ours.throughput / bare.throughput;
        ratios.push(ratio);
        with_results.push(results.throughput / ours.throughput);
        table.row(&[
            pair.to_string(),
            format!("{:.0}/s", bare.throughput),
            format!("{:.0}/s", ours.throughput),
            format!("{ratio:.2}"),
            format!("{:.0}", bare.processor),
            format!("{:.0}", ours.processor),
            format!("{:.0}/s", results.throughput),
            format!("{:.2}", results.throughput / ours.throughput),
        ]);
    }
    table.print();
    let least = ratios.iter().copied().fold(f64::MAX, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "\nratio: median {:.2}, least {least:.2}, most {most:.2} (wanted: at least 0.90)",
        median(&ratios)
    );
    println!(
        "with results, of sluiced without: median {:.2} (wanted: at least 0.60)",
        median(&with_results)
    );
    ExitCode::SUCCESS
}

fn bare(ground: &Ground, queue: &str) -> Watched {
    bare::start(
        ground.dir.path(),
        queue,
        &ground.rabbit.url(),
        queue,
        &ground.provider.url(),
        PREFETCH,
    )
}
