//! Where each message of the input is: ready, handed out, parked, or waiting.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::EmbeddedOptions;
use super::files::LeftoverFile;
use super::list::{Checkpoint, Input, InputLine, InputLines};
use crate::{QueueEvent, QueueEvents};
use sluiced_core::gate::Tap;
use sluiced_core::judge::DeadReason;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::message::{HeaderValue, Headers, Message, header};
use sluiced_ports::queue::{
    Delivery, HeaderPatch, Leftover, Settlement, SettlementSender, Verdict, headers_to_clear,
    time_to_close,
};

/// Messages that wait in memory at most; then the input is not read on until some are back.
const WAITING: usize = 100_000;
/// The most bytes of all messages that are not settled; beyond it the input is not read on either.
const MOST_BYTES: usize = 256 << 20;

/// A message of the input that is not settled: ready, handed out, parked or waiting.
pub(super) struct InputMessage {
    pub(super) line: InputLine,
    pub(super) headers: Headers,
    pub(super) redelivered: bool,
    /// The parked queue that it is in, or was in when it was handed out.
    pub(super) parked_queue: Option<ParkedQueue>,
}

/// The state of the queue. One task owns it.
pub(super) struct LocalQueue {
    pub(super) route: Arc<str>,
    prefetch: usize,
    /// The prefetch of each parked queue.
    parked_prefetch: usize,
    pub(super) events: Arc<dyn QueueEvents>,
    deliveries: mpsc::UnboundedSender<Delivery>,
    pub(super) leftover: LeftoverFile,
    pub(super) checkpoint_path: Option<PathBuf>,
    pub(super) checkpoint: Option<Checkpoint>,
    /// The bytes of all messages that are not settled.
    bytes: usize,
    /// How many messages could not be written to the file.
    pub(super) lost: u64,
    next_tag: u64,
    /// Given back, or back from waiting.
    pub(super) ready: VecDeque<InputMessage>,
    /// By parked queue.
    pub(super) parked: Vec<VecDeque<InputMessage>>,
    /// How many messages are parked, for the subscription.
    parked_count: watch::Sender<Option<u64>>,
    pub(super) out: HashMap<u64, InputMessage>,
    /// How many of those came from each parked queue.
    out_of: Vec<usize>,
    /// By the time they come back; the number is the key of `waiting`.
    returns_at: BinaryHeap<Reverse<(Instant, u64)>>,
    pub(super) waiting: HashMap<u64, InputMessage>,
}

impl LocalQueue {
    pub(super) fn new(
        options: EmbeddedOptions,
        events: Arc<dyn QueueEvents>,
        deliveries: mpsc::UnboundedSender<Delivery>,
        parked_count: watch::Sender<Option<u64>>,
    ) -> Self {
        Self {
            route: options.route,
            prefetch: usize::from(options.prefetch.max(1)),
            parked_prefetch: usize::from(ParkedQueue::prefetch(options.prefetch)),
            events,
            deliveries,
            leftover: LeftoverFile::new(options.leftover),
            checkpoint_path: options.checkpoint,
            checkpoint: None,
            bytes: 0,
            lost: 0,
            next_tag: 0,
            ready: VecDeque::new(),
            parked: ParkedQueue::all().map(|_| VecDeque::new()).collect(),
            parked_count,
            out: HashMap::new(),
            out_of: ParkedQueue::all().map(|_| 0).collect(),
            returns_at: BinaryHeap::new(),
            waiting: HashMap::new(),
        }
    }

    /// Serves until the input is exhausted and settled, or until `closing` names a time to end at.
    pub(super) async fn run(
        mut self,
        input: Input,
        mut tap: watch::Receiver<Tap>,
        mut closing: watch::Receiver<Option<Instant>>,
        link: &watch::Sender<Link>,
    ) -> Leftover {
        let Some(lines) = self.open(input, link).await else {
            // Not a normal end: the subscription stays until it is closed.
            time_to_close(&mut closing).await;
            return Leftover::default();
        };
        let mut lines = Some(lines);
        link.send_replace(Link::Up);
        let (sink, mut settlements) = SettlementSender::new();
        let mut leftover = Leftover::default();
        loop {
            let open = *tap.borrow_and_update() == Tap::Open;
            self.wake();
            if open {
                self.serve(&sink);
            }
            if lines.is_none() && self.is_empty() {
                break;
            }
            let wants_more = open && self.wants_more();
            let alarm = self.returns_at.peek().map(|Reverse((at, _))| *at);
            let due = self.checkpoint.as_ref().and_then(Checkpoint::due);
            tokio::select! {
                Some(settlement) = settlements.recv() => self.settle(settlement).await,
                line = read(&mut lines), if wants_more && lines.is_some() => {
                    if !self.take_line(line).await {
                        lines = None;
                    }
                }
                () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.write_down().await;
                }
                Ok(()) = tap.changed() => {}
                end = time_to_close(&mut closing) => {
                    settlements.close();
                    while let Ok(settlement) = settlements.try_recv() {
                        self.settle(settlement).await;
                    }
                    leftover.given_back = self.abandon(lines.take(), end).await;
                    break;
                }
            }
        }
        self.write_down().await;
        leftover.unsettled = self.lost;
        leftover
    }

    fn is_empty(&self) -> bool {
        let parked = self.parked.iter().all(VecDeque::is_empty);
        parked && self.ready.is_empty() && self.out.is_empty() && self.waiting.is_empty()
    }

    /// Whether one more may be out, of those that are not parked.
    fn has_room(&self) -> bool {
        let parked: usize = self.out_of.iter().sum();
        self.out.len() - parked < self.prefetch
    }

    /// Whether the next line is to be read.
    fn wants_more(&self) -> bool {
        let has_memory = self.waiting.len() < WAITING && self.bytes < MOST_BYTES;
        self.ready.is_empty() && self.has_room() && has_memory
    }

    /// Hands out as many messages as the prefetch allows.
    fn serve(&mut self, sink: &SettlementSender) {
        while self.has_room() {
            let Some(item) = self.ready.pop_front() else {
                break;
            };
            self.hand_out(item, sink);
        }
        for parked_queue in 0..self.parked.len() {
            while self.out_of[parked_queue] < self.parked_prefetch
                && let Some(item) = self.parked[parked_queue].pop_front()
            {
                self.out_of[parked_queue] += 1;
                self.hand_out(item, sink);
            }
        }
        self.count();
    }

    /// Updates the number of parked messages.
    fn count(&self) {
        let count: usize = self.parked.iter().map(VecDeque::len).sum();
        self.parked_count.send_replace(Some(count as u64));
    }

    /// Brings back messages that have waited long enough.
    fn wake(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, key))) = self.returns_at.peek().copied() {
            if at > now {
                break;
            }
            self.returns_at.pop();
            self.ready.extend(self.waiting.remove(&key));
        }
    }

    /// Handles a line that was read. Returns whether the input goes on.
    async fn take_line(&mut self, line: io::Result<Option<InputLine>>) -> bool {
        match line {
            Ok(Some(line)) => {
                self.arrive(line).await;
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::error!(route = %self.route, %error, "the input cannot be read on");
                // The rest is not sent: at least one message.
                self.lost += 1;
                false
            }
        }
    }

    async fn arrive(&mut self, line: InputLine) {
        if let Some(checkpoint) = &mut self.checkpoint {
            if checkpoint.is_settled(line.number) {
                return;
            }
            checkpoint.note_arrival(line.number);
        }
        let fault = if line.cut {
            Some((DeadReason::Oversized, "the line is too long".to_owned()))
        } else {
            serde_json::from_slice::<&RawValue>(&line.text)
                .err()
                .map(|error| (DeadReason::Undecodable, format!("not JSON: {error}")))
        };
        let item = InputMessage {
            line,
            headers: Headers::new(),
            redelivered: false,
            parked_queue: None,
        };
        let Some((reason, detail)) = fault else {
            self.bytes += item.line.text.len();
            self.ready.push_back(item);
            return;
        };
        tracing::warn!(
            route = %self.route,
            line = item.line.number,
            detail,
            "a line is no message"
        );
        if self.record(&item, reason.label(), Some(&detail)).await {
            self.settle_line(item.line.number, true);
        }
        self.events.note(
            &self.route,
            QueueEvent::Settled {
                verdict: "dead",
                count: 1,
            },
        );
    }

    fn hand_out(&mut self, item: InputMessage, sink: &SettlementSender) {
        self.next_tag += 1;
        let message = Message {
            body: item.line.text.clone(),
            headers: item.headers.clone(),
            redelivered: item.redelivered,
            ..Message::default()
        };
        self.out.insert(self.next_tag, item);
        let route = Arc::clone(&self.route);
        let now = clock::now();
        let delivery = Delivery::new(message, now, self.next_tag, route, sink.clone());
        // If the pipeline is gone, the delivery is dropped, which gives it back.
        drop(self.deliveries.send(delivery));
    }

    async fn settle(&mut self, settlement: Settlement) {
        let Some(mut item) = self.out.remove(&settlement.tag) else {
            return;
        };
        let from = item.parked_queue.take();
        if let Some(parked_queue) = from {
            self.out_of[parked_queue.index()] -= 1;
        }
        let label = settlement.verdict.label();
        match settlement.verdict {
            Verdict::Done | Verdict::Dropped => {
                self.bytes -= item.line.text.len();
                self.settle_line(item.line.number, false);
            }
            Verdict::GiveBack => {
                item.redelivered = true;
                item.parked_queue = from;
                match from {
                    Some(parked_queue) => self.parked[parked_queue.index()].push_front(item),
                    None => self.ready.push_front(item),
                }
            }
            Verdict::Parked {
                parked_queue,
                headers,
            } => {
                patch(&mut item.headers, headers);
                item.redelivered = false;
                item.parked_queue = Some(parked_queue);
                self.parked[parked_queue.index()].push_back(item);
                self.count();
            }
            Verdict::Later { delay, headers } => {
                patch(&mut item.headers, headers);
                item.redelivered = false;
                let at = Instant::now() + delay;
                self.returns_at.push(Reverse((at, settlement.tag)));
                self.waiting.insert(settlement.tag, item);
            }
            Verdict::Dead { reason, headers } => {
                self.bytes -= item.line.text.len();
                patch(&mut item.headers, headers);
                let detail = match item.headers.get(header::DETAIL) {
                    Some(HeaderValue::Text(detail)) => Some(detail.clone()),
                    _ => None,
                };
                if self.record(&item, reason.label(), detail.as_deref()).await {
                    self.settle_line(item.line.number, true);
                }
            }
        }
        self.events.note(
            &self.route,
            QueueEvent::Settled {
                verdict: label,
                count: 1,
            },
        );
    }
}

fn patch(headers: &mut Headers, patch: HeaderPatch) {
    for name in headers_to_clear(&patch) {
        headers.remove(name);
    }
    for (name, value) in patch {
        headers.insert(name.to_owned(), value);
    }
}

/// The next line; never without an input.
async fn read(lines: &mut Option<InputLines>) -> io::Result<Option<InputLine>> {
    match lines {
        Some(lines) => lines.next().await,
        None => std::future::pending().await,
    }
}
