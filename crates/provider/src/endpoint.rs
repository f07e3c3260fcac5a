//! The state of a provider while it answers: its behaviour, its script, and the answers to
//! receipts.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::connection::ConnectionFaults;
use super::double::Double;
use super::ledger::Ledger;
use super::script::{Act, Behaviour, ResponsePlan, Script, ScriptFull, ScriptStep};
use sluiced_core::time::Mono;
use sluiced_pdu::CommandStatus;
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_simulation::window::Tally;

/// This many answers to receipts are kept.
const MAX_RECEIPTS: usize = 1_000_000;
/// This many deliveries may wait to be written.
const MAX_DELIVERIES: usize = 1_000;

/// Where calls arrive.
#[derive(Debug)]
pub(super) struct Endpoint {
    behaviour: Behaviour,
    ledger: Ledger,
    state: Mutex<Answering>,
    pub(super) way: watch::Sender<ConnectionFaults>,
    /// How often SMPP sessions were ended.
    pub(super) unbind: watch::Sender<u64>,
    /// PDUs for every transceiver.
    pub(super) deliveries: broadcast::Sender<Vec<u8>>,
    /// Ends the connections that are open.
    cut: Mutex<CancellationToken>,
}

#[derive(Debug)]
struct Answering {
    script: Script,
    /// The calls that were let through, where the limit is enforced.
    passed: Tally,
    /// How many receipts were sent over SMPP.
    receipts: u32,
    /// The answers to receipts: sequence number and status.
    receipted: Vec<(u32, u32)>,
    /// The segments that were taken of messages of which others were not.
    segments: HashMap<Box<str>, BTreeSet<u8>>,
}

impl Endpoint {
    pub(super) fn new(behaviour: Behaviour) -> Self {
        Self {
            ledger: Ledger::new(behaviour.rate, behaviour.key_rate),
            state: Mutex::new(Answering {
                script: Script::default(),
                passed: Tally::new(behaviour.rate),
                receipts: 0,
                receipted: Vec::new(),
                segments: HashMap::new(),
            }),
            way: watch::Sender::default(),
            unbind: watch::Sender::default(),
            deliveries: broadcast::Sender::new(MAX_DELIVERIES),
            cut: Mutex::default(),
            behaviour,
        }
    }

    pub(super) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// As which it answers, if no step is scripted.
    pub(super) fn double(&self) -> Option<Arc<Double>> {
        let is_scripted = !self.state().script.is_empty();
        self.behaviour.double.clone().filter(|_| !is_scripted)
    }

    /// Whether it answers as a named provider does, which may speak HTTP/2.
    pub(super) const fn is_double(&self) -> bool {
        self.behaviour.double.is_some()
    }

    pub(super) fn script(&self, step: ScriptStep) -> Result<(), ScriptFull> {
        self.state().script.push(step, clock::now())
    }

    pub(super) fn clear_script(&self) {
        self.state().script.clear();
    }

    /// Closes all connections.
    pub(super) fn cut(&self) {
        std::mem::take(&mut *lock(&self.cut)).cancel();
    }

    /// Ends with the next [`Endpoint::cut`].
    pub(super) fn until_cut(&self) -> CancellationToken {
        lock(&self.cut).clone()
    }

    fn state(&self) -> MutexGuard<'_, Answering> {
        lock(&self.state)
    }

    /// A segment of a message was taken. Returns whether that makes all of them.
    pub(super) fn take_segment(&self, message: &str, number: u8, all: u8) -> bool {
        let mut state = self.state();
        let taken = state.segments.entry(message.into()).or_default();
        taken.insert(number);
        let is_whole = taken.len() >= usize::from(all);
        if is_whole {
            state.segments.remove(message);
        }
        is_whole
    }

    /// How long an answer takes.
    pub(super) fn latency(&self) -> Duration {
        self.behaviour.latency + self.behaviour.jitter.mul_f64(rand::random())
    }

    pub(super) fn plan_answer(&self, at: Mono) -> ResponsePlan {
        let latency = self.latency();
        let mut state = self.state();
        if let Some(step) = state.script.next(at) {
            let status = step.status.unwrap_or(StatusCode::ACCEPTED);
            let is_taken = step.smpp.map_or(status.is_success(), |status| status == 0);
            let answered = step.act == Act::Answer && is_taken;
            return ResponsePlan {
                act: step.act,
                status,
                smpp: step.smpp,
                retry_after: step.retry_after,
                delay: latency + step.delay.map_or(Duration::ZERO, |delay| delay.get()),
                accepted: step.accept || answered,
            };
        }
        let (usual_status, retry_after) = if self.behaviour.enforce {
            state.enforce(at)
        } else {
            (StatusCode::ACCEPTED, None)
        };
        drop(state);
        let status = self.fail().unwrap_or(usual_status);
        ResponsePlan {
            act: Act::Answer,
            status,
            smpp: None,
            retry_after,
            delay: latency,
            accepted: status.is_success(),
        }
    }

    /// The sequence number of the next receipt.
    pub(super) fn next_receipt(&self) -> u32 {
        let mut state = self.state();
        state.receipts += 1;
        state.receipts
    }

    /// How many receipts were sent.
    pub(super) fn sent_receipts(&self) -> u32 {
        self.state().receipts
    }

    /// A client answered a receipt.
    pub(super) fn note_receipt_answer(&self, sequence: u32, status: CommandStatus) {
        let mut state = self.state();
        if state.receipted.len() < MAX_RECEIPTS {
            state.receipted.push((sequence, status.0));
        }
    }

    /// The receipts that were answered, by sequence number, with the status of each answer.
    pub(super) fn answered_receipts(&self) -> Vec<(u32, u32)> {
        self.state().receipted.clone()
    }

    fn fail(&self) -> Option<StatusCode> {
        let mut dice: f64 = rand::random();
        for failure in &self.behaviour.failures {
            if dice < failure.share {
                return Some(failure.status);
            }
            dice -= failure.share;
        }
        None
    }
}

impl Answering {
    /// Lets a call pass or refuses it with the whole seconds after which it would pass.
    fn enforce(&mut self, at: Mono) -> (StatusCode, Option<String>) {
        let wait = self.passed.wait(at);
        if wait.is_zero() {
            self.passed.record(at);
            return (StatusCode::ACCEPTED, None);
        }
        let seconds = wait.as_micros().div_ceil(1_000_000);
        (StatusCode::TOO_MANY_REQUESTS, Some(seconds.to_string()))
    }
}
