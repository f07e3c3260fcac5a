//! The limit, kept and used by a fleet: `sluiced demo` against a private RabbitMQ and Redis.
//!
//! Four cases: four replicas at 400 a second, two at 5,000 a second, four of which one is killed every 1.5
//! seconds, and four that call over SMPP with two binds each. An argument that is a number says how often
//! each is run. The exit code is that of the demo: 0 if no call came too early and none was lost. The steal
//! time is printed too: slots that come up meanwhile are missed, and not used.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::daemon::program;
use common::table::Host;
use common::table::{Table, headline};
use common::watched::Watched;
use support::rabbit::Rabbit;
use support::redis::RedisServer;

struct Case {
    name: &'static str,
    arguments: &'static [&'static str],
    wanted: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        name: "4 replicas, 400/1s, 6,000 messages",
        arguments: &["--replicas", "4", "--rate", "400/1s", "--messages", "6000"],
        wanted: "0 over, 99.4 % used, 0.05 script calls a message, none lost or twice",
    },
    Case {
        name: "2 replicas, 5000/1s, 50,000 messages",
        arguments: &[
            "--replicas",
            "2",
            "--rate",
            "5000/1s",
            "--messages",
            "50000",
        ],
        wanted: "0 over, 99 % used, 0.005 script calls a message, none lost or twice",
    },
    Case {
        name: "4 replicas, 400/1s, 6,000 messages, one killed every 1.5 s",
        arguments: &[
            "--replicas",
            "4",
            "--rate",
            "400/1s",
            "--messages",
            "6000",
            "--kill-every",
            "1500ms",
        ],
        wanted: "0 over, 97 % used, none lost",
    },
    Case {
        name: "4 replicas with 2 binds each over SMPP, 400/1s, 6,000 messages",
        arguments: &[
            "--replicas",
            "4",
            "--smpp",
            "--rate",
            "400/1s",
            "--messages",
            "6000",
        ],
        wanted: "0 over, 99 % used, 0.05 script calls a message, none lost or twice",
    },
];

fn main() -> ExitCode {
    let times = std::env::args()
        .find_map(|argument| argument.parse::<u32>().ok())
        .unwrap_or(1);
    headline("a fleet on one machine, with its RabbitMQ, its Redis and its provider");
    let rabbit = Rabbit::start();
    let redis = RedisServer::start();
    let dir = tempfile::tempdir().expect("a directory");
    let mut table = Table::new(&[
        "case",
        "run",
        "over",
        "worst",
        "used %",
        "lost",
        "twice",
        "undated",
        "ms apart",
        "scripts a message",
        "killed",
        "host took %",
    ]);
    let mut code = ExitCode::SUCCESS;
    for case in &CASES {
        println!("{}: wanted {}", case.name, case.wanted);
        for run in 1..=times {
            let host = Host::watch();
            let (amqp, store) = (rabbit.url(), redis.url());
            let mut arguments = vec!["demo", "--rabbitmq", &amqp, "--redis", &store];
            arguments.extend(case.arguments);
            let demo = Watched::start(program(), &arguments, &[], dir.path().join("demo.log"));
            let said = Said(demo.ended(Duration::from_secs(110)));
            table.row(&[
                case.name,
                &run.to_string(),
                said.first("calls that came too early"),
                said.first("fullest sliding window"),
                said.first("share of the limit used"),
                said.first("messages lost"),
                said.first("messages taken twice"),
                said.first("calls at an unknown time"),
                said.first("from call to call"),
                said.nth("script calls to Redis", 1),
                said.first("daemons killed"),
                &host.took(),
            ]);
            if !said.0.contains("PASSED") {
                println!("run {run}:\n{}", said.0);
                code = ExitCode::FAILURE;
            }
        }
    }
    println!();
    table.print();
    code
}

/// What a demo printed.
struct Said(String);

impl Said {
    /// The number behind the name of a row.
    fn first(&self, row: &str) -> &str {
        self.nth(row, 0)
    }

    fn nth(&self, row: &str, index: usize) -> &str {
        let rest = self
            .0
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(row));
        rest.and_then(|rest| rest.split_whitespace().nth(index))
            .unwrap_or("-")
    }
}
