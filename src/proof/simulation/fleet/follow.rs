//! The headroom follows what replicas measure, as in `pipeline::follow`.

use std::time::Duration;

use sluiced_core::headroom::{Follow, Headroom, Measured};
use sluiced_core::policy::PolicyVersion;
use sluiced_core::schedule::Pace;
use sluiced_core::time::Mono;

use super::{Event, Fleet, Replica};
use crate::trace::Watch;

/// So many handshakes at the start, and one each second after that.
pub(super) const FIRST: u32 = 8;
const APART: u64 = 1_000_000;
/// So many replicas per million miss a notice.
const DEAF: u64 = 100_000;

impl<'a, W: Watch> Fleet<'a, W> {
    pub(super) fn handshakes(&mut self, replica: &mut Replica<'a>, count: u32, mono: Mono) {
        let Some(following) = self.setting.follows else {
            return;
        };
        for _ in 0..count {
            let took = self.travel() + self.travel();
            replica.shakes.saw(Duration::from_micros(took), mono);
        }
        self.after(APART, replica.id, Event::Handshakes(1));
        for late in replica.scheduler.take_late() {
            replica.late.saw(late, mono);
        }
        let measured = Measured {
            late: replica.late.worth(following.rate.window(), mono),
            way: replica.shakes.spread(mono).map(|seen| seen.spread),
        };
        let over = replica.version();
        let wanted = replica
            .follow
            .as_mut()
            .and_then(|follow| follow.wanted(measured, &following.bounds, mono));
        if let Some(headroom) = wanted {
            let way = self.way();
            self.after(way, replica.id, Event::Follow(over, headroom));
        }
    }

    /// At the store: the first of several replicas that want another headroom has its way.
    pub(super) fn follow(&mut self, over: PolicyVersion, headroom: Headroom) {
        let Some(following) = self.setting.follows else {
            return;
        };
        if !self.store.is_down(self.t) && self.store.version() == over {
            self.store.set(following.terms(headroom), self.t);
            self.tell_change(DEAF);
        }
    }
}

/// A replica receives another pace.
pub(super) fn in_force(follow: &mut Option<Follow>, pace: &Pace, now: Mono) {
    let headroom = Headroom {
        late: pace.late(),
        way: pace.kept_for_the_way(),
    };
    match follow {
        Some(follow) => follow.in_force(headroom, now),
        None => *follow = Some(Follow::new(headroom, now)),
    }
}
