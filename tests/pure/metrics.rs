//! What is exported: names, help, labels and buckets of all metrics, which each crate declares for itself.

use std::collections::BTreeSet;

use sluiced::wire::{all_metrics, install_metrics};
use sluiced_callers::meters::CallersMeters;
use sluiced_pipeline::meters::{
    ANSWER_CLASSES, AdmissionMeters, DECISIONS, KeyedMeters, LimitMeters, OUTCOMES, PARTS,
    PolicyMeters, REASONS, RESULTS, RouteMeters, VERDICTS, rate_of_keys,
};
use sluiced_telemetry::Health;
use sluiced_telemetry::MetricKind;
use sluiced_telemetry::meters::LinkMeters;
use sluiced_telemetry::waits::WaitsFor;

/// The text of a scrape after `fill` ran. All tests share one recorder: each counts under labels of its own.
fn scrape(fill: impl FnOnce()) -> String {
    let metrics = install_metrics();
    fill();
    metrics.render(true)
}

#[test]
fn names_end_as_their_kind_demands() {
    for metric in all_metrics() {
        assert!(metric.name.starts_with("sluiced_"), "{}", metric.name);
        let total = metric.name.ends_with("_total");
        match metric.kind {
            MetricKind::Counter => assert!(total, "{}", metric.name),
            MetricKind::Gauge => assert!(!total, "{}", metric.name),
            MetricKind::Histogram(_) => {
                assert!(metric.name.ends_with("_seconds"), "{}", metric.name)
            }
        }
        for unit in ["ms", "micros", "us", "millis", "minutes", "percent"] {
            assert!(
                metric.name.split('_').all(|word| word != unit),
                "{} uses no base unit",
                metric.name
            );
        }
    }
}

#[test]
fn every_metric_has_help_and_is_there_once() {
    let names: BTreeSet<_> = all_metrics().iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all_metrics().len());
    for metric in all_metrics() {
        assert!(metric.help.len() > 10 || metric.name == "sluiced_build_info");
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
}

#[test]
fn the_documentation_has_them_all_with_their_labels() {
    let page = include_str!("../../docs/monitoring.md");
    for metric in all_metrics() {
        let row = format!("| `{}` |", metric.name);
        let row = page.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("no row for {}", metric.name));
        for label in metric.labels {
            assert!(row.contains(label), "{} misses {label}", metric.name);
        }
    }
    for value in [
        OUTCOMES,
        ANSWER_CLASSES,
        PARTS,
        VERDICTS,
        REASONS,
        RESULTS,
        DECISIONS,
    ]
    .concat()
    {
        assert!(page.contains(value), "no {value}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `sluiced_"));
    assert_eq!(
        rows.count(),
        all_metrics().len(),
        "a row of a metric that is no more"
    );
}

#[test]
fn labels_are_bounded() {
    let known = [
        "route", "limit", "pacer", "outcome", "verdict", "reason", "result", "decision", "target",
        "version", "answer", "part", "state", "what", "status",
    ];
    for metric in all_metrics() {
        for label in metric.labels {
            assert!(known.contains(label), "{} has {label}", metric.name);
        }
    }
}

#[test]
fn bounds_rise() {
    for metric in all_metrics() {
        if let MetricKind::Histogram(bounds) = metric.kind {
            assert!(bounds.len() >= 10, "{}", metric.name);
            assert!(
                bounds.windows(2).all(|pair| pair[0] < pair[1]),
                "{}",
                metric.name
            );
        }
    }
}

#[test]
fn every_series_is_there_before_its_first_event() {
    let text = scrape(|| {
        RouteMeters::new("sms").quota_remaining("provider", 3, None);
        drop(CallersMeters::new("callers.web"));
        drop(LimitMeters::new("provider"));
        drop(PolicyMeters::new("provider"));
        drop(AdmissionMeters::new("provider"));
        drop(KeyedMeters::new("sender"));
        rate_of_keys("sender", 3.0);
        drop(LinkMeters::new("redis"));
        Health::default()
            .waits()
            .begin_series("provider", &WaitsFor::ALL);
    });
    for metric in all_metrics() {
        assert!(
            text.contains(&format!("# HELP {} {}", metric.name, metric.help)),
            "no help for {}",
            metric.name
        );
        let start = match metric.kind {
            MetricKind::Histogram(_) => format!("{}_count", metric.name),
            _ => metric.name.to_owned(),
        };
        let series = text.lines().find(|line| line.starts_with(&start));
        assert!(series.is_some(), "no series of {}", metric.name);
    }
    for metric in all_metrics() {
        for value in metric.values {
            let label = metric.labels.last().unwrap();
            let wanted = format!("{label}=\"{value}\"}} 0");
            assert!(text.contains(&wanted), "no {wanted}");
        }
    }
}

#[test]
fn events_are_counted_under_their_labels() {
    let text = scrape(|| {
        let route = RouteMeters::new("counted");
        route.call("accepted", "2xx");
        route.call("accepted", "2xx");
        route.settled("done", 1);
        route.dead("expired");
        route.set_in_queue("dead", 7);
        route.held.increment(3.0);
        route.held.decrement(1.0);
        let limit = LimitMeters::new("counted");
        limit.asks("denied");
        limit.asks("something new");
        limit.rate.set(400.0);
    });
    for line in [
        r#"sluiced_calls_total{route="counted",outcome="accepted"} 2"#,
        r#"sluiced_answers_total{route="counted",answer="2xx"} 2"#,
        r#"sluiced_queue_messages{route="counted",part="dead"} 7"#,
        r#"sluiced_settled_total{route="counted",verdict="done"} 1"#,
        r#"sluiced_dead_total{route="counted",reason="expired"} 1"#,
        r#"sluiced_held{route="counted"} 2"#,
        r#"sluiced_lease_calls_total{limit="counted",result="denied"} 1"#,
        r#"sluiced_lease_calls_total{limit="counted",result="something new"} 1"#,
        r#"sluiced_limit_units_per_second{limit="counted"} 400"#,
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[test]
fn histograms_have_buckets_that_add_up_over_replicas() {
    let text = scrape(|| {
        let limit = LimitMeters::new("late");
        limit.slot_lateness_seconds.record(0.000_04);
        limit.slot_lateness_seconds.record(0.004_5);
        limit.slot_lateness_seconds.record(9.0);
    });
    let bucket =
        |le: &str| format!(r#"sluiced_slot_lateness_seconds_bucket{{limit="late",le="{le}"}}"#);
    for line in [
        format!("{} 1", bucket("0.00005")),
        format!("{} 1", bucket("0.004")),
        format!("{} 2", bucket("0.005")),
        format!("{} 2", bucket("0.05")),
        format!("{} 3", bucket("+Inf")),
    ] {
        assert!(text.contains(&line), "no {line} in\n{text}");
    }
    assert!(!text.contains("quantile"), "a summary in\n{text}");
}
