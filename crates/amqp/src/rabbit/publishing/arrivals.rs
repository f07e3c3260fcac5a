//! Publishes what arrives by itself and belongs to no delivery of a queue: receipts and messages from phones, which a
//! message centre delivers.
//!
//! Problem: the centre must learn that what it delivered is safe, and only then. So each comes with a sender, which is
//! used once the broker has confirmed it or not taken it. Nothing is tried again here: the centre keeps what was not
//! confirmed, and delivers it again. So what is under way is bounded by what the centre sends at a time. After a fault
//! nothing is taken for a moment: each try may use up a number of a channel (`topology`), and a centre may deliver
//! again at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::rabbit::RabbitError;
use crate::rabbit::confirms::{ConfirmChannel, CopyMessage, Decided, next_decided, usable_channel};
use crate::rabbit::connections::Connections;
use crate::rabbit::messages::convert::copies::result_properties;
use crate::{LOG_EVERY, QueueEvent, QueueEvents, REFUSED, ResultOutcome};
use sluiced_ports::clock;
use sluiced_ports::queue::PublishRequest;
use sluiced_settings::types::{Results, Unroutable};
use sluiced_telemetry::LogLimit;

/// This many wait for a connection; more are refused.
const WAITING: usize = 1_000;
/// While there is no room, how often it is looked at whether the centre still waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// For this long nothing is taken after a fault.
const PAUSE: Duration = Duration::from_secs(1);

/// Publishes what arrives for one route.
pub(in crate::rabbit) struct ArrivalPublisher {
    pub(in crate::rabbit) route: Arc<str>,
    pub(in crate::rabbit) results: Results,
    pub(in crate::rabbit) confirm: Duration,
    pub(in crate::rabbit) connections: Arc<Connections>,
    pub(in crate::rabbit) events: Arc<dyn QueueEvents>,
}

impl ArrivalPublisher {
    /// Starts it; it ends with the sender. Must be called inside a tokio runtime.
    pub(in crate::rabbit) fn start(self) -> mpsc::Sender<PublishRequest> {
        let (sender, requests) = mpsc::channel(WAITING);
        tokio::spawn(self.run(requests));
        sender
    }

    async fn run(self, mut requests: mpsc::Receiver<PublishRequest>) {
        let mut open: Option<ConfirmChannel<PublishRequest>> = None;
        let log = LogLimit::new(LOG_EVERY);
        let mut not_before = Instant::now();
        loop {
            if let Some(open) = &mut open {
                // One queue that does not confirm must not keep out what goes to others.
                drop(open.give_up(|request| request.confirmed.is_closed()));
            }
            let has_room = open
                .as_ref()
                .is_none_or(|open| open.is_idle() || open.takes(0));
            let ended = tokio::select! {
                request = requests.recv(), if has_room => {
                    let Some(request) = request else { return };
                    // The centre waits no longer, or keeps it for a moment.
                    if request.confirmed.is_closed() || Instant::now() < not_before {
                        continue;
                    }
                    match self.publish(&mut open, request).await {
                        Ok(()) => continue,
                        error => error,
                    }
                }
                () = sleep(CHECK_INTERVAL), if !has_room => continue,
                decided = next_decided(&mut open) => decided.map(|publications| self.report_decided(publications)),
            };
            match ended {
                Ok(()) if log.end_fault() => {
                    info!(route = %self.route, "what the centre delivers is confirmed again")
                }
                Ok(()) => {}
                Err(error) => {
                    let is_refused = matches!(error, RabbitError::Refused { .. });
                    let pause = if is_refused { REFUSED.max } else { PAUSE };
                    not_before = Instant::now() + pause;
                    // Behind an alarm, those in flight are taken once it is over.
                    if !matches!(error, RabbitError::Blocked)
                        && let Some(open) = open.take()
                    {
                        // Without a result they count as not confirmed.
                        drop(open.close().await);
                    }
                    if let Some(more) = log.fault(&error.to_string(), clock::now()) {
                        let route = &self.route;
                        warn!(%route, %error, "what the centre delivers is not confirmed: the centre keeps it{more}");
                    }
                }
            }
        }
    }

    async fn publish(
        &self,
        open: &mut Option<ConfirmChannel<PublishRequest>>,
        request: PublishRequest,
    ) -> Result<(), RabbitError> {
        if open.is_none() {
            // Where it is missing, each publication would cost a channel of the connection that all copies go over.
            let counting = self.connections.counting.acquire().await?;
            counting.find_exchange(&self.results.exchange).await?;
        }
        let open =
            usable_channel(open, self.connections.publishing.acquire(), self.confirm).await?;
        if open.live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        let copy = CopyMessage {
            exchange: self.results.exchange.clone(),
            routing_key: request.publication.routing_key.clone(),
            properties: result_properties(&request.publication),
            body: request.publication.body.clone(),
        };
        open.publish(copy, request);
        Ok(())
    }

    fn report_decided(&self, publications: Vec<Decided<PublishRequest>>) {
        for Decided { of, result } in publications {
            let outcome = match result {
                Ok(()) => ResultOutcome::Confirmed,
                Err(_) if self.results.unroutable() == Unroutable::Drop => {
                    ResultOutcome::Unroutable
                }
                Err(_) => {
                    // The error names the routing key, which may be a template over the message.
                    tracing::debug!(route = %self.route, "a publication was not taken");
                    of.confirmed.send(false).ok();
                    continue;
                }
            };
            self.events.note(&self.route, QueueEvent::Result(outcome));
            // The session that waits for it may be gone: then it comes again.
            of.confirmed.send(true).ok();
        }
    }
}
