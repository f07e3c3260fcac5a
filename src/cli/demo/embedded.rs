//! The demo in one process, with nothing installed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::config::{self, LIMIT, ROUTE};
use super::progress::{Inside, Screen};
use super::scratch::Scratch;
use super::verdict::Proof;
use super::{DemoArgs, DemoError, interrupted, unique_name};
use crate::cli::run;
use crate::ports::clock::Clock;
use crate::proof::provider::Provider;
use crate::settings;
use crate::telemetry::{self, health::Health};

/// How often it is looked whether anything still happens.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn prove(args: &DemoArgs, screen: &mut Screen<'_>) -> Result<Proof, DemoError> {
    let name = unique_name();
    let scratch = Scratch::new(&name)?;
    let provider = args.provider()?;
    let file = configure(args, &scratch, &provider, &name)?;
    screen.say(&format!(
        "{} messages through one process to a provider that allows {}\n",
        args.messages, args.rate
    ))?;
    let metrics = telemetry::install();
    let inside = || Some(Inside::read(&metrics.render(), ROUTE, LIMIT));
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
        .follow(&provider, args.goal(), inside, work)
        .await??;
    Ok(Proof {
        rate: args.rate,
        messages: u64::from(args.messages),
        report: provider.report(&args.expected()),
        fleet: None,
    })
}

/// Writes the messages and a configuration for them; answers the latter's path.
fn configure(
    args: &DemoArgs,
    scratch: &Scratch,
    provider: &Provider,
    name: &str,
) -> Result<PathBuf, DemoError> {
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
async fn stalled(args: &DemoArgs, provider: &Provider) -> DemoError {
    let (mut calls, mut quiet) = (0, Duration::ZERO);
    while quiet < args.patience() {
        sleep(LOOK_EVERY).await;
        quiet += LOOK_EVERY;
        let live = provider.live();
        if live.calls > calls {
            (calls, quiet) = (live.calls, Duration::ZERO);
        }
    }
    DemoError::Stalled {
        waited: args.patience(),
        sent: provider.live().unique,
        messages: u64::from(args.messages),
        log: String::new(),
    }
}

/// The one call that runs production's pipeline in this process: until the queue is empty and
/// settled, or `stop`.
async fn run_pipeline(file: &Path, stop: CancellationToken) -> Result<(), DemoError> {
    let pipeline = |why: &dyn std::fmt::Display| DemoError::Pipeline(why.to_string());
    let loaded =
        settings::load(&[file.to_owned()], std::iter::empty()).map_err(|e| pipeline(&e))?;
    let clock = Clock::start();
    let health = Health::new(clock);
    run::until_done(&loaded, clock, &health, |_| {}, &stop)
        .await
        .map_err(|e| pipeline(&e))?;
    Ok(())
}
