//! The commands, a file (or a file and its folder) for each, and the program: arguments in, exit code out. `exit`,
//! `text` and `view` are shared.
//!
//! The program is part of the library, and `main.rs` only calls it: commands are generic over their output,
//! and the compiler would build all of them again in the crate that names the writers.
//!
//! Problem: `sluiced man | head -1` closes the pipe after one line. That is no failure of the command, and a
//! replay or a demo under way must not stop in the middle because of it. So `PipedOutput` drops the rest, the
//! command goes on to its end, and its exit code shows its result. Other failures, such as a full disk, stay
//! failures.

pub mod check;
pub mod config;
pub mod dead;
pub mod demo;
pub mod exit;
pub mod find;
pub mod limits;
pub mod plan;
pub mod provider;
pub mod routes;
pub mod run;
pub mod shell;
pub mod sim;
pub mod status;
pub mod test;
pub mod text;
pub mod throttle;
pub mod top;
pub mod trial;
mod view;

use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::exit::{Exit, Refusal, exit, variables};
use crate::wire;
use sluiced_telemetry::logs;

/// Sends a RabbitMQ queue to a rate-limited downstream: as fast as the limit that all replicas
/// share allows, never faster, and without losing a message.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = FIRST_STEPS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon
    ///
    /// SIGTERM or SIGINT: calls in flight are finished, and nothing is lost; a second one ends it at once.
    /// SIGHUP: the files are read again; values of limits change at once, all else needs a restart.
    Run(run::RunArgs),
    /// Show all faults of a configuration, or say in words what it does; --connect also tries the servers
    Check(check::CheckArgs),
    /// A first configuration, every key with its default, or the JSON schema for editors
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// What a configuration makes of messages and answers, as a file of tests expects it
    Test(test::TestArgs),
    /// What a route would do with expected messages: waits, backlog, standstills
    Plan(plan::PlanArgs),
    /// What would happen to a message, and why it waits; makes no call and takes no units
    Try(trial::TryArgs),
    /// The state of the fleet: limits, routes, replicas, last events
    Status(status::StatusArgs),
    /// The state of the fleet, live in the terminal, until q
    Top(top::TopArgs),
    /// Check whether a running daemon is ready (for container health checks)
    ///
    /// A liveness probe needs `--url http://127.0.0.1:9464/healthz`: a daemon that is not ready must not be restarted.
    Health(status::HealthArgs),
    /// The limits of the running fleet: list, show, set, adopt, pause, resume, open
    Limits(limits::LimitsArgs),
    /// The routes of the running fleet: list, pause, resume
    Routes(routes::RoutesArgs),
    /// One message: whether it is a dead letter, and what the limits know of its keys
    Find(find::FindArgs),
    /// Dead letters: list them, show one, replay or drop them
    Dead(dead::DeadArgs),
    /// Show on this machine that a limit holds: with nothing installed, or on your own RabbitMQ and Redis
    Demo(demo::DemoArgs),
    /// Take units of a limit in Redis, as CL.THROTTLE does (for scripts)
    Throttle(throttle::ThrottleArgs),
    /// Print what a shell needs to complete commands and options
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write one for each command
    Man(shell::ManArgs),
    /// A provider that judges its callers (for tests and benchmarks)
    #[command(hide = true)]
    Provider(provider::ProviderArgs),
    /// Simulates fleets with a virtual clock (for tests; replays a failing seed)
    #[command(hide = true)]
    Sim(sim::SimArgs),
}

/// Shown below the commands, and in the manual.
const FIRST_STEPS: &str = "\
First steps:
  sluiced demo
  sluiced config init --kind sms > sms.toml
  sluiced check --connect --config sms.toml
  sluiced run --config sms.toml

SLUICED_CONFIG names the configuration where --config does not.
Exit codes: 0 done, 1 failed or \"no\", 2 wrong arguments, 3 a list left some messages over, 78 wrong configuration.";

/// Threads for blocking work: stdin takes one for as long as it is read, and files of a list one at a time.
const BLOCKING: usize = 8;

/// Runs the command that the arguments of the process name.
#[must_use]
pub fn main() -> ExitCode {
    shell::answer(Arguments::command);
    let matches = Arguments::command().get_matches();
    let name = matches.subcommand_name().unwrap_or_default();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
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
    let code = runtime.block_on(dispatch(name, arguments.command));
    // Stdin may be blocked in a read whose result is no longer needed.
    runtime.shutdown_background();
    code.unwrap_or_else(|error| failed(&*error))
}

/// Runs the command called `name`.
async fn dispatch(name: &str, command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (mut out, mut err) = (PipedOutput(&stdout), PipedOutput(&stderr));
    let (colour, faults) = (logs::colours(&stdout), logs::colours(&stderr));
    let asks = stderr.is_terminal() && io::stdin().is_terminal();
    let env = variables();
    let done = match command {
        Command::Run(args) => Ok(run::run(&args, &mut err, faults).await?),
        Command::Check(args) => {
            let strict = args.strict;
            let backends = check::BackendChecks {
                faults: wire::backend_faults,
                probes: |loaded: &_| wire::probes(loaded, strict),
            };
            Ok(check::check(&args, env, backends, &mut out, colour).await?)
        }
        Command::Config(command) => Ok(config::run(&command, &mut out)?),
        Command::Dead(args) => {
            let mut console = dead::Console {
                out: &mut out,
                err: &mut err,
                progress: stderr.is_terminal(),
                ask: asks,
            };
            dead::run(&args, &mut console).await
        }
        Command::Demo(args) => demo::run(args, &mut out, stdout.is_terminal()).await,
        Command::Find(args) => find::run(&args, &mut out).await,
        Command::Health(args) => Ok(status::health(&args, &mut out).await?),
        Command::Limits(args) => {
            let prompt = asks.then_some(&mut err as &mut (dyn Write + Send));
            limits::run(&args, &mut out, prompt).await
        }
        Command::Routes(args) => routes::run(&args, &mut out).await,
        Command::Plan(args) => plan::run(&args, env, &mut out),
        Command::Status(args) => status::status(&args, &mut out, colour).await,
        Command::Top(args) if stdout.is_terminal() => top::top(&args, &mut out, colour).await,
        Command::Top(_) => Err(Refusal::Arguments(
            "needs a terminal; `sluiced status` prints the same once".to_owned(),
        )),
        Command::Test(args) => test::run(&args, env, &mut out),
        Command::Throttle(args) => throttle::run(&args, env, &mut out).await,
        Command::Try(args) => trial::run(&args, &mut out).await,
        Command::Completions(args) => Ok(shell::completions(&args, &mut out)?),
        Command::Man(args) => Ok(shell::man(&args, Arguments::command(), &mut out)?),
        Command::Provider(args) => provider::run(args, &mut out).await,
        Command::Sim(args) => Ok(sim::run(&args, &mut out)?),
    };
    Ok(exit(name, done, &mut err, faults)?.into())
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    // Nothing can be done if even stderr is gone.
    writeln!(io::stderr(), "sluiced: {error}").ok();
    Exit::Failed.into()
}

/// Stdout or stderr: writes to `W` for as long as it is read.
#[derive(Debug)]
struct PipedOutput<W>(W);

impl<W: Write> Write for PipedOutput<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self.0.write(text) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(text.len()),
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let mut closed = PipedOutput(Failing(ErrorKind::BrokenPipe));
        closed.write_all(b"text").expect("dropped");
        closed.flush().expect("dropped");
        let mut full = PipedOutput(Failing(ErrorKind::StorageFull));
        assert!(full.write_all(b"text").is_err());
        assert!(full.flush().is_err());
    }
}
