//! The Helm chart: it makes what deploy/kubernetes/sluiced.yaml has, and the alerts in it are those of
//! monitoring/. Helm judges it where it is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Map, Value};

use crate::yaml::documents;

const CHART: &str = "deploy/helm/sluiced";
const MANIFEST: &str = "deploy/kubernetes/sluiced.yaml";
const NO_HELM: &str = "no helm on this machine: not checked";
const UNREAD: &str = "no python3-yaml on this machine: not checked";
/// What Helm adds, so that releases can be told apart, and what makes pods anew for a changed configuration.
const OF_THE_CHART: [&str; 6] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "checksum/config",
    // What Kubernetes takes for an image with a version, as in the manifest.
    "imagePullPolicy",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `None` where there is no Helm.
fn helm(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("helm");
    command.args(arguments).current_dir(root()).output().ok()
}

fn succeeded(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaint}");
    said
}

/// The chart with values, as objects by their kind; otherwise what is not installed.
fn rendered(arguments: &[&str]) -> Result<BTreeMap<String, Value>, &'static str> {
    let all = [&["template", "sluiced", CHART][..], arguments].concat();
    let output = helm(&all).ok_or(NO_HELM)?;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rendered.yaml");
    fs::write(&file, succeeded(output)).expect("it is written");
    let objects = documents(file.to_str().expect("a path")).ok_or(UNREAD)?;
    Ok(by_kind(objects))
}

fn by_kind(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let kind = |object: &Value| object["kind"].as_str().expect("a kind").to_owned();
    let mut found = BTreeMap::new();
    for object in objects {
        let before = found.insert(kind(&object), object);
        assert!(before.is_none(), "two of one kind");
    }
    found
}

fn without_what_helm_adds(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OF_THE_CHART.contains(&name.as_str()));
            fields.values_mut().for_each(without_what_helm_adds);
        }
        Value::Array(items) => items.iter_mut().for_each(without_what_helm_adds),
        _ => {}
    }
}

fn fields(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

/// Flux leaves links out of what it takes from a repository, so the file in the chart is a copy.
#[test]
fn the_alerts_of_the_chart_are_those_of_monitoring() {
    let copy = format!("{CHART}/files/alerts.yml");
    assert!(
        read(&copy) == read("monitoring/alerts.yml"),
        "cp monitoring/alerts.yml {copy}"
    );
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read(&format!("{CHART}/Chart.yaml"));
    for line in [
        format!("version: {version}"),
        format!("appVersion: \"{version}\""),
    ] {
        assert!(chart.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn the_values_of_the_chart_are_those_of_the_manifest() {
    let values = documents(&format!("{CHART}/values.yaml"));
    let (Some(values), Some(manifest)) = (values, documents(MANIFEST)) else {
        println!("{UNREAD}");
        return;
    };
    let (values, manifest) = (&values[0], by_kind(manifest));
    let deployment = &manifest["Deployment"]["spec"];
    let pod = &deployment["template"]["spec"];
    let budget = &manifest["PodDisruptionBudget"]["spec"];
    for (name, value, wanted) in [
        (
            "config",
            &values["config"],
            &manifest["ConfigMap"]["data"]["sluiced.toml"],
        ),
        ("replicas", &values["replicas"], &deployment["replicas"]),
        (
            "resources",
            &values["resources"],
            &pod["containers"][0]["resources"],
        ),
        (
            "secret",
            &values["secret"],
            &manifest["Secret"]["metadata"]["name"],
        ),
        (
            "maxUnavailable",
            &values["podDisruptionBudget"]["maxUnavailable"],
            &budget["maxUnavailable"],
        ),
        (
            "spreadOver",
            &values["spreadOver"],
            &pod["topologySpreadConstraints"][0]["topologyKey"],
        ),
    ] {
        assert_eq!(value, wanted, "{name}");
    }
}

/// A value that the schema does not know would be refused, one that only the schema knows does nothing.
#[test]
fn the_schema_of_the_chart_knows_its_values() {
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("it is JSON");
    let Some(values) = documents(&format!("{CHART}/values.yaml")) else {
        println!("{UNREAD}");
        return;
    };
    let mut places = vec![(&values[0], &schema)];
    while let Some((value, schema)) = places.pop() {
        assert_eq!(schema["additionalProperties"], false);
        let known = fields(&schema["properties"]);
        // Helm gives it to every chart.
        let names = known.keys().filter(|name| *name != "global");
        let named: BTreeSet<_> = fields(value).keys().collect();
        let unused: Vec<_> = names.filter(|name| !named.contains(name)).collect();
        assert!(unused.is_empty() || unused == ["claims"], "{unused:?}");
        for (name, value) in fields(value) {
            let part = known.get(name).unwrap_or_else(|| panic!("no {name}"));
            if part.get("properties").is_some() {
                places.push((value, part));
            }
        }
    }
}

#[test]
fn helm_accepts_the_chart() {
    match helm(&["lint", "--strict", CHART]) {
        Some(output) => println!("{}", succeeded(output)),
        None => println!("{NO_HELM}"),
    }
}

#[test]
fn helm_makes_of_the_chart_what_the_manifest_has() {
    let mut made = match rendered(&[]) {
        Ok(made) => made,
        Err(missing) => return println!("{missing}"),
    };
    let mut wanted = by_kind(documents(MANIFEST).expect("it was read before"));
    // The chart names a Secret, and makes none.
    wanted.remove("Secret").expect("a secret");
    for object in made.values_mut().chain(wanted.values_mut()) {
        without_what_helm_adds(object);
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.remove("labels");
    }
    assert_eq!(made, wanted);
}

#[test]
fn helm_makes_what_the_prometheus_operator_reads() {
    let switched =
        ["podMonitor", "prometheusRule"].map(|name| format!("--set={name}.enabled=true"));
    let labels = "--set=prometheusRule.labels.release=prometheus";
    let made = match rendered(&[&*switched[0], &*switched[1], labels]) {
        Ok(made) => made,
        Err(missing) => return println!("{missing}"),
    };
    let alerts = &documents("monitoring/alerts.yml").expect("it was read before")[0];
    assert_eq!(made["PrometheusRule"]["spec"], *alerts);
    assert_eq!(
        made["PrometheusRule"]["metadata"]["labels"]["release"],
        "prometheus"
    );
    let pods = &made["Deployment"]["spec"];
    let monitor = &made["PodMonitor"]["spec"];
    assert_eq!(monitor["selector"], pods["selector"]);
    let port = &pods["template"]["spec"]["containers"][0]["ports"][0]["name"];
    assert_eq!(monitor["podMetricsEndpoints"][0]["port"], *port);
    // Else they would be scraped twice.
    let annotations = fields(&pods["template"]["metadata"]["annotations"]);
    assert!(
        annotations
            .keys()
            .all(|name| !name.starts_with("prometheus.io"))
    );
}

#[test]
fn helm_makes_other_pods_for_another_configuration() {
    let checksum = |arguments: &[&str]| {
        let made = rendered(arguments)?;
        let annotations = &made["Deployment"]["spec"]["template"]["metadata"]["annotations"];
        let checksum = annotations["checksum/config"].as_str();
        Ok::<_, &str>(checksum.expect("a checksum").to_owned())
    };
    let (first, other) = match (checksum(&[]), checksum(&["--set=config=other"])) {
        (Ok(first), Ok(other)) => (first, other),
        (Err(missing), _) | (_, Err(missing)) => return println!("{missing}"),
    };
    assert_ne!(first, other);
}

#[test]
fn helm_gives_the_pods_of_the_chart_more_time_than_their_grace() {
    for (values, wanted) in [
        (&["--set=config=[service]\ngrace = \"1m30s\""][..], 115),
        (
            &[
                "--set=config=[service]\ngrace = \"1m30s\"",
                "--set=terminationGracePeriodSeconds=100",
            ],
            100,
        ),
    ] {
        match rendered(values) {
            Ok(made) => {
                let pod = &made["Deployment"]["spec"]["template"]["spec"];
                assert_eq!(pod["terminationGracePeriodSeconds"], wanted, "{values:?}");
            }
            Err(missing) => return println!("{missing}"),
        }
    }
}

#[test]
fn helm_refuses_a_value_that_the_chart_does_not_know() {
    let Some(output) = helm(&["template", "sluiced", CHART, "--set=replica=3"]) else {
        println!("{NO_HELM}");
        return;
    };
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(complaint.contains("additional propert"), "{complaint}");
}
