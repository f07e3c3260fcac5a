//! The recorder behind the meters, and the text for a scrape.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use metrics_process::Collector;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::meters::{self, BUILD_INFO, LOG_LINES_DROPPED, READY, START_TIME};
use super::metric::{Metric, MetricKind, counter, gauge};
use super::readings::{ReadableRecorder, SeriesReading, Values};

/// Samples of histograms accumulate until the next scrape or the next upkeep.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

static INSTALLED: OnceLock<Metrics> = OnceLock::new();

/// The process's metrics. Copies are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
    values: Values,
    process: Collector,
}

impl Metrics {
    /// All metrics in Prometheus' text format, for a replica that is ready now or not.
    #[must_use]
    pub fn render(&self, is_ready: bool) -> String {
        gauge(&READY, &[]).set(f64::from(u8::from(is_ready)));
        self.process.collect();
        self.handle.render()
    }

    /// The values of all metrics of this program.
    #[must_use]
    pub fn read(&self) -> Vec<SeriesReading> {
        self.values.read()
    }

    /// Keeps memory bounded while no scrape comes. Ends with `stop`. Needs a runtime.
    pub fn spawn_upkeep(&self, stop: CancellationToken) -> JoinHandle<()> {
        let handle = self.handle.clone();
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(UPKEEP_EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while stop.run_until_cancelled(tick.tick()).await.is_some() {
                handle.run_upkeep();
            }
        })
    }
}

/// Installs the recorder for the whole process, for the metrics of this crate and of those; a second call returns the
/// same recorder.
///
/// If another recorder is in place already (that of a test), that one keeps counting and the one returned
/// here stays empty, with a warning in the log.
#[must_use]
pub fn install(of_crates: &[&[Metric]]) -> Metrics {
    INSTALLED
        .get_or_init(|| {
            let all: Vec<Metric> = [of_crates, &[meters::METRICS]].concat().concat();
            let values = Values::default();
            let recorder = ReadableRecorder::new(build(&all), values.clone());
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            describe(&all);
            register_process();
            let process = Collector::default();
            process.describe();
            Metrics {
                handle,
                values,
                process,
            }
        })
        .clone()
}

/// A recorder with buckets for every histogram. No idle timeout: that would orphan the handles
/// that the crates keep.
pub(super) fn build(all: &[Metric]) -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new();
    for metric in all {
        if let MetricKind::Histogram(bounds) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)
                .expect("it refuses only an empty list of bounds, and a test checks that none is");
        }
    }
    builder.build_recorder()
}

/// Passes every help text to the recorder.
#[allow(
    clippy::disallowed_macros,
    reason = "the one place that describes metrics"
)]
fn describe(all: &[Metric]) {
    for metric in all {
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, metric.help),
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            MetricKind::Histogram(_) => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
}

/// Registers the version and the start time of the process, and the series that have no other label.
fn register_process() {
    gauge(&BUILD_INFO, &[env!("CARGO_PKG_VERSION")]).set(1.0);
    // A wall clock, because the reader's is one too. No decision uses it.
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    gauge(&START_TIME, &[]).set(since_epoch.as_secs_f64());
    counter(&LOG_LINES_DROPPED, &[]).increment(0);
    // Nothing is known yet; each scrape says what is then.
    gauge(&READY, &[]).set(0.0);
}

/// A line of the log was dropped. The log begins before there is a recorder, so no handle is kept.
pub(super) fn log_line_dropped() {
    counter(&LOG_LINES_DROPPED, &[]).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meters::LinkMeters;

    #[tokio::test]
    async fn installing_twice_is_installing_once() {
        let first = install(&[]);
        let second = install(&[]);
        LinkMeters::new("redis").up.set(1.0);
        let line = "sluiced_link_up{target=\"redis\"} 1";
        assert!(first.render(true).contains(line));
        assert!(second.render(true).contains(line));
        assert!(first.render(true).contains("sluiced_build_info{version="));

        let stop = CancellationToken::new();
        let upkeep = first.spawn_upkeep(stop.clone());
        stop.cancel();
        upkeep.await.expect("the upkeep ends when it is stopped");
    }
}
