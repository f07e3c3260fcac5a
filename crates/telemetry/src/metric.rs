//! What a metric is, and the handles that count.
//!
//! Problem: names that are written anywhere drift apart, a label with an id in it grows without bound, looking up a
//! metric by its labels costs a hash and an allocation for each message, and a series that first appears with its first
//! event breaks `rate()` and alerts. So a crate declares what it counts with [`metrics!`](crate::metrics) and nowhere
//! else: name, help, labels. It makes structs of handles, one for each route, limit or connection, at the start. That
//! registers every value of every label, at zero; later counting is one atomic addition. The values of labels come from
//! the configuration (`route`, `limit`) or from a fixed list (`outcome`, `verdict`). A key, a phone number or a message
//! id is never a label.
//!
//! Make handles after [`install`](crate::install); before it they count nothing.

pub use metrics::{Counter, Gauge, Histogram};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Only goes up; starts at zero with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts per bucket. The upper bounds are in the metric's unit; they add up over replicas,
    /// which the quantiles of a summary do not.
    Histogram(&'static [f64]),
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// As exported.
    pub name: &'static str,
    pub kind: MetricKind,
    /// One sentence for a person.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The values of the last label, where they are known. Each has a series from the start.
    pub values: &'static [&'static str],
}

impl Metric {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(shape: Shape, name: &'static str, help: &'static str) -> Self {
        let (kind, labels, values) = shape;
        Self {
            name,
            kind,
            help,
            labels,
            values,
        }
    }
}

/// Kind, labels, and values of the last label.
pub type Shape = (MetricKind, &'static [&'static str], &'static [&'static str]);

/// The labels of a metric with these values.
fn labels(metric: &Metric, values: &[&str]) -> Vec<metrics::Label> {
    debug_assert_eq!(
        metric.labels.len(),
        values.len(),
        "{} has another number of labels",
        metric.name
    );
    let labels = metric.labels.iter().zip(values);
    labels
        .map(|(name, value)| metrics::Label::new(*name, (*value).to_owned()))
        .collect()
}

#[allow(
    clippy::disallowed_macros,
    reason = "the one place that makes counters"
)]
pub(super) fn counter(metric: &Metric, values: &[&str]) -> Counter {
    let counter = metrics::counter!(metric.name, labels(metric, values));
    counter.increment(0);
    counter
}

/// The gauge with these values of its labels, at zero if it is new.
#[allow(clippy::disallowed_macros, reason = "the one place that makes gauges")]
pub fn gauge(metric: &Metric, values: &[&str]) -> Gauge {
    let gauge = metrics::gauge!(metric.name, labels(metric, values));
    gauge.increment(0.0);
    gauge
}

#[allow(
    clippy::disallowed_macros,
    reason = "the one place that makes histograms"
)]
pub(super) fn histogram(metric: &Metric, values: &[&str]) -> Histogram {
    metrics::histogram!(metric.name, labels(metric, values))
}

/// A handle that is made of its metric and the value of the first label.
pub trait Handle {
    /// All its series at zero.
    fn of(metric: &'static Metric, first: &str) -> Self;
}

impl Handle for Counter {
    fn of(metric: &'static Metric, first: &str) -> Self {
        counter(metric, &[first])
    }
}

impl Handle for Gauge {
    fn of(metric: &'static Metric, first: &str) -> Self {
        gauge(metric, &[first])
    }
}

impl Handle for Histogram {
    fn of(metric: &'static Metric, first: &str) -> Self {
        histogram(metric, &[first])
    }
}

/// A handle for each value of the second label.
#[derive(Debug)]
pub struct Labelled<T> {
    metric: &'static Metric,
    first: String,
    known: Vec<(&'static str, T)>,
    make: fn(&Metric, &[&str]) -> T,
}

pub type Counters = Labelled<Counter>;
pub type Gauges = Labelled<Gauge>;

impl Handle for Counters {
    fn of(metric: &'static Metric, first: &str) -> Self {
        Self::new(metric, first, counter)
    }
}

impl Handle for Gauges {
    fn of(metric: &'static Metric, first: &str) -> Self {
        Self::new(metric, first, gauge)
    }
}

impl<T> Labelled<T> {
    fn new(metric: &'static Metric, first: &str, make: fn(&Metric, &[&str]) -> T) -> Self {
        let values = metric.values.iter();
        Self {
            metric,
            first: first.to_owned(),
            known: values
                .map(|value| (*value, make(metric, &[first, value])))
                .collect(),
            make,
        }
    }

    /// A value that is not in the list is counted too, only slower. There are few of them: they are in the code or in
    /// the configuration.
    fn with(&self, value: &str, write: impl FnOnce(&T)) {
        match self.known.iter().find(|(listed, _)| *listed == value) {
            Some((_, handle)) => write(handle),
            None => write(&(self.make)(self.metric, &[&self.first, value])),
        }
    }
}

impl Counters {
    /// `by` more under this value of the second label.
    pub fn increment(&self, value: &str, by: u64) {
        self.with(value, |counter| counter.increment(by));
    }
}

impl Gauges {
    /// Sets the series with this value of the second label.
    pub fn set(&self, value: &str, to: f64) {
        self.with(value, |gauge| gauge.set(to));
    }
}

/// The labels of all values of an enum, which has them as `ALL` and `label()`.
#[macro_export]
macro_rules! labels {
    ($enum:ty) => {{
        let mut labels = [""; <$enum>::ALL.len()];
        let mut at = 0;
        while at < labels.len() {
            labels[at] = <$enum>::ALL[at].label();
            at += 1;
        }
        labels
    }};
}

/// The metrics, and for each group of them a struct of handles, which is made of the value of their first label:
/// `field: Handle = CONSTANT, "name", "help";`. More fields stand behind them, with a `+`. `METRICS` has all
/// metrics of the crate, in the order in which they are written. Metrics behind `others` have no struct.
#[macro_export]
macro_rules! metrics {
    (
        $(
            $(#[$doc:meta])*
            $meters:ident($label:ident) {
                $(
                    $field:ident: $handle:ident $(($($of:expr),*))? = $metric:ident, $name:literal,
                        $help:literal;
                )*
                $(+ $vis:vis $more:ident: $type:ty = $value:expr;)*
            }
        )*
        + others {
            $($other:ident = $shape:expr, $other_name:literal, $other_help:literal;)*
        }
    ) => {
        $($(
            #[doc = $help]
            pub const $metric: $crate::Metric =
                $crate::Metric::new($crate::metrics!(@$handle $label $(, $($of),*)?), $name, $help);
        )*)*
        $(#[doc = $other_help] pub const $other: $crate::Metric = $crate::Metric::new($shape, $other_name, $other_help);)*
        /// All metrics that this crate counts.
        pub const METRICS: &[$crate::Metric] = &[$($($metric,)*)* $($other,)*];

        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $meters {
                $(#[doc = $help] pub $field: $crate::$handle,)*
                $($vis $more: $type,)*
            }

            impl $meters {
                /// All at zero.
                #[must_use]
                pub fn new($label: &str) -> Self {
                    Self {
                        $($field: $crate::Handle::of(&$metric, $label),)*
                        $($more: $value,)*
                    }
                }
            }
        )*
    };
    (@Counter $label:ident) => { ($crate::MetricKind::Counter, &[stringify!($label)], &[]) };
    (@Gauge $label:ident) => { ($crate::MetricKind::Gauge, &[stringify!($label)], &[]) };
    (@Histogram $label:ident, $bounds:expr) => {
        ($crate::MetricKind::Histogram($bounds), &[stringify!($label)], &[])
    };
    (@Counters $label:ident, $second:literal, $values:expr) => {
        ($crate::MetricKind::Counter, &[stringify!($label), $second], $values)
    };
    (@Gauges $label:ident, $second:literal, $values:expr) => {
        ($crate::MetricKind::Gauge, &[stringify!($label), $second], $values)
    };
}
