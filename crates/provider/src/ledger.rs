//! The provider's ledger: when calls arrived, which messages they carried, and the counts.
//!
//! The thread that stamps calls only appends to a short list. A report takes the whole list and does
//! the counting on a thread of its own, so that even a long report never delays a stamp.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use sluiced_core::rate::Rate;
use sluiced_core::time::{Mono, micros};
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_simulation::window::{Tally, gaps, percentile};

use super::{LiveFigures, Report};

/// Beyond this many calls only the windows are judged; ids and gaps are no longer kept.
const MAX_CALLS: usize = 20_000_000;
/// A window is judged only this long after its end: calls that arrived in it may be read later than others.
const SETTLE: Duration = Duration::from_millis(500);
/// The reading thread must have begun this many rounds since: it may be late itself. A new connection takes several
/// rounds, to be accepted, polled and read.
const ROUNDS: usize = 10;
/// This many ids and times are named in a report; the counts are always whole.
const MAX_NAMED: usize = 10;
/// This many callers are counted separately; calls of others are counted for none.
const MAX_CALLERS: usize = 1_000;
/// This many arrivals are kept with their keys.
const MAX_KEYED: usize = 1_000_000;
/// This many keys are judged one by one.
const MAX_KEYS: usize = 1_000_000;

/// Which messages should have come.
#[derive(Clone, Debug, Default)]
pub enum Expect {
    /// Nothing is known about it.
    #[default]
    Nothing,
    /// This many different messages.
    Count(u64),
    /// Exactly these.
    Ids(Vec<String>),
}

impl Expect {
    /// `?expect=6000`, or a JSON array of ids as the body, or nothing.
    pub(super) fn read(query: &str, body: &[u8]) -> Result<Self, String> {
        if !body.is_empty() {
            return serde_json::from_slice(body)
                .map(Self::Ids)
                .map_err(|error| format!("the body is no JSON array of ids: {error}"));
        }
        match query.strip_prefix("expect=") {
            None if query.is_empty() => Ok(Self::Nothing),
            None => Err("the only parameter is expect=<number of messages>".to_owned()),
            Some(count) => count
                .parse()
                .map(Self::Count)
                .map_err(|_| format!("expect={count} is no whole number")),
        }
    }
}

/// A call whose head was read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) at: Mono,
    /// The units that it says it takes of the limit.
    pub(super) units: u32,
    /// The key that it names.
    pub(super) key: Option<Box<str>>,
}

#[derive(Debug)]
enum LedgerEvent {
    Arrived(Arrival),
    Undated,
    Read(CallRecord),
}

/// A request that was read to its end, and its answer.
#[derive(Debug)]
pub(super) struct CallRecord {
    pub(super) id: Option<Box<str>>,
    pub(super) caller: Option<Box<str>>,
    pub(super) accepted: bool,
}

/// All calls of a run, and what is judged of them.
#[derive(Debug)]
pub(super) struct Ledger {
    fresh: Mutex<Vec<LedgerEvent>>,
    book: Mutex<Book>,
    /// When the last [`ROUNDS`] rounds of the reading thread began.
    rounds: Mutex<VecDeque<Mono>>,
}

#[derive(Debug)]
struct Book {
    rate: Rate,
    tally: Tally,
    arrivals: Vec<Mono>,
    /// Arrivals that may still be overtaken: a connection that is read later may have received
    /// its call earlier.
    unsorted: BinaryHeap<Reverse<Arrival>>,
    /// The limit of each key, if they are judged.
    key_rate: Option<Rate>,
    keys: HashMap<Box<str>, Tally>,
    /// Calls that named a key, in their order.
    keyed: Vec<(Mono, Box<str>)>,
    /// The first few calls that came too early.
    early: Vec<Mono>,
    undated: u64,
    accepted: u64,
    anonymous: u64,
    /// How often each message was accepted.
    messages: HashMap<Box<str>, u32>,
    callers: BTreeMap<Box<str>, u64>,
    truncated: bool,
}

impl Ledger {
    pub(super) fn new(rate: Rate, key_rate: Option<Rate>) -> Self {
        Self {
            fresh: Mutex::default(),
            book: Mutex::new(Book::new(rate, key_rate)),
            rounds: Mutex::default(),
        }
    }

    /// The thread that reads calls begins a round: bytes that are there now are read soon.
    pub(super) fn begin_round(&self) {
        let mut rounds = lock(&self.rounds);
        if rounds.len() >= ROUNDS {
            rounds.pop_front();
        }
        rounds.push_back(clock::now());
    }

    /// Everything that arrived before this has been read. A reading thread that stood still reads
    /// earlier calls later, in any order: judged too soon, those calls would count as if they came
    /// when they were read, all at once.
    fn settled(&self) -> Mono {
        let rounds = lock(&self.rounds);
        let oldest = rounds.front().filter(|_| rounds.len() >= ROUNDS);
        let read_until = oldest.copied().unwrap_or_default();
        read_until.min(clock::now() - SETTLE)
    }

    /// A call arrived; in any order until it is [`Ledger::settled`]. `None`: it is not known when.
    pub(super) fn note_arrival(&self, arrival: Option<Arrival>) {
        let event = arrival.map_or(LedgerEvent::Undated, LedgerEvent::Arrived);
        lock(&self.fresh).push(event);
    }

    pub(super) fn note_call(&self, call: CallRecord) {
        lock(&self.fresh).push(LedgerEvent::Read(call));
    }

    /// Moves fresh entries into the book. The book is locked first, so that events stay in order.
    pub(super) fn absorb(&self) {
        drop(self.current());
    }

    pub(super) fn reset(&self) {
        let mut book = self.current();
        *book = Book::new(book.rate, book.key_rate);
    }

    pub(super) fn report(&self, expect: &Expect) -> Report {
        let mut book = self.current();
        // Complete for calls that have been answered; a call on its way counts when it is read.
        book.judge_until(clock::now());
        book.report(expect)
    }

    pub(super) fn keyed(&self) -> Vec<(Mono, Box<str>)> {
        self.current().keyed.clone()
    }

    pub(super) fn taken(&self) -> HashMap<Box<str>, u32> {
        self.current().messages.clone()
    }

    pub(super) fn live(&self) -> LiveFigures {
        let book = self.current();
        let usage = book.tally.usage();
        let since = clock::now() - Duration::from_secs(1);
        let before = book.arrivals.partition_point(|at| *at < since);
        LiveFigures {
            calls: usage.calls + book.unsorted.len() as u64 + book.undated,
            unique: book.messages.len() as u64,
            last_second: (book.arrivals.len() - before + book.unsorted.len()) as u64,
            worst: usage.worst,
            over: usage.over,
        }
    }

    fn current(&self) -> MutexGuard<'_, Book> {
        let mut book = lock(&self.book);
        let fresh = {
            let mut events = lock(&self.fresh);
            let room = Vec::with_capacity(events.len());
            std::mem::replace(&mut *events, room)
        };
        for event in fresh {
            book.enter(event);
        }
        book.judge_until(self.settled());
        book
    }
}

impl Book {
    fn new(rate: Rate, key_rate: Option<Rate>) -> Self {
        Self {
            rate,
            key_rate,
            keys: HashMap::new(),
            keyed: Vec::new(),
            tally: Tally::new(rate),
            arrivals: Vec::new(),
            unsorted: BinaryHeap::new(),
            early: Vec::new(),
            undated: 0,
            accepted: 0,
            anonymous: 0,
            messages: HashMap::new(),
            callers: BTreeMap::new(),
            truncated: false,
        }
    }

    fn enter(&mut self, event: LedgerEvent) {
        match event {
            LedgerEvent::Arrived(arrival) => self.unsorted.push(Reverse(arrival)),
            LedgerEvent::Undated => self.undated += 1,
            LedgerEvent::Read(call) => self.attribute(call),
        }
    }

    /// Judges the arrivals up to `end`, in their order.
    fn judge_until(&mut self, end: Mono) {
        while self
            .unsorted
            .peek()
            .is_some_and(|Reverse(next)| next.at <= end)
        {
            let Some(Reverse(Arrival { at, units, key })) = self.unsorted.pop() else {
                return;
            };
            let before = self.tally.usage().over;
            self.tally.record_units(at, units);
            if self.tally.usage().over > before && self.early.len() < MAX_NAMED {
                self.early.push(at);
            }
            if self.arrivals.len() < MAX_CALLS {
                self.arrivals.push(at);
            } else {
                self.truncated = true;
            }
            self.judge_key(at, units, key);
        }
    }

    fn judge_key(&mut self, at: Mono, units: u32, key: Option<Box<str>>) {
        let Some(key) = key else {
            return;
        };
        if self.keyed.len() < MAX_KEYED {
            self.keyed.push((at, key.clone()));
        }
        let Some(rate) = self.key_rate else {
            return;
        };
        if let Some(tally) = self.keys.get_mut(&key) {
            tally.record_units(at, units);
        } else if self.keys.len() < MAX_KEYS {
            let mut tally = Tally::new(rate);
            tally.record_units(at, units);
            self.keys.insert(key, tally);
        } else {
            self.truncated = true;
        }
    }

    fn attribute(&mut self, call: CallRecord) {
        self.accepted += u64::from(call.accepted);
        match call.id {
            None => self.anonymous += 1,
            Some(id) if call.accepted && !self.truncated => {
                *self.messages.entry(id).or_default() += 1;
            }
            Some(_) => {}
        }
        let Some(caller) = call.caller else { return };
        if let Some(calls) = self.callers.get_mut(&caller) {
            *calls += 1;
        } else if self.callers.len() < MAX_CALLERS {
            self.callers.insert(caller, 1);
        }
    }

    fn report(&self, expect: &Expect) -> Report {
        let usage = self.tally.usage();
        let gaps = gaps(&self.arrivals);
        let gap = |percent| percentile(&gaps, percent).map(micros);
        let unique = self.messages.len() as u64;
        let first = usage.span.map_or(Mono::default(), |(first, _)| first);
        let (lost, lost_ids, unexpected) = self.compare(expect);
        let (repeated, repeated_ids) = self.repeated();
        Report {
            calls: usage.calls + self.undated,
            undated: self.undated,
            accepted: self.accepted,
            unique,
            repeated,
            repeated_ids,
            anonymous: self.anonymous,
            callers: self.callers.clone(),
            lost,
            lost_ids,
            unexpected,
            limit: self.rate.units().get(),
            window_us: micros(self.rate.window()),
            worst: usage.worst,
            over: usage.over,
            units: usage.units,
            keys: self.keys.len() as u64,
            key_worst: self
                .keys
                .values()
                .map(|key| key.usage().worst)
                .max()
                .unwrap_or(0),
            key_over: self.keys.values().map(|key| key.usage().over).sum(),
            over_at_us: self
                .early
                .iter()
                .map(|at| micros(at.since(first)))
                .collect(),
            used: usage.used(),
            first_us: usage.span.map(|(first, _)| first.as_micros()),
            last_us: usage.span.map(|(_, last)| last.as_micros()),
            duration_us: micros(usage.duration()),
            gap_p50_us: gap(50),
            gap_p99_us: gap(99),
            truncated: self.truncated,
        }
    }

    fn repeated(&self) -> (u64, Vec<String>) {
        let repeats = || self.messages.iter().filter(|(_, times)| **times > 1);
        let named = repeats().take(MAX_NAMED).map(|(id, _)| id.to_string());
        (repeats().count() as u64, named.collect())
    }

    /// How many were lost, a few of their names, how many were not expected.
    fn compare(&self, expect: &Expect) -> (Option<u64>, Vec<String>, u64) {
        let unique = self.messages.len() as u64;
        match expect {
            Expect::Nothing => (None, Vec::new(), 0),
            Expect::Count(count) => (
                Some(count.saturating_sub(unique)),
                Vec::new(),
                unique.saturating_sub(*count),
            ),
            Expect::Ids(ids) => {
                let wanted: HashSet<&str> = ids.iter().map(String::as_str).collect();
                let lost = || wanted.iter().filter(|id| !self.messages.contains_key(**id));
                let missing = lost().count();
                let named = lost().take(MAX_NAMED).map(|id| (*id).to_owned()).collect();
                let unexpected = unique - (wanted.len() - missing) as u64;
                (Some(missing as u64), named, unexpected)
            }
        }
    }
}

#[cfg(test)]
mod tests;
