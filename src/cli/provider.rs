//! `sluiced provider` (hidden): the judging provider as a process of its own, for fleet tests and
//! benchmarks. Its address is the first line on stdout; on SIGTERM or Ctrl-C it prints its report.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, StopSignals};
use crate::core::rate::{Rate, parse_duration};
use crate::proof::provider::{Behaviour, Expect, Failure, Provider, ProviderError};

/// The arguments of `sluiced provider`.
#[derive(Args, Clone, Debug)]
pub struct ProviderArgs {
    /// Where to listen; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The limit that calls are judged by
    #[arg(long, value_name = "RATE", default_value = "400/1s")]
    pub rate: Rate,
    /// The limit that the calls of each key are judged by; the key is in their header x-key
    #[arg(long, value_name = "RATE")]
    pub key_rate: Option<Rate>,
    /// How long an answer takes
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_duration)]
    pub latency: Duration,
    /// Up to so much longer, at random
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_duration)]
    pub jitter: Duration,
    /// A status and the share of calls that get it; may repeat
    #[arg(long, value_name = "STATUS:SHARE")]
    pub fail: Vec<Failure>,
    /// Answer 429 with Retry-After to what is over, instead of only judging it
    #[arg(long)]
    pub enforce: bool,
}

/// Why `sluiced provider` failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderCommandError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] ProviderError),
    /// A signal cannot be listened for, or the output is gone.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the address is taken or the output is gone.
pub async fn run(
    args: ProviderArgs,
    out: &mut (dyn Write + Send),
) -> Result<Exit, ProviderCommandError> {
    // Before the address is printed: a test that reads it may stop this process at once.
    let mut signals = StopSignals::new()?;
    let behaviour = Behaviour {
        rate: args.rate,
        key_rate: args.key_rate,
        latency: args.latency,
        jitter: args.jitter,
        failures: args.fail,
        enforce: args.enforce,
    };
    let provider = Provider::start(args.listen, behaviour)?;
    writeln!(out, "{}", provider.address())?;
    out.flush()?;
    signals.next().await;
    let report = provider.report(&Expect::Nothing);
    serde_json::to_writer(&mut *out, &report).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(Exit::Done)
}
