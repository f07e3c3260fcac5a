//! `sluiced run`: the daemon, from its settings to its exit code.
//!
//! Problem: a daemon starts and ends in many ways: a signal in the first moment, a part that fails, a list that is
//! sent, names that another fleet has, a second signal. Each must settle what can be settled, and the exit code must
//! tell the service manager whether a restart helps. So signals are caught before anything is started, probes are
//! answered before the pipeline is built, every end goes through the same steps (`until_done`), and the exit code
//! follows from what was left (`exit_of`). Only a second signal ends the process at once.

mod reload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use self::reload::Reloads;
use super::check::{check_backends, report};
use super::exit::{Exit, StopSignals, variables};
use crate::wire::{self, RunningDaemon, SettledCounts, WireError};
use sluiced_core::rate::Span;
use sluiced_pipeline::PipelineLeftover;
use sluiced_ports::link::Link;
use sluiced_settings::types::{LogFormat, QueueBackend};
use sluiced_settings::{self as settings, Loaded};
use sluiced_status::admin::{self, AdminError};
use sluiced_status::{Board, RouteFacts};
use sluiced_telemetry::health::{Health, stop_on_panic};
use sluiced_telemetry::logs::{self, LogError};
use sluiced_telemetry::notify::Notifier;
use sluiced_telemetry::{Metrics, traces};

/// A signal that comes sooner after the first is a duplicate: supervisors signal a process and its
/// group, and a person may press a key twice.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// How often the progress of a list is logged.
const PROGRESS: Duration = Duration::from_secs(10);

/// The arguments of `sluiced run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// A configuration file; may repeat, later files win, then `SLUICED__…` variables
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE", required = true)]
    pub config: Vec<PathBuf>,
    /// Send a list from its first line again, however far an earlier run came (backend.queue = "embedded")
    #[arg(long)]
    pub fresh: bool,
    /// What is logged, whatever the configuration's `log.level` says
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug"])]
    pub log_level: Option<String>,
}

/// Runs until a signal comes or, with the embedded queue, until all messages are settled. A wrong
/// configuration is reported to `err`, everything else goes to the log.
///
/// # Errors
/// When `err` cannot be written.
pub async fn run(args: &RunArgs, err: &mut impl Write, colour: bool) -> io::Result<Exit> {
    let Some(loaded) = configuration(args, err, colour)? else {
        return Ok(Exit::WrongConfiguration);
    };
    let log = &loaded.settings.log;
    let level = args.log_level.as_ref().unwrap_or(&log.level);
    let format = match log.format {
        LogFormat::Auto => logs::Format::Auto,
        LogFormat::Human => logs::Format::Human,
        LogFormat::Json => logs::Format::Json,
    };
    let _last_lines = match logs::init(level, format) {
        Ok(last_lines) => last_lines,
        Err(why) => {
            writeln!(err, "log: {why}")?;
            return Ok(match why {
                LogError::Thread(..) => Exit::Failed,
                _ => Exit::WrongConfiguration,
            });
        }
    };
    if args.fresh
        && let Err(why) = wire::start_over(&loaded.settings)
    {
        error!(%why, "the checkpoint of the list cannot be removed");
        return Ok(Exit::Failed);
    }
    for warning in loaded.warnings.all() {
        warn!("{warning}");
    }
    // Before anything is started: a signal in the first moment must not kill half a start.
    let mut signals = StopSignals::new()?;
    let hangups = signal(SignalKind::hangup())?;
    let stop = CancellationToken::new();
    let ask_to_stop = stop.clone();
    let serving = serve(&loaded, &args.config, hangups, stop);
    tokio::pin!(serving);
    tokio::select! {
        exit = &mut serving => return Ok(exit),
        () = signals.next() => ask_to_stop.cancel(),
    }
    tokio::select! {
        exit = &mut serving => Ok(exit),
        () = insisted(&mut signals) => {
            warn!("a second signal: ending at once; what was under way is delivered again");
            Ok(Exit::Failed)
        }
    }
}

/// The configuration; `None`: it is wrong, and `err` says why.
fn configuration(args: &RunArgs, err: &mut impl Write, colour: bool) -> io::Result<Option<Loaded>> {
    let configuration = settings::load(&args.config, variables());
    let loaded = match check_backends(configuration, wire::backend_faults) {
        Ok(loaded) => loaded,
        Err(faults) => return report(&faults, err, colour).map(|()| None),
    };
    if let Some(why) = traces::not_built() {
        return writeln!(err, "error: {why}").map(|()| None);
    }
    Ok(Some(loaded))
}

/// The daemon without its listeners: until the queue is empty and settled (embedded), or `stop`.
///
/// # Errors
/// When it cannot be put together.
pub async fn until_done(
    loaded: &Loaded,
    health: &Health,
    started: impl FnOnce(&RunningDaemon),
    stop: &CancellationToken,
) -> Result<Exit, WireError> {
    let settings = &loaded.settings;
    let mut running = wire::start(loaded, health)?;
    started(&running);
    let list = settings.backend.queue == QueueBackend::Embedded;
    let ending = ending(&mut running, list, health, stop).await;
    let RunningDaemon {
        pipeline,
        owned,
        settled,
        traces,
        ..
    } = running;
    let queue_ended = ending == Ending::QueueEnded;
    if queue_ended && !list {
        health.fail("the queue of a route");
    }
    // The service manager is informed, whatever the reason.
    stop.cancel();
    let sent = queue_ended && list && !health.has_failed();
    let grace = if sent {
        Duration::ZERO
    } else {
        settings.service.grace.get()
    };
    health.stopping();
    if !sent {
        info!(
            "stopping: no new messages, up to {} for calls under way; another signal after a second ends at once",
            Span(grace)
        );
    }
    let remains = pipeline.stop(grace).await;
    owned.leave().await;
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.end()).await.ok();
    }
    log_end(&settled, &remains);
    if ending == Ending::NamesRefused {
        return Ok(Exit::WrongConfiguration);
    }
    Ok(exit_of(list, health.has_failed(), &settled, &remains))
}

/// Why a daemon ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Another fleet has its names.
    NamesRefused,
    /// There is nothing more to consume.
    QueueEnded,
    /// A signal came, or a part failed.
    Stopped,
}

/// Waits until the daemon must end.
async fn ending(
    running: &mut RunningDaemon,
    list: bool,
    health: &Health,
    stop: &CancellationToken,
) -> Ending {
    tokio::select! {
        why = running.owned.refused() => {
            error!("{why}");
            Ending::NamesRefused
        }
        () = running.pipeline.route_ended() => Ending::QueueEnded,
        () = stop.cancelled() => Ending::Stopped,
        () = health.failed() => Ending::Stopped,
        () = log_progress(&running.settled), if list => Ending::Stopped,
    }
}

/// The exit code of what has stopped. If a list was not sent in full, the command failed; a daemon that a signal
/// stopped did not.
fn exit_of(
    list: bool,
    has_failed: bool,
    settled: &SettledCounts,
    remains: &PipelineLeftover,
) -> Exit {
    let unsent = remains.given_back + remains.cut_off + remains.unsettled;
    if has_failed || list && (unsent > 0 || remains.is_unknown) {
        Exit::Failed
    } else if list && settled.dead() > 0 {
        Exit::Leftover
    } else {
        Exit::Done
    }
}

/// Logs the progress of a list, again and again. Never ends.
async fn log_progress(settled: &SettledCounts) {
    let mut before = settled.done();
    loop {
        sleep(PROGRESS).await;
        let done = settled.done();
        let per_second = (done - before) as f64 / PROGRESS.as_secs_f64();
        info!(done, dead = settled.dead(), per_second, "under way");
        before = done;
    }
}

/// Logs what was done, and what is left.
fn log_end(settled: &SettledCounts, remains: &PipelineLeftover) {
    let PipelineLeftover {
        cut_off,
        given_back,
        unsettled,
        is_unknown,
    } = *remains;
    let (done, dead) = (settled.done(), settled.dead());
    if cut_off + unsettled > 0 {
        warn!(
            done,
            dead,
            given_back,
            cut_off,
            unsettled,
            "stopped; messages whose calls were cut off may be sent again, and unsettled messages are delivered again"
        );
    } else {
        let end = match is_unknown {
            true => "stopped",
            false => "stopped; nothing was under way any more",
        };
        info!(done, dead, given_back, "{end}");
    }
}

/// Everything after the configuration was checked. Writes only to the log.
async fn serve(
    loaded: &Loaded,
    files: &[PathBuf],
    hangups: Signal,
    stop: CancellationToken,
) -> Exit {
    let health = Health::default();
    stop_on_panic(&health);
    let metrics = wire::install_metrics();
    let notifier = Notifier::from_env();
    // Stops the tasks that must outlive the pipeline, such as the upkeep of the metrics.
    let last = CancellationToken::new();
    metrics.spawn_upkeep(last.clone());
    // Probes are answered before the pipeline is built. Until it is built they hear that the process is not ready.
    let (process, starting) = watch::channel(Link::Connecting);
    health.component("process", starting);
    let board = board(loaded, &metrics, &health);
    if let Err(why) = listen(loaded, metrics, &health, &board, &last).await {
        error!("{why}");
        return Exit::Failed;
    }
    let watched = watch_for_manager(&notifier, &health, &last);
    let stopping = say_that_it_stops(&notifier, loaded.settings.service.grace.get(), &stop);
    let status_task = TaskTracker::new();
    let started = |running: &RunningDaemon| {
        let (status, limits) = (Arc::clone(&running.status), Arc::clone(&running.limits));
        let reports = board.report(status, limits, last.clone());
        status_task.spawn(health.lifelong("the status", reports));
        let policies = Arc::clone(&running.policies);
        let reloads = Reloads::new(files.to_vec(), loaded.clone(), policies, notifier.clone());
        let reloading = health.lifelong("reloading", reloads.run(hangups));
        let until = last.clone();
        tokio::spawn(async move { until.run_until_cancelled(reloading).await });
        process.send_replace(Link::Up);
        notifier.ready();
        let replica = wire::replica(&loaded.settings);
        let (version, routes) = (env!("CARGO_PKG_VERSION"), loaded.settings.routes.len());
        info!(version, replica, routes, "started");
    };
    let exit = until_done(loaded, &health, started, &stop).await;
    stopping.abort();
    last.cancel();
    status_task.close();
    status_task.wait().await;
    watched.await.ok();
    exit.unwrap_or_else(|why| {
        error!("{why}");
        Exit::Failed
    })
}

/// How this replica and its routes are.
fn board(loaded: &Loaded, metrics: &Metrics, health: &Health) -> Board {
    let routes = loaded.settings.shown().into_iter().map(|(name, shown)| {
        let facts = RouteFacts {
            queue: shown.source,
            standby_for: shown.standby_for,
            limits: shown.limits,
        };
        (name, facts)
    });
    Board::new(
        wire::replica(&loaded.settings),
        routes.collect(),
        metrics.clone(),
        health.clone(),
    )
}

/// Starts the admin listener, if one is configured.
async fn listen(
    loaded: &Loaded,
    metrics: Metrics,
    health: &Health,
    board: &Board,
    stop: &CancellationToken,
) -> Result<(), AdminError> {
    let settings = &loaded.settings.admin;
    match admin::bind(&settings.listen, &settings.hosts).await {
        Ok(None) => Ok(()),
        Ok(Some(admin)) => {
            board.set_admin_address(admin.address());
            info!(address = %admin.address(), "serving /metrics, /healthz, /readyz, and the state of the fleet on /");
            let serving = admin.serve(metrics, health.clone(), board.clone(), stop.clone());
            tokio::spawn(health.lifelong("the admin listener", serving));
            Ok(())
        }
        // A list needs no listener, and a daemon on the same machine may have the port.
        Err(why) if loaded.settings.backend.queue == QueueBackend::Embedded => {
            info!("{why}; the list is sent without it");
            Ok(())
        }
        Err(why) => Err(why),
    }
}

/// Feeds the watchdog of the service manager until the very end.
fn watch_for_manager(
    notifier: &Notifier,
    health: &Health,
    last: &CancellationToken,
) -> JoinHandle<()> {
    let (notifier, health, last) = (notifier.clone(), health.clone(), last.clone());
    tokio::spawn(async move { notifier.watch(health, last).await })
}

/// Reports to the service manager when the daemon begins to stop.
fn say_that_it_stops(
    notifier: &Notifier,
    grace: Duration,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    let (notifier, stop) = (notifier.clone(), stop.clone());
    tokio::spawn(async move {
        stop.cancelled().await;
        notifier.stopping(grace);
    })
}

/// Waits for a second signal that is no duplicate of the first, which has just come.
async fn insisted(signals: &mut StopSignals) {
    let first = Instant::now();
    while first.elapsed() < SECOND_SIGNAL {
        signals.next().await;
    }
}
