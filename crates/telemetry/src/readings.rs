//! The values of all metrics, for this process itself.
//!
//! Problem: the recorder of Prometheus makes one text of everything and offers nothing else, but a replica shows its
//! own figures to the others and on its page. So what a meter is told goes to that recorder, and to a value beside it
//! that can be read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};

use sluiced_ports::lock;

/// A series of a metric, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesReading {
    key: Key,
    pub value: ReadValue,
}

/// The value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReadValue {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Samples { count: u64, sum: f64 },
}

impl SeriesReading {
    /// A series with these labels.
    #[must_use]
    pub fn new(name: &'static str, labels: &[(&'static str, &str)], value: ReadValue) -> Self {
        let owned =
            |(name, value): &(&'static str, &str)| metrics::Label::new(*name, (*value).to_owned());
        Self {
            key: Key::from_parts(name, labels.iter().map(owned).collect::<Vec<_>>()),
            value,
        }
    }

    /// The name of the metric.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.key.labels();
        let label = labels.find(|label| label.key() == name)?;
        Some(label.value())
    }

    /// The number of a counter or a gauge; of a histogram, how many samples it has.
    #[must_use]
    pub const fn number(&self) -> f64 {
        match self.value {
            ReadValue::Number(number) => number,
            ReadValue::Samples { count, .. } => count as f64,
        }
    }
}

/// The values of all series. Copies are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(Arc<Mutex<BTreeMap<Key, SeriesValue>>>);

#[derive(Clone, Debug)]
enum SeriesValue {
    Counter(Arc<AtomicU64>),
    /// The bits of a number.
    Gauge(Arc<AtomicU64>),
    Samples(Arc<Samples>),
}

#[derive(Debug, Default)]
struct Samples {
    count: AtomicU64,
    /// The bits of a number.
    sum: AtomicU64,
}

impl Values {
    /// All series that were made so far.
    pub(super) fn read(&self) -> Vec<SeriesReading> {
        let values = lock(&self.0);
        let read = values.iter().map(|(key, kept)| SeriesReading {
            key: key.clone(),
            value: kept.read(),
        });
        read.collect()
    }

    /// The value of a series, which is made if there is none.
    fn of(&self, key: &Key, make: impl FnOnce() -> SeriesValue) -> SeriesValue {
        let mut values = lock(&self.0);
        values.entry(key.clone()).or_insert_with(make).clone()
    }
}

impl SeriesValue {
    fn read(&self) -> ReadValue {
        match self {
            Self::Counter(total) => ReadValue::Number(total.load(Ordering::Relaxed) as f64),
            Self::Gauge(bits) => ReadValue::Number(f64::from_bits(bits.load(Ordering::Relaxed))),
            Self::Samples(samples) => ReadValue::Samples {
                count: samples.count.load(Ordering::Relaxed),
                sum: f64::from_bits(samples.sum.load(Ordering::Relaxed)),
            },
        }
    }
}

/// The recorder of Prometheus, with values that can be read.
pub(super) struct ReadableRecorder {
    prometheus: PrometheusRecorder,
    values: Values,
}

impl ReadableRecorder {
    pub(super) const fn new(prometheus: PrometheusRecorder, values: Values) -> Self {
        Self { prometheus, values }
    }

    /// Where the text for a scrape comes from.
    pub(super) fn handle(&self) -> PrometheusHandle {
        self.prometheus.handle()
    }
}

impl Recorder for ReadableRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.prometheus.describe_counter(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.prometheus.describe_gauge(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.prometheus.describe_histogram(name, unit, help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let shown = self.prometheus.register_counter(key, metadata);
        match self.values.of(key, || SeriesValue::Counter(Arc::default())) {
            SeriesValue::Counter(total) => Counter::from_arc(Arc::new(Both { shown, own: total })),
            // Another kind has the name: it is only shown.
            SeriesValue::Gauge(_) | SeriesValue::Samples(_) => shown,
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let shown = self.prometheus.register_gauge(key, metadata);
        match self.values.of(key, || SeriesValue::Gauge(Arc::default())) {
            SeriesValue::Gauge(bits) => Gauge::from_arc(Arc::new(Both { shown, own: bits })),
            SeriesValue::Counter(_) | SeriesValue::Samples(_) => shown,
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let shown = self.prometheus.register_histogram(key, metadata);
        match self.values.of(key, || SeriesValue::Samples(Arc::default())) {
            SeriesValue::Samples(samples) => Histogram::from_arc(Arc::new(Both {
                shown,
                own: samples,
            })),
            SeriesValue::Counter(_) | SeriesValue::Gauge(_) => shown,
        }
    }
}

/// A handle of the recorder, and the value beside it.
struct Both<H, V> {
    shown: H,
    own: Arc<V>,
}

impl CounterFn for Both<Counter, AtomicU64> {
    fn increment(&self, by: u64) {
        self.shown.increment(by);
        self.own.fetch_add(by, Ordering::Relaxed);
    }

    fn absolute(&self, to: u64) {
        self.shown.absolute(to);
        self.own.fetch_max(to, Ordering::Relaxed);
    }
}

impl GaugeFn for Both<Gauge, AtomicU64> {
    fn increment(&self, by: f64) {
        self.shown.increment(by);
        add(&self.own, by);
    }

    fn decrement(&self, by: f64) {
        self.shown.decrement(by);
        add(&self.own, -by);
    }

    fn set(&self, to: f64) {
        self.shown.set(to);
        self.own.store(to.to_bits(), Ordering::Relaxed);
    }
}

impl HistogramFn for Both<Histogram, Samples> {
    fn record(&self, value: f64) {
        self.shown.record(value);
        self.own.count.fetch_add(1, Ordering::Relaxed);
        add(&self.own.sum, value);
    }
}

/// Adds to a number that is kept as its bits.
fn add(bits: &AtomicU64, by: f64) {
    let sum = |bits| Some((f64::from_bits(bits) + by).to_bits());
    // The closure always gives a sum.
    bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
        .ok();
}

#[cfg(test)]
#[allow(
    unreachable_pub,
    reason = "what the macro makes is public, as crates need it"
)]
mod tests {
    use super::*;
    use crate::recorder;

    crate::metrics! {
        /// Metrics, one of each kind.
        TestMeters(route) {
            received: Counter = RECEIVED, "sluiced_received_total", "Deliveries.";
            held: Gauge = HELD, "sluiced_held", "Messages.";
            delay_seconds: Histogram(&[1.0]) = DELAY, "sluiced_delay_seconds", "From here to there.";
        }

        + others {}
    }

    #[test]
    fn what_is_shown_can_be_read() {
        let values = Values::default();
        let recorder = ReadableRecorder::new(recorder::build(METRICS), values.clone());
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let route = TestMeters::new("sms");
            // Twice the same series.
            let again = TestMeters::new("sms");
            route.received.increment(2);
            again.received.increment(1);
            route.held.increment(3.0);
            route.held.decrement(1.0);
            route.delay_seconds.record(0.5);
            route.delay_seconds.record(1.5);
        });
        let read = values.read();
        let of = |name: &str| {
            let found = read
                .iter()
                .find(|reading| reading.name() == name && reading.label("route") == Some("sms"));
            found.expect("it was made").value
        };
        assert_eq!(of("sluiced_received_total"), ReadValue::Number(3.0));
        assert_eq!(of("sluiced_held"), ReadValue::Number(2.0));
        let samples = ReadValue::Samples { count: 2, sum: 2.0 };
        assert_eq!(of("sluiced_delay_seconds"), samples);
        let text = handle.render();
        assert!(
            text.contains("sluiced_received_total{route=\"sms\"} 3"),
            "{text}"
        );
    }
}
