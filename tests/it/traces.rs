//! Spans of calls, as a collector of OpenTelemetry gets them (feature `traces`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use sluiced_provider::{Behaviour, Provider};
use tokio_util::task::AbortOnDropHandle;

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::wait::eventually;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const QUIET_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PUBLISHER: &str = "00f067aa0ba902b7";

/// The requests to a server.
type Requests = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// A server on one path, which answers each request by how many came before.
async fn server(
    path: &str,
    answer: fn(usize) -> StatusCode,
) -> (SocketAddr, Requests, AbortOnDropHandle<()>) {
    let requests = Requests::default();
    let known = Arc::clone(&requests);
    let handler = move |headers: HeaderMap, body: Bytes| {
        let mut known = known.lock().unwrap();
        known.push((headers, body));
        let status = answer(known.len() - 1);
        async move { status }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route(path, post(handler));
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, requests, AbortOnDropHandle::new(serving))
}

/// A message of a trace.
fn traced(n: u64, parent: Option<String>) -> (Vec<u8>, BasicProperties) {
    let mut headers = FieldTable::default();
    if let Some(parent) = parent {
        headers.insert("traceparent".into(), AMQPValue::LongString(parent.into()));
        headers.insert("tracestate".into(), AMQPValue::LongString("a=b".into()));
    }
    (body(n), BasicProperties::default().with_headers(headers))
}

fn exporting_to(config: &Config, collector: SocketAddr) -> Daemon {
    Daemon::start_with(&config.text(), |command| {
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"))
            .env("OTEL_BSP_SCHEDULE_DELAY", "100");
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The texts and numbers of attributes.
fn attributes(of: &[KeyValue]) -> Vec<(&str, String)> {
    let text = |value: &KeyValue| match value.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    };
    of.iter()
        .map(|value| (value.key.as_str(), text(value).unwrap_or_default()))
        .collect()
}

/// The spans that came, after a check of the attributes that name their source.
fn spans(requests: &Requests) -> Vec<Span> {
    let mut spans = Vec::new();
    for (_, body) in requests.lock().unwrap().iter() {
        let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
        for resource in request.resource_spans {
            let about = resource.resource.unwrap();
            let about = attributes(&about.attributes);
            assert!(
                about.contains(&("service.name", "sluiced".to_owned())),
                "{about:?}"
            );
            assert!(
                about.iter().any(|(name, _)| *name == "service.instance.id"),
                "{about:?}"
            );
            spans.extend(
                resource
                    .scope_spans
                    .into_iter()
                    .flat_map(|scope| scope.spans),
            );
        }
    }
    spans
}

fn values(span: &Span) -> Vec<(&str, String)> {
    attributes(&span.attributes)
}

#[track_caller]
fn assert_has(span: &Span, (name, value): (&str, &str)) {
    let values = values(span);
    assert!(values.contains(&(name, value.to_owned())), "{values:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_a_span_between_the_publisher_and_the_downstream() {
    let name = "traces";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    // The first call fails for a reason of its own, the next one is another attempt.
    let first_fails = |before| match before {
        0 => StatusCode::BAD_GATEWAY,
        _ => StatusCode::ACCEPTED,
    };
    let (downstream, calls, _serving) = server("/send", first_fails).await;
    let (collector, exports, _collecting) = server("/v1/traces", |_| StatusCode::OK).await;
    let mut route = Route::new(name, downstream);
    route.tables = format!("[routes.{name}.retry]\nbase = \"100ms\"\n");
    let daemon = exporting_to(&Config::shared(name, "100/1s", vec![route]), collector);
    let sampled = format!("00-{TRACE}-{PUBLISHER}-01");
    broker.publish(name, [traced(1, Some(sampled))]).await;
    eventually(LONG, "both attempts", || calls.lock().unwrap().len() == 2).await;
    let quiet = format!("00-{QUIET_TRACE}-{PUBLISHER}-00");
    broker
        .publish(name, [traced(2, Some(quiet)), traced(3, None)])
        .await;
    eventually(LONG, "three spans", || spans(&exports).len() == 3).await;
    eventually(LONG, "four calls", || calls.lock().unwrap().len() == 4).await;
    daemon.stop(&[NEW_SCHEDULE]).await;

    let spans = spans(&exports);
    assert_eq!(spans.len(), 3, "the quiet trace is not sampled: {spans:?}");
    let seen: Vec<_> = calls
        .lock()
        .unwrap()
        .iter()
        .map(|(headers, _)| headers.clone())
        .collect();
    let of_publisher = |span: &&Span| hex(&span.trace_id) == TRACE;
    let attempts: Vec<&Span> = spans.iter().filter(of_publisher).collect();
    assert_eq!(attempts.len(), 2);
    for (attempt, headers) in attempts.iter().zip(&seen) {
        assert_is_between_publisher_and_downstream(attempt, headers, name);
    }
    assert_has_an_error_or_an_outcome(attempts[0], attempts[1]);
    let parents: Vec<&str> = seen.iter().map(parent).collect();
    assert_the_quiet_trace_is_passed_on(&parents);
    let begun = spans.iter().find(|span| !of_publisher(span)).unwrap();
    assert!(
        begun.parent_span_id.is_empty(),
        "a message without a trace begins one"
    );
    let its_own = format!("00-{}-{}-01", hex(&begun.trace_id), hex(&begun.span_id));
    assert!(parents.contains(&its_own.as_str()));
}

fn parent(headers: &HeaderMap) -> &str {
    headers["traceparent"].to_str().unwrap()
}

fn assert_is_between_publisher_and_downstream(call: &Span, headers: &HeaderMap, route: &str) {
    assert_eq!(hex(&call.parent_span_id), PUBLISHER);
    assert_eq!((call.name.as_str(), call.kind), ("POST", 3));
    // The downstream's own span becomes a child of the call's.
    assert_eq!(
        parent(headers),
        format!("00-{TRACE}-{}-01", hex(&call.span_id))
    );
    assert_eq!(headers["tracestate"], "a=b");
    assert!(call.end_time_unix_nano >= call.start_time_unix_nano);
    assert_has(call, ("sluiced.route", route));
    assert_has(call, ("messaging.destination.name", route));
    let values = values(call);
    assert!(
        values.iter().all(|(_, value)| !value.contains("/send")),
        "{values:?}"
    );
}

fn assert_has_an_error_or_an_outcome(failed: &Span, accepted: &Span) {
    assert_has(failed, ("http.response.status_code", "502"));
    assert_has(failed, ("error.type", "5xx"));
    assert_has(accepted, ("sluiced.outcome", "accepted"));
}

fn assert_the_quiet_trace_is_passed_on(parents: &[&str]) {
    let quiet = format!("00-{QUIET_TRACE}-");
    let mut parents = parents.iter();
    assert!(parents.any(|parent| parent.starts_with(&quiet) && parent.ends_with("-00")));
}

/// A message centre gets no trace; the call is still a span of the trace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_over_smpp_is_a_span_of_the_publishers_trace() {
    let name = "traces-smpp";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let (collector, exports, _collecting) = server("/v1/traces", |_| StatusCode::OK).await;
    let judging = Behaviour::judging("1000/1s".parse().unwrap());
    let centre = Provider::start("127.0.0.1:0".parse().unwrap(), judging).unwrap();
    // The first call fails (ESME_RSYSERR), the next one is another attempt.
    let fails = serde_json::from_str(r#"{"smpp": 8, "count": 1}"#).unwrap();
    centre.script(fails).unwrap();
    let mut route = Route::new(name, centre.address());
    route.smpp = true;
    route.tables = format!("[routes.{name}.retry]\nbase = \"100ms\"\n");
    let daemon = exporting_to(&Config::shared(name, "100/1s", vec![route]), collector);
    let sampled = format!("00-{TRACE}-{PUBLISHER}-01");
    let (_, properties) = traced(1, Some(sampled));
    let message = (br#"{"id": "one"}"#.to_vec(), properties);
    broker.publish(name, [message]).await;
    eventually(LONG, "two spans", || spans(&exports).len() == 2).await;
    daemon.stop(&[NEW_SCHEDULE]).await;
    let spans = spans(&exports);
    for (span, status) in spans.iter().zip(["8", "0"]) {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(hex(&span.parent_span_id), PUBLISHER);
        assert_eq!((span.name.as_str(), span.kind), ("submit_sm", 3));
        for known in [
            ("sluiced.route", name),
            ("network.protocol.name", "smpp"),
            ("server.address", "127.0.0.1"),
            ("smpp.command_status", status),
        ] {
            assert_has(span, known);
        }
    }
    assert_has(&spans[0], ("error.type", "away"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_holds_up_nothing() {
    let name = "traces-away";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let (downstream, calls, _serving) = server("/send", |_| StatusCode::ACCEPTED).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config::shared(name, "100/1s", vec![Route::new(name, downstream)]);
    let daemon = exporting_to(&config, silent.local_addr().unwrap());
    broker
        .publish(name, (1..=50).map(|n| traced(n, None)))
        .await;
    eventually(LONG, "all calls", || calls.lock().unwrap().len() == 50).await;
    daemon
        .stop(&[NEW_SCHEDULE, "the last spans were not exported", "Exporter"])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}
