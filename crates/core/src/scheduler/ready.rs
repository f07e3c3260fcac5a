//! Messages that wait for a slot: by priority, then fairly by tenant, then by age.
//!
//! The order is decided when a slot falls due, not when the slot is leased, so that a one-time
//! password that arrives a moment before the slot still takes it.
//!
//! Within a priority, tenants share by weight: each has a *start tag* on a virtual clock, the lowest
//! tag goes first, and every message moves the tag of its tenant on by its cost over the weight
//! (start-time fair queueing). A tenant that was away starts at the clock's current time, so
//! nothing is saved up, and a share that no tenant uses goes to the others at once.
//!
//! The clock moves on with each message by the tenant's step, over the number of tenants that hold messages
//! and one that may come (as virtual time does in weighted fair queueing). If it stayed at the tag that was
//! served last, tenants with a single message each would all go before the second message of any other
//! tenant, for as long as new ones come.
//!
//! A message from a key queue (`key_queues`) is charged to its tenant as well, from when it is asked for. While it
//! waits for its key, it is not charged.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::message::{MessageTotals, Queued};
use crate::time::Mono;

/// Virtual time that one unit takes at weight one: fine enough for any weight.
const UNIT: u64 = 1 << 20;
/// How far a tenant that waits for keys may fall behind the clock: it catches up by this much.
const BEHIND: u64 = 32 * UNIT;
/// Tenants that are remembered beyond the tenants that hold messages.
const REMEMBERED: usize = 64;
/// A shorter queue is looked through for messages that are over.
const LOOKED_AT: usize = 256;

/// The ready messages.
#[derive(Clone, Debug)]
pub(super) struct Ready<T> {
    by_priority: BTreeMap<u16, Level<T>>,
    sum: MessageTotals,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        Self {
            by_priority: BTreeMap::new(),
            sum: MessageTotals::default(),
        }
    }
}

impl<T: Queued> Ready<T> {
    /// Adds a message behind the others of its priority and tenant.
    pub(super) fn push(&mut self, item: T) {
        self.level_of(&item).push(item);
    }

    /// Puts a message before the others of its priority: it was taken already and could not be sent.
    pub(super) fn push_front(&mut self, item: T) {
        self.level_of(&item).first.push_front(item);
    }

    /// Counts an item in. Returns the level that it belongs to.
    fn level_of(&mut self, item: &T) -> &mut Level<T> {
        self.sum.add(item);
        self.by_priority.entry(item.priority()).or_default()
    }

    /// The next in order.
    #[must_use]
    pub(super) fn peek(&self) -> Option<&T> {
        self.by_priority.values().rev().find_map(Level::peek)
    }

    /// The next message in order that may take a slot of the reserve.
    #[must_use]
    pub(super) fn peek_urgent(&self) -> Option<&T> {
        // All of one priority are urgent or none is.
        let heads = self.by_priority.values().rev().filter_map(Level::peek);
        heads.into_iter().find(|head| head.is_urgent())
    }

    /// The next of a priority.
    #[must_use]
    pub(super) fn peek_at(&self, priority: u16) -> Option<&T> {
        self.by_priority.get(&priority)?.peek()
    }

    /// How many messages of its own priority and tenant a message finds before it. Messages of higher priorities, and
    /// those of other tenants, are not counted. Nor are messages that are over, unless there are so many that
    /// looking at each would take too long.
    #[must_use]
    pub(super) fn before(&self, item: &T, now: Mono) -> usize {
        let level = self.by_priority.get(&item.priority());
        level.map_or(0, |level| level.before(item, now))
    }

    /// What the first `most` messages take, in order.
    #[must_use]
    pub(super) fn costs(&self, most: usize) -> Vec<u64> {
        let levels = self.by_priority.values().rev();
        levels
            .flat_map(|level| level.costs(most))
            .take(most)
            .collect()
    }

    /// Takes the next in order.
    pub(super) fn pop(&mut self) -> Option<T> {
        let priority = self.peek()?.priority();
        self.pop_from(priority)
    }

    /// Takes the next of a priority.
    pub(super) fn pop_from(&mut self, priority: u16) -> Option<T> {
        let level = self.by_priority.get_mut(&priority)?;
        let popped = level.pop();
        if level.may_be_forgotten() {
            self.by_priority.remove(&priority);
        }
        let item = popped?;
        self.sum.remove(&item);
        Some(item)
    }

    /// The start tag of a message's tenant, on the clock of its priority.
    #[must_use]
    pub(super) fn start_tag(&self, item: &T) -> u64 {
        let level = self.by_priority.get(&item.priority());
        level.map_or(0, |level| level.start_tag(item))
    }

    /// A message that waited for a key is taken: its tenant is charged for it. `open_keys`: this many keys have such
    /// messages.
    pub(super) fn advance_start_tag(&mut self, item: &T, open_keys: usize) {
        let level = self.by_priority.entry(item.priority()).or_default();
        level.advance_start_tag(item, open_keys);
    }

    /// A message that was taken was not sent, and is gone or waits for a key: its tenant is not charged for
    /// it.
    pub(super) fn restore_start_tag(&mut self, item: &T, open_keys: usize) {
        if let Some(level) = self.by_priority.get_mut(&item.priority()) {
            level.restore_start_tag(item, open_keys);
        }
    }

    /// Takes out all for which `unwanted` returns true, in order.
    pub(super) fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for level in self.by_priority.values_mut().rev() {
            level.extract(&mut unwanted, &mut out);
        }
        self.by_priority
            .retain(|_, level| !level.may_be_forgotten());
        for item in &out {
            self.sum.remove(item);
        }
        out
    }

    /// Whether there is one for which `wanted` returns true.
    #[must_use]
    pub(super) fn any(&self, wanted: impl FnMut(&T) -> bool) -> bool {
        let levels = self.by_priority.values().rev();
        levels.flat_map(Level::iter).any(wanted)
    }

    /// The sum of all of them.
    #[must_use]
    pub(super) const fn sum(&self) -> MessageTotals {
        self.sum
    }
}

/// The messages of one priority.
#[derive(Clone, Debug)]
struct Level<T> {
    /// Before all tenants.
    first: VecDeque<T>,
    /// The current time: a tenant that held no message starts here.
    clock: u64,
    /// The start tag of each tenant that holds messages.
    start_tags: BTreeSet<(u64, u64)>,
    tenants: HashMap<u64, Tenant<T>>,
}

#[derive(Clone, Debug)]
struct Tenant<T> {
    queue: VecDeque<T>,
    /// When its next message is due, on the clock of its priority.
    start_tag: u64,
}

impl<T> Default for Level<T> {
    fn default() -> Self {
        Self {
            first: VecDeque::new(),
            clock: 0,
            start_tags: BTreeSet::new(),
            tenants: HashMap::new(),
        }
    }
}

/// How far a message moves the start tag of its tenant.
fn stride<T: Queued>(item: &T) -> u64 {
    let weight = u64::from(item.share().weight.get());
    (item.cost().units() * UNIT / weight).max(1)
}

impl<T: Queued> Level<T> {
    /// The level has no messages, and no tenant has had more than another: it can be dropped.
    fn may_be_forgotten(&self) -> bool {
        let is_even = |tenant: &Tenant<T>| tenant.start_tag <= self.clock;
        self.first.is_empty() && self.start_tags.is_empty() && self.tenants.values().all(is_even)
    }

    fn start_tag(&self, item: &T) -> u64 {
        let tenant = self.tenants.get(&item.share().tenant);
        tenant.map_or(self.clock, |tenant| tenant.start_tag.max(self.earliest()))
    }

    fn before(&self, item: &T, now: Mono) -> usize {
        let tenant = self.tenants.get(&item.share().tenant);
        let queues = [Some(&self.first), tenant.map(|tenant| &tenant.queue)];
        let waiting = |queue: &VecDeque<T>| match queue.len() {
            all @ LOOKED_AT.. => all,
            _ => queue.iter().filter(|item| !item.is_over(now)).count(),
        };
        queues.into_iter().flatten().map(waiting).sum()
    }

    const fn earliest(&self) -> u64 {
        self.clock.saturating_sub(BEHIND)
    }

    fn tenant(&mut self, name: u64) -> &mut Tenant<T> {
        self.tenants.entry(name).or_insert_with(|| Tenant {
            queue: VecDeque::new(),
            start_tag: 0,
        })
    }

    fn advance_start_tag(&mut self, item: &T, open_keys: usize) {
        let (due, step) = (self.start_tag(item), stride(item));
        let sharing = (self.start_tags.len() + open_keys) as u64 + 1;
        self.clock = self.clock.max(due).saturating_add(step / sharing);
        self.set_start_tag(item.share().tenant, due.saturating_add(step));
        // Messages that wait for keys are elsewhere: a tenant that is ahead of the clock is remembered for them.
        if self.remembers_too_many(self.start_tags.len() + open_keys) {
            self.forget_passed();
        }
    }

    fn set_start_tag(&mut self, name: u64, start_tag: u64) {
        let tenant = self.tenant(name);
        let before = std::mem::replace(&mut tenant.start_tag, start_tag);
        if self.start_tags.remove(&(before, name)) {
            self.start_tags.insert((start_tag, name));
        }
    }

    fn peek(&self) -> Option<&T> {
        self.first.front().or_else(|| {
            let (_, tenant) = self.start_tags.first()?;
            self.tenants.get(tenant)?.queue.front()
        })
    }

    /// What the first `most` messages take, in order: their tenants come one after the other as they do at
    /// [`Self::pop`].
    fn costs(&self, most: usize) -> Vec<u64> {
        let first = self.first.iter().map(|item| item.cost().units());
        let mut costs: Vec<u64> = first.take(most).collect();
        let mut start_tags: BTreeSet<_> = self
            .start_tags
            .iter()
            .map(|(start_tag, name)| (*start_tag, *name, 0))
            .collect();
        while costs.len() < most
            && let Some((start_tag, name, place)) = start_tags.pop_first()
        {
            let item = self
                .tenants
                .get(&name)
                .and_then(|tenant| tenant.queue.get(place));
            if let Some(item) = item {
                costs.push(item.cost().units());
                start_tags.insert((start_tag.saturating_add(stride(item)), name, place + 1));
            }
        }
        costs
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        let tenants = self.tenants.values();
        self.first
            .iter()
            .chain(tenants.flat_map(|tenant| &tenant.queue))
    }

    fn push(&mut self, item: T) {
        let (name, clock) = (item.share().tenant, self.clock);
        let tenant = self.tenant(name);
        let is_new = tenant.queue.is_empty();
        if is_new {
            tenant.start_tag = tenant.start_tag.max(clock);
        }
        let start_tag = tenant.start_tag;
        tenant.queue.push_back(item);
        if is_new {
            self.start_tags.insert((start_tag, name));
        }
    }

    fn pop(&mut self) -> Option<T> {
        if let Some(item) = self.first.pop_front() {
            return Some(item);
        }
        // The tenants that share the slots: the tenants that hold messages, including this one, and one that may
        // come.
        let sharing = self.start_tags.len() as u64 + 1;
        let (start_tag, name) = self.start_tags.pop_first()?;
        let tenant = self.tenants.get_mut(&name)?;
        let item = tenant.queue.pop_front()?;
        let step = stride(&item);
        self.clock = self.clock.max(start_tag).saturating_add(step / sharing);
        tenant.start_tag = start_tag.saturating_add(step);
        if !tenant.queue.is_empty() {
            self.start_tags.insert((tenant.start_tag, name));
        } else if self.remembers_too_many(self.start_tags.len()) {
            self.forget();
        }
        Some(item)
    }

    /// Whether tenants are to be forgotten, where this many hold messages.
    fn remembers_too_many(&self, holding: usize) -> bool {
        self.tenants.len() > holding * 2 + REMEMBERED
    }

    /// Drops tenants without messages: at first the tenants that the clock has passed, then all if that is not enough.
    fn forget(&mut self) {
        self.forget_passed();
        if self.remembers_too_many(self.start_tags.len()) {
            self.tenants.retain(|_, tenant| !tenant.queue.is_empty());
        }
    }

    /// Drops tenants without messages that the clock has passed: they begin at the clock again.
    fn forget_passed(&mut self) {
        let clock = self.clock;
        self.tenants
            .retain(|_, tenant| !tenant.queue.is_empty() || tenant.start_tag > clock);
    }

    fn restore_start_tag(&mut self, item: &T, open_keys: usize) {
        let name = item.share().tenant;
        let Some(current_tag) = self.tenants.get(&name).map(|tenant| tenant.start_tag) else {
            return;
        };
        let step = stride(item);
        let start_tag = current_tag.saturating_sub(step).max(self.earliest());
        // The step of the clock is undone too, but the clock never falls behind the first tag.
        let sharing = (self.start_tags.len() + open_keys) as u64 + 1;
        let back = self.clock.saturating_sub(step / sharing);
        let first = self.start_tags.first().map_or(0, |(first, _)| *first);
        self.clock = self.clock.min(back.max(first));
        if start_tag < current_tag {
            self.set_start_tag(name, start_tag);
        }
    }

    fn extract(&mut self, unwanted: &mut impl FnMut(&T) -> bool, out: &mut Vec<T>) {
        split(&mut self.first, unwanted, out);
        let start_tags = std::mem::take(&mut self.start_tags);
        for (start_tag, name) in start_tags {
            let Some(tenant) = self.tenants.get_mut(&name) else {
                continue;
            };
            split(&mut tenant.queue, unwanted, out);
            if !tenant.queue.is_empty() {
                self.start_tags.insert((start_tag, name));
            }
        }
    }
}

/// Moves what is unwanted out of a queue, in order.
fn split<T>(queue: &mut VecDeque<T>, unwanted: &mut impl FnMut(&T) -> bool, out: &mut Vec<T>) {
    for item in std::mem::take(queue) {
        if unwanted(&item) {
            out.push(item);
        } else {
            queue.push_back(item);
        }
    }
}

#[cfg(test)]
mod tests;
