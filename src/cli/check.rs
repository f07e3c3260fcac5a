//! `sluiced check`: every fault of a configuration at once, or in words what its limits will do; on request
//! the effective values and whether the servers answer.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use super::exit::Exit;
use super::text::counted;
use crate::wire::Probe;
use sluiced_http::answers_in_words;
use sluiced_settings::types::{Downstream, LimitBackend, Settings};
use sluiced_settings::{self as settings, Faults, Loaded, Severity};
use sluiced_telemetry::traces;

/// No probe may take longer.
const PROBE_BOUND: Duration = Duration::from_secs(15);

/// The arguments of `sluiced check`.
#[derive(Args, Clone, Debug, Default)]
pub struct CheckArgs {
    /// A configuration file; may repeat, later ones win, SLUICED__… variables win over all
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Also try RabbitMQ, Redis and the downstreams
    #[arg(long)]
    pub connect: bool,
    /// With --connect: end with 1 where the first message that waits would be a dead letter
    #[arg(long, requires = "connect")]
    pub strict: bool,
    /// Do not read secrets, for a shell that may not read them, such as outside of the systemd unit that has them
    #[arg(long, conflicts_with = "connect")]
    pub no_secrets: bool,
    /// Show the effective values and where each was written, secrets hidden
    #[arg(long)]
    pub print: bool,
}

/// What a check needs of the backends.
#[derive(Debug)]
pub struct BackendChecks<M, P> {
    /// The faults that only backends can find.
    pub faults: M,
    /// Built only for `--connect`.
    pub probes: P,
}

/// Checks the configuration of `args` and `env` and writes what it finds to `out`.
///
/// # Errors
/// When `out` cannot be written to.
pub async fn check<M, P>(
    args: &CheckArgs,
    env: impl Iterator<Item = (String, String)>,
    backends: BackendChecks<M, P>,
    out: &mut (impl Write + Send),
    colour: bool,
) -> io::Result<Exit>
where
    M: FnOnce(&Loaded) -> Faults,
    P: FnOnce(&Loaded) -> Vec<Probe>,
{
    let configuration = if args.no_secrets {
        settings::load_with(settings::Needs::Nothing, &args.config, None, env)
    } else {
        settings::load(&args.config, env)
    };
    let loaded = match check_backends(configuration, backends.faults) {
        Ok(loaded) => loaded,
        Err(faults) => {
            report(&faults, out, colour)?;
            return Ok(Exit::WrongConfiguration);
        }
    };
    if let Some(why) = traces::not_built() {
        writeln!(out, "error: {why}")?;
        return Ok(Exit::WrongConfiguration);
    }
    if args.print {
        for value in loaded.origins.all() {
            writeln!(out, "{value}")?;
        }
    }
    write_in_words(&loaded.settings, out)?;
    report(&loaded.warnings, out, colour)?;
    if args.connect && !connect((backends.probes)(&loaded), out).await? {
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Writes what limits, routes and callers do.
fn write_in_words(settings: &Settings, out: &mut impl Write) -> io::Result<()> {
    let shared = settings.backend.limits == LimitBackend::Redis;
    for (name, limit) in &settings.limits {
        let mut sentences = limit.in_words(shared.then_some("Redis"));
        sentences.extend(settings.memory_words(name, limit).filter(|_| shared));
        writeln!(out, "limits.{name}: {}", sentences.join("\n  "))?;
    }
    for (name, route) in &settings.routes {
        let shares = settings.sharing_words(name, route);
        let answers = match &route.downstream {
            Downstream::Http(http) => answers_in_words(http),
            Downstream::Smpp(_) => Vec::new(),
        };
        let sentences = shares.into_iter().chain(route.in_words()).chain(answers);
        let lines: Vec<_> = sentences.collect();
        writeln!(out, "routes.{name}: {}", lines.join("\n  "))?;
    }
    for (name, callers) in &settings.callers {
        let sentences = callers.in_words(settings.counts_after(callers));
        writeln!(out, "callers.{name}: {}", sentences.join("\n  "))?;
    }
    Ok(())
}

/// A configuration that also has no fault which only backends can find.
pub(super) fn check_backends(
    loaded: Result<Loaded, Faults>,
    faults: impl FnOnce(&Loaded) -> Faults,
) -> Result<Loaded, Faults> {
    let loaded = loaded?;
    let faults = faults(&loaded);
    match faults.count(Severity::Error) {
        0 => Ok(loaded),
        _ => Err(faults),
    }
}

/// Writes faults and their number; `run` reports a wrong configuration in the same way.
///
/// # Errors
/// When `out` cannot be written to.
pub fn report(faults: &Faults, out: &mut impl Write, colour: bool) -> io::Result<()> {
    write!(out, "{}", faults.render(colour))?;
    let errors = faults.count(Severity::Error);
    let warnings = faults.count(Severity::Warning);
    if errors > 0 {
        writeln!(
            out,
            "{}, {}",
            counted(errors as u64, "error"),
            counted(warnings as u64, "warning")
        )
    } else if warnings > 0 {
        writeln!(
            out,
            "configuration ok, {}",
            counted(warnings as u64, "warning")
        )
    } else {
        writeln!(out, "configuration ok")
    }
}

/// Runs all probes at once and writes a line for each in their order, so that two outputs can be compared.
/// Returns whether all went well.
async fn connect(probes: Vec<Probe>, out: &mut (impl Write + Send)) -> io::Result<bool> {
    let mut running: FuturesOrdered<_> = probes
        .into_iter()
        .map(|(name, probe)| async move {
            let result = tokio::time::timeout(PROBE_BOUND, probe).await;
            let silent = || Err(format!("no answer within {} s", PROBE_BOUND.as_secs()));
            (name, result.unwrap_or_else(|_| silent()))
        })
        .collect();
    let mut all_well = true;
    while let Some((name, result)) = running.next().await {
        match result {
            Ok(said) => writeln!(out, "{name}: ok: {said}")?,
            Err(reason) => {
                all_well = false;
                writeln!(out, "{name}: failed: {reason}")?;
            }
        }
        out.flush()?;
    }
    Ok(all_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../config/sms.toml");

    async fn run(text: &str, args: CheckArgs, probes: Vec<Probe>) -> (Exit, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).expect("a file");
        let args = CheckArgs {
            config: vec![file],
            ..args
        };
        let mut out = Vec::new();
        let backends = BackendChecks {
            faults: |loaded: &Loaded| loaded.faults([]),
            probes: |_: &Loaded| probes,
        };
        let exit = check(&args, std::iter::empty(), backends, &mut out, false)
            .await
            .expect("a vector takes everything");
        (exit, String::from_utf8(out).expect("text"))
    }

    #[tokio::test]
    async fn a_good_configuration_is_ok() {
        let (exit, out) = run(GOOD, CheckArgs::default(), Vec::new()).await;
        let said = "limits.provider: at most 400 units in any 1s, over all replicas\n  \
            headroom 5ms at first, then from 2ms to 250ms: it follows how late calls leave after their slots, and by how much the time to the downstream varies\n\
            routes.sms: a message is a dead letter once 5 calls have failed; the first repeat comes within 1s, later ones within up to 5m\n  \
            a message is sent however old it is\n  \
            answers mean by their status (* by default):\n    \
            accepted: 2xx*\n    \
            throttled: 420*, 429-430*; if it says when to come back: 403*, 477*, 503*, 529*\n    \
            transient: 401*, 403*, 407-408*, 421*, 423*, 425*, 5xx*, timeout*, connection*, unreadable*; if it says when to come back: 400*, 402*, 404-406*, 409-419*, 422*, 424*, 426-428*, 431-476*, 478-499*; if the call may be a repeat: 409*\n    \
            permanent: 1xx*, 3xx*, 400*, 402*, 404-406*, 409-419*, 422*, 424*, 426-428*, 431-499*\n\
            configuration ok\n";
        assert_eq!((exit.code(), out.as_str()), (0, said));
    }

    /// The words for a keyed limit are checked for each kind, and for each wait after a loss.
    #[tokio::test]
    async fn the_limits_are_told_in_words() {
        for (limit, said) in [
            (
                "kind = \"gcra\"\nrate = \"30/1s\"\nburst = 5\nkey = \"{{ body.from }}\"\nlost_wait = \"50ms\"",
                "limits.x: 30 units evenly in 1s, and up to 5 more at once, for each `{{ body.from }}` over all replicas\n  \
                    headroom 35ms at first, then from 8ms to 250ms: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, nothing passes for 50ms; what was used up to 200ms before is forgotten then, and up to twice the limit may pass\n",
            ),
            (
                "kind = \"sliding_log\"\nrate = \"5/1h\"\nlost_wait = \"0s\"",
                "limits.x: at most 5 units in any 1h, over all replicas\n  \
                    headroom 5s at first, then from 8ms to 5s: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, calls go on at once; what was used up to 1h before is forgotten then, and up to twice the limit may pass\n",
            ),
            (
                "kind = \"fixed_window\"\nrate = \"1/day\"\ntimezone = \"Europe/Berlin\"\nlost_wait = \"forever\"",
                "limits.x: at most 1 unit in each day of Europe/Berlin, and up to twice as many around the end of one, over all replicas\n  \
                    headroom 5s at first, then from 8ms to 5s: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, nothing passes until nothing that was used before can count: up to 1d1h\n",
            ),
            (
                "kind = \"fixed_window\"\nrate = \"60/1h\"\nkey = \"{{ none if body.user else body.ip }}\"\nlost_wait = \"forever\"",
                "limits.x: at most 60 units in each 1h from a first call on, and up to twice as many around the end of one, for each `{{ none if body.user else body.ip }}` over all replicas\n  \
                    headroom 5s at first, then from 8ms to 5s: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    messages whose key is none are not counted by this limit\n  \
                    if Redis loses its state, nothing passes until nothing that was used before can count: up to 1h\n",
            ),
            (
                "kind = \"token_bucket\"\ncapacity = 9\nrefill = 2\ninterval = \"1s\"",
                "limits.x: up to 9 units at once, and 2 more every 1s, over all replicas\n  \
                    headroom 35ms at first, then from 8ms to 250ms: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, nothing passes until nothing that was used before can count: up to 5s\n",
            ),
            (
                "kind = \"concurrency\"\nlimit = 3\nlease = \"2m\"",
                "limits.x: at most 3 units in flight at once, over all replicas\n  \
                    headroom 1s200ms at first, then from 8ms to 5s: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, nothing passes for 1m; what was used up to 2m before is forgotten then, and up to twice the limit may pass\n",
            ),
            (
                "kind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{ body.to }}\"",
                "Redis remembers up to 1440000 keys at a time (400 messages a second, each for 1h): about 329.6 MiB of memory\n",
            ),
            (
                "kind = \"once\"\nkey = \"{{ message_id }}\"\non_unknown = \"dead_letter\"",
                "limits.x: one accepted message within 1d, and later ones are repeats, for each `{{ message_id }}` of each queue over all replicas\n  \
                    a repeat is done without a call; a message whose replica died during its call waits for 30s and then is a dead letter with the reason unknown, perhaps without a call\n  \
                    headroom 300ms at first, then from 8ms to 5s: it follows how late calls leave after they were allowed, and by how much the time to the downstream varies\n  \
                    if Redis loses its state, it is forgotten what was accepted: a repeat is called once more\n  \
                    Redis remembers up to 34560000 keys at a time (400 messages a second, each for 1d): about 7.7 GiB of memory\n",
            ),
            (
                "kind = \"once\"\nkey = \"{{ body.order }}\"\nshared = true",
                "limits.x: one accepted message within 1d, and later ones are repeats, for each `{{ body.order }}` of all queues together over all replicas\n",
            ),
        ] {
            let text = GOOD.replace("[\"provider\"]", "[\"provider\", \"x\"]");
            let text = format!("{text}\n[limits.x]\n{limit}\n");
            let (exit, out) = run(&text, CheckArgs::default(), Vec::new()).await;
            assert_eq!(exit.code(), 0, "{out}");
            assert!(out.contains(said), "{out}");
        }
    }

    #[tokio::test]
    async fn a_reserve_hours_age_and_attempts_are_told_in_words() {
        let text = GOOD
            .replace("rate = \"400/1s\"", "rate = \"400/1s\"\nreserve = \"20%\"")
            .replace(
                "queue = \"sms\"",
                "queue = \"sms\"\nmax_age = \"10m\"\non_expired = \"drop\"\nmax_attempts = 1\n\
                 open = \"08:00-20:00\"\ndays = \"mon-wed\"\ntimezone = \"Asia/Shanghai\"",
            );
        let (exit, out) = run(&text, CheckArgs::default(), Vec::new()).await;
        assert_eq!(exit.code(), 0, "{out}");
        for said in [
            "\n  20% of it only for messages of priority 5 and above, which may take the rest, too\n",
            "routes.sms: a message whose call fails is a dead letter at once\n",
            "\n  a message older than 10m is not sent: it is dropped\n",
            "\n  it sends 08:00-20:00 on mon,tue,wed by the clock of Asia/Shanghai; outside of that messages wait in their queue\n",
        ] {
            assert!(out.contains(said), "no `{said}` in {out}");
        }
    }

    #[tokio::test]
    async fn a_wrong_configuration_is_78() {
        let (exit, out) = run("", CheckArgs::default(), Vec::new()).await;
        assert_eq!(exit.code(), 78);
        assert!(
            out.contains("no route") && out.ends_with("1 error, 0 warnings\n"),
            "{out}"
        );
    }

    #[tokio::test]
    async fn what_only_a_backend_finds_is_78_and_has_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.toml");
        std::fs::write(&file, GOOD).expect("a file");
        let args = CheckArgs {
            config: vec![file],
            ..CheckArgs::default()
        };
        let at = |steps: &[&str]| settings::KeyPath::of(steps);
        let faults = |loaded: &Loaded| {
            loaded.faults([
                (
                    at(&["routes", "sms", "downstream", "url"]),
                    "odd".to_owned(),
                ),
                (
                    at(&["routes", "sms", "downstream", "outcomes"]),
                    "odd".to_owned(),
                ),
            ])
        };
        let mut out = Vec::new();
        let backends = BackendChecks {
            faults,
            probes: |_: &Loaded| unreachable!("wrong configurations are not tried"),
        };
        let exit = check(&args, std::iter::empty(), backends, &mut out, false);
        assert_eq!(exit.await.expect("a vector takes everything").code(), 78);
        let out = String::from_utf8(out).expect("text");
        let line = 1 + GOOD
            .lines()
            .position(|line| line.contains("8080/send"))
            .expect("a url");
        assert!(out.contains(&format!("c.toml:{line}:")), "{out}");
        assert!(out.contains("routes.sms.downstream.outcomes: odd"), "{out}");
        assert!(!out.contains("configuration: "), "{out}");
    }

    #[tokio::test]
    async fn print_says_where_each_value_was_written_and_hides_secrets() {
        let args = CheckArgs {
            print: true,
            ..CheckArgs::default()
        };
        let (_, out) = run(GOOD, args, Vec::new()).await;
        assert!(out.contains("amqp://guest:***@127.0.0.1:5672/%2f"), "{out}");
        assert!(!out.contains("guest:guest"), "{out}");
        assert!(
            out.contains("limits.provider.adaptive = false  # default\n"),
            "{out}"
        );
        assert!(out.contains("c.toml:16\n"), "{out}");
    }

    #[tokio::test(start_paused = true)]
    async fn probes_run_together_and_one_that_hangs_is_bounded() {
        let probes: Vec<Probe> = vec![
            ("redis".into(), Box::pin(std::future::pending())),
            (
                "rabbitmq".into(),
                Box::pin(async { Ok("3.10.8".to_owned()) }),
            ),
            ("sms".into(), Box::pin(async { Err("refused".to_owned()) })),
        ];
        let args = CheckArgs {
            connect: true,
            ..CheckArgs::default()
        };
        let (exit, out) = run(GOOD, args, probes).await;
        assert_eq!(exit, Exit::Failed);
        let lines = "redis: failed: no answer within 15 s\n\
                     rabbitmq: ok: 3.10.8\n\
                     sms: failed: refused\n";
        assert!(out.ends_with(lines), "{out}");
    }

    #[tokio::test]
    async fn secrets_that_cannot_be_read_here_can_be_left_out() {
        let text = GOOD.replace(
            "kind = \"http\"",
            "kind = \"http\"\nauth = { kind = \"bearer\", token_file = \"credential:token\" }",
        );
        let (exit, said) = run(&text, CheckArgs::default(), Vec::new()).await;
        assert_eq!(exit, Exit::WrongConfiguration);
        assert!(said.contains("credential:token"), "{said}");
        let args = CheckArgs {
            no_secrets: true,
            ..CheckArgs::default()
        };
        let (exit, said) = run(&text, args.clone(), Vec::new()).await;
        assert_eq!(exit, Exit::Done, "{said}");
        let (exit, _) = run(&text.replace("400/1s", "four"), args, Vec::new()).await;
        assert_eq!(exit, Exit::WrongConfiguration);
    }
}
