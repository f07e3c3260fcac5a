//! `sluiced provider`, hidden from the help: the judging provider as a process of its own, for fleet tests and
//! benchmarks. Its address is the first line on stdout; on SIGTERM or Ctrl-C it prints its report.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Refusal, StopSignals};
use sluiced_core::rate::{Rate, parse_duration};
use sluiced_provider::{Behaviour, Double, Expect, FailureShare, Provider};

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
    /// Up to this much longer, at random
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_duration)]
    pub jitter: Duration,
    /// A status and the share of calls that get it; may repeat
    #[arg(long, value_name = "STATUS:SHARE")]
    pub fail: Vec<FailureShare>,
    /// Answer 429 with Retry-After to what is over, instead of only judging it
    #[arg(long)]
    pub enforce: bool,
    /// Answer as the provider of this file does: one of crates/provider/doubles
    #[arg(long = "as", value_name = "FILE")]
    pub answers_as: Option<PathBuf>,
}

/// Serves until SIGTERM or Ctrl-C.
pub(super) async fn run(args: ProviderArgs, out: &mut (dyn Write + Send)) -> Result<Exit, Refusal> {
    // Before the address is printed: a test that reads it may stop this process at once.
    let mut signals = StopSignals::new()?;
    let double = args.answers_as.map(|file| {
        let text = fs::read_to_string(&file).map_err(|why| why.to_string());
        let parsed = text.and_then(|text| Double::parse(&text).map_err(|why| why.to_string()));
        let failed = |why| Refusal::Arguments(format!("{}: {why}", file.display()));
        parsed.map(Arc::new).map_err(failed)
    });
    let behaviour = Behaviour {
        double: double.transpose()?,
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
    serde_json::to_writer(&mut *out, &report)?;
    writeln!(out)?;
    out.flush()?;
    Ok(Exit::Done)
}
