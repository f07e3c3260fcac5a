//! `sluiced sim`, hidden from the help: looks for failures of the simulated fleet and replays them.

use std::io::{self, Write};

use clap::Args;

use super::exit::Exit;
use sluiced_simulation::Coverage;
use sluiced_simulation::verdict::longest_gap;
use sluiced_simulation::{FleetOutcome, Scenario, run as simulate};

/// The seeds that `sluiced sim` runs, and what it prints.
#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    /// Runs this seed only, and prints everything about it.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How many seeds to run.
    #[arg(long, default_value_t = 300)]
    pub seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    pub from: u64,
    /// One line for every run; with `--seed`, its events too.
    #[arg(long)]
    pub verbose: bool,
    /// How many of its last events are shown.
    #[arg(long, default_value_t = 60)]
    pub events: usize,
}

/// Runs the simulation; the exit code says whether all runs held.
///
/// # Errors
/// When `out` cannot be written to.
pub fn run(args: &SimArgs, out: &mut dyn Write) -> io::Result<Exit> {
    let failed = match args.seed {
        Some(seed) => run_seed(args, seed, out)?,
        None => many(args, out)?,
    };
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Prints everything about one seed; returns whether a run failed.
fn run_seed(args: &SimArgs, seed: u64, out: &mut dyn Write) -> io::Result<bool> {
    let mut failed = false;
    for scenario in of_seed(seed) {
        let report = simulate(&scenario);
        write!(out, "{scenario}")?;
        write_line(out, &scenario, &report)?;
        writeln!(out, "fingerprint {:016x}", report.trace.fingerprint())?;
        if report.failure.is_some() || args.verbose {
            write_events(out, &report, args.events)?;
        }
        failed |= write_failure(out, &scenario, &report)?;
    }
    Ok(failed)
}

/// Prints the sums of many seeds, and everything about the first run that failed; returns whether one did.
fn many(args: &SimArgs, out: &mut dyn Write) -> io::Result<bool> {
    let mut failed = false;
    let (mut sums, mut coverage) = (<[Sums; 3]>::default(), Coverage::default());
    for seed in args.from..args.from.saturating_add(args.seeds) {
        for (scenario, sums) in of_seed(seed).iter().zip(&mut sums) {
            let report = simulate(scenario);
            sums.add(&report);
            if !scenario.keyed.is_empty() && scenario.heals.is_none() {
                coverage.add(scenario, &report);
            }
            if args.verbose {
                write_line(out, scenario, &report)?;
            }
            if report.failure.is_some() && !failed {
                write!(out, "{scenario}")?;
                write_line(out, scenario, &report)?;
                write_events(out, &report, args.events)?;
            }
            failed |= write_failure(out, scenario, &report)?;
        }
    }
    let what = ["a paced limit", "keyed limits", "progress judged"];
    for (what, sums) in what.into_iter().zip(&sums) {
        writeln!(
            out,
            "{} seeds with {what}, {} failed; {} calls, {} faults",
            args.seeds, sums.failed, sums.calls, sums.faults,
        )?;
    }
    let [paced, ..] = &sums;
    let asks = paced.asks / paced.calls.max(1) as f64;
    writeln!(out, "{asks:.4} asks per message of a paced limit alone")?;
    write!(out, "{coverage}")?;
    Ok(failed)
}

/// The runs of one seed: a fleet with a paced limit alone, one with keyed limits, and one that recovers and
/// must make progress.
fn of_seed(seed: u64) -> [Scenario; 3] {
    [
        Scenario::from_seed(seed),
        Scenario::keyed_from_seed(seed),
        Scenario::progress_from_seed(seed),
    ]
}

/// The sums of many runs.
#[derive(Debug, Default)]
struct Sums {
    failed: u64,
    calls: u64,
    asks: f64,
    faults: usize,
}

impl Sums {
    fn add(&mut self, report: &FleetOutcome) {
        self.failed += u64::from(report.failure.is_some());
        self.calls += report.calls;
        self.asks += report.asks_per_message * report.calls as f64;
        self.faults += report.struck.len();
    }
}

fn write_line(out: &mut dyn Write, scenario: &Scenario, report: &FleetOutcome) -> io::Result<()> {
    writeln!(
        out,
        "seed {:<6} {:>9} x{:<4} {:>8.2} s {:>6} calls, worst window {:>5}, used {} of {} slots ({} allowed), \
         {:.4} asks per message, {} denied at the turn, least served {}, missed {}, discarded {}, repeats {}",
        scenario.seed,
        scenario.rate.to_string(),
        scenario.replicas,
        report.length as f64 / 1e6,
        report.calls,
        report.worst,
        percent(report.used),
        report.slots,
        report.allowed,
        report.asks_per_message,
        report.denied_at_turn,
        percent(report.least_served),
        report.missed,
        report.discarded,
        report.repeats,
    )?;
    if let Some((gap, share)) = report.progress {
        let (seconds, most) = (gap.as_secs_f64(), longest_gap(scenario).as_secs_f64());
        let percents = percent(Some(share));
        writeln!(
            out,
            "  no call for {seconds:.2} s at most, of {most:.2} that are allowed; {percents} of the least time"
        )?;
    }
    Ok(())
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.2} %", part * 100.0))
}

fn write_events(out: &mut dyn Write, report: &FleetOutcome, count: usize) -> io::Result<()> {
    for event in report.trace.tail(count) {
        writeln!(out, "{event}")?;
    }
    Ok(())
}

/// Writes why a run failed, if it did; returns whether it did.
fn write_failure(
    out: &mut dyn Write,
    scenario: &Scenario,
    report: &FleetOutcome,
) -> io::Result<bool> {
    let Some(why) = &report.failure else {
        return Ok(false);
    };
    writeln!(out, "FAILED {why}")?;
    writeln!(out, "replay with: sluiced sim --seed {}", scenario.seed)?;
    Ok(true)
}
