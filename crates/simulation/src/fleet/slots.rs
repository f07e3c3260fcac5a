//! Asks for slots: how long they travel, which are lost, and what the store does.

use std::time::Duration;

use sluiced_core::pacing::Row;
use sluiced_core::schedule::{Ask, ClockView, LeaseAnswer, Pace};
use sluiced_core::time::Mono;
use sluiced_core::version::PolicyVersion;

use super::{Fleet, SimEvent, SimulatedReplica};
use crate::watch::{FleetEvent, FleetWatch};

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

impl<'a, W: FleetWatch> Fleet<'a, W> {
    /// The way of a request, which may be lost before or after it is executed.
    pub(super) fn trip(&mut self, replica: &SimulatedReplica<'a>, may_fail: bool) -> Trip {
        let (out, back) = (self.way() + replica.detour.0, self.way() + replica.detour.1);
        let drops = may_fail && self.dice.chance(self.setting.around.lost_asks);
        let lost = drops || replica.is_cut_off;
        let arrives = !lost || !replica.is_cut_off && self.dice.chance(500_000);
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

    pub(super) fn ask(&mut self, replica: &mut SimulatedReplica<'a>, row: Row, ask: Ask) {
        let here = self.store.clock(self.t);
        let before = replica.turn.is_some_and(|turn| here + TURN_DOUBT < turn.at);
        let asked = FleetEvent::Asked {
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
        let pace_and_version = holder.map(|holder| (*holder.pace(), holder.policy_version()));
        if back.is_none() {
            self.after(STORE_TIMEOUT, replica.id, SimEvent::AskFailed { id, row });
        }
        if let (Some(out), Some(pace_and_version)) = (out, pace_and_version) {
            let ask = SimEvent::Ask {
                id,
                row,
                ask,
                known: pace_and_version,
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
            Some(grant) => FleetEvent::Leased {
                first: grant.first,
                count: grant.count.get(),
                turn,
                guarded,
            },
            None => FleetEvent::Denied {
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
            let leased = SimEvent::Leased {
                id,
                row,
                answer,
                sent,
            };
            self.after(back, replica, leased);
        } else {
            let wait = self.refusal(sent);
            self.after(wait, replica, SimEvent::AskFailed { id, row });
        }
    }

    pub(super) fn leased(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        id: u64,
        row: Row,
        answer: &LeaseAnswer,
        sent: u64,
        mono: Mono,
    ) {
        if replica.asking[row as usize]
            .take_if(|asking_id| *asking_id == id)
            .is_none()
        {
            return;
        }
        // A turn under an older policy than the known one is given up.
        let known_version = replica.version();
        replica.turn = answer.turn.filter(|_| known_version == answer.version);
        let trip = Duration::from_micros(self.t - sent);
        self.see(replica.id, FleetEvent::Heard { trip });
        replica
            .scheduler
            .pacing_mut()
            .note_answer(row, answer, mono);
        if replica.scheduler.pacing().is_outdated() {
            self.declare(replica);
        }
    }

    pub(super) fn not_leased(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        id: u64,
        row: Row,
        mono: Mono,
    ) {
        if replica.asking[row as usize]
            .take_if(|asking_id| *asking_id == id)
            .is_some()
        {
            replica.turn = None;
            self.see(replica.id, FleetEvent::AskFailed);
            replica.scheduler.pacing_mut().note_failure(row, mono);
        }
    }
}
