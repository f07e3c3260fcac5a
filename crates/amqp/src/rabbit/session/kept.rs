//! Verdicts that outlive their session: those that waited for the confirm of a copy or of a result when it ended.
//!
//! The broker delivers such a message again. Within this process its verdict is still known: it is applied,
//! and its call is not repeated. A message is recognized by its whole content, because it may have no id and
//! an id need not be unique. A verdict is kept only with its copy or its result: an acknowledgement alone,
//! applied to another message that looks the same, would lose that message.
//!
//! A repeat that a `once` limit suppresses may be a copy of such a message, with other headers. It needs the result
//! alone, and is recognized by its id and its body. If the call is still under way (`late`), the repeat waits for its
//! end.
//!
//! A verdict whose message has not come back within [`AGE`] is forgotten: the message went to another replica.
//! Otherwise a message that looks the same could die without a call weeks later.
//!
//! A message that was set aside (`placeless`) carries a *kept id*, which no other message has, and is recognized by
//! that. It may wait behind a backlog, so its verdict is kept for [`SET_ASIDE_AGE`]. Once the verdict is carried out,
//! the kept id is *spent*: the copy may exist twice, because the confirm of the first one was lost, and the other one
//! is not needed any more.

mod by_age;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use self::by_age::ByAge;
use super::verdicts::PublishingVerdict;
use crate::rabbit::messages::convert::Original;
use crate::rabbit::messages::convert::copies::same_properties;
use sluiced_core::time::Mono;
use sluiced_ports::lock;
use sluiced_ports::queue::{Publication, Verdict};

/// How long a verdict is kept. A broker may be away for a while.
const AGE: Duration = Duration::from_secs(3600);
/// How long the verdict of a message that was set aside is kept.
const SET_ASIDE_AGE: Duration = Duration::from_secs(24 * 3600);

/// This many spent ids are known. A copy whose id is forgotten waits for an hour, and is called again.
const SPENT: usize = 20_000;

/// Equal for messages with the same properties and body, which are interchangeable.
type Fingerprint = [u8; 32];
/// Equal for a message and its copies.
type MessageIdentity = [u8; 32];

/// The verdicts of the earlier sessions of a queue. Routes may share the queue.
#[derive(Debug, Default)]
pub(in crate::rabbit) struct KeptVerdicts {
    memory: Mutex<VerdictMemory>,
}

#[derive(Debug, Default)]
struct VerdictMemory {
    /// The most verdicts. Older ones beyond it are forgotten, and their messages are called again.
    most: usize,
    verdicts: ByAge<MessageIdentity, KeptEntry>,
    /// The verdicts of messages that were set aside, by their kept ids.
    by_kept_id: ByAge<String, PublishingVerdict>,
    /// Kept ids of messages whose verdict is carried out.
    spent: ByAge<String, ()>,
    /// How many calls of sessions that ended are under way for a message.
    awaited: HashMap<MessageIdentity, usize>,
}

#[derive(Debug)]
struct KeptEntry {
    of: Fingerprint,
    verdict: PublishingVerdict,
}

impl KeptVerdicts {
    /// Another route consumes the queue, with this prefetch: the verdicts of a few sessions of all its routes
    /// are kept.
    pub(in crate::rabbit) fn add_route(&self, prefetch: u16) {
        lock(&self.memory).most += 4 * usize::from(prefetch);
    }

    /// Keeps those of a session that ended.
    pub(super) fn keep(
        &self,
        verdicts: impl Iterator<Item = (Original, PublishingVerdict)>,
        now: Mono,
    ) {
        let mut memory = lock(&self.memory);
        for (original, verdict) in verdicts {
            memory.add(&original, verdict, now);
        }
        memory.keep_latest();
    }

    /// Keeps the verdict of one message that goes back to its queue.
    pub(super) fn keep_one(&self, original: &Original, verdict: PublishingVerdict, now: Mono) {
        let mut memory = lock(&self.memory);
        memory.add(original, verdict, now);
        memory.keep_latest();
    }

    /// Keeps a verdict under a new kept id; `None`: this many are kept already.
    pub(super) fn keep_under_id(&self, verdict: PublishingVerdict, now: Mono) -> Option<String> {
        let mut memory = lock(&self.memory);
        memory.forget(now);
        let has_room = memory.by_kept_id.len() < memory.most;
        has_room.then(|| memory.keep_under_id(verdict, now))
    }

    /// Keeps a verdict under a new kept id, however many are kept: its message must not be returned once more. Few
    /// messages are returned so often in the time for which verdicts are kept.
    pub(super) fn keep_beyond(&self, verdict: PublishingVerdict, now: Mono) -> String {
        let mut memory = lock(&self.memory);
        memory.forget(now);
        memory.keep_under_id(verdict, now)
    }

    /// Takes back the verdict that is kept under this id.
    pub(super) fn take_by_id(&self, kept_id: &str, now: Mono) -> Option<PublishingVerdict> {
        let mut memory = lock(&self.memory);
        memory.forget(now);
        memory.by_kept_id.take_latest(kept_id, |_| true)
    }

    /// The verdict of a message is carried out: if it has a kept id, no other copy with that id is needed.
    pub(super) fn spend_id(&self, original: &Original, now: Mono) {
        let Some(kept_id) = original.kept_id() else {
            return;
        };
        let spent = &mut lock(&self.memory).spent;
        if !spent.contains(kept_id) {
            spent.add(kept_id.to_owned(), (), now);
        }
        spent.forget(SET_ASIDE_AGE, now);
        spent.keep_latest(SPENT);
    }

    /// Whether the verdict of the message with that kept id is carried out.
    pub(super) fn is_spent(&self, kept_id: &str) -> bool {
        lock(&self.memory).spent.contains(kept_id)
    }

    /// Calls of these messages are under way, and their session has ended.
    pub(super) fn expect_calls<'a>(&self, originals: impl Iterator<Item = &'a Original>) {
        let mut memory = lock(&self.memory);
        for original in originals {
            *memory.awaited.entry(identity(original)).or_default() += 1;
        }
    }

    /// A call that [`Self::expect_calls`] counted has ended, with this verdict if it is to be known.
    pub(super) fn end_call(
        &self,
        original: Original,
        verdict: Option<PublishingVerdict>,
        now: Mono,
    ) {
        let mut memory = lock(&self.memory);
        let identity = identity(&original);
        if let Some(count) = memory.awaited.get_mut(&identity) {
            *count -= 1;
            if *count == 0 {
                memory.awaited.remove(&identity);
            }
        }
        // Under the same lock: between the two the message would be called again.
        if let Some(verdict) = verdict {
            memory.add(&original, verdict, now);
            memory.keep_latest();
        }
    }

    /// Whether a call of the message is under way whose session has ended.
    pub(super) fn awaits(&self, original: &Original) -> bool {
        let memory = lock(&self.memory);
        !memory.awaited.is_empty() && memory.awaited.contains_key(&identity(original))
    }

    /// The verdict of a message that was delivered again.
    pub(super) fn take(&self, original: &Original, now: Mono) -> Option<PublishingVerdict> {
        if let Some(kept_id) = original.kept_id() {
            return self.take_by_id(kept_id, now);
        }
        let mut memory = lock(&self.memory);
        if memory.verdicts.is_empty() {
            return None;
        }
        let of = fingerprint(original);
        memory.take_if(original, now, |entry| entry.of == of)
    }

    /// The result of the call that accepted this message, or the message that it is a copy of.
    pub(super) fn result_of(&self, original: &Original, now: Mono) -> Option<Publication> {
        let mut memory = lock(&self.memory);
        if memory.verdicts.is_empty() || !original.has_id() {
            return None;
        }
        let is_accepted = |entry: &KeptEntry| matches!(&entry.verdict, PublishingVerdict::WithResult(with_result) if with_result.verdict == Verdict::Done);
        match memory.take_if(original, now, is_accepted)? {
            PublishingVerdict::WithResult(with_result) => Some(with_result.result),
            PublishingVerdict::Copy(_) => None,
        }
    }
}

impl VerdictMemory {
    fn add(&mut self, original: &Original, verdict: PublishingVerdict, now: Mono) {
        self.forget(now);
        if let Some(kept_id) = original.kept_id() {
            self.by_kept_id.take_latest(kept_id, |_| true);
            self.by_kept_id.add(kept_id.to_owned(), verdict, now);
            return;
        }
        let of = fingerprint(original);
        let entry = KeptEntry { of, verdict };
        self.verdicts.add(identity(original), entry, now);
    }

    fn keep_under_id(&mut self, verdict: PublishingVerdict, now: Mono) -> String {
        let kept_id = Uuid::new_v4().to_string();
        self.by_kept_id.add(kept_id.clone(), verdict, now);
        kept_id
    }

    fn keep_latest(&mut self) {
        self.verdicts.keep_latest(self.most);
    }

    fn forget(&mut self, now: Mono) {
        self.verdicts.forget(AGE, now);
        self.by_kept_id.forget(SET_ASIDE_AGE, now);
    }

    /// Takes the latest verdict of the message for which the closure is true.
    fn take_if(
        &mut self,
        original: &Original,
        now: Mono,
        is_it: impl Fn(&KeptEntry) -> bool,
    ) -> Option<PublishingVerdict> {
        self.forget(now);
        let entry = self.verdicts.take_latest(&identity(original), is_it)?;
        Some(entry.verdict)
    }
}

/// The fingerprint of all that a message carries, without the broker's own counts.
fn fingerprint(original: &Original) -> Fingerprint {
    let properties = gen_properties(&same_properties(original))(Vec::new().into())
        .map_or(Vec::new(), |written| written.into_inner().0);
    let [exchange, routing_key] = original.address();
    let parts = [
        properties.as_slice(),
        exchange.as_bytes(),
        routing_key.as_bytes(),
    ];
    digest(&parts, &original.body)
}

/// The publisher's id and the body.
fn identity(original: &Original) -> MessageIdentity {
    let id = original.id().unwrap_or_default();
    digest(&[id.as_bytes()], &original.body)
}

fn digest(parts: &[&[u8]], body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
