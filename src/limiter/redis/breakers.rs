//! How downstreams stand: one hash for each route that has a breaker.

use futures::FutureExt;

use super::scripts::{Arg, ScriptCall};
use super::store::RedisStore;
use crate::core::breaker::{BreakerReport, BreakerRule, BreakerStatus};
use crate::core::time::{StoreTime, micros};
use crate::ports::breaker::BreakerStore;
use crate::ports::pace::StoreFuture;

impl BreakerStore for RedisStore {
    fn report<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus> {
        async move {
            let scripts = &self.scripts;
            let args = vec![
                Arg::Text(scripts.channel()),
                Arg::Text(route),
                Arg::Text(report.name()),
                Arg::Number(known),
                Arg::Number(micros(rule.pause.base.min(rule.pause.max))),
                Arg::Number(micros(rule.pause.max)),
                Arg::Number(micros(rule.probe)),
            ];
            // The braces are Redis Cluster's hash tag, as those of the limits.
            let key = format!("{}:{{{route}}}:breaker", scripts.prefix());
            let call = ScriptCall::new(scripts.breaker(), key, Vec::new(), args);
            let reply: (u64, u64, u64, u8, u8) = self.call(call).await?;
            let (now, version, until, may_probe, changed) = reply;
            Ok(BreakerStatus {
                now: StoreTime::from_micros(now),
                version,
                until: (until > 0).then(|| StoreTime::from_micros(until)),
                may_probe: may_probe > 0,
                changed: changed > 0,
            })
        }
        .boxed()
    }
}
