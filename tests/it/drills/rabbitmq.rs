//! RabbitMQ fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::{BACKLOG, Drill, lasts, plan};
use crate::fleet::control::said;
use crate::fleet::{PATIENCE, Plan};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, NEW_SCHEDULE};
use crate::support::machine;
use crate::support::proxy::{Mode, Proxy, without_method};
use crate::support::rabbit::Rabbit;
use crate::support::soak::longer;
use crate::support::wait::{eventually, eventually_async};

/// What replicas may log while RabbitMQ is away.
const AWAY: &[&str] = &[
    NEW_SCHEDULE,
    "no connection to RabbitMQ",
    "the queue cannot be consumed",
    "RabbitMQ blocks publishing",
    "copies are not confirmed",
    "verdicts could not be made safe",
    // If the downstream fails too.
    "the downstream is away",
    "only this replica stops",
];

/// A server sends it as a confirm only.
const ACK: [u8; 4] = [0, 60, 0, 80];

/// Connections that are soon found to be dead. A busy broker confirms some copies later than that: a fault that makes
/// copies exist twice.
fn quick(plan: Plan) -> Plan {
    let keys =
        "[rabbitmq]\nheartbeat = \"1s\"\nconnect_timeout = \"1s\"\nconfirm_timeout = \"1s\"\n";
    Plan {
        settings: vec![("[rabbitmq]\n", keys.to_owned())],
        ..copies(plan)
    }
}

/// Hardly any retry waits in memory.
fn copies(plan: Plan) -> Plan {
    Plan {
        keys: "prefetch = 100\nmax_hold = \"50ms\"\n",
        ..plan
    }
}

/// For a fault that hits the whole server: one that no other suite uses, and one drill at a time has it.
struct Own {
    _turn: MutexGuard<'static, ()>,
    rabbit: Arc<Rabbit>,
}

impl Own {
    async fn server() -> Self {
        static TURN: Mutex<()> = Mutex::const_new(());
        static SERVER: OnceLock<Arc<Rabbit>> = OnceLock::new();
        let turn = TURN.lock().await;
        machine::share();
        let rabbit = SERVER.get_or_init(|| Arc::new(Rabbit::start()));
        // The drill before may have failed in the middle.
        if !rabbit.is_ready() {
            rabbit.kill();
            rabbit.boot();
        }
        let own = Self {
            _turn: turn,
            rabbit: Arc::clone(rabbit),
        };
        own.rabbit.memory_alarm(false);
        own.rabbit.disk_alarm(false);
        // What they are by default.
        own.ack_timeout(1_800_000, 60_000);
        own
    }

    fn plan(&self, row: &'static str) -> Plan {
        Plan {
            own_rabbit: Some(Arc::clone(&self.rabbit)),
            ..plan(row)
        }
    }

    /// How long a channel may hold what it does not acknowledge, and how often it looks; in milliseconds.
    fn ack_timeout(&self, timeout: u32, every: u32) {
        for (key, millis) in [
            ("consumer_timeout", timeout),
            ("channel_tick_interval", every),
        ] {
            let set = format!("application:set_env(rabbit, {key}, {millis})");
            self.rabbit.eval(&set);
        }
    }
}

/// Two replicas that reach RabbitMQ through a proxy.
async fn behind(row: &'static str, fault: &'static str) -> (Drill, Proxy) {
    let mut drill = Drill::prepare(row, fault, quick(plan(row))).await;
    let proxy = Proxy::to(drill.fleet.servers.rabbit().port()).await;
    drill.rabbit_by(&proxy);
    drill.flow(2).await;
    (drill, proxy)
}

impl Drill {
    /// Until the fault has reached the copies for wait queues.
    async fn copies_wait(&self) {
        let said = |replica: &Daemon| replica.said("copies are not confirmed") > 0;
        let waits = || self.fleet.replicas.iter().any(said);
        eventually(PATIENCE, "copies wait for their confirms", waits).await;
    }

    /// Until the wait queue has refused a copy. RabbitMQ tells a publisher that a queue is full after the queue took a
    /// few more, and these expire: on a busy machine the first copies are all taken. So there are more each second.
    async fn copies_are_refused(&mut self) {
        let end = Instant::now() + PATIENCE;
        let refused = |replica: &Daemon| replica.said("refuses copies") > 0;
        while !self.fleet.replicas.iter().any(refused) {
            assert!(Instant::now() < end, "no copy is refused\n{}", self.logs());
            self.script(json!({"status": 408, "count": 20}));
            self.feed(BACKLOG).await;
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// The shortest one: a first retry comes within a second.
    fn wait_queue(&self) -> String {
        format!("{}.wait.1s", self.fleet.plan.name)
    }

    /// Twenty calls are to be repeated. Waits until all messages are through, and the wait queue is there and
    /// empty.
    async fn retries_go_to_the_wait_queue(&mut self) {
        self.script(json!({"status": 408, "count": 20}));
        self.feed(100).await;
        assert!(self.accounted(PATIENCE).await, "{}", self.logs());
        let name = self.wait_queue();
        let empty = || async {
            let counts = self.fleet.broker.counts(&name).await;
            counts.is_some_and(|(ready, _)| ready == 0)
        };
        eventually_async(PATIENCE, "the wait queue is empty", empty).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let row = "rabbitmq::killed_and_restarted";
    let own = Own::server().await;
    let mut drill = Drill::start(row, "kill and restart", own.plan(row), 2).await;
    drill.begins();
    drill.fleet.servers.rabbit().kill();
    drill.cut_off();
    drill.fleet.servers.rabbit().boot();
    drill.reconnect().await;
    drill.ends().await;
    drill.proves("SIGKILL, started with its data", AWAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_one_by_one() {
    let row = "rabbitmq::connections_cut_one_by_one";
    let (mut drill, proxy) = behind(row, "connections cut one by one").await;
    let times = longer(6_u8);
    drill.begins();
    for _ in 0..times {
        proxy.cut_one();
        drill.cut_off();
        // This waits for nothing: the cuts are to be apart.
        sleep(Duration::from_millis(300)).await;
        drill.feed(300).await;
    }
    drill.ends().await;
    drill
        .proves(format!("{times} times, 0.3 s apart"), AWAY)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_alarm() {
    let set = Rabbit::memory_alarm;
    alarm("rabbitmq::memory_alarm", "memory alarm", set).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_alarm() {
    alarm("rabbitmq::disk_alarm", "disk alarm", Rabbit::disk_alarm).await;
}

/// The broker takes no messages for a while.
async fn alarm(row: &'static str, fault: &'static str, set: fn(&Rabbit, bool)) {
    let own = Own::server().await;
    let mut drill = Drill::start(row, fault, quick(own.plan(row)), 2).await;
    // The drill itself cannot publish while the alarm lasts, and some must be left when it has begun.
    said(
        &drill.fleet.replicas[0],
        &["pause", "provider", "--for", "1m"],
    );
    drill.feed(1_500).await;
    set(drill.fleet.servers.rabbit(), true);
    drill.begins();
    // Retries need copies, which the broker does not accept now.
    drill.script(json!({"status": 408, "count": 20}));
    said(&drill.fleet.replicas[0], &["resume", "provider"]);
    let seconds = lasts(2.0, 20.0).await;
    drill.copies_wait().await;
    set(drill.fleet.servers.rabbit(), false);
    drill.ends().await;
    drill.answers_unknown();
    drill
        .proves(
            format!("for {seconds} s, with 20 calls to be repeated"),
            AWAY,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_deleted_and_made_again() {
    let row = "rabbitmq::queue_deleted_and_made_again";
    let mut drill = Drill::start(row, "queue deleted and made again", plan(row), 2).await;
    // The messages of a queue are deleted with it; so it is empty.
    assert!(drill.accounted(PATIENCE).await, "{}", drill.logs());
    let name = drill.fleet.plan.name;
    let broker = &drill.fleet.broker;
    let empty = || async {
        broker
            .counts(name)
            .await
            .is_some_and(|(ready, _)| ready == 0)
    };
    eventually_async(PATIENCE, "the queue is empty", empty).await;
    drill.begins();
    drill.fleet.broker.delete(name).await;
    drill.cut_off();
    let seconds = lasts(1.5, 10.0).await;
    drill.fleet.broker.declare(name, "quorum").await;
    drill.ends().await;
    drill
        .proves(
            format!("empty when it is deleted; made again after {seconds} s"),
            AWAY,
        )
        .await;
}

/// The messages of a wait queue are deleted with it; so it is empty. The replicas still assume that it
/// exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_queue_deleted() {
    let row = "rabbitmq::wait_queue_deleted";
    let mut drill = Drill::start(row, "a wait queue missing", copies(plan(row)), 2).await;
    let times = longer(3_u8);
    drill.retries_go_to_the_wait_queue().await;
    drill.begins();
    for _ in 0..times {
        drill.fleet.broker.delete(&drill.wait_queue()).await;
        drill.retries_go_to_the_wait_queue().await;
    }
    drill.ends().await;
    drill
        .proves(
            format!("deleted {times} times, each time before 20 calls to be repeated"),
            AWAY,
        )
        .await;
}

/// A policy of the operator bounds the queue, which refuses further messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_queue_full() {
    let row = "rabbitmq::wait_queue_full";
    let mut drill = Drill::start(row, "a wait queue full", copies(plan(row)), 2).await;
    drill.retries_go_to_the_wait_queue().await;
    let name = drill.wait_queue();
    let full = r#"{"max-length":0,"overflow":"reject-publish"}"#;
    drill.fleet.servers.rabbit().set_policy(row, &name, full);
    drill.begins();
    drill.copies_are_refused().await;
    let seconds = lasts(2.0, 20.0).await;
    drill.fleet.servers.rabbit().clear_policy(row);
    drill.ends().await;
    drill
        .proves(
            format!(
                "`max-length` 0 with `reject-publish` for {seconds} s from the first copy that it refused"
            ),
            AWAY,
        )
        .await;
}

/// An operator's `consumer_timeout` that is far below `ack_timeout` of the replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_closed_by_the_ack_timeout() {
    let row = "rabbitmq::channel_closed_by_the_ack_timeout";
    let fault = "channel closed by the ack timeout";
    let own = Own::server().await;
    let mut drill = Drill::prepare(row, fault, own.plan(row)).await;
    own.ack_timeout(1_000, 500);
    drill.flow(2).await;
    // Otherwise one of them may get all of the slow answers.
    let sends = format!(
        "sluiced_calls_total{{route=\"{}\",outcome=\"accepted\"}}",
        drill.fleet.plan.name
    );
    for replica in &mut drill.fleet.replicas {
        replica.until_metric(&sends, 1.0).await;
    }
    drill.begins();
    drill.script(json!({"delay": "4s", "count": 40}));
    for replica in &drill.fleet.replicas {
        replica.says("the queue cannot be consumed").await;
    }
    drill.ends().await;
    drill.answers_unknown_and(Duration::from_secs(4));
    drill
        .proves("`consumer_timeout` 1 s, 40 answers after 4 s", AWAY)
        .await;
}

/// The copies for a wait queue arrive, and no confirm of them comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirms_that_never_come() {
    let row = "rabbitmq::confirms_that_never_come";
    let mut drill = Drill::prepare(row, "confirms that never come", quick(plan(row))).await;
    let silent = Arc::new(AtomicBool::new(false));
    let filter = Arc::clone(&silent);
    let port = drill.fleet.servers.rabbit().port();
    let proxy = Proxy::filtering(port, move || without_method(ACK, filter.clone())).await;
    drill.rabbit_by(&proxy);
    drill.flow(2).await;
    drill.begins();
    silent.store(true, Ordering::Relaxed);
    drill.script(json!({"status": 408, "count": 20}));
    let seconds = lasts(3.0, 20.0).await;
    drill.copies_wait().await;
    silent.store(false, Ordering::Relaxed);
    drill.ends().await;
    // A copy that arrived and the copy that is made again are two messages.
    drill.answers_unknown_and(Duration::from_secs(5));
    drill
        .proves(
            format!("for {seconds} s, with 20 calls to be repeated"),
            AWAY,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent() {
    let (mut drill, proxy) = behind("rabbitmq::silent", "accepts and stays silent").await;
    drill.begins();
    proxy.set(Mode::Silent);
    let seconds = lasts(4.0, 30.0).await;
    proxy.set(Mode::Pass);
    drill.ends().await;
    drill.answers_unknown();
    drill
        .proves(
            format!("not a byte passes for {seconds} s; heartbeat 1 s"),
            AWAY,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow() {
    let (mut drill, proxy) = behind("rabbitmq::slow", "50 ms away, with jitter").await;
    let millis = Duration::from_millis;
    drill.begins();
    proxy.set(Mode::Delay(millis(25), millis(25)));
    let seconds = lasts(1.5, 30.0).await;
    proxy.set(Mode::Pass);
    drill.ends().await;
    drill
        .proves(
            format!("50 to 100 ms for each answer, for {seconds} s"),
            AWAY,
        )
        .await;
}

/// The queue's leader is on the node where it was declared; consumers and publishers are on another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_of_three_nodes_killed() {
    let row = "rabbitmq::leader_of_three_nodes_killed";
    machine::share();
    let [first, leader, third] = Rabbit::cluster();
    let name = plan(row).name;
    Broker::connect(&leader.url())
        .await
        .declare(name, "quorum")
        .await;
    let urls = format!("urls = [\"{}\", \"{}\", ", third.url(), first.url());
    let plan = Plan {
        settings: vec![("urls = [", urls)],
        // The test has its share already.
        takes: || {},
        ..plan(row)
    };
    let mut drill = Drill::prepare(row, "leader of a quorum queue killed", plan).await;
    drill.fleet.servers.rabbit = Some(Arc::new(first));
    drill.fleet.via.rabbit = Some(leader.url());
    drill.reconnect().await;
    drill.flow(2).await;
    let leaders = third.ctl(&["-q", "list_queues", "name", "leader"]);
    let line = format!("{name}\t{}", leader.name());
    assert!(leaders.lines().any(|other| other == line), "{leaders}");
    drill.begins();
    leader.kill();
    drill.cut_off();
    let seconds = lasts(2.0, 10.0).await;
    leader.boot();
    drill.ends().await;
    let done = format!("SIGKILL of its node of three, started again after {seconds} s");
    drill.proves(done, AWAY).await;
    drop((leader, third));
}
