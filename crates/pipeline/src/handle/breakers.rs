//! What a pacer and its calls tell the store about the breaker of a route.

use std::sync::Arc;

use sluiced_core::breaker::BreakerReport;

use super::{PacerEvent, PacerHandle};
use crate::route::gate::RouteGate;

impl PacerHandle {
    /// Asks for the state of the breaker: another replica may have found the downstream away, or back.
    pub(crate) fn look_at_breaker(self: &Arc<Self>, gate: &Arc<RouteGate>) {
        self.report_breaker(gate, BreakerReport::Look);
    }

    /// Reports to the store, or asks it. The gate is reviewed once the store has answered.
    pub(crate) fn report_breaker(self: &Arc<Self>, gate: &Arc<RouteGate>, report: BreakerReport) {
        if !gate.has_breaker() {
            return;
        }
        let (gate, pacer) = (Arc::clone(gate), Arc::clone(self));
        tokio::spawn(async move {
            gate.report(report, &*pacer.store).await;
            pacer.send(PacerEvent::GateChanged);
        });
    }
}
