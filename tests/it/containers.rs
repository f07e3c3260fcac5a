//! What deploy/compose.yaml and deploy/kubernetes/ start, with the same files, arguments and rights, on servers of this
//! machine: only the images are missing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lapin::BasicProperties;
use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, file, get, program};
use crate::support::machine;
use crate::support::process::Leash;
use crate::support::prometheus::Prometheus;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};
use crate::support::yaml::documents;

const MESSAGES: u64 = 300;
/// Long timeouts for a busy machine, and ports of our own.
const OURS: [(&str, &str); 4] = [
    ("SLUICED__ADMIN__LISTEN", "127.0.0.1:0"),
    ("SLUICED__REDIS__RESPONSE_TIMEOUT", "5s"),
    ("SLUICED__LIMITS__PROVIDER__HEADROOM", "50ms"),
    ("SLUICED__LIMITS__PROVIDER__HORIZON", "200ms"),
];

fn words(list: &Value) -> Vec<&str> {
    let words = list.as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap()).collect()
}

/// The text with another address in the place of one that it must name.
fn instead(text: &str, name: &str, address: impl ToString) -> String {
    assert!(text.contains(name), "no {name} in\n{text}");
    text.replace(name, &address.to_string())
}

/// The judging provider as a process.
struct Judge(Child, SocketAddr, #[allow(dead_code)] Leash);

impl Judge {
    fn start(command: &[&str]) -> Self {
        let mut child = program(command).stdout(Stdio::piped()).spawn().unwrap();
        let leash = Leash::on(&child);
        let mut address = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut address).unwrap();
        Self(child, address.trim().parse().unwrap(), leash)
    }

    fn report(&self) -> Value {
        serde_json::from_str(&get(self.1, "/report").1).unwrap_or_default()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The files of a service where it finds them, below a folder. Named volumes are left out.
fn mounted(service: &Value, root: &Path) {
    let volumes = words(&service["volumes"]).into_iter();
    for volume in volumes.filter(|volume| volume.starts_with('.')) {
        let (from, to) = volume.split_once(':').unwrap();
        let to = root.join(to.trim_end_matches(":ro").trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
        symlink(deploy.join(from), to).unwrap();
    }
}

/// The configuration of Prometheus, where only the look-up of the replicas' names is replaced.
fn prometheus_config(service: &Value, root: &Path, targets: &[String]) -> PathBuf {
    mounted(service, root);
    let path = root.join("etc/prometheus/prometheus.yml");
    let text = fs::read_to_string(&path).unwrap();
    let (before, names) = text.split_once("dns_sd_configs:").unwrap();
    assert!(names.contains("names: [sluiced]") && names.contains("port: 9464"));
    fs::remove_file(&path).unwrap();
    let text = format!("{before}static_configs: [{{targets: {targets:?}}}]\n");
    file(path.parent().unwrap(), "prometheus.yml", &text)
}

async fn publish(broker: &Broker, queue: &str, count: u64) {
    let there = || async { broker.counts(queue).await.is_some() };
    eventually_async(LONG, "a queue", there).await;
    let message = |n| {
        let properties = BasicProperties::default().with_message_id(format!("id-{n}").into());
        (format!("{{\"id\":{n}}}").into_bytes(), properties)
    };
    broker.publish(queue, (1..=count).map(message)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_compose_starts_delivers_everything_under_the_limit() {
    let Some(compose) = documents("deploy/compose.yaml") else {
        println!("no python3-yaml on this machine: not checked");
        return;
    };
    machine::two();
    let services = &compose[0]["services"];
    let user = |what: &str| services["rabbitmq"]["environment"][what].as_str().unwrap();
    let (name, password) = (user("RABBITMQ_DEFAULT_USER"), user("RABBITMQ_DEFAULT_PASS"));
    // Images of RabbitMQ make that user. Another one has that name here.
    let rabbit = Rabbit::shared();
    let url = rabbit.add_vhost_for("compose", password);
    let redis = words(&services["redis"]["command"]);
    assert_eq!(redis[0], "redis-server");
    let redis = RedisServer::start_with(&redis[1..].join(" "), None);
    let mut command = words(&services["provider"]["command"]);
    let listen = command.iter().position(|word| *word == "0.0.0.0:8080");
    command[listen.unwrap()] = "127.0.0.1:0";
    let provider = Judge::start(&command);

    let text = include_str!("../../deploy/compose/sluiced.toml");
    let named = format!("amqp://{name}:{password}@rabbitmq:5672/%2f");
    let text = instead(text, &named, &url);
    let text = instead(&text, "redis:6379", format!("127.0.0.1:{}", redis.port()));
    let text = instead(&text, "provider:8080", provider.1);
    let count = services["sluiced"]["deploy"]["replicas"].as_u64().unwrap();
    let start = |_| {
        Daemon::start_with(&text, |command| {
            command.envs(OURS);
        })
    };
    let mut replicas: Vec<_> = (0..count).map(start).collect();
    let mut targets = Vec::new();
    for replica in &mut replicas {
        replica.ready().await;
        targets.push(replica.admin().await.to_string());
    }
    publish(&Broker::connect(&url).await, "sms", MESSAGES).await;
    eventually(LONG, "all delivered", || {
        provider.report()["unique"] == MESSAGES
    })
    .await;
    let report = provider.report();
    let (over, repeated, limit) = (&report["over"], &report["repeated"], &report["limit"]);
    assert!(*over == 0 && *repeated == 0 && *limit == 100, "{report:#}");

    let root = tempfile::tempdir().unwrap();
    let config = prometheus_config(&services["prometheus"], root.path(), &targets);
    if let Some(prometheus) = Prometheus::start(&config) {
        let up = || prometheus.found("up{job=\"sluiced\"} == 1") == 3;
        eventually(LONG, "all replicas are scraped", up).await;
        let done = format!("sum(sluiced_settled_total{{verdict=\"done\"}}) == {MESSAGES}");
        eventually(LONG, "what they did", || prometheus.found(&done) == 1).await;
        let rules = fs::read_to_string(root.path().join("monitoring/alerts.yml")).unwrap();
        let rules = rules.matches("- alert: ").count() + rules.matches("- record: ").count();
        let evaluated = || {
            let all = prometheus.rules();
            all.len() == rules && all.iter().all(|rule| rule["health"] == "ok")
        };
        eventually(LONG, "all rules are evaluated", evaluated).await;
        for rule in prometheus.rules() {
            assert!(rule["state"] != "firing", "{rule:#}");
        }
    } else {
        println!("no prometheus on this machine: not checked");
    }
    for replica in replicas {
        replica.stop(&[NEW_SCHEDULE]).await;
    }
}

/// As in the Deployment: an unknown user without rights, on a file system that cannot be written, with
/// its secrets in files that only its group can read.
const POD: &str = "set -e\n\
    mount -t tmpfs -o mode=0755 pod /run\n\
    touch /run/sluiced /run/sluiced.toml\n\
    mount --bind \"$0\" /run/sluiced\n\
    cp \"$3\" /run/sluiced.toml\n\
    mkdir -p \"$SECRETS\"\n\
    for name in $NAMES; do echo secret >\"$SECRETS/$name\"; done\n\
    chown \"0:$GROUP\" \"$SECRETS\"/*\n\
    chmod \"$MODE\" \"$SECRETS\"/*\n\
    mount -o remount,bind,ro /run\n\
    mount -o remount,bind,ro /\n\
    exec setpriv --reuid=\"$OWNER\" --regid=\"$GROUP\" --clear-groups --no-new-privs \\\n\
    --bounding-set=-all --inh-caps=-all /run/sluiced run --config /run/sluiced.toml\n";

/// The variables that the shell of [`POD`] needs, and those of the program.
fn pod(spec: &Value, secret: &Value) -> Vec<String> {
    let security = &spec["securityContext"];
    let secrets = &spec["volumes"][1]["secret"];
    assert_eq!(secrets["secretName"], secret["metadata"]["name"]);
    assert_eq!(security["fsGroup"], security["runAsGroup"]);
    let names = secret["stringData"].as_object().unwrap().keys();
    let names: Vec<_> = names.map(String::as_str).collect();
    let mode = secrets["defaultMode"].as_u64().unwrap();
    let mut variables = vec![
        format!("OWNER={}", security["runAsUser"]),
        format!("GROUP={}", security["runAsGroup"]),
        format!("MODE={mode:o}"),
        format!("NAMES={}", names.join(" ")),
        "SECRETS=/run/secrets/sluiced".to_owned(),
    ];
    variables.extend(OURS.map(|(name, value)| format!("{name}={value}")));
    variables
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubernetes_starts_delivers_with_the_rights_that_it_has() {
    let launcher = ["unshare", "--mount", "--propagation", "private"];
    let mut may = Command::new(launcher[0]);
    let may = may.args(&launcher[1..]).arg("true").status();
    let may = may.is_ok_and(|status| status.success());
    let documents = documents("deploy/kubernetes/sluiced.yaml").filter(|_| may);
    let Some([deployment, _, map, secret]) = documents.as_deref() else {
        println!("no python3-yaml on this machine, or no right to unshare: not checked");
        return;
    };
    let spec = &deployment["spec"]["template"]["spec"];
    let url = Rabbit::shared().add_vhost_for("kubernetes", "secret");
    let redis = RedisServer::start_with("--appendonly yes", Some("secret"));
    let downstream = Recorder::accepting().await;
    let text = map["data"]["sluiced.toml"].as_str().unwrap();
    let without_password = url.replace(":secret@", "@");
    let text = instead(text, "amqp://sluiced@rabbitmq:5672/%2f", without_password);
    let text = instead(&text, "redis:6379", format!("127.0.0.1:{}", redis.port()));
    let text = instead(
        &text,
        "https://sms.example.com",
        format!("http://{}", downstream.address),
    );
    let broker = Broker::connect(&url).await;
    broker.declare("sms", "quorum").await;
    let variables = pod(spec, secret);
    let variables: Vec<_> = variables.iter().map(String::as_str).collect();
    let launcher = [&["env"], &*variables, &launcher, &["sh", "-c", POD]].concat();
    let mut daemon = Daemon::start_by(&text, &launcher);
    daemon.ready().await;

    let process = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let said = |what: &str| {
        process
            .lines()
            .find_map(|line| line.strip_prefix(what))
            .map(str::trim)
    };
    assert_eq!(
        said("Uid:"),
        Some("10001\t10001\t10001\t10001"),
        "{process}"
    );
    assert_eq!(
        (said("CapBnd:"), said("NoNewPrivs:")),
        (Some("0000000000000000"), Some("1"))
    );
    publish(&broker, "sms", 20).await;
    eventually(LONG, "delivered", || downstream.count() == 20).await;
    assert!(
        downstream
            .calls()
            .iter()
            .all(|call| call.authorization == "Bearer secret")
    );
    let container = &spec["containers"][0];
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let asked = &container[probe]["httpGet"];
        assert_eq!(
            (&asked["path"], &asked["port"]),
            (&path.into(), &"admin".into())
        );
        assert_eq!(daemon.page(path).await.0, 200);
    }
    daemon.stop(&[NEW_SCHEDULE]).await;
}
