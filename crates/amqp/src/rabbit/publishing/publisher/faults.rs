//! Copies that are not confirmed: when they are tried again, what is given up, and what an operator hears of it.

use tokio::time::Instant;

use super::{CopyOutcome, Destination, Outbox, Place, Republish};
use crate::QueueEvent;
use crate::rabbit::RabbitError;
use crate::rabbit::confirms::ConfirmChannel;
use crate::{BACKOFF, LOG_EVERY};
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_telemetry::{LogLimit, Suppressed};

impl Outbox {
    /// All copies may be confirmed again.
    pub(super) fn note_recovery(&mut self) {
        if !self.failed.is_empty() || self.is_silent {
            return;
        }
        self.failures = 0;
        *lock(&self.failing) = None;
        let mut was_logged = false;
        for log in self.logs.values() {
            was_logged |= log.end_fault();
        }
        if was_logged {
            let route = &self.queues.route.name;
            tracing::info!(%route, "copies are confirmed again");
        }
    }

    /// Looks for copies that no queue confirms while others are confirmed, and for those that have no place.
    pub(super) fn check_waiting(&mut self) {
        let most = self.queues.options.settings.ack_timeout.get() / 4;
        let is_over = |copy: &Republish| copy.since.elapsed() >= most;
        let open = self.open.as_mut();
        let mut over = open.map_or(Vec::new(), |open| open.give_up(is_over));
        over.extend(self.waiting.extract_if(.., |copy| is_over(copy)));
        let ready = std::mem::take(&mut self.ready).into_iter();
        let (late, ready): (Vec<_>, Vec<_>) = ready.partition(is_over);
        self.ready = ready.into();
        over.extend(late);
        let was_failing = self.is_silent || !over.is_empty();
        for copy in over {
            self.failed.remove(&copy.tag);
            self.alone.remove(&copy.tag);
            // If the session is gone, its message comes again.
            self.decided.send((copy.tag, CopyOutcome::Placeless)).ok();
        }
        let silent = self
            .open
            .as_ref()
            .and_then(ConfirmChannel::silent)
            .map(|copy| copy.to.clone());
        self.is_silent = silent.is_some();
        if let Some(to) = silent {
            let queue = String::new();
            let error = self.error_about(&to, RabbitError::Silent { queue });
            self.show_failing(&error);
            self.log_fault(Some(to.place()), &error);
        } else if was_failing && self.failed.is_empty() {
            *lock(&self.failing) = None;
        }
    }

    /// The error with the name of the queue; for a result, whose routing key may be a template over the message, with
    /// what the configuration says.
    pub(super) fn error_about(&self, to: &Destination, error: RabbitError) -> RabbitError {
        let route = &self.queues.route;
        let to = match to {
            Destination::Queue(target) => {
                let queue = target.queue(route.queue());
                return match error {
                    RabbitError::Silent { .. } => RabbitError::Silent { queue },
                    other => other,
                };
            }
            Destination::Result(_) => {
                let results = route.results.as_ref();
                let key = results.map_or("", |results| results.routing_key.as_str());
                match route.exchange() {
                    "" => format!("queue `{key}`"),
                    exchange => format!("exchange `{exchange}` with routing_key `{key}`"),
                }
            }
        };
        match error {
            RabbitError::Returned { .. } => RabbitError::ResultReturned { to },
            RabbitError::Rejected { .. } => RabbitError::ResultRejected { to },
            RabbitError::Silent { .. } => RabbitError::ResultSilent { to },
            other => other,
        }
    }

    /// A queue cannot be declared, or the exchange is missing: copies for it wait, the others go on.
    pub(super) fn fail_all_for(&mut self, place: Place, error: &RabbitError) {
        let ready = std::mem::take(&mut self.ready).into_iter();
        let (same, others): (Vec<_>, Vec<_>) = ready.partition(|copy| copy.to.place() == place);
        self.ready = others.into();
        for copy in same {
            self.fail(copy, error);
        }
    }

    /// The copy is tried again, together with others that failed meanwhile.
    pub(super) fn fail(&mut self, copy: Republish, error: &RabbitError) {
        self.queues
            .events
            .note(&self.queues.route.name, QueueEvent::Unconfirmed);
        if self.waiting.is_empty() {
            self.failures += 1;
            let wait = BACKOFF.half_jitter(self.failures, rand::random());
            self.retry_at = Instant::now() + wait;
        }
        // A queue that was just declared may refuse once.
        if self.failures > 2 {
            self.show_failing(error);
        }
        let place = match error {
            RabbitError::Blocked | RabbitError::Lost { .. } | RabbitError::Timeout { .. } => None,
            _ => Some(copy.to.place()),
        };
        self.log_fault(place, error);
        self.failed.insert(copy.tag);
        self.waiting.push(copy);
    }

    /// The route is not ready for this reason.
    pub(super) fn show_failing(&self, error: &RabbitError) {
        *lock(&self.failing) = Some(error.to_string().into());
    }

    pub(super) fn log_fault(&mut self, place: Option<Place>, error: &RabbitError) {
        // A queue that was declared a moment ago may refuse once.
        if self.failures <= 1 && is_refusal(error) {
            return tracing::debug!(%error, "a copy is not confirmed, trying again");
        }
        let (route, now) = (&self.queues.route.name, clock::now());
        let log = self
            .logs
            .entry(place)
            .or_insert_with(|| LogLimit::new(LOG_EVERY));
        let Some(more): Option<Suppressed> = log.fault(&error.to_string(), now) else {
            return;
        };
        tracing::warn!(%route, %error, "copies are not confirmed, trying again{more}");
    }
}

/// Whether the broker works, and a queue takes no copy.
pub(super) const fn is_refusal(error: &RabbitError) -> bool {
    matches!(
        error,
        RabbitError::Returned { .. }
            | RabbitError::Rejected { .. }
            | RabbitError::ResultReturned { .. }
            | RabbitError::ResultRejected { .. }
    )
}
