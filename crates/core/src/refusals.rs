//! What a refusal ("not now", `429`, `ESME_RTHROTTLED`) is about: its message, a key of it, or the whole account.
//!
//! Problem: providers answer the same way if the account called too often and if one recipient, chat or mailbox
//! may not get more for now. If each refusal stopped everything, one message that is always refused would stop
//! its route for ever. If none did, a frozen account would be called by every message in turn.
//!
//! So a refusal is judged by the other calls. Only while others are refused too is it about what they share: the *run*
//! of a key, or of all messages, is the number of different messages that were refused in a row, with none accepted in
//! between. A run of two is enough as long as refusals are rare. Where many messages are refused for reasons of their
//! own, some follow each other by chance: then a run must be so long that it would come by chance less than once in a
//! thousand runs. After a run was judged to be about its key or the account, a quarter of that length (at least one
//! refusal) confirms the judgement, until a call is accepted. A message that was refused before says nothing new about
//! others.
//!
//! Whatever a refusal is about, the refused message waits by itself, and other messages go before it. While others
//! pass, the message and its key wait longer each time: each wait is as long as the time since the first refusal, up to
//! a bound. The message becomes a dead letter if that takes longer than its route allows.
//!
//! Each replica judges by its own calls; a freeze of the account goes to all of them through the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::message::KeyId;
use crate::time::Mono;

/// The longest wait of a message that is refused again and again, unless the answer asks for more.
const LONGEST: Duration = Duration::from_secs(600);
/// This many answers show how many refusals are about single messages.
const RECENT: u32 = 128;
/// A run of refusals that was about all messages counts as this many refusals once a call is accepted.
const IF_JUDGED: u32 = 3;
/// A run that would come by chance less than once in this many runs is about what its messages share.
const ONCE_IN: f64 = 1_000.0;
/// The shortest such run, and the longest that is asked for.
const RUN_MIN: usize = 2;
const RUN_MAX: usize = 64;
/// The most keys whose runs are remembered.
const KEYS_MAX: usize = 4_096;

/// A call that was refused.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// A hash of the id of its message.
    pub message: u64,
    /// The keys of its message that are not for all messages.
    pub keys: &'a [KeyId],
    /// How long ago its message was refused for the first time; zero: it was not.
    pub refused_for: Duration,
    /// How long the answer asks to wait.
    pub wait: Duration,
    /// What it can be about, as far as the answer and the route say.
    pub scope: Scope,
}

/// What a refusal can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This message: its answer says so.
    Message,
    /// This message, or one of its keys: others are called at other hosts.
    Keys,
    /// This message, one of its keys, or all messages.
    Any,
}

/// What follows from a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEffect {
    /// The message is not called again before this time has passed.
    pub wait: Duration,
    /// The refusal is about all messages: nothing is called before the wait that the answer asked for has passed.
    pub is_about_all: bool,
    /// The refusal is about these keys: none of their messages is called before this long has passed.
    pub keys: Vec<(KeyId, Duration)>,
    /// Other messages were accepted lately, while this one is refused.
    pub others_pass: bool,
}

/// Messages that were refused in a row.
#[derive(Clone, Debug, Default)]
struct RefusalRun {
    /// The messages, or their keys, that were refused since it was judged last; at most [`RUN_MAX`].
    refused: BTreeSet<Vec<u64>>,
    /// The run was judged to be about what its messages share.
    is_judged: bool,
    /// When the first one and the last one were refused.
    since: Option<Mono>,
    last: Mono,
}

impl RefusalRun {
    /// One more message was refused; `subject` is what the refusal says something about. Returns whether the run is
    /// about what its messages share.
    fn grows(&mut self, subject: Option<Vec<u64>>, needed: usize, now: Mono) -> bool {
        self.last = now;
        self.since.get_or_insert(now);
        self.refused.extend(subject);
        let needed_now = match self.is_judged {
            true => (needed / 4).max(1),
            false => needed,
        };
        let judged = self.refused.len() >= needed_now;
        if judged {
            self.is_judged = true;
            self.refused.clear();
        }
        judged
    }

    const fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// How long ago the first one was refused.
    fn length(&self, now: Mono) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

/// The refusals of one pacer.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    all: RefusalRun,
    /// Refusals in the run of all, of whichever message.
    in_a_row: u32,
    keys: BTreeMap<KeyId, RefusalRun>,
    /// The last [`RECENT`] answers: a bit is set for a refusal.
    recent: u128,
    /// When a call was accepted last.
    accepted: Option<Mono>,
}

impl Refusals {
    /// A call of a message with these keys was accepted. Returns those of them that were refused and may be
    /// called again.
    pub fn note_accepted(&mut self, keys: &[KeyId], now: Mono) -> Vec<KeyId> {
        self.accepted = Some(now);
        let all = std::mem::take(&mut self.all);
        // A run about all may have been chance, too: it counts as a short one.
        let most = if all.is_judged { IF_JUDGED } else { RECENT - 1 };
        let in_a_row = std::mem::take(&mut self.in_a_row).min(most);
        self.recent = (self.recent << in_a_row) | ((1 << in_a_row) - 1);
        self.recent <<= 1;
        let open = |key: &&KeyId| self.keys.remove(*key).is_some_and(|run| run.is_judged);
        keys.iter().filter(open).copied().collect()
    }

    /// A call of a message with these keys began then, and its answer is not seen here: that says nothing of the
    /// account. Returns those of its keys that had been refused before: the call has waited for them, and the next
    /// answer that is seen decides again.
    pub fn note_unseen(&mut self, keys: &[KeyId], began: Mono) -> Vec<KeyId> {
        let waited = |key: &&KeyId| {
            let run = self.keys.get(*key);
            run.is_some_and(|run| run.is_judged && run.last < began)
        };
        let open: Vec<KeyId> = keys.iter().filter(waited).copied().collect();
        self.keys.retain(|key, _| !open.contains(key));
        open
    }

    /// A call was refused.
    pub fn note_refused(&mut self, refusal: &Refusal<'_>, now: Mono) -> RefusalEffect {
        // Those that were accepted before a pause or an outage show nothing of now.
        let lately = (refusal.refused_for / 2).max(LONGEST);
        let accepted_lately = |accepted| now.since(accepted) <= lately;
        let others_pass = self.all.is_empty() && self.accepted.is_some_and(accepted_lately);
        let again = |refused_for: Duration| refused_for.min(LONGEST).max(refusal.wait);
        let mut effect = RefusalEffect {
            wait: again(refusal.refused_for),
            is_about_all: false,
            keys: Vec::new(),
            others_pass: others_pass || refusal.scope != Scope::Any,
        };
        if refusal.scope == Scope::Message {
            return effect;
        }
        let needed = self.needed();
        let is_first = refusal.refused_for.is_zero();
        for key in refusal.keys {
            let run = self.run(*key);
            let subject = is_first.then(|| vec![refusal.message]);
            if run.grows(subject, needed, now) {
                effect.keys.push((*key, again(run.length(now))));
            }
        }
        if refusal.scope == Scope::Keys {
            return effect;
        }
        self.in_a_row = self.in_a_row.saturating_add(u32::from(is_first));
        // Messages of the same keys count once: they may all be refused because of these.
        let subject = is_first.then(|| match refusal.keys {
            [] => vec![refusal.message],
            keys => keys.to_vec(),
        });
        if self.all.grows(subject, needed, now) {
            effect.is_about_all = true;
            effect.wait = refusal.wait;
            effect.others_pass = false;
        }
        effect
    }

    /// A refusal names this key: it is about the key, whatever other calls show, until a call of it is accepted.
    pub fn note_named(&mut self, key: KeyId, now: Mono) {
        let run = self.run(key);
        run.is_judged = true;
        run.since.get_or_insert(now);
        run.last = now;
    }

    /// The keys among `keys` that are refused: a call is made to see whether they still are, and until its answer
    /// comes no other message of them is called.
    pub fn refused_among<'a>(&'a self, keys: &'a [KeyId]) -> impl Iterator<Item = KeyId> + 'a {
        let judged = |key: &&KeyId| self.keys.get(*key).is_some_and(|run| run.is_judged);
        let keys = if self.keys.is_empty() { &[] } else { keys };
        keys.iter().filter(judged).copied()
    }

    /// How many different messages in a row chance does not explain.
    fn needed(&self) -> usize {
        let share = f64::from(self.recent.count_ones()) / f64::from(RECENT);
        let mut by_chance = 1.0;
        for length in 1..RUN_MAX {
            by_chance *= share;
            if by_chance * ONCE_IN <= 1.0 {
                return length.max(RUN_MIN);
            }
        }
        RUN_MAX
    }

    fn run(&mut self, key: KeyId) -> &mut RefusalRun {
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
            let oldest = self.keys.iter().min_by_key(|(_, run)| run.last);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.keys.remove(&oldest);
            }
        }
        self.keys.entry(key).or_default()
    }
}

#[cfg(test)]
mod tests;
