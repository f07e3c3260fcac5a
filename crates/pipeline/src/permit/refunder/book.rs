//! What a refunder keeps: which calls are in flight, which messages are done, and what answers
//! reported.

use std::collections::HashMap;

use tokio::sync::oneshot;

use sluiced_core::limits::Ticket;
use sluiced_core::time::Mono;
use sluiced_ports::limits::{Correction, GrantedCharge};

use crate::permit::corrections::Corrections;

/// What the refunder receives. Bounded by the prefetch of the pacer's routes.
#[derive(Debug)]
pub(super) enum ToRefunder {
    /// Calls of one message.
    Began(Vec<GrantedCharge>),
    /// Calls that ended, and units that certainly were not used.
    Ended(Vec<GrantedCharge>),
    /// Calls that may have been granted, in an answer that never came, and were not made.
    Unanswered(Vec<GrantedCharge>),
    /// Claims of accepted messages, and where to say whether the store knows.
    Done(Vec<GrantedCharge>, oneshot::Sender<bool>),
    /// Calls and claims that are neither renewed nor released any more.
    Abandoned(Vec<GrantedCharge>),
    /// What an answer reported about a key, at this time.
    Corrected(Correction, Mono),
}

/// Claims of accepted messages, and where to say whether the store knows.
pub(super) type Done = (Vec<GrantedCharge>, oneshot::Sender<bool>);

/// What is known between two steps: see the module.
#[derive(Debug)]
pub(super) struct RefundBook {
    /// Calls in flight, by their tickets.
    pub(super) running: HashMap<Ticket, Vec<GrantedCharge>>,
    /// Calls that are released once: a question was not answered.
    pub(super) unanswered: Vec<GrantedCharge>,
    /// What the store should record as done.
    pub(super) done: Vec<Done>,
    /// What answers said.
    pub(super) said: Corrections,
}

impl RefundBook {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            running: HashMap::new(),
            unanswered: Vec::new(),
            done: Vec::new(),
            said: Corrections::new(now),
        }
    }

    /// Keeps what was received; returns what is to be released.
    pub(super) fn note(&mut self, entries: &mut Vec<ToRefunder>) -> Vec<GrantedCharge> {
        let mut released = Vec::new();
        for entry in entries.drain(..) {
            match entry {
                ToRefunder::Began(calls) => {
                    if let Some(ticket) = calls.first().and_then(GrantedCharge::ticket) {
                        self.running.insert(ticket, calls);
                    }
                }
                ToRefunder::Ended(granted) => {
                    self.stop_renewing(&granted);
                    released.extend(granted);
                }
                ToRefunder::Unanswered(calls) => self.unanswered.extend(calls),
                ToRefunder::Done(claims, sender) => self.done.push((claims, sender)),
                ToRefunder::Abandoned(calls) => self.stop_renewing(&calls),
                ToRefunder::Corrected(correction, at) => self.said.note(correction, at),
            }
        }
        released
    }

    /// A message may have calls of several limits, which end at different times.
    pub(super) fn stop_renewing(&mut self, ended: &[GrantedCharge]) {
        for ended_call in ended {
            let Some(ticket) = ended_call.ticket() else {
                continue;
            };
            if let Some(calls) = self.running.get_mut(&ticket) {
                calls.retain(|call| !is_same(call, ended_call));
                if calls.is_empty() {
                    self.running.remove(&ticket);
                }
            }
        }
    }

    /// Of calls that the store does not know, takes out those that are still under way. Its other limits may know a
    /// call still: there it is renewed further.
    pub(super) fn take(&mut self, mut lost: Vec<GrantedCharge>) -> Vec<GrantedCharge> {
        lost.retain(|call| {
            let running = call.ticket().and_then(|ticket| self.running.get(&ticket));
            running
                .is_some_and(|calls| calls.iter().any(|running_call| is_same(running_call, call)))
        });
        self.stop_renewing(&lost);
        lost
    }
}

fn is_same(one: &GrantedCharge, other: &GrantedCharge) -> bool {
    one.charge().limit.name == other.charge().limit.name
}
