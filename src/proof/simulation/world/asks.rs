//! Requests to the store: their ways, those that get lost, and what the store does.

use crate::replica::Replica;
use crate::trace::What;
use sluiced_core::pacing::Row;
use sluiced_core::policy::{LimitPolicy, PolicyVersion};
use sluiced_core::schedule::{Answer, Ask, Pace, Sight};
use sluiced_core::time::Mono;

use super::{Event, World};

/// A client gives up on the store after this.
pub(super) const STORE_TIMEOUT: u64 = 500_000;

impl World<'_> {
    pub(super) fn ask(&mut self, replica: &mut Replica, ask: Ask) {
        let here = self.store.clock(self.t);
        self.judge.asked(replica, &ask, here, self.t);
        let (want, turn) = (ask.want, ask.turn.map(|turn| turn.at));
        let stepped = matches!(ask.sight, Sight::Stepped { .. });
        let asked = What::Asked {
            want,
            turn,
            stepped,
        };
        self.trace.note(self.t, replica.id, asked);
        self.asks += 1;
        let (id, sent) = (self.asks, self.t);
        replica.asking = Some(id);
        replica.last_ask = self.t;
        let (out, back) = (self.way() + replica.detour.0, self.way() + replica.detour.1);
        let holder = replica.scheduler.holder(Row::Main);
        let known = holder.map_or((self.pace, PolicyVersion::NONE), |k| (*k.pace(), k.known()));
        let lost = self.dice.chance(self.around.lost_asks);
        let too_slow = !lost && out + back >= STORE_TIMEOUT;
        if lost || too_slow {
            self.after(STORE_TIMEOUT, replica.id, Event::AskFailed { id });
        }
        if lost && !self.dice.chance(500_000) {
            return;
        }
        let back = (!lost && !too_slow).then_some(back);
        self.after(
            out,
            replica.id,
            Event::Ask {
                id,
                ask,
                known,
                back,
                sent,
            },
        );
    }

    /// A replica asks what is in force, once at a time.
    pub(super) fn declare(&mut self, replica: &mut Replica) {
        if replica.declaring {
            return;
        }
        replica.declaring = true;
        let way = self.way();
        self.after(way, replica.id, Event::Declare(replica.known.clone()));
    }

    /// A replica receives what is in force.
    pub(super) fn told(&mut self, replica: &mut Replica, policy: Option<LimitPolicy>, mono: Mono) {
        replica.declaring = false;
        let Some(policy) = policy else {
            return self.declare(replica);
        };
        if let Some(pace) = self.store.pace(&policy)
            && replica.version() != policy.version
        {
            replica.turn = None;
            replica.scheduler.retime(&[pace], policy.version, mono);
            replica.known = Some(policy);
        }
    }

    pub(super) fn way(&mut self) -> u64 {
        let way = self.spread(self.around.to_store);
        if self.dice.chance(self.around.slow_ways) {
            way + self.dice.below(300_000)
        } else {
            way
        }
    }

    /// The store runs a request. `None` if it is away.
    pub(super) fn execute(
        &mut self,
        replica: u32,
        ask: &Ask,
        known: (&Pace, PolicyVersion),
    ) -> Option<Answer> {
        if self.store.is_down(self.t) {
            return None;
        }
        let answer = self.store.lease(known, ask, self.t);
        let (turn, guarded) = (answer.turn.map(|turn| turn.at), answer.guarded);
        if answer.version == known.1 {
            self.judge.answered(ask, &answer, self.t);
        }
        let note = match answer.grant {
            Some(grant) => What::Leased {
                first: grant.first,
                count: grant.count.get(),
                turn,
                guarded,
            },
            None => What::Denied { turn, guarded },
        };
        self.trace.note(self.t, replica, note);
        Some(answer)
    }

    /// The store's answer is on its way, unless it gets lost (`back` is `None`).
    pub(super) fn reply(
        &mut self,
        replica: u32,
        id: u64,
        answer: Option<Answer>,
        back: Option<u64>,
        sent: u64,
    ) {
        let Some(back) = back else {
            return;
        };
        if let Some(answer) = answer {
            self.after(back, replica, Event::Answered { id, answer, sent });
        } else {
            // Refused at once, or swallowed until the client gives up.
            let wait = if self.dice.chance(500_000) {
                100
            } else {
                (sent + STORE_TIMEOUT).saturating_sub(self.t)
            };
            self.after(wait, replica, Event::AskFailed { id });
        }
    }
}
