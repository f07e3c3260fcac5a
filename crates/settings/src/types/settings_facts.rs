//! Values that follow from several sections together: which limit of a route is paced, how many of its messages a
//! replica holds, when its calls stop.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    Auth, AwsVariables, Downstream, JournalLines, Limit, Paced, QueueBackend, Route, Settings,
};
use sluiced_core::backoff::Backoff;
use sluiced_core::breaker::BreakerRule;

/// A probe of a downstream that was away has ended after the call's timeout and this.
const PROBE_SLACK: Duration = Duration::from_secs(1);

impl Settings {
    /// The paced limit of a route, with its name.
    #[must_use]
    pub fn paced_limit<'a>(&'a self, route: &'a Route) -> Option<(&'a str, &'a Paced)> {
        self.paced_of(&route.limits)
    }

    /// The paced one of these limits, with its name.
    #[must_use]
    pub fn paced_of(&self, limits: &[String]) -> Option<(&str, &Paced)> {
        limits.iter().find_map(|name| {
            let (name, limit) = self.limits.get_key_value(name)?;
            Some((name.as_str(), limit.as_paced()?))
        })
    }

    /// The limits of all routes and callers.
    pub fn named_limits(&self) -> impl Iterator<Item = &String> {
        let routes = self.routes.values().map(|route| &route.limits);
        let callers = self.callers.values().map(|callers| &callers.limits);
        routes.chain(callers).flatten()
    }

    /// What follows for limits from the routes that name them: the messages of a route that sends segments cost up to so
    /// many. Without `max_cost`: 10, but no more than half of the rate, and than fit into the window of a connection.
    pub(crate) fn derive_defaults(&mut self) {
        for route in self.routes.values() {
            let Some(smpp) = route.in_segments() else {
                continue;
            };
            for name in &route.limits {
                if let Some(Limit::Paced(paced)) = self.limits.get_mut(name) {
                    paced.counts_segments(smpp.window.into());
                }
            }
        }
    }

    /// Gives credentials of AWS what the environment says of them.
    pub(crate) fn find_aws(&mut self, variables: &AwsVariables) {
        for route in self.routes.values_mut() {
            if let Downstream::Http(http) = &mut route.downstream
                && let Some(Auth::Aws(aws)) = &mut http.auth
            {
                aws.variables = variables.clone();
            }
        }
    }

    /// How many messages of a route one replica holds.
    #[must_use]
    pub fn prefetch(&self, route: &Route) -> u16 {
        let paced = self.paced_limit(route);
        paced.map_or(route.prefetch_unpaced(), |(_, paced)| {
            route.prefetch_for(paced.rate.0)
        })
    }

    /// Whether more of the answers of a route is used than their meaning.
    #[must_use]
    pub fn uses_answers(&self, route: &Route) -> bool {
        route.keep_answer()
            || route.results.is_some()
            || route.journal != JournalLines::None && route.journal_id.is_some()
            || !route.quotas().is_empty()
            || route.throttles().is_some()
            || self.actuals(route).next().is_some()
    }

    /// Where the answers of a route say what a call used, by the names of its limits, and the most that they are
    /// believed.
    pub fn actuals<'a>(
        &'a self,
        route: &'a Route,
    ) -> impl Iterator<Item = (&'a str, &'a str, Option<NonZeroU32>)> {
        route.limits.iter().filter_map(|name| {
            let limit = self.limits.get(name)?;
            Some((name.as_str(), limit.actual()?.as_str(), limit.max_actual()))
        })
    }

    /// The routes of a queue, by name.
    pub fn of_queue<'s>(&'s self, queue: &'s str) -> impl Iterator<Item = (&'s str, &'s Route)> {
        let all = self.routes.iter();
        all.filter(move |(_, route)| route.queue == queue)
            .map(|(name, route)| (name.as_str(), route))
    }

    /// The queues whose messages a limit counts, each named once.
    #[must_use]
    pub fn queues_of(&self, limit: &str) -> Vec<&str> {
        let counted = |route: &&Route| route.limits.iter().any(|name| name == limit);
        let routes = self.routes.values().filter(counted);
        let queues: BTreeSet<&str> = routes.map(|route| route.queue.as_str()).collect();
        queues.into_iter().collect()
    }

    /// When calls of a route stop because its downstream is away; `None`: never.
    #[must_use]
    pub fn breaker(&self, route: &Route) -> Option<BreakerRule> {
        let breaker = route.breaker();
        // One host that is away must not stop the others.
        if route.hosts_differ() {
            return None;
        }
        // A message must not be dead before the breaker opens.
        let failures = NonZeroU32::new(breaker.failures.min(route.max_attempts));
        let rejections = self.dying(route);
        (failures.is_some() || rejections.is_some()).then(|| BreakerRule {
            failures,
            rejections,
            pause: Backoff::new(breaker.pause.get(), breaker.max_pause.get()),
            probe: route.call_timeout() + PROBE_SLACK,
        })
    }

    /// After how many dead letters in a row a route stops; `None`: never. A list comes to its end: it is still
    /// there, and the exit code says how many died.
    #[must_use]
    pub fn dying(&self, route: &Route) -> Option<NonZeroU32> {
        if self.backend.queue == QueueBackend::Embedded {
            return None;
        }
        NonZeroU32::new(route.breaker().dead_letters)
    }
}
