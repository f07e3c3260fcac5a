//! What a metric is: its name, its kind, its help and its labels.

/// What kind of number a metric is.
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
}

pub(super) const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: MetricKind::Counter,
        help,
        labels,
    }
}

pub(super) const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: MetricKind::Gauge,
        help,
        labels,
    }
}

pub(super) const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: MetricKind::Histogram(bounds),
        help,
        labels,
    }
}
