//! What a message centre delivers by itself becomes a result: published like the end of a message, and answered once it
//! is confirmed.
//!
//! A receipt comes hours after the call, perhaps to another replica than the one that made it. It names the message by
//! the id that the centre gave it, which the result of the accepted message has as `answer.body.message_id`. A message
//! from a phone comes at any time.
//!
//! What the results of the route do not want is counted and answered: a centre delivers in order, and would repeat a
//! refused delivery for ever before it delivers the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::warn;

use super::results::Results;
use crate::meters::RouteMeters;
use sluiced_ports::clock;
use sluiced_ports::downstream::{InboundEvent, InboundKind};
use sluiced_ports::queue::PublishRequest;
use sluiced_telemetry::LogLimit;

/// How often it is logged that receipts cannot be read.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Publishes what the centre of a route delivers until its downstream is gone.
pub async fn publish_arrivals(
    route: Arc<str>,
    results: Arc<Results>,
    meters: Arc<RouteMeters>,
    mut arrivals: mpsc::Receiver<InboundEvent>,
    reports: mpsc::Sender<PublishRequest>,
) {
    let unread = LogLimit::new(LOG_EVERY);
    while let Some(arrival) = arrivals.recv().await {
        match &arrival.what {
            InboundKind::Receipt(receipt) => {
                meters.receipt(receipt.label());
                if receipt.is_unread()
                    && let Some(more) = unread.event(clock::now())
                {
                    warn!(
                        %route,
                        "a receipt does not say in a known form which message it is about; its result has its text{more}"
                    );
                }
            }
            InboundKind::Inbound(_) => meters.inbound.increment(1),
        }
        let publication = results
            .takes(&arrival.what)
            .then(|| results.arrival(&route, &arrival));
        match publication.flatten() {
            Some(publication) => {
                let confirmed = arrival.confirmed;
                let report = PublishRequest {
                    publication,
                    confirmed,
                };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            // It is not wanted; or it has no routing key, which was logged and would be no better the next time.
            None => {
                arrival.confirmed.send(true).ok();
            }
        }
    }
}
