//! The demo on real servers: starts real daemons as child processes, and leaves nothing behind.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval_at, timeout};

use super::config::{self, Scratch, Servers, tail};
use super::progress::Screen;
use super::report::{FleetFacts, Proof};
use super::servers::{DemoBroker, DemoRedis};
use super::{DemoArgs, StallWatch, interrupted, unique_name};
use crate::cli::exit::Refusal;
use sluiced_core::ladder::Ladder;
use sluiced_provider::Provider;
use sluiced_settings as settings;

pub(super) async fn prove(
    args: &DemoArgs,
    servers: Servers<'_>,
    screen: &mut Screen<'_>,
) -> Result<Proof, Refusal> {
    let name = unique_name();
    let run = DemoRun {
        args,
        servers,
        broker: DemoBroker::connect(servers.rabbitmq).await?,
        store: DemoRedis::connect(servers.redis).await?,
        provider: args.provider()?,
        scratch: Scratch::new(&name)?,
        name,
    };
    let mut fleet = Vec::new();
    // However it ends, by Ctrl-C too, it is cleaned up after.
    let proof = tokio::select! {
        proof = run.prove(&mut fleet, screen) => proof,
        error = interrupted() => Err(error),
    };
    if let Err(error) = run.clean_up(&mut fleet).await {
        screen.say(&format!(
            "cleaning up failed, `{}*` may be left: {error}",
            run.name
        ))?;
    }
    proof
}

struct DemoRun<'a> {
    args: &'a DemoArgs,
    servers: Servers<'a>,
    broker: DemoBroker,
    store: DemoRedis,
    provider: Provider,
    scratch: Scratch,
    /// The name of the work queue, and the prefix of all Redis keys.
    name: String,
}

impl DemoRun<'_> {
    async fn prove(
        &self,
        fleet: &mut Vec<ReplicaProcess>,
        screen: &mut Screen<'_>,
    ) -> Result<Proof, Refusal> {
        let args = self.args;
        self.broker.declare(&self.name).await?;
        let messages = config::messages(args.messages);
        self.broker.publish(&self.name, messages).await?;
        screen.say(&format!(
            "{} messages in the queue `{}`; {} daemons share a limit of {}\n",
            args.messages, self.name, args.replicas, args.rate
        ))?;
        let before = self.store.script_calls().await?;
        for number in 1..=args.replicas {
            fleet.push(self.start(&format!("replica {number}"))?);
        }
        let work = self.finished(fleet);
        let killed = screen
            .show_during(&self.provider, args.goal(), || None, work)
            .await??;
        for name in stop(fleet).await? {
            screen.say(&format!("{name} did not stop by itself and was killed"))?;
        }
        let after = self.store.script_calls().await?;
        let facts = FleetFacts {
            script_calls: after.saturating_sub(before),
            left: self.broker.ready(&self.name).await?,
            dead: self.broker.ready(&format!("{}.dead", self.name)).await?,
            killed,
        };
        Ok(Proof {
            rate: args.rate,
            messages: u64::from(args.messages),
            report: self.provider.report(&args.expected()),
            fleet: Some(facts),
        })
    }

    fn start(&self, name: &str) -> io::Result<ReplicaProcess> {
        let common = self.args.common(&self.provider, &self.name);
        let text = config::replica(&common, self.servers, &self.name, name);
        ReplicaProcess::start(&self.scratch, name, &text)
    }

    /// Waits until every message has arrived; an early end of a replica, or silence, is an error. Meanwhile kills one
    /// daemon after the other, if that is asked for, and replaces it at once. Returns how many were killed.
    async fn finished(&self, fleet: &mut [ReplicaProcess]) -> Result<u64, Refusal> {
        let mut watch = StallWatch::new(self.args, &self.provider);
        // The first kill comes after one interval, when the daemon is up.
        let every = self.args.kill_every;
        let mut kills = every.map(|every| interval_at(Instant::now() + every, every));
        let mut killed = 0;
        let mut victims = (0..fleet.len()).cycle();
        while self.provider.live().unique < u64::from(self.args.messages) {
            for replica in &mut *fleet {
                if let Some(status) = replica.child.try_wait()? {
                    let (name, log) = (&replica.name, replica.log_tail());
                    return Err(Refusal::Failed(format!(
                        "{name} ended early ({status}); the end of its log:\n{log}"
                    )));
                }
            }
            if let Some(kills) = &mut kills
                && kills.tick().now_or_never().is_some()
                && let Some(victim) = victims.next()
            {
                let replica = &mut fleet[victim];
                // Like a power cut: it can write nothing more.
                replica.child.kill().await?;
                *replica = self.start(&replica.name)?;
                killed += 1;
            }
            if let Err(stalled) = watch.wait().await {
                let logs = fleet.iter().map(ReplicaProcess::log_tail);
                return Err(Refusal::Failed(
                    logs.fold(stalled, |all, log| all + "\n" + &log),
                ));
            }
        }
        Ok(killed)
    }

    /// Stops what still runs; removes the queues and the keys.
    async fn clean_up(&self, fleet: &mut Vec<ReplicaProcess>) -> Result<(), Refusal> {
        stop(fleet).await?;
        let rungs = Ladder::up_to(Ladder::LONGEST).rungs();
        let waits = rungs.map(|rung| format!("{}.wait.{}", self.name, rung.label()));
        let queues = [self.name.clone(), format!("{}.dead", self.name)];
        let emptied = self.broker.remove(queues.into_iter().chain(waits)).await;
        self.broker.close().await;
        let cleaned = self.store.clean(&self.name).await;
        emptied.and(cleaned)
    }
}

/// How long a replica may take to stop by itself.
const STOPPING: Duration = Duration::from_secs(20);
/// This much of a replica's log is shown when it failed.
const LOG_LINES: usize = 5;

/// A running replica.
#[derive(Debug)]
struct ReplicaProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl ReplicaProcess {
    /// Starts this very program as a daemon with the given configuration.
    fn start(scratch: &Scratch, name: &str, config: &str) -> io::Result<Self> {
        let file = name.replace(' ', "-");
        let config = scratch.write(&format!("{file}.toml"), config.as_bytes())?;
        let (log, output) = scratch.create(&format!("{file}.log"))?;
        let mut command = Command::new(std::env::current_exe()?);
        // Only the file counts: variables for a daemon of the user must not change this one.
        for (variable, _) in std::env::vars_os() {
            let ours = variable.to_string_lossy().starts_with(settings::PREFIX);
            if ours || variable == "NOTIFY_SOCKET" {
                command.env_remove(&variable);
            }
        }
        let child = command
            .args(["run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C reaches the demo only, which then stops its replicas in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Asks it to stop. Does nothing if it has ended.
    fn terminate(&self) -> io::Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        match pid {
            Some(pid) => Ok(kill_process(pid, Signal::TERM)?),
            None => Ok(()),
        }
    }

    /// Waits until it has stopped, and kills it if that takes too long.
    async fn stopped(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Ok(status) = timeout(STOPPING, self.child.wait()).await {
            return status.map(Some);
        }
        self.child.kill().await?;
        Ok(None)
    }

    /// The end of its log.
    fn log_tail(&self) -> String {
        tail(&self.log, LOG_LINES)
    }
}

/// Stops all of them, at the same time. Those that had to be killed are named.
async fn stop(replicas: &mut Vec<ReplicaProcess>) -> io::Result<Vec<String>> {
    let stops = replicas.iter_mut().map(async |replica| {
        replica.terminate()?;
        let stopped = replica.stopped().await?;
        Ok(stopped.is_none().then(|| replica.name.clone()))
    });
    let killed: io::Result<Vec<_>> = join_all(stops).await.into_iter().collect();
    replicas.clear();
    Ok(killed?.into_iter().flatten().collect())
}
