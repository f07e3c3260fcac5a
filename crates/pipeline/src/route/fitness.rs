//! Whether the messages of a route can be sent at all.
//!
//! A message is unfit where no request can be made from it, or where a limit can never let it pass. Once many in a row
//! have died like this, `core::unfit_run` lets none die: unfit messages are set aside in a wait queue with the reason,
//! and are tried again when they come back. The route is not ready meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use sluiced_core::unfit_run::{UnfitRun, WhenUnfit};
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::lock;
use sluiced_telemetry::LogLimit;

use super::sharing::Sharing;
use crate::meters::RouteMeters;

/// How often it is logged for a route that messages are set aside: right and wrong messages may take turns.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The fitness of a route's messages.
pub(crate) struct Fitness {
    route: Arc<str>,
    meters: Arc<RouteMeters>,
    sharing: Arc<Sharing>,
    dying: Mutex<UnfitRun>,
    /// Down while unfit messages are set aside.
    link: watch::Sender<Link>,
    aside_log: LogLimit,
    released: LogLimit,
}

impl Fitness {
    pub(super) fn new(
        route: &Arc<str>,
        dying: UnfitRun,
        meters: &Arc<RouteMeters>,
        sharing: &Arc<Sharing>,
    ) -> Self {
        Self {
            route: Arc::clone(route),
            meters: Arc::clone(meters),
            sharing: Arc::clone(sharing),
            dying: Mutex::new(dying),
            link: watch::Sender::new(Link::Up),
            aside_log: LogLimit::new(LOG_EVERY),
            released: LogLimit::new(LOG_EVERY),
        }
    }

    /// For the readiness of the process.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Whether unfit messages are set aside, because this many died in a row.
    pub(super) fn sets_aside(&self) -> bool {
        lock(&self.dying).sets_aside()
    }

    /// For how long no message is taken, because this many are set aside; `None`: they are taken.
    pub(crate) fn pause_left(&self) -> Option<Duration> {
        lock(&self.dying).pause_left(clock::now())
    }

    /// A message cannot be sent, for this reason.
    pub(crate) fn record_unfit(&self, why: &str) -> WhenUnfit {
        let now = clock::now();
        let mut dying = lock(&self.dying);
        let set_aside_before = dying.sets_aside();
        let fate = dying.record_unfit(now);
        if dying.sets_aside() {
            let count = dying.in_a_row();
            let reason = format!(
                "{count} messages died in a row, {why}; such messages are set aside, others pass"
            );
            self.link.send_replace(Link::Down(reason.into()));
            if !set_aside_before {
                self.meters.setting_aside.set(1.0);
                // Messages that others would move here may be set aside at once.
                self.sharing.show(false, false);
                if let Some(more) = self.aside_log.event(now) {
                    warn!(route = %self.route, count, why,
                        "messages died in a row: none dies now, such messages are set aside for a minute, others pass{more}");
                }
            }
        }
        fate
    }

    /// A message can be sent.
    pub(crate) fn record_fit(&self) {
        let mut dying = lock(&self.dying);
        if dying.sets_aside() {
            self.meters.setting_aside.set(0.0);
            self.link.send_replace(Link::Up);
            if let Some(more) = self.released.event(clock::now()) {
                info!(route = %self.route, "a message can be sent again: none is set aside any more{more}");
            }
        }
        dying.record_fit();
    }
}
