use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use sluiced_core::judge::Outcome;
use sluiced_ports::queue::Verdict;

#[test]
fn names_end_as_their_kind_demands() {
    for metric in ALL {
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
    let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len());
    for metric in ALL {
        assert!(metric.help.len() > 10 || metric.name == BUILD_INFO.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
}

#[test]
fn the_documentation_has_them_all_with_their_labels() {
    let page = include_str!("../../../../docs/monitoring.md");
    for metric in ALL {
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
    assert_eq!(rows.count(), ALL.len(), "a row of a metric that is no more");
}

#[test]
fn labels_are_bounded() {
    let known = [
        "route", "limit", "pacer", "outcome", "verdict", "reason", "result", "decision", "target",
        "version", "answer", "part", "state", "what", "status",
    ];
    for metric in ALL {
        for label in metric.labels {
            assert!(known.contains(label), "{} has {label}", metric.name);
        }
    }
}

#[test]
fn bounds_rise() {
    for metric in ALL {
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

/// A series that starts at zero must have the same text that is counted later.
#[test]
fn label_values_are_those_of_the_core() {
    let outcomes = [
        Outcome::Accepted,
        Outcome::Throttled {
            wait: Duration::ZERO,
        },
        Outcome::Held {
            wait: Duration::ZERO,
        },
        Outcome::TRANSIENT,
        Outcome::Permanent,
    ];
    assert_eq!(outcomes.map(Outcome::label).as_slice(), OUTCOMES);
    let verdicts = [
        Verdict::Done,
        Verdict::Dropped,
        Verdict::Later {
            delay: Duration::ZERO,
            headers: Vec::new(),
        },
        Verdict::Parked {
            space: sluiced_core::parking::Space::of(0),
            headers: Vec::new(),
        },
        Verdict::GiveBack,
        Verdict::Dead {
            reason: DeadReason::Denied,
            headers: Vec::new(),
        },
    ];
    let labels: Vec<_> = verdicts.iter().map(Verdict::label).collect();
    assert_eq!(labels, VERDICTS);
}
