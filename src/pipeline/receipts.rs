//! Receipts of a message centre become results: published like the end of a message, and answered once they are
//! confirmed.
//!
//! A receipt comes hours after the call, perhaps to another replica than the one that made it. It names the message by
//! the id that the centre gave it, which the result of the accepted message has as `answer.body.message_id`.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::results::Results;
use sluiced_ports::downstream::ReceiptArrival;
use sluiced_ports::queue::Report;
use sluiced_telemetry::meters::RouteMeters;

/// Publishes the receipts of a route until its downstream is gone.
pub async fn publish_receipts(
    route: Arc<str>,
    results: Results,
    meters: Arc<RouteMeters>,
    mut receipts: mpsc::Receiver<ReceiptArrival>,
    reports: mpsc::Sender<Report>,
) {
    while let Some(arrival) = receipts.recv().await {
        meters.receipt(arrival.receipt.state.label());
        match results.receipt(&route, &arrival) {
            Some(publication) => {
                let confirmed = arrival.confirmed;
                let report = Report {
                    publication,
                    confirmed,
                };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            // It was logged, and would be no better the next time.
            None => {
                arrival.confirmed.send(true).ok();
            }
        }
    }
}
