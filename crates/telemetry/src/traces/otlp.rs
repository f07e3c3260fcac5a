//! Spans by the SDK of OpenTelemetry, exported by OTLP over HTTP.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{TracesError, collector};
use sluiced_core::judge::Outcome;
use sluiced_ports::downstream::{Judgement, NotSent, Status as JudgedStatus};

/// How long the last spans may take when the program ends.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long a collector may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer of a collector.
const MAX_ANSWER: usize = 64 * 1024;

/// The spans of this replica.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The spans of a route.
#[derive(Clone, Debug)]
pub struct RouteTraces {
    tracer: SdkTracer,
    attributes: [KeyValue; 3],
}

/// A call in flight.
#[derive(Debug)]
pub struct CallSpan(Span);

impl Traces {
    /// `None`: no collector is named. Its requests run on `runtime`.
    ///
    /// # Errors
    /// When a collector is named that cannot be used.
    pub fn from_environment(replica: &str, runtime: Handle) -> Result<Option<Self>, TracesError> {
        if collector().is_none() {
            return Ok(None);
        }
        let wrong = |error: &dyn fmt::Display| TracesError::Collector(error.to_string());
        let tls = HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|error| wrong(&error))?;
        let connector = tls.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(ExporterClient { client, runtime })
            .build()
            .map_err(|error| wrong(&error))?;
        let mut builder = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            builder = builder.with_service_name("sluiced");
        }
        let resource = builder
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", replica.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("sluiced");
        Ok(Some(Self { provider, tracer }))
    }

    /// The spans of a route that consumes this queue.
    #[must_use]
    pub fn of_route(&self, route: &str, queue: &str) -> RouteTraces {
        RouteTraces {
            tracer: self.tracer.clone(),
            attributes: [
                KeyValue::new("sluiced.route", route.to_owned()),
                KeyValue::new("messaging.system", "rabbitmq"),
                KeyValue::new("messaging.destination.name", queue.to_owned()),
            ],
        }
    }

    /// Sends the last spans. Blocks for as long as that takes, two seconds at most.
    pub fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(GOODBYE) {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

impl RouteTraces {
    /// Begins the span of a call over HTTP. The request names it as its parent from now on.
    #[must_use]
    pub fn begin<B>(&self, request: &mut Request<B>) -> CallSpan {
        let parent = parent(request.headers());
        let method = request.method().as_str().to_owned();
        let host = request.uri().host().unwrap_or_default();
        let about = KeyValue::new("http.request.method", method.clone());
        let span = self.span(method, host, about, &parent);
        let context = parent.with_remote_span_context(span.span_context().clone());
        TraceContextPropagator::new()
            .inject_context(&context, &mut HeaderInjector(request.headers_mut()));
        CallSpan(span)
    }

    /// Begins the span of a call over SMPP to a message centre, which gets no trace. `trace`: the headers of the
    /// message's trace.
    #[must_use]
    pub fn begin_submit(&self, trace: &HeaderMap, host: &str) -> CallSpan {
        let about = KeyValue::new("network.protocol.name", "smpp");
        CallSpan(self.span("submit_sm".to_owned(), host, about, &parent(trace)))
    }

    fn span(&self, name: String, host: &str, about: KeyValue, parent: &Context) -> Span {
        let mut attributes = self.attributes.to_vec();
        attributes.push(KeyValue::new("server.address", host.to_owned()));
        attributes.push(about);
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Client)
            .with_attributes(attributes);
        self.tracer.build_with_context(builder, parent)
    }
}

/// The trace that the headers name.
fn parent(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers))
}

impl CallSpan {
    /// Ends the span with the result of the call.
    pub fn end(mut self, sent: &Result<Judgement, NotSent>) {
        let span = &mut self.0;
        match sent {
            Ok(judgement) => {
                span.set_attribute(KeyValue::new("sluiced.outcome", judgement.outcome.label()));
                if let Ok(status) = judgement.reply {
                    let name = match status {
                        JudgedStatus::Http(_) => "http.response.status_code",
                        JudgedStatus::Smpp(_) => "smpp.command_status",
                    };
                    span.set_attribute(KeyValue::new(name, i64::from(status.number())));
                }
                if judgement.outcome != Outcome::Accepted {
                    span.set_attribute(KeyValue::new("error.type", judgement.reply_label()));
                    span.set_status(Status::error(judgement.detail.clone()));
                }
            }
            Err(why) => {
                // Nothing was sent; the message goes with another slot.
                span.set_attribute(KeyValue::new("error.type", why.label()));
                span.set_status(Status::error(why.to_string()));
            }
        }
        span.end();
    }
}

/// The client of the exporter, which calls it from a thread of its own.
struct ExporterClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for ExporterClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let call = self.client.request(request.map(Full::new));
        let answer = async move {
            let (head, body) = call.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        // Its timer needs this runtime, too, because the calling thread has another one.
        let bounded = async { timeout(PATIENCE, answer).await };
        self.runtime.spawn(bounded).await??
    }
}

impl fmt::Debug for ExporterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExporterClient").finish_non_exhaustive()
    }
}
