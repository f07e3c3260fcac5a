//! The program: arguments in, exit code out.
//!
//! It is part of the library, and `main.rs` only calls it: commands are generic over where they write to,
//! and the compiler would make all of them once more in the crate that names the writers.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use super::exit::Exit;
use super::output::Output;
use super::refusal::exit;
use super::{
    check, completions, config, dead, demo, health, limits, man, plan, provider, run, sim, status,
    throttle, top, trial,
};
use crate::telemetry::logs;
use crate::wire;

/// Sends a RabbitMQ queue to a rate-limited downstream: as fast as the limit that all replicas
/// share allows, never faster, and without losing a message.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon
    Run(run::RunArgs),
    /// Show all faults of a configuration; try the servers it names
    Check(check::CheckArgs),
    /// A first configuration, every key with its default, or the JSON schema for editors
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Dead letters: list them, show one, replay or drop them
    Dead(dead::DeadArgs),
    /// Prove it on this machine: with nothing installed, or on your own RabbitMQ and Redis
    Demo(demo::DemoArgs),
    /// Ask a running daemon whether it is well (for container health checks)
    Health(health::HealthArgs),
    /// The limits of the running fleet: list, show, set, pause, resume, open
    Limits(limits::LimitsArgs),
    /// What a route would do with messages that are foreseen: waits, backlog, what stands still
    Plan(plan::PlanArgs),
    /// How the fleet is: limits, routes, replicas, last warnings
    Status(status::StatusArgs),
    /// The same, live, until q
    Top(top::TopArgs),
    /// Take units of a limit in Redis, as CL.THROTTLE does (for scripts)
    Throttle(throttle::ThrottleArgs),
    /// What would become of a message, and why it waits; calls nothing and takes nothing
    Try(trial::TryArgs),
    /// Print what a shell needs to complete commands and options
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or write one for each command
    Man(man::ManArgs),
    /// A provider that judges its callers (for tests and benchmarks)
    #[command(hide = true)]
    Provider(provider::ProviderArgs),
    /// Simulates fleets with a virtual clock (for tests; replays a failing seed)
    #[command(hide = true)]
    Sim(sim::SimArgs),
}

/// Threads for what blocks: stdin takes one for as long as it is read, and files of a list one at a time.
const BLOCKING: usize = 8;

/// Runs the command that the arguments of the process name.
#[must_use]
pub fn main() -> ExitCode {
    completions::answer(Arguments::command);
    let arguments = Arguments::parse();
    // One crypto provider for every TLS client. An error means that there is one already.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    // One thread decodes and settles: sending, RabbitMQ and Redis have threads of their own. Each of several
    // workers would wake the next one for every message, and one replica sends 30,000 messages a second
    // with a single one as well.
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let code = runtime.block_on(dispatch(arguments.command));
    // Stdin may be blocked in a read whose result is not wanted any more.
    runtime.shutdown_background();
    code.unwrap_or_else(|error| failed(&*error))
}

async fn dispatch(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (mut out, mut err) = (Output(&stdout), Output(&stderr));
    let exit = match command {
        Command::Run(args) => {
            let colour = logs::colours(&stderr);
            run::run(&args, &mut err, colour).await?
        }
        Command::Check(args) => {
            let colour = logs::colours(&stdout);
            let (misfits, probes) = (wire::misfits, wire::probes);
            check::check(&args, std::env::vars(), misfits, probes, &mut out, colour).await?
        }
        Command::Config(command) => {
            config::run(&command, &mut out)?;
            Exit::Done
        }
        Command::Dead(args) => {
            let terminal = stderr.is_terminal();
            let mut console = dead::Console {
                out: &mut out,
                err: &mut err,
                progress: terminal,
                ask: terminal && io::stdin().is_terminal(),
            };
            let done = dead::run(&args, &mut console).await;
            exit("dead", done, &mut err, terminal)?
        }
        Command::Demo(args) => {
            let terminal = stdout.is_terminal();
            if demo::run(args, &mut out, terminal).await? {
                Exit::Done
            } else {
                Exit::Failed
            }
        }
        Command::Limits(args) => {
            let asks = stderr.is_terminal() && io::stdin().is_terminal();
            let prompt = asks.then_some(&mut err as &mut (dyn Write + Send));
            let done = limits::run(&args, &mut out, prompt).await;
            exit("limits", done, &mut err, logs::colours(&stderr))?
        }
        Command::Plan(args) => {
            let done = plan::run(&args, std::env::vars(), &mut out);
            exit("plan", done, &mut err, logs::colours(&stderr))?
        }
        Command::Status(args) => {
            let width = logs::colours(&stdout).then(|| top::size().0);
            let done = status::run(&args, &mut out, width).await;
            exit("status", done, &mut err, false)?
        }
        Command::Top(args) if stdout.is_terminal() => {
            let colour = logs::colours(&stdout);
            let done = top::run(&args, &mut out, colour).await;
            exit("top", done, &mut err, false)?
        }
        Command::Top(_) => {
            writeln!(
                err,
                "sluiced top: needs a terminal; `sluiced status` prints the same once"
            )?;
            Exit::WrongArguments
        }
        Command::Throttle(args) => {
            let done = throttle::run(&args, std::env::vars(), &mut out).await;
            exit("throttle", done, &mut err, logs::colours(&stderr))?
        }
        Command::Try(args) => {
            let done = trial::run(&args, &mut out).await;
            exit("try", done, &mut err, logs::colours(&stderr))?
        }
        Command::Health(args) => return Ok(health::run(&args, &mut out).await?),
        Command::Completions(args) => {
            completions::run(&args, &mut out)?;
            Exit::Done
        }
        Command::Man(args) => {
            man::run(&args, Arguments::command(), &mut out)?;
            Exit::Done
        }
        Command::Provider(args) => {
            provider::run(args, &mut out).await?;
            Exit::Done
        }
        Command::Sim(args) => return Ok(sim::run(&args, &mut out)?.into()),
    };
    Ok(exit.into())
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    // Nothing is left to do if even stderr is gone.
    writeln!(io::stderr(), "sluiced: {error}").ok();
    Exit::Failed.into()
}
