//! From a route of the configuration to the plain values by which the pipeline works.

use std::sync::Arc;

use super::WireError;
use sluiced_core::after_call::{AnswerScope, CallRules};
use sluiced_pipeline::meters::RouteMeters;
use sluiced_pipeline::{
    AnswerRules, Journal, Priority, ResultRules, Results, RouteRules, Tenants, WhenUnsendable,
};
use sluiced_settings::fixed_or_template::{PriorityText, ZoneText};
use sluiced_settings::types as settings;
use sluiced_settings::types::{JournalLines, Paced, ResultOn, Route, Settings};

/// The rules of a route that is one of `settings`.
pub(super) fn rules(
    settings: &Settings,
    name: &str,
    route: &Route,
) -> Result<RouteRules, WireError> {
    let paced = settings.paced_limit(route).map(|(_, paced)| paced);
    let opening_hours = route
        .opening_hours()
        .map_err(|e| WireError::new(format!("routes.{name}.open"), e))?;
    let (own_hours, hours) = match route.timezone {
        Some(ZoneText::Template(_)) => (opening_hours, None),
        _ => (None, opening_hours),
    };
    Ok(RouteRules {
        queue: route.queue.clone(),
        standby_for: route.standby_for.clone(),
        priority: match route.priority {
            PriorityText::Fixed(fixed) => Priority::Fixed(fixed.0),
            PriorityText::Template(_) => Priority::OfMessage,
        },
        urgent_from: paced.and_then(Paced::urgent_from),
        prefetch: settings.prefetch(route),
        ack_margin: settings.rabbitmq.ack_timeout.get() / 2,
        hours,
        own_hours,
        max_unfit_in_a_row: settings.dying(route),
        calls: call_rules(route),
        answers: AnswerRules {
            wait: route.throttle_wait(),
            max_wait: route.max_throttle_wait(),
            latency: route.call_latency(),
            is_kept: route.keep_answer(),
        },
        on_denied: route.on_denied.into(),
        denied_headers: route.denied_headers,
        max_age: route.max_age.map(|age| age.get()),
        on_expired: unsendable(route.on_expired),
        on_invalid: unsendable(route.on_invalid),
        max_body: route.max_body.0,
        max_delay: route.max_delay.map(|most| most.get()),
        tenants: route.fair_by.as_ref().map(|_| Tenants {
            weights: route.weights.clone(),
            parked: route.parked,
        }),
    })
}

fn call_rules(route: &Route) -> CallRules {
    CallRules {
        max_attempts: route.max_attempts,
        retry: route.retry.backoff(),
        max_throttled: route.max_throttled.get(),
        max_hold: route.max_hold.get(),
        shows: match route.hosts_differ() {
            true => AnswerScope::Host,
            false => AnswerScope::Account,
        },
    }
}

const fn unsendable(written: settings::WhenUnsendable) -> WhenUnsendable {
    match written {
        settings::WhenUnsendable::Drop => WhenUnsendable::Drop,
        settings::WhenUnsendable::DeadLetter => WhenUnsendable::DeadLetter,
    }
}

/// The journal of a route, if it has one.
pub(super) fn journal(
    settings: &Settings,
    name: &str,
    route: &Route,
) -> Result<Option<Journal>, WireError> {
    let id = route.journal_id.as_ref().map(|text| text.as_str());
    let before = match route.journal {
        JournalLines::None => return Ok(None),
        JournalLines::After => None,
        JournalLines::Before => Some(super::replica(settings)),
    };
    let journal = Journal::new(id, before).map(Some);
    journal.map_err(|e| WireError::new(format!("routes.{name}.journal_id"), e))
}

/// What a route publishes about the ends of its messages, if it does.
pub(super) fn results(
    name: &str,
    route: &Route,
    meters: &Arc<RouteMeters>,
) -> Result<Option<Arc<Results>>, WireError> {
    let Some(settings) = &route.results else {
        return Ok(None);
    };
    let (result_settings, queue) = (settings.clone(), route.queue.clone());
    let rules = ResultRules {
        routing_key: settings.routing_key.as_str(),
        body: settings.body.as_ref().map(|body| body.as_str()),
        of_accepted: settings.on.contains(&ResultOn::Accepted),
        of_dead: settings.on.contains(&ResultOn::Dead),
        of_receipts: settings.on.contains(&ResultOn::Receipt),
        of_inbound: settings.on.contains(&ResultOn::Inbound),
        max_body: route.max_body.0,
        headers: settings.headers.clone(),
        comes_back: Box::new(move |key| result_settings.comes_back(key, &queue)),
    };
    let results = Results::new(rules, meters).map(|made| Some(Arc::new(made)));
    results.map_err(|e| WireError::new(format!("routes.{name}.results"), e))
}
