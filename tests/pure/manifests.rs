//! deploy/compose.yaml, deploy/kubernetes/ and the Dockerfile: they agree on ports, files and accounts, and
//! leave the program the time to stop that its configuration asks for. docs/upstream/ is for what is locked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sluiced_settings::{self as settings, Loaded};

use crate::yaml::documents;

const DOCKERFILE: &str = include_str!("../../Dockerfile");
const UNREAD: &str = "no python3-yaml on this machine: not checked";
/// The time, besides the grace, for closing connections and writing the last lines.
const MARGIN: Duration = Duration::from_secs(10);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What follows an instruction of the Dockerfile.
fn instruction(name: &str) -> &'static str {
    let mut lines = DOCKERFILE.lines();
    let found = lines.find_map(|line| line.strip_prefix(name));
    found.unwrap_or_else(|| panic!("no {name}")).trim()
}

/// The port of the admin listener in the image.
fn admin_port() -> u64 {
    let listen = instruction("ENV SLUICED__ADMIN__LISTEN=");
    let port = listen.strip_prefix("0.0.0.0:").expect("all addresses");
    assert_eq!(port, instruction("EXPOSE"));
    assert!(instruction("    CMD").contains(&format!("http://127.0.0.1:{port}/healthz")));
    port.parse().expect("a port")
}

fn loaded(path: &Path) -> Loaded {
    let files = [path.to_owned()];
    settings::load_with(settings::Needs::Nothing, &files, None, std::iter::empty())
        .unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn words(list: &Value) -> Vec<&str> {
    let words = list.as_array().expect("a list").iter();
    words.map(|word| word.as_str().expect("a word")).collect()
}

/// The mounts of a service from files of this repository: from where, to where.
fn mounts(service: &Value) -> Vec<(&str, &str)> {
    let volumes = words(&service["volumes"]).into_iter();
    let files = volumes.filter(|volume| volume.starts_with('.'));
    let files = files.map(|volume| volume.strip_prefix("./").unwrap_or(volume));
    files
        .map(|volume| {
            let volume = volume.strip_suffix(":ro").expect("it is not written to");
            volume.split_once(':').expect("from and to")
        })
        .collect()
}

/// Whether a process that gets this many seconds has time for its grace.
fn has_time(seconds: u64, loaded: &Loaded) -> bool {
    Duration::from_secs(seconds) >= loaded.settings.service.grace.get() + MARGIN
}

/// A patch that was made for another version than the one that is built is looked at again.
#[test]
fn the_patches_for_the_amqp_client_are_for_the_version_that_is_built() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("it is there");
    let (lock, page) = (read("Cargo.lock"), read("docs/upstream/README.md"));
    for (name, named) in [
        ("amq-protocol", "amq-protocol and amq-protocol-types "),
        ("lapin", "| lapin "),
    ] {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let (_, version) = lock.split_once(&entry).expect("it is locked");
        let version = version.split('"').next().expect("a version");
        assert!(
            page.contains(&format!("{named}{version}")),
            "{name} {version}"
        );
    }
}

#[test]
fn the_services_of_compose_find_each_other() {
    let Some(compose) = documents("deploy/compose.yaml") else {
        println!("{UNREAD}");
        return;
    };
    let services = &compose[0]["services"];
    let path = root().join("deploy/compose/sluiced.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let user = &services["rabbitmq"]["environment"];
    let [name, password] = ["RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"]
        .map(|what| user[what].as_str().expect("a user"));
    let command = words(&services["provider"]["command"]);
    let argument = |name: &str| {
        let place = command.iter().position(|word| *word == name);
        command[place.expect("the argument") + 1]
    };
    let port = argument("--listen")
        .strip_prefix("0.0.0.0:")
        .expect("a port");
    for part in [
        format!("amqp://{name}:{password}@rabbitmq:5672/"),
        "redis://redis:6379/".to_owned(),
        format!("http://provider:{port}/"),
        format!("rate = {:?}", argument("--rate")),
    ] {
        assert!(text.contains(&part), "{part}");
    }
    let prometheus = &documents("deploy/compose/prometheus.yml").expect("it was read before")[0];
    let names = &prometheus["scrape_configs"][0]["dns_sd_configs"][0];
    assert!(services[names["names"][0].as_str().expect("a name")].is_object());
    assert_eq!(names["port"], admin_port());
    let source =
        &documents("deploy/compose/grafana-datasource.yml").expect("it was read before")[0];
    assert_eq!(source["datasources"][0]["url"], "http://prometheus:9090");
    assert_eq!(
        source["datasources"][0]["jsonData"]["timeInterval"],
        prometheus["global"]["scrape_interval"]
    );
}

#[test]
fn the_services_of_compose_have_their_files_and_only_loopback() {
    let Some(compose) = documents("deploy/compose.yaml") else {
        println!("{UNREAD}");
        return;
    };
    let services = compose[0]["services"].as_object().expect("services");
    let mut builders = Vec::new();
    for (name, service) in services {
        if service["volumes"].is_array() {
            for (from, _) in mounts(service) {
                assert!(root().join("deploy").join(from).exists(), "{name}: {from}");
            }
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().expect("a port");
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
        if service["build"].is_string() {
            builders.push(service["image"].as_str().expect("an image"));
        }
    }
    assert_eq!(builders, ["sluiced"], "two builds of one image collide");

    let sluiced = &services["sluiced"];
    let loaded = loaded(&root().join("deploy/compose/sluiced.toml"));
    let stop = sluiced["stop_grace_period"]
        .as_str()
        .and_then(|stop| stop.strip_suffix('s'));
    let stop = stop.and_then(|stop| stop.parse().ok()).expect("seconds");
    assert!(has_time(stop, &loaded), "{stop} s");
    assert_eq!(
        (&sluiced["read_only"], &sluiced["cap_drop"]),
        (&json!(true), &json!(["ALL"]))
    );
    assert_eq!(sluiced["security_opt"], json!(["no-new-privileges:true"]));
    // The image runs it with this file.
    let target = mounts(sluiced)[0].1;
    assert!(DOCKERFILE.contains(&format!("CMD [\"run\", \"--config\", \"{target}\"]")));

    // Prometheus finds its rules, and Grafana its dashboard.
    let prometheus = mounts(&services["prometheus"]);
    assert!(prometheus.contains(&("compose/prometheus.yml", "/etc/prometheus/prometheus.yml")));
    assert!(prometheus.contains(&("../monitoring", "/monitoring")));
    let config = &documents("deploy/compose/prometheus.yml").expect("it was read before")[0];
    assert_eq!(config["rule_files"], json!(["../../monitoring/alerts.yml"]));
    let grafana = mounts(&services["grafana"]);
    let home = &services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"];
    let folder =
        &documents("deploy/compose/grafana-dashboards.yml").expect("it was read before")[0];
    let folder = folder["providers"][0]["options"]["path"]
        .as_str()
        .expect("a folder");
    let board = format!("{folder}/grafana-dashboard.json");
    assert_eq!(*home, board);
    assert!(grafana.contains(&("../monitoring/grafana-dashboard.json", &board)));
}

#[test]
fn the_pods_of_kubernetes_fit_the_program() {
    let Some(documents) = documents("deploy/kubernetes/sluiced.yaml") else {
        println!("{UNREAD}");
        return;
    };
    let [deployment, budget, map, secret] = &documents[..] else {
        panic!("{} documents", documents.len());
    };
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for selector in [&deployment["spec"]["selector"], &budget["spec"]["selector"]] {
        assert_eq!(&selector["matchLabels"], labels);
    }
    let scraped = &deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"];
    assert_eq!(*scraped, admin_port().to_string());
    let pod = &deployment["spec"]["template"]["spec"];
    assert_probes_ask_the_admin_port(&pod["containers"][0]);
    assert_the_account_is_that_of_the_image_without_rights(pod);
    assert_the_program_finds_its_configuration_and_secrets(pod, map, secret);
}

fn assert_probes_ask_the_admin_port(container: &Value) {
    assert_eq!(
        container["ports"],
        json!([{ "name": "admin", "containerPort": admin_port() }])
    );
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let asked = &container[probe]["httpGet"];
        assert_eq!(*asked, json!({ "path": path, "port": "admin" }), "{probe}");
    }
}

/// It reads its secrets by its group.
fn assert_the_account_is_that_of_the_image_without_rights(pod: &Value) {
    let account = instruction("USER").split_once(':').expect("user and group");
    let security = &pod["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(security["runAsUser"].to_string(), account.0);
    for group in ["runAsGroup", "fsGroup"] {
        assert_eq!(security[group].to_string(), account.1, "{group}");
    }
    let rights = json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] } });
    assert_eq!(pod["containers"][0]["securityContext"], rights);
    assert_eq!(pod["automountServiceAccountToken"], false);
}

/// The configuration is valid, and leaves time to stop.
fn assert_the_program_finds_its_configuration_and_secrets(
    pod: &Value,
    map: &Value,
    secret: &Value,
) {
    let container = &pod["containers"][0];
    let mounted = |name: &str| {
        let mounts = container["volumeMounts"].as_array().expect("mounts").iter();
        let mut mounts = mounts.filter(|mount| mount["name"] == name && mount["readOnly"] == true);
        mounts
            .next()
            .and_then(|mount| mount["mountPath"].as_str())
            .expect("a mount")
    };
    let (name, text) = map["data"]
        .as_object()
        .and_then(|files| files.iter().next())
        .expect("a file");
    let path = format!("{}/{name}", mounted("configuration"));
    assert_eq!(container["args"], json!(["run", "--config", path]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    let text = text.as_str().expect("text");
    std::fs::write(&file, text).expect("the file is written");
    let loaded = loaded(&file);
    assert!(loaded.warnings.all().is_empty(), "{}", loaded.warnings);
    let stop = pod["terminationGracePeriodSeconds"]
        .as_u64()
        .expect("seconds");
    assert!(has_time(stop, &loaded), "{stop} s");
    let secrets = secret["stringData"].as_object().expect("secrets");
    assert_eq!(text.matches("_file = ").count(), secrets.len());
    for name in secrets.keys() {
        let file = format!("_file = \"{}/{name}\"", mounted("secrets"));
        assert!(text.contains(&file), "{file}");
    }
}
