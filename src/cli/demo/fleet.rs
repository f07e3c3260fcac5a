//! The demo on real servers: starts real daemons as child processes, and leaves nothing behind.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, Interval, interval_at, sleep, timeout};

use super::config::{self, Scratch, Servers, tail};
use super::report::{FleetFacts, Proof, Screen};
use super::servers::{Broker, BrokerError, DemoRedis, DemoRedisError};
use super::{DemoArgs, DemoError, interrupted, place, unique_name};
use crate::proof::provider::Provider;
use crate::settings;

/// How often the fleet is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Wait queues wait 2^0 to 2^12 seconds.
const LONGEST_WAIT: u32 = 12;

pub(super) async fn prove(
    args: &DemoArgs,
    servers: Servers<'_>,
    screen: &mut Screen<'_>,
) -> Result<Proof, DemoError> {
    let broker = Broker::connect(servers.rabbitmq)
        .await
        .map_err(|source| rabbitmq(servers, source))?;
    let store = DemoRedis::connect(servers.redis)
        .await
        .map_err(|source| redis(servers, source))?;
    let name = unique_name();
    let mut run = Run {
        args,
        servers,
        broker,
        store,
        provider: args.provider()?,
        scratch: Scratch::new(&name)?,
        name,
        fleet: Fleet::default(),
    };
    // The clean-up follows every end, Ctrl-C too.
    let proof = tokio::select! {
        proof = run.prove(screen) => proof,
        error = interrupted() => Err(error),
    };
    if let Err(error) = run.clean_up().await {
        let name = &run.name;
        screen.say(&format!(
            "cleaning up failed, `{name}*` may be left: {error}"
        ))?;
    }
    proof
}

struct Run<'a> {
    args: &'a DemoArgs,
    servers: Servers<'a>,
    broker: Broker,
    store: DemoRedis,
    provider: Provider,
    scratch: Scratch,
    /// The name of the work queue, and the prefix of all Redis keys.
    name: String,
    fleet: Fleet,
}

impl Run<'_> {
    async fn prove(&mut self, screen: &mut Screen<'_>) -> Result<Proof, DemoError> {
        let args = self.args;
        self.fill_queue().await?;
        screen.say(&format!(
            "{} messages in the queue `{}`; {} daemons share a limit of {}\n",
            args.messages, self.name, args.replicas, args.rate
        ))?;
        let before = self.script_calls().await?;
        let daemons = Daemons {
            common: args.common(&self.provider, &self.name),
            servers: self.servers,
            prefix: &self.name,
            scratch: &self.scratch,
        };
        self.fleet.replicas = daemons.start_all(args.replicas)?;
        let mut killed = 0;
        let work = finished(args, &self.provider, &mut self.fleet, daemons, &mut killed);
        screen
            .follow(&self.provider, args.goal(), || None, work)
            .await??;
        for name in self.fleet.stop().await? {
            screen.say(&format!("{name} did not stop by itself and was killed"))?;
        }
        let after = self.script_calls().await?;
        let facts = FleetFacts {
            script_calls: after.saturating_sub(before),
            left: self.ready(&self.name).await?,
            dead: self.ready(&format!("{}.dead", self.name)).await?,
            killed,
        };
        Ok(Proof {
            rate: args.rate,
            messages: u64::from(args.messages),
            report: self.provider.report(&args.expected()),
            fleet: Some(facts),
        })
    }

    async fn fill_queue(&self) -> Result<(), DemoError> {
        let messages = config::messages(self.args.messages);
        let filled = async {
            self.broker.declare(&self.name).await?;
            self.broker.publish(&self.name, messages).await
        };
        filled
            .await
            .map_err(|source| rabbitmq(self.servers, source))
    }

    async fn ready(&self, queue: &str) -> Result<u64, DemoError> {
        let ready = self.broker.ready(queue).await;
        ready.map_err(|source| rabbitmq(self.servers, source))
    }

    async fn script_calls(&mut self) -> Result<u64, DemoError> {
        let calls = self.store.script_calls().await;
        calls.map_err(|source| redis(self.servers, source))
    }

    /// Stops what still runs; removes the queues and the keys.
    async fn clean_up(&mut self) -> Result<(), DemoError> {
        self.fleet.stop().await?;
        let waits = (0..=LONGEST_WAIT).map(|step| format!("{}.wait.{}s", self.name, 1_u32 << step));
        let queues = [self.name.clone(), format!("{}.dead", self.name)];
        let emptied = self.broker.remove(queues.into_iter().chain(waits)).await;
        self.broker.close().await;
        let cleaned = self.store.clean(&self.name).await;
        emptied.map_err(|source| rabbitmq(self.servers, source))?;
        cleaned.map_err(|source| redis(self.servers, source))
    }
}

/// The settings of every daemon of a run.
struct Daemons<'a> {
    common: config::Common,
    servers: Servers<'a>,
    prefix: &'a str,
    scratch: &'a Scratch,
}

impl Daemons<'_> {
    fn start_all(&self, count: u16) -> Result<Vec<Replica>, DemoError> {
        (1..=count)
            .map(|number| self.start(&format!("replica {number}")))
            .collect()
    }

    fn start(&self, name: &str) -> Result<Replica, DemoError> {
        let text = config::replica(&self.common, self.servers, self.prefix, name);
        Ok(Replica::start(self.scratch, name, &text)?)
    }
}

/// Kills one daemon after the other at a fixed pace and replaces it at once.
struct Killer<'a> {
    daemons: Daemons<'a>,
    due: Option<Interval>,
    killed: &'a mut u64,
}

impl<'a> Killer<'a> {
    fn new(every: Option<Duration>, daemons: Daemons<'a>, killed: &'a mut u64) -> Self {
        // The first victim has had its time to come up.
        let due = every.map(|every| interval_at(Instant::now() + every, every));
        Self {
            daemons,
            due,
            killed,
        }
    }

    async fn kill_next(&mut self, fleet: &mut Fleet) -> Result<(), DemoError> {
        let is_due = self.due.as_mut().map(|due| due.tick().now_or_never());
        if is_due.flatten().is_none() {
            return Ok(());
        }
        let victim = usize::try_from(*self.killed).unwrap_or(0) % fleet.replicas.len().max(1);
        if let Some(replica) = fleet.replicas.get_mut(victim) {
            replica.kill().await?;
            *replica = self.daemons.start(&replica.name)?;
            *self.killed += 1;
        }
        Ok(())
    }
}

/// Waits until every message has arrived; an early end of a replica, or silence, is an error.
async fn finished(
    args: &DemoArgs,
    provider: &Provider,
    fleet: &mut Fleet,
    daemons: Daemons<'_>,
    killed: &mut u64,
) -> Result<(), DemoError> {
    let mut killer = Killer::new(args.kill_every, daemons, killed);
    let (mut calls, mut quiet) = (0, Duration::ZERO);
    loop {
        let live = provider.live();
        if live.unique >= u64::from(args.messages) {
            return Ok(());
        }
        for replica in &mut fleet.replicas {
            if let Some(status) = replica.ended()? {
                return Err(DemoError::Replica {
                    name: replica.name.clone(),
                    status: status.to_string(),
                    log: replica.log_tail(),
                });
            }
        }
        if live.calls > calls {
            (calls, quiet) = (live.calls, Duration::ZERO);
        } else if quiet >= args.patience() {
            let logs = fleet.replicas.iter().map(Replica::log_tail);
            return Err(DemoError::Stalled {
                waited: quiet,
                sent: live.unique,
                messages: u64::from(args.messages),
                log: logs.fold(String::new(), |all, log| all + "\n" + &log),
            });
        }
        killer.kill_next(fleet).await?;
        sleep(LOOK_EVERY).await;
        quiet += LOOK_EVERY;
    }
}

fn rabbitmq(servers: Servers<'_>, source: BrokerError) -> DemoError {
    DemoError::RabbitMq {
        at: place(servers.rabbitmq),
        source,
    }
}

fn redis(servers: Servers<'_>, source: DemoRedisError) -> DemoError {
    DemoError::Redis {
        at: place(servers.redis),
        source,
    }
}

/// How long a replica may take to stop by itself.
const STOPPING: Duration = Duration::from_secs(20);
/// So much of a replica's log is shown when it failed.
const LOG_LINES: usize = 5;

/// A running replica.
#[derive(Debug)]
struct Replica {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Replica {
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

    /// How it ended, if it has.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
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

    /// Ends it at once, so that it can write nothing more.
    async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
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

/// All replicas of a run.
#[derive(Debug, Default)]
struct Fleet {
    replicas: Vec<Replica>,
}

impl Fleet {
    /// Stops all of them, at the same time. Those that had to be killed are named.
    async fn stop(&mut self) -> io::Result<Vec<String>> {
        let stops = self.replicas.iter_mut().map(async |replica| {
            replica.terminate()?;
            let stopped = replica.stopped().await?;
            Ok(stopped.is_none().then(|| replica.name.clone()))
        });
        let killed: io::Result<Vec<_>> = join_all(stops).await.into_iter().collect();
        self.replicas.clear();
        Ok(killed?.into_iter().flatten().collect())
    }
}
