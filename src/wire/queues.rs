//! Where routes get their deliveries, and how the events of the queues are counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use secrecy::SecretString;
use tokio::sync::mpsc;

use super::{WireError, options};
use sluiced_amqp::embedded::{self, EmbeddedOptions, Input};
use sluiced_amqp::rabbit::{RabbitOptions, RabbitQueue};
use sluiced_amqp::{QueueEvent, QueueEvents};
use sluiced_pipeline::meters::RouteMeters;
use sluiced_ports::queue::{PublishRequest, Subscription, Verdict};
use sluiced_ports::store::Store;
use sluiced_settings::Loaded;
use sluiced_settings::types::{QueueBackend, Route, Settings};

/// How many messages of this process were settled safely so far; for a list, in earlier runs
/// too.
#[derive(Debug, Default)]
pub struct SettledCounts {
    done: AtomicU64,
    dead: AtomicU64,
}

impl SettledCounts {
    /// Delivered to the downstream.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Given up: in the dead-letter queue or in the leftover file.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }
}

/// The file that records how far a list was sent.
fn checkpoint(leftover: &Path) -> PathBuf {
    let mut name = leftover.as_os_str().to_owned();
    name.push(".checkpoint");
    name.into()
}

/// Forgets how far the list was sent: it starts at its first line.
///
/// # Errors
/// When the checkpoint is there and cannot be removed.
pub fn start_over(settings: &Settings) -> io::Result<()> {
    match fs::remove_file(checkpoint(&settings.embedded.leftover)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The one RabbitMQ at `url`, with the times of `default.toml`.
#[must_use]
pub fn rabbit_at(url: SecretString) -> RabbitOptions {
    RabbitOptions::single(url)
}

/// Where routes get their deliveries.
pub(super) enum Queues {
    /// There are callers only.
    None,
    Rabbit(RabbitQueue),
    Embedded {
        input: PathBuf,
        leftover: PathBuf,
        events: Arc<CountedEvents>,
    },
}

impl Queues {
    pub(super) fn new(
        loaded: &Loaded,
        events: Arc<CountedEvents>,
        store: &dyn Store,
    ) -> Result<Self, WireError> {
        let settings = &loaded.settings;
        match settings.backend.queue {
            QueueBackend::Rabbitmq if settings.routes.is_empty() => Ok(Self::None),
            QueueBackend::Rabbitmq => {
                let options = options::rabbit(loaded)?;
                RabbitQueue::new(options, events, store.marks())
                    .map(Self::Rabbit)
                    .map_err(|e| WireError::new("rabbitmq", e))
            }
            QueueBackend::Embedded => Ok(Self::Embedded {
                input: settings.embedded.input.clone(),
                leftover: settings.embedded.leftover.clone(),
                events,
            }),
        }
    }

    /// Where a route publishes what its message centre delivers; `None`: nowhere.
    pub(super) fn arrivals(
        &self,
        name: &Arc<str>,
        route: &Route,
    ) -> Option<mpsc::Sender<PublishRequest>> {
        let results = route.results.as_ref()?;
        let takes = results.takes_deliveries();
        match self {
            Self::Rabbit(queue) if takes => Some(queue.arrivals(name, results.clone())),
            _ => None,
        }
    }

    pub(super) fn subscribe(
        &self,
        settings: &Settings,
        name: &str,
        route: &Route,
    ) -> Arc<Subscription> {
        match self {
            Self::None => Arc::new(Subscription::idle()),
            Self::Rabbit(queue) => {
                queue.subscribe(options::route(settings, name, Arc::new(route.clone())))
            }
            Self::Embedded {
                input,
                leftover,
                events,
            } => {
                let path = input;
                let input = match input.to_str() {
                    Some("-") => Input::Stdin,
                    _ => Input::File(input.clone()),
                };
                let options = EmbeddedOptions {
                    route: name.into(),
                    prefetch: settings.prefetch(route),
                    leftover: Some(leftover.clone()),
                    // Not for a pipe: lines that were read from it do not come again.
                    checkpoint: fs::metadata(path)
                        .is_ok_and(|facts| facts.is_file())
                        .then(|| checkpoint(leftover)),
                };
                let events = Arc::clone(events);
                embedded::start(input, options, events)
            }
        }
    }
}

/// Counts the events of the queues.
#[derive(Debug)]
pub(super) struct CountedEvents {
    pub(super) meters: BTreeMap<Arc<str>, Arc<RouteMeters>>,
    pub(super) settled: Arc<SettledCounts>,
}

impl CountedEvents {
    pub(super) fn new(settings: &Settings) -> Self {
        let routes = settings.routes.keys();
        let meters =
            routes.map(|name| (Arc::from(name.as_str()), Arc::new(RouteMeters::new(name))));
        Self {
            meters: meters.collect(),
            settled: Arc::default(),
        }
    }
}

impl QueueEvents for CountedEvents {
    fn note(&self, route: &str, event: QueueEvent) {
        if let QueueEvent::Settled { verdict, count } = event {
            match verdict {
                Verdict::DONE => self.settled.done.fetch_add(count, Ordering::Relaxed),
                Verdict::DEAD => self.settled.dead.fetch_add(count, Ordering::Relaxed),
                _ => 0,
            };
        }
        let Some(meters) = self.meters.get(route) else {
            return;
        };
        match event {
            QueueEvent::Settled { verdict, count } => meters.settled(verdict, count),
            QueueEvent::Counted(part, count) => meters.set_in_queue(part.label(), count),
            QueueEvent::Vanished(part, count) => meters.count_vanished(part.label(), count),
            QueueEvent::Gone(part) => meters.count_gone(part.label()),
            QueueEvent::Shortened => meters.shortened.increment(1),
            QueueEvent::Forged => meters.forged.increment(1),
            QueueEvent::Result(outcome) => meters.result(outcome.label()),
            QueueEvent::Unconfirmed => meters.unconfirmed.increment(1),
            // `pipeline::decode` counts these.
            QueueEvent::Redelivered => {}
        }
    }

    fn resumed(&self, done: u64, dead: u64) {
        self.settled.done.fetch_add(done, Ordering::Relaxed);
        self.settled.dead.fetch_add(dead, Ordering::Relaxed);
    }
}
