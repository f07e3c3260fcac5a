//! Questions for slots: their ways, losses, and what the store does; the policies that slots are leased
//! under, and the headroom, which follows what replicas measure, as in `pipeline::follow`.

use std::time::Duration;

use sluiced_core::distance::permit_needs;
use sluiced_core::headroom::{Follow, Headroom, Measured};
use sluiced_core::pacing::Row;
use sluiced_core::policy::{LimitPolicy, PolicyVersion};
use sluiced_core::schedule::{Ask, ClockView, LeaseAnswer, Pace};
use sluiced_core::time::Mono;

use super::{Event, Fleet, Replica};
use crate::setting::{Followed, Following};
use crate::trace::{Watch, What};

/// A client gives up on the store after this.
pub(super) const STORE_TIMEOUT: u64 = 500_000;
/// A store that is away refuses after this, or does not answer at all.
const REFUSED: u64 = 100;
/// A replica that knows its turn waits for it; only checks of its clock come earlier.
const CLOCK_CHECK: u64 = 9_000_000;
/// By how much the mapping of the clocks may make an ask early.
const TURN_DOUBT: Duration = Duration::from_millis(2);

/// A request on its way.
pub(super) struct Trip {
    /// How long until it reaches the store; `None`: it does not.
    pub(super) out: Option<u64>,
    /// How long its answer takes; `None`: it does not come in time.
    pub(super) back: Option<u64>,
}

impl<'a, W: Watch> Fleet<'a, W> {
    /// The way of a request, which may be lost before or after it is executed.
    pub(super) fn trip(&mut self, replica: &Replica<'a>, may_fail: bool) -> Trip {
        let (out, back) = (self.way() + replica.detour.0, self.way() + replica.detour.1);
        let lost = may_fail && self.dice.chance(self.setting.around.lost_asks);
        let lost = lost || replica.is_deaf;
        let arrives = !lost || !replica.is_deaf && self.dice.chance(500_000);
        let heard = !lost && out + back < STORE_TIMEOUT;
        Trip {
            out: arrives.then_some(out),
            back: heard.then_some(back),
        }
    }

    /// When a client notices that the store does not answer a request that was sent then.
    pub(super) fn refusal(&mut self, sent: u64) -> u64 {
        if self.dice.chance(500_000) {
            REFUSED
        } else {
            (sent + STORE_TIMEOUT).saturating_sub(self.t)
        }
    }

    pub(super) fn ask(&mut self, replica: &mut Replica<'a>, row: Row, ask: Ask) {
        let here = self.store.clock(self.t);
        let before = replica.turn.is_some_and(|turn| here + TURN_DOUBT < turn.at);
        let asked = What::Asked {
            want: ask.want,
            turn: ask.turn.map(|turn| turn.at),
            stepped: matches!(ask.clock_view, ClockView::Stepped { .. }),
            twice: replica.asking[row as usize].is_some(),
            early: before && ask.want > 0 && self.t - replica.last_ask < CLOCK_CHECK,
        };
        self.see(replica.id, asked);
        self.asks += 1;
        let (id, sent) = (self.asks, self.t);
        replica.asking[row as usize] = Some(id);
        replica.last_ask = sent;
        let Trip { out, back } = self.trip(replica, true);
        let holder = replica.scheduler.pacing().holder(row);
        let known = holder.map(|holder| (*holder.pace(), holder.known()));
        if back.is_none() {
            self.after(STORE_TIMEOUT, replica.id, Event::AskFailed { id, row });
        }
        if let (Some(out), Some(known)) = (out, known) {
            let ask = Event::Ask {
                id,
                row,
                ask,
                known,
                back,
                sent,
            };
            self.after(out, replica.id, ask);
        }
    }

    /// The store runs a request. `None` if it is away.
    pub(super) fn execute(
        &mut self,
        replica: u32,
        row: Row,
        ask: &Ask,
        pace: Pace,
        version: PolicyVersion,
    ) -> Option<LeaseAnswer> {
        if self.store.is_down(self.t) {
            return None;
        }
        let answer = self.store.lease(row, (&pace, version), ask, self.t);
        let (turn, guarded) = (answer.turn.map(|turn| turn.at), answer.guarded);
        let come = ask.turn.is_some_and(|turn| turn.at <= answer.now);
        let shut = answer.frozen_until.max(answer.paused_until);
        let free = shut.is_none() && answer.version == version;
        let note = match answer.grant {
            Some(grant) => What::Leased {
                first: grant.first,
                count: grant.count.get(),
                turn,
                guarded,
            },
            None => What::Denied {
                turn,
                guarded,
                at_turn: come && ask.want > 0 && free,
            },
        };
        self.see(replica, note);
        Some(answer)
    }

    /// The store's answer is on its way, unless it is lost (`back` is `None`).
    pub(super) fn reply(
        &mut self,
        replica: u32,
        id: u64,
        row: Row,
        answer: Option<LeaseAnswer>,
        back: Option<u64>,
        sent: u64,
    ) {
        let Some(back) = back else {
            return;
        };
        if let Some(answer) = answer {
            let leased = Event::Leased {
                id,
                row,
                answer,
                sent,
            };
            self.after(back, replica, leased);
        } else {
            let wait = self.refusal(sent);
            self.after(wait, replica, Event::AskFailed { id, row });
        }
    }

    pub(super) fn leased(
        &mut self,
        replica: &mut Replica<'a>,
        id: u64,
        row: Row,
        answer: &LeaseAnswer,
        sent: u64,
        mono: Mono,
    ) {
        if replica.asking[row as usize]
            .take_if(|own| *own == id)
            .is_none()
        {
            return;
        }
        // A turn under an older policy than the known one is given up.
        let known = replica.version();
        replica.turn = answer.turn.filter(|_| known == answer.version);
        let trip = Duration::from_micros(self.t - sent);
        self.see(replica.id, What::Heard { trip });
        replica.scheduler.pacing_mut().answered(row, answer, mono);
        if replica.scheduler.pacing().is_outdated() {
            self.declare(replica);
        }
    }

    pub(super) fn not_leased(&mut self, replica: &mut Replica<'a>, id: u64, row: Row, mono: Mono) {
        if replica.asking[row as usize]
            .take_if(|own| *own == id)
            .is_some()
        {
            replica.turn = None;
            self.see(replica.id, What::AskFailed);
            replica.scheduler.pacing_mut().failed(row, mono);
        }
    }

    /// A replica asks for the current policy, once at a time.
    pub(super) fn declare(&mut self, replica: &mut Replica<'a>) {
        if !replica.declaring {
            replica.declaring = true;
            let way = self.way();
            self.after(way, replica.id, Event::Declare(replica.known.clone()));
        }
    }

    pub(super) fn declared(&mut self, replica: u32, known: Option<LimitPolicy>) {
        let (wait, answer) = if self.store.is_down(self.t) {
            (100_000, None)
        } else {
            let (policy, changed) = self.store.declare(known, self.t);
            if changed {
                // Every replica gets a notice. One that missed this, and asks nothing until its turn, would
                // declare a policy that the store lost too late: a known gap.
                self.notify_change(0);
            }
            (self.way(), Some(policy))
        };
        self.after(wait, replica, Event::Declared(answer));
    }

    /// A replica receives the current policy.
    pub(super) fn declare_answered(
        &mut self,
        replica: &mut Replica<'a>,
        policy: Option<LimitPolicy>,
        mono: Mono,
    ) {
        replica.declaring = false;
        let Some(policy) = policy else {
            return self.declare(replica);
        };
        if replica.version() != policy.version {
            replica.received = Some(policy);
        }
        self.adopt(replica, mono);
    }

    /// A replica uses the policy that it received, once its headroom keeps enough for the way.
    fn adopt(&mut self, replica: &mut Replica<'a>, mono: Mono) {
        let Some(policy) = replica.received.take() else {
            return;
        };
        let Some(terms) = self.store.terms(&policy).cloned() else {
            return;
        };
        if let Some(headroom) = terms.headroom() {
            in_force(&mut replica.follow, headroom, mono);
        }
        if let Some(following) = self.setting.follows {
            let measured = measured(replica, &following, mono);
            let first = replica.follow.as_ref();
            let wanted = first.and_then(|follow| follow.first(measured, &following.bounds));
            if replica.shakes_made < FIRST || wanted.is_some() {
                if let Some(headroom) = wanted.filter(|_| replica.shakes_made >= FIRST) {
                    let way = self.way();
                    self.after(way, replica.id, Event::Follow(policy.version, headroom));
                    self.declare(replica);
                }
                replica.received = Some(policy);
                return;
            }
        }
        replica.turn = None;
        replica
            .scheduler
            .pacing_mut()
            .retime(&terms.rows, policy.version, mono);
        if let Some(usable) = terms.usable() {
            self.usable_of(replica.id).set(usable);
            replica.scheduler.set_usable(usable);
        }
        replica.known = Some(policy);
    }
}

/// So many handshakes follow each other at the start, so far apart, and there is one each second after that.
const FIRST: u32 = 8;
const FIRST_APART: u64 = 20_000;
const APART: u64 = 1_000_000;
/// So many replicas per million miss a notice.
const DEAF: u64 = 100_000;

impl<'a, W: Watch> Fleet<'a, W> {
    /// A handshake, and a check of the headroom.
    pub(super) fn handshake(&mut self, replica: &mut Replica<'a>, mono: Mono) {
        let Some(following) = self.setting.follows else {
            return;
        };
        let took = self.travel() + self.travel();
        replica.shakes.saw(Duration::from_micros(took), mono);
        replica.shakes_made += 1;
        let apart = if replica.shakes_made < FIRST {
            FIRST_APART
        } else {
            APART
        };
        self.after(took + apart, replica.id, Event::Handshake);
        if replica.received.is_some() {
            return self.adopt(replica, mono);
        }
        for late in replica.scheduler.take_late() {
            replica.late.saw(late, mono);
        }
        let measured = measured(replica, &following, mono);
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

    /// At the store: if several replicas want another headroom, the first one succeeds.
    pub(super) fn follow(&mut self, over: PolicyVersion, headroom: Headroom) {
        let Some(following) = self.setting.follows else {
            return;
        };
        if !self.store.is_down(self.t) && self.store.version() == over {
            self.store.set(following.terms(headroom), self.t);
            self.notify_change(DEAF);
        }
    }
}

fn measured(replica: &mut Replica<'_>, following: &Following, mono: Mono) -> Measured {
    let late = match following.of {
        Followed::Paced(rate) => replica.late.worth(rate.window(), mono),
        Followed::Keyed(_) => {
            let trip = replica.scheduler.slow_trip();
            (!trip.is_zero()).then(|| permit_needs(trip) * 3 / 2)
        }
    };
    Measured {
        late,
        way: replica.shakes.spread(mono).map(|seen| seen.to_keep()),
    }
}

/// A replica receives another headroom.
pub(super) fn in_force(follow: &mut Option<Follow>, headroom: Headroom, now: Mono) {
    match follow {
        Some(follow) => follow.in_force(headroom, now),
        None => *follow = Some(Follow::new(headroom, now)),
    }
}
