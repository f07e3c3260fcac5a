//! A plan as JSON, for programs. Times are in microseconds.

use serde_json::{Value, json};

use super::figures::Figures;
use super::findings::Finding;
use super::limits::{KeyFigures, LimitFigures};
use super::words::Head;

pub(super) fn json(head: &Head, figures: &Figures, findings: &[Finding], ends: bool) -> Value {
    let findings = findings
        .iter()
        .map(|one| json!({ "weight": one.weight.word(), "text": one.text }));
    let waits = figures.waits.map(
        |[half, most, longest]| json!({ "p50_us": half, "p99_us": most, "longest_us": longest }),
    );
    let series = &figures.series;
    json!({
        "route": head.route,
        "start": head.start,
        "replicas": head.replicas,
        "prefetch": head.prefetch,
        "seed": head.seed,
        "ends": ends,
        "messages": {
            "arrived": figures.arrived,
            "delivered": figures.delivered,
            "waiting": figures.waiting,
            "overdue": figures.overdue,
            "never_sent": figures.invalid,
            "too_old": figures.too_old,
            "denied": figures.denied,
        },
        "backlog": {
            "most": figures.most.0,
            "most_at_us": figures.most.1,
            "gone_at_us": figures.gone_at.filter(|_| ends),
            "oldest_us": figures.oldest,
        },
        "wait": waits,
        "denials_per_message": figures.denials,
        "redis_calls_per_message": figures.asks,
        "limits": figures.limits.iter().map(of_limit).collect::<Vec<_>>(),
        "longest_waits": figures.longest.iter().map(of_key).collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
        "series": {
            "interval_us": series.interval,
            "arrived": series.arrived,
            "called": series.called,
            "waiting": series.waiting,
        },
    })
}

fn of_limit(limit: &LimitFigures) -> Value {
    let busiest = limit.busiest.as_ref().filter(|_| limit.has_key);
    json!({
        "limit": limit.name,
        "kind": limit.kind,
        "per_second": limit.per_second,
        "units": limit.units,
        "wanted": limit.wanted,
        "share": limit.share,
        "denials": limit.denials,
        "keys": limit.has_key.then_some(limit.keys),
        "keys_held_up": limit.has_key.then_some(limit.held),
        "keys_beyond": limit.has_key.then_some(limit.beyond),
        "busiest": busiest.map(|(key, units)| json!({ "key": key, "units": units })),
    })
}

fn of_key(key: &KeyFigures) -> Value {
    json!({
        "limit": key.limit,
        "key": key.key,
        "messages": key.messages,
        "waiting": key.waiting,
        "longest_us": key.wait,
    })
}
