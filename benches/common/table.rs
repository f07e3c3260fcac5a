//! Medians, and tables that can be pasted into a page.

use std::process::Command;

use sluiced::cli::text::padded;

/// A table of text, with a line for each row. Made before the first measurement, because the line below it
/// shows the steal time since then.
pub struct Table {
    rows: Vec<Vec<String>>,
    host: Host,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        let mut table = Self {
            rows: Vec::new(),
            host: Host::watch(),
        };
        table.row(head);
        table
    }

    pub fn row(&mut self, cells: &[impl ToString]) {
        self.rows
            .push(cells.iter().map(ToString::to_string).collect());
    }

    /// Prints it in Markdown, with the steal time meanwhile.
    pub fn print(&self) {
        for (number, cells) in padded(&self.rows, &[]).iter().enumerate() {
            println!("| {} |", cells.join(" | "));
            if number == 0 {
                let rule: Vec<String> = cells
                    .iter()
                    .map(|c| "-".repeat(c.chars().count()))
                    .collect();
                println!("|-{}-|", rule.join("-|-"));
            }
        }
        println!(
            "\nthe host took {} % of the processors meanwhile",
            self.host.took()
        );
    }
}

/// The middle one of some values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // For an even number of values, between the two in the middle.
    let above = sorted.get(sorted.len() / 2);
    let below = sorted.get(sorted.len().saturating_sub(1) / 2);
    below.zip(above).map_or(f64::NAN, |(a, b)| a.midpoint(*b))
}

/// A percentile by nearest rank; NaN without values.
pub fn percentile(values: &[f64], percent: u8) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sluiced_simulation::window::percentile(&sorted, percent).unwrap_or(f64::NAN)
}

/// Prints what was measured and on which machine: results mean nothing without it.
pub fn headline(what: &str) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let redis = said(Command::new("redis-server").arg("--version"));
    let redis = redis
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or("?")
        .to_owned();
    println!("{what}");
    println!(
        "{cores} processors for everything, load before the start {load}; Redis {redis}, RabbitMQ {}\n",
        rabbitmq_version()
    );
}

/// From the name of its library directory, because the program itself would start a node for that.
fn rabbitmq_version() -> String {
    let entries = std::fs::read_dir("/usr/lib/rabbitmq/lib");
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name
                .to_string_lossy()
                .strip_prefix("rabbitmq_server-")?
                .to_owned();
            Some(version)
        })
        .next()
        .unwrap_or_else(|| "?".to_owned())
}

fn said(command: &mut Command) -> String {
    command
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
}

/// The steal time since some moment.
pub struct Host {
    at_first: Option<Ticks>,
}

/// The kernel's counts since its start, of all processors together.
struct Ticks {
    all: u64,
    /// Time that the host gave to other machines (`st` of `vmstat`).
    stolen: u64,
}

impl Host {
    pub fn watch() -> Self {
        let at_first = Ticks::read();
        Self { at_first }
    }

    /// The share since then, in percent; `-` if the kernel does not report it.
    pub fn took(&self) -> String {
        let (Some(first), Some(last)) = (&self.at_first, Ticks::read()) else {
            return "-".to_owned();
        };
        let all = last.all.saturating_sub(first.all).max(1);
        let stolen = last.stolen.saturating_sub(first.stolen);
        format!("{:.1}", stolen as f64 * 100.0 / all as f64)
    }
}

impl Ticks {
    /// The first line of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal;
    /// guests are part of user and nice.
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let numbers = text.lines().next()?.strip_prefix("cpu")?;
        let numbers = numbers.split_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        let stolen = *ticks.get(7)?;
        let all = ticks.iter().sum();
        Some(Self { all, stolen })
    }
}
