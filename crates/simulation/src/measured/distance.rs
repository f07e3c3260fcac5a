//! Redis some milliseconds away, with the default headroom.

use std::time::Duration;

use super::{Backlog, By, account, calls_at_a_time, gcra, in_turns, log};

/// The call of the case with `concurrency`.
const CALL: Duration = Duration::from_millis(100);

/// A case, and the least time for it with the store so far away.
struct Cell {
    name: &'static str,
    backlog: fn() -> Backlog,
    least: fn(Duration) -> f64,
}

const CELLS: [Cell; 4] = [
    Cell {
        name: "gcra, 200 keys",
        backlog: || {
            let rules = vec![(gcra("3/1s", 0), By::Keys(1))];
            Backlog::of("gcra", None, rules, in_turns(200, 20))
        },
        least: |_| 19.0 / 3.0 * 1.035,
    },
    Cell {
        name: "gcra + paced",
        backlog: || {
            let rules = vec![(gcra("10/1s", 0), By::Keys(1))];
            let account = Some(account("200/1s", 1));
            Backlog::of("gcra + paced", account, rules, in_turns(40, 50))
        },
        least: |_| 1_999.0 / 200.0 * 1.005,
    },
    Cell {
        name: "concurrency",
        backlog: || {
            let rules = vec![(calls_at_a_time(10), By::All)];
            Backlog {
                call: CALL,
                ..Backlog::of("concurrency", None, rules, vec![0; 500])
            }
        },
        // From the end of a call to the next one: a report to the store, a notice to a replica, its question,
        // and the answer.
        least: |distance| 49.0 * (CALL + distance * 4 + Duration::from_millis(1)).as_secs_f64(),
    },
    Cell {
        name: "sliding_log + gcra",
        backlog: || {
            let rules = vec![(log("3/1s"), By::Keys(1)), (gcra("40/1s", 0), By::Any(5))];
            Backlog::of("sliding_log + gcra", None, rules, in_turns(100, 20))
        },
        // The senders are drawn at random: the busiest has a little more than a fifth.
        least: |_| 425.0 / 40.0 * 1.035,
    },
];

/// The share that a cell must reach with the store this many milliseconds away.
fn due(cell: &Cell, ms: u64) -> f64 {
    match ms {
        // An account of 200/1s with 40 keys, on the same network.
        1 if cell.name == "gcra + paced" => 0.97,
        ..=6 => 0.95,
        _ => 0.9,
    }
}

/// The share of the least time, or the share of the messages that were sent in four times as long.
fn share(cell: &Cell, distance: Duration, replicas: u32) -> f64 {
    let least = (cell.least)(distance);
    let backlog = Backlog {
        distance,
        replicas,
        way: Duration::from_micros(150),
        // No trips through wait queues, whose steps are coarse.
        prefetch: 4_000,
        within: Duration::from_secs_f64(least * 4.0),
        ..(cell.backlog)()
    };
    let run = backlog.run(5);
    if run.calls.len() < backlog.keys.len() {
        return run.calls.len() as f64 / backlog.keys.len() as f64 / 4.0;
    }
    least / run.seconds()
}

/// With the default headroom a store up to 6 ms away in each direction works like a near one. Ten calls of
/// 100 ms at a time on the same network are in `calls`.
#[test]
fn a_store_some_milliseconds_away_costs_little() {
    let mut low = Vec::new();
    let mut table = format!("{:>6}", "ms");
    for cell in &CELLS {
        table += &format!("{:>24}", cell.name);
    }
    for ms in [1, 2, 3, 5, 6, 10] {
        table += &format!("\n{ms:>6}");
        for cell in &CELLS {
            let shares = [1, 3].map(|replicas| {
                let share = share(cell, Duration::from_millis(ms), replicas);
                // In whole hundredths, as the table has it.
                if (share * 100.0).round() < (due(cell, ms) * 100.0).round() {
                    low.push(format!("{} x{replicas} at {ms} ms: {share:.3}", cell.name));
                }
                format!("{share:.2}")
            });
            table += &format!("{:>24}", shares.join(", "));
        }
    }
    println!("share of the least time with one replica and with three\n{table}");
    assert!(low.is_empty(), "{}\n{table}", low.join("\n"));
}
