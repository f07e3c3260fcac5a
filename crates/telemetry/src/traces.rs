//! Traces: a span for each call, sent to a collector of OpenTelemetry.
//!
//! A message may carry its trace (`traceparent`, W3C Trace Context), and the downstream gets it over HTTP in
//! any case. With the feature `traces`, and a collector named by the variables that every OpenTelemetry
//! program reads, a call is a span of its own in between: its parent is the publisher's span, and the
//! downstream's span becomes its child. The gap before it is the time in queues and behind limits. Another
//! attempt is another span of the same parent.
//!
//! The library does sampling, batches and export, configured as it documents (`OTEL_EXPORTER_OTLP_ENDPOINT`,
//! `OTEL_TRACES_SAMPLER` …). If a collector is away, only spans are lost: they wait in a bounded queue, and
//! calls do not wait for them. A span has no key, path or content of a message.

#[cfg(feature = "traces")]
mod otlp;

#[cfg(feature = "traces")]
pub use otlp::{CallSpan, RouteTraces, Traces};
#[cfg(not(feature = "traces"))]
pub use without::{CallSpan, RouteTraces, Traces};

use http::{HeaderMap, HeaderName, HeaderValue};

use sluiced_ports::message::Message;

/// The headers of a trace (W3C Trace Context).
pub const HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The headers of the trace that a message belongs to. They are passed on, so that a trace continues after the queue.
#[must_use]
pub fn headers_of(message: &Message) -> HeaderMap {
    let found = HEADERS.into_iter().filter_map(|name| {
        let text = message.headers.get(name.as_str())?.as_text()?;
        // A value that is no valid header is no trace either, and no reason to lose a message.
        let value = HeaderValue::from_bytes(text.as_bytes()).ok()?;
        Some((name, value))
    });
    found.collect()
}

/// The variables of the OpenTelemetry specification that name a collector. Without them there are no spans.
const COLLECTOR: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Why there will be no spans. Only another configuration helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TracesError {
    /// This program was built without them.
    #[error(
        "`{0}` is set, but this sluiced was built without traces: build it with `--features traces`, or unset the variable"
    )]
    NotBuilt(&'static str),
    /// The variables cannot be used as they are.
    #[error("the collector of OpenTelemetry: {0}")]
    Collector(String),
}

/// Why this build can send no span to the collector that is named.
#[must_use]
pub fn not_built() -> Option<TracesError> {
    let named = collector().filter(|_| !cfg!(feature = "traces"));
    named.map(TracesError::NotBuilt)
}

/// The variable that names a collector, if one does.
fn collector() -> Option<&'static str> {
    let named = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    COLLECTOR.into_iter().find(|name| named(name))
}

/// A build without traces: there is never a span.
#[cfg(not(feature = "traces"))]
mod without {
    use std::convert::Infallible;

    use http::{HeaderMap, Request};
    use tokio::runtime::Handle;

    use super::{TracesError, not_built};
    use sluiced_ports::downstream::{Judgement, NotSent};

    /// There are none.
    #[derive(Clone, Debug)]
    pub struct Traces(Infallible);

    /// There are none.
    #[derive(Clone, Debug)]
    pub struct RouteTraces(Infallible);

    /// There is none.
    #[derive(Debug)]
    pub struct CallSpan(Infallible);

    impl Traces {
        /// Never any.
        ///
        /// # Errors
        /// When a collector is named.
        pub fn from_environment(_: &str, _: Handle) -> Result<Option<Self>, TracesError> {
            not_built().map_or(Ok(None), Err)
        }

        #[must_use]
        pub fn of_route(&self, _: &str, _: &str) -> RouteTraces {
            RouteTraces(self.0)
        }

        pub fn end(&self) {
            match self.0 {}
        }
    }

    impl RouteTraces {
        #[must_use]
        pub fn begin<B>(&self, _: &mut Request<B>) -> CallSpan {
            CallSpan(self.0)
        }

        #[must_use]
        pub fn begin_submit(&self, _: &HeaderMap, _: &str) -> CallSpan {
            CallSpan(self.0)
        }
    }

    impl CallSpan {
        pub fn end(self, _: &Result<Judgement, NotSent>) {
            match self.0 {}
        }
    }
}
