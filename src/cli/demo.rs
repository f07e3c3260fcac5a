//! `sluiced demo`: shows on this machine that the limit is kept and used.
//!
//! Without servers it is one process: an embedded queue, a limit in memory and the built-in
//! provider over loopback HTTP, joined by the same pipeline as in production. With servers it
//! starts real daemons against the user's own RabbitMQ and Redis, on a queue and a key prefix of
//! its own, and removes both afterwards. In both cases the provider judges independently.

mod config;
mod fleet;
mod progress;
mod report;
mod series;
mod servers;

use std::fmt::Display;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::config::{LIMIT, ROUTE, Scratch, Servers};
use self::progress::{Goal, PipelineFigures, Screen};
use self::report::Proof;
use crate::cli::exit::{Exit, Refusal, StopSignals};
use crate::cli::run;
use crate::wire;
use sluiced_core::rate::{Rate, Span, parse_duration};
use sluiced_provider::{Behaviour, Expect, Provider, ProviderError};
use sluiced_settings as settings;
use sluiced_settings::text::HeadroomText;
use sluiced_telemetry::health::Health;
use sluiced_telemetry::logs;
use sluiced_telemetry::logs::Format;

/// The arguments of `sluiced demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// How many messages are sent
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
    /// The limit of the provider
    #[arg(long, value_name = "RATE", default_value = "400/1s")]
    pub rate: Rate,
    /// How late a call may be, or auto; the longer it is, the fewer calls fit into a window
    #[arg(long, value_name = "DURATION", default_value = "auto")]
    pub headroom: HeadroomText,
    /// How long the provider takes to answer
    #[arg(long, value_name = "DURATION", default_value = "20ms", value_parser = parse_duration)]
    pub latency: Duration,
    /// Call the provider over SMPP, with two binds of each daemon, instead of HTTP
    #[arg(long)]
    pub smpp: bool,
    /// Use this RabbitMQ instead of a queue in memory (needs --redis)
    #[arg(long, value_name = "URL", requires = "redis")]
    pub rabbitmq: Option<String>,
    /// Use this Redis instead of a limit in memory (needs --rabbitmq)
    #[arg(long, value_name = "URL", requires = "rabbitmq")]
    pub redis: Option<String>,
    /// How many daemons share the limit (with --rabbitmq and --redis)
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub replicas: u16,
    /// Kill a daemon without a warning this often, and start another one at once
    #[arg(long, value_name = "DURATION", requires = "rabbitmq", value_parser = kill_pause)]
    pub kill_every: Option<Duration>,
}

/// How often it is looked whether anything still happens.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A shorter pause would kill daemons faster than they start.
const MIN_KILL_PAUSE: Duration = Duration::from_millis(100);

fn kill_pause(text: &str) -> Result<Duration, String> {
    let pause = parse_duration(text).map_err(|error| error.to_string())?;
    if pause < MIN_KILL_PAUSE {
        return Err(format!("it must be at least {}", Span(MIN_KILL_PAUSE)));
    }
    Ok(pause)
}

/// Runs the demo. The exit code says whether it held: nothing too early, nothing lost. On a `terminal` a line is
/// rewritten. Needs a runtime of several threads.
pub(super) async fn run(
    args: DemoArgs,
    out: &mut (dyn Write + Send),
    terminal: bool,
) -> Result<Exit, Refusal> {
    // Errors inside go to stderr. An error here means that there is a logger already.
    let _last_lines = logs::init("warn,lapin=off", Format::Human).ok();
    let mut screen = Screen { out, terminal };
    let proof = match (&args.rabbitmq, &args.redis) {
        (Some(rabbitmq), Some(redis)) => {
            fleet::prove(&args, Servers { rabbitmq, redis }, &mut screen).await?
        }
        // The parser allows only both or none.
        _ => prove_embedded(&args, &mut screen).await?,
    };
    screen.say(&format!("\n{proof}"))?;
    Ok(if proof.holds() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

/// The demo in one process, with nothing installed.
async fn prove_embedded(args: &DemoArgs, screen: &mut Screen<'_>) -> Result<Proof, Refusal> {
    let name = unique_name();
    let scratch = Scratch::new(&name)?;
    let provider = args.provider()?;
    let file = configure(args, &scratch, &provider, &name)?;
    screen.say(&format!(
        "{} messages through one process to a provider that allows {}\n",
        args.messages, args.rate
    ))?;
    let metrics = wire::install_metrics();
    let inside = || Some(PipelineFigures::read(&metrics.render(true), ROUTE, LIMIT));
    let stop = CancellationToken::new();
    let work = async {
        let running = run_pipeline(&file, stop.clone());
        tokio::pin!(running);
        let error = tokio::select! {
            ended = &mut running => return ended,
            error = stalled(args, &provider) => error,
            error = interrupted() => error,
        };
        stop.cancel();
        running.await?;
        Err(error)
    };
    screen
        .show_during(&provider, args.goal(), inside, work)
        .await??;
    Ok(Proof {
        rate: args.rate,
        messages: u64::from(args.messages),
        report: provider.report(&args.expected()),
        fleet: None,
    })
}

/// Writes the messages and a configuration for them; returns the path of the configuration.
fn configure(
    args: &DemoArgs,
    scratch: &Scratch,
    provider: &Provider,
    name: &str,
) -> Result<PathBuf, Refusal> {
    let mut lines = String::new();
    for (_, body) in config::messages(args.messages) {
        lines.push_str(&body);
        lines.push('\n');
    }
    let input = scratch.write("messages.ndjson", lines.as_bytes())?;
    let leftover = scratch.path("leftover.ndjson");
    let text = config::embedded(&args.common(provider, name), &input, &leftover);
    Ok(scratch.write("demo.toml", text.as_bytes())?)
}

/// Ends when nothing has happened for too long.
async fn stalled(args: &DemoArgs, provider: &Provider) -> Refusal {
    let mut watch = StallWatch::new(args, provider);
    loop {
        if let Err(stalled) = watch.wait().await {
            return Refusal::Failed(stalled);
        }
    }
}

/// Sees whether anything still happens.
struct StallWatch<'a> {
    args: &'a DemoArgs,
    provider: &'a Provider,
    calls: u64,
    quiet: Duration,
}

impl<'a> StallWatch<'a> {
    const fn new(args: &'a DemoArgs, provider: &'a Provider) -> Self {
        Self {
            args,
            provider,
            calls: 0,
            quiet: Duration::ZERO,
        }
    }

    /// Waits a moment. Fails when nothing has happened for too long.
    async fn wait(&mut self) -> Result<(), String> {
        sleep(LOOK_EVERY).await;
        self.quiet += LOOK_EVERY;
        let live = self.provider.live();
        if live.calls > self.calls {
            (self.calls, self.quiet) = (live.calls, Duration::ZERO);
        }
        if self.quiet < self.args.patience() {
            return Ok(());
        }
        let (waited, messages) = (Span(self.args.patience()), self.args.messages);
        let sent = live.unique;
        Err(format!(
            "no call for {waited}; {sent} of {messages} messages were sent"
        ))
    }
}

/// The one call that runs production's pipeline in this process: until the queue is empty and
/// settled, or `stop`.
async fn run_pipeline(file: &Path, stop: CancellationToken) -> Result<(), Refusal> {
    let pipeline = |why: &dyn Display| Refusal::Failed(format!("the pipeline: {why}"));
    let loaded =
        settings::load(&[file.to_owned()], std::iter::empty()).map_err(|e| pipeline(&e))?;
    let health = Health::default();
    run::until_done(&loaded, &health, |_| {}, &stop)
        .await
        .map_err(|e| pipeline(&e))?;
    Ok(())
}

impl DemoArgs {
    fn provider(&self) -> Result<Provider, ProviderError> {
        let behaviour = Behaviour {
            latency: self.latency,
            ..Behaviour::judging(self.rate)
        };
        Provider::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), behaviour)
    }

    fn common(&self, provider: &Provider, queue: &str) -> config::CommonSettings {
        config::CommonSettings {
            rate: self.rate,
            headroom: self.headroom,
            latency: self.latency,
            provider: provider.address(),
            smpp: self.smpp,
            queue: queue.to_owned(),
        }
    }

    fn goal(&self) -> Goal {
        Goal {
            messages: u64::from(self.messages),
            limit: self.rate.units().get(),
        }
    }

    fn expected(&self) -> Expect {
        Expect::Ids((1..=self.messages).map(config::message_id).collect())
    }

    /// How long nothing may happen before that counts as a stall: some slots, and the time to
    /// connect and to recover from a fault.
    fn patience(&self) -> Duration {
        Duration::from_secs(20) + self.latency + 3 * self.rate.window() / self.rate.units().get()
    }
}

/// A name that no other run has.
fn unique_name() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("sluiced-demo-{}", &id[..8])
}

/// Waits for SIGINT or SIGTERM.
async fn interrupted() -> Refusal {
    let Ok(mut signals) = StopSignals::new() else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    signals.next().await;
    Refusal::Failed("interrupted".to_owned())
}
