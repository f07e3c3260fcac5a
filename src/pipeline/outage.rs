//! Whether the downstream of a route is away: tells the route's breaker how calls end, the store what the
//! breaker says, and the operator what that means.

use std::sync::Arc;

use tracing::{debug, info, warn};

use crate::core::breaker::{BreakerReport, BreakerStatus};
use crate::core::time::Mono;
use crate::ports::downstream::Judgement;
use crate::ports::link::Link;
use crate::ports::locks::lock;
use crate::ports::pace::StoreError;

use super::handle::{Event, PacerHandle};
use super::route::Route;
use super::route_policy::sign;

/// A call failed because the downstream is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// It was the probe: other messages go first from now on, for one of them may pass where this one
    /// fails.
    pub(super) behind_others: Option<Mono>,
}

impl Route {
    /// A call ended. Answers whether it says nothing about its message.
    pub(super) fn observe(
        self: &Arc<Self>,
        judgement: &Judgement,
        pacer: &PacerHandle,
    ) -> Option<Away> {
        let own = self.breaker.as_ref()?;
        let now = pacer.clock.now();
        let (report, away) = {
            let mut breaker = lock(&own.breaker);
            let was = breaker.clone();
            let report = breaker.observe(sign(judgement), now);
            let behind = now + breaker.rule().pause.max;
            let away = breaker.is_open().then_some(Away {
                behind_others: was.is_probing().then_some(behind),
            });
            if was.is_closed() && breaker.is_closed() {
                return away;
            }
            (report, away)
        };
        if let Some(report) = report {
            if report == BreakerReport::Failed {
                own.explain(&judgement.detail);
            }
            self.ask_breaker(report, pacer);
        }
        pacer.tell(Event::Called(self.number));
        away
    }

    /// A call was started and did not leave, because its slot was over. The pacer is told behind what it does
    /// for the start of it.
    pub(super) fn not_called(&self, pacer: &PacerHandle) {
        if self.breaker.as_ref().is_some_and(|own| !own.is_closed()) {
            pacer.tell(Event::NotCalled(self.number));
        }
    }

    /// What is due to be asked.
    pub(super) fn probe(self: &Arc<Self>, pacer: &PacerHandle, now: Mono) {
        if let Some(own) = &self.breaker {
            let report = lock(&own.breaker).ask(now);
            if let Some(report) = report {
                self.ask_breaker(report, pacer);
            }
        }
    }

    /// Tells or asks the store. The answer comes to the pacer.
    pub(super) fn ask_breaker(self: &Arc<Self>, report: BreakerReport, pacer: &PacerHandle) {
        let (route, pacer) = (Arc::clone(self), pacer.clone());
        tokio::spawn(async move {
            let Some(own) = &route.breaker else {
                return;
            };
            let (known, rule) = {
                let breaker = lock(&own.breaker);
                (breaker.version(), *breaker.rule())
            };
            let answer = own.store.report(&route.name, report, known, &rule).await;
            pacer.tell(Event::BreakerStatus(route.number, answer));
        });
    }

    /// The store answered.
    pub(super) fn update_breaker(&self, answer: Result<BreakerStatus, StoreError>, now: Mono) {
        let Some(own) = &self.breaker else {
            return;
        };
        let status = match answer {
            Ok(status) => status,
            Err(error) => {
                debug!(route = %self.name, %error, "no answer about the breaker");
                return lock(&own.breaker).unanswered(now);
            }
        };
        let until = status.until.map(|at| now + at.since(status.now));
        if !lock(&own.breaker).update(&status, until) {
            return;
        }
        let open = until.is_some();
        self.meters.breaker_open.set(f64::from(u8::from(open)));
        if open {
            let why = Arc::clone(&lock(&own.why));
            self.meters.breaker_opened.increment(1);
            own.link.send_replace(Link::Down(Arc::clone(&why)));
            if lock(&own.breaker).rejections().is_some() {
                warn!(route = %self.name, %why,
                    "messages died in a row: nothing is sent, the others wait, one call at a time is tried");
            } else {
                warn!(route = %self.name, %why,
                    "the downstream is away: nothing is sent, messages wait and spend no attempt, one call at a time probes");
            }
        } else {
            own.link.send_replace(Link::Up);
            info!(route = %self.name, "the downstream is back: sending again, one more at a time");
        }
    }
}
