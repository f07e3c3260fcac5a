//! Requests to the store: their ways, those that get lost, and what the store does.

use crate::core::schedule::{Ask, Sight};
use crate::sim::replica::Replica;
use crate::sim::trace::What;

use super::{Event, World};

/// A client gives up on the store after this.
const STORE_TIMEOUT: u64 = 500_000;

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
        let id = self.asks;
        replica.asking = Some(id);
        replica.last_ask = self.t;
        let (out, back) = (self.way() + replica.detour.0, self.way() + replica.detour.1);
        if self.dice.chance(self.around.lost_asks) {
            self.after(STORE_TIMEOUT, replica.id, Event::AskFailed { id });
            if self.dice.chance(500_000) {
                self.after(
                    out,
                    replica.id,
                    Event::Ask {
                        id,
                        ask,
                        back: None,
                        sent: self.t,
                    },
                );
            }
            return;
        }
        let sent = self.t;
        if out + back >= STORE_TIMEOUT {
            self.after(STORE_TIMEOUT, replica.id, Event::AskFailed { id });
            self.after(
                out,
                replica.id,
                Event::Ask {
                    id,
                    ask,
                    back: None,
                    sent,
                },
            );
        } else {
            self.after(
                out,
                replica.id,
                Event::Ask {
                    id,
                    ask,
                    back: Some(back),
                    sent,
                },
            );
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

    /// The store runs a request.
    pub(super) fn execute(
        &mut self,
        replica: u32,
        id: u64,
        ask: &Ask,
        back: Option<u64>,
        sent: u64,
    ) {
        if self.store.is_down(self.t) {
            if back.is_some() {
                // Refused at once, or swallowed until the client gives up.
                let wait = if self.dice.chance(500_000) {
                    100
                } else {
                    (sent + STORE_TIMEOUT).saturating_sub(self.t)
                };
                self.after(wait, replica, Event::AskFailed { id });
            }
            return;
        }
        let answer = self.store.lease(ask, self.t);
        let (turn, guarded) = (answer.turn.map(|turn| turn.at), answer.guarded);
        self.judge.answered(ask, &answer, self.t);
        match answer.grant {
            Some(grant) => {
                let (first, count) = (grant.first, grant.count.get());
                self.trace.note(
                    self.t,
                    replica,
                    What::Leased {
                        first,
                        count,
                        turn,
                        guarded,
                    },
                );
            }
            None => self
                .trace
                .note(self.t, replica, What::Denied { turn, guarded }),
        }
        if let Some(back) = back {
            self.after(back, replica, Event::Answered { id, answer, sent });
        }
    }
}
