use super::*;
use crate::names::{ALL, MetricKind};
use crate::recorder::{self, process};
use crate::waits::{Waits, WaitsFor};
use sluiced_ports::clock::Clock;

/// The text of a scrape after `fill` ran, with the test's own recorder.
fn scrape(fill: impl FnOnce()) -> String {
    let recorder = recorder::build();
    metrics::with_local_recorder(&recorder, || {
        recorder::describe();
        fill();
    });
    recorder.handle().render()
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
        Waits::new(Clock::start()).of("provider", &WaitsFor::ALL);
        process();
    });
    for metric in ALL {
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
    for metric in ALL {
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
        let route = RouteMeters::new("sms");
        route.call("accepted", "2xx");
        route.call("accepted", "2xx");
        route.settled("done", 1);
        route.dead("expired");
        route.stand("dead", 7);
        route.held.increment(3.0);
        route.held.decrement(1.0);
        let limit = LimitMeters::new("provider");
        limit.asks("denied");
        limit.asks("something new");
        limit.rate.set(400.0);
    });
    for line in [
        r#"sluiced_calls_total{route="sms",outcome="accepted"} 2"#,
        r#"sluiced_answers_total{route="sms",answer="2xx"} 2"#,
        r#"sluiced_queue_messages{route="sms",part="dead"} 7"#,
        r#"sluiced_settled_total{route="sms",verdict="done"} 1"#,
        r#"sluiced_dead_total{route="sms",reason="expired"} 1"#,
        r#"sluiced_held{route="sms"} 2"#,
        r#"sluiced_lease_calls_total{limit="provider",result="denied"} 1"#,
        r#"sluiced_lease_calls_total{limit="provider",result="something new"} 1"#,
        r#"sluiced_limit_units_per_second{limit="provider"} 400"#,
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[test]
fn histograms_have_buckets_that_add_up_over_replicas() {
    let text = scrape(|| {
        let limit = LimitMeters::new("provider");
        limit.slot_lateness_seconds.record(0.000_04);
        limit.slot_lateness_seconds.record(0.004_5);
        limit.slot_lateness_seconds.record(9.0);
    });
    let bucket =
        |le: &str| format!(r#"sluiced_slot_lateness_seconds_bucket{{limit="provider",le="{le}"}}"#);
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

#[test]
fn without_a_recorder_counting_does_nothing() {
    let route = RouteMeters::new("sms");
    route.call("accepted", "2xx");
    route.age_seconds.record(1.0);
    route.queue_delay_seconds.record(1.0);
}
