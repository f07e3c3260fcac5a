//! How downstreams stand: the decision of `core::breaker`. Each route tells and receives only its own.

use futures::FutureExt;

use super::MemoryStore;
use crate::core::breaker::{self, BreakerReport, BreakerRule, BreakerStatus};
use crate::ports::breaker::BreakerStore;
use crate::ports::pace::StoreFuture;

impl BreakerStore for MemoryStore {
    fn report<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus> {
        async move {
            Ok(self.decide(&self.breakers, |routes, now| {
                let stored = routes.entry(route.to_owned()).or_default();
                breaker::report(stored, report, known, rule, now)
            }))
        }
        .boxed()
    }
}
