//! Messages that wait for their turn: by priority, then fairly by tenant, then by age.
//!
//! The order is decided when a slot falls due, not when the slot is leased, so that a one-time
//! password that arrives a moment before the slot still takes it.
//!
//! Within a priority, tenants share by weight: each has a *turn* on a virtual clock, the earliest
//! turn goes first, and every message moves its tenant's next turn on by its cost over the weight
//! (start-time fair queueing). A tenant that was away starts at the clock's present, so nothing is
//! saved up, and a share that nobody asks for goes to the others at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use super::rate::Cost;
use super::time::Mono;

/// Virtual time that one unit takes at weight one: fine enough for any weight.
const UNIT: u64 = 1 << 20;
/// Tenants that are remembered beyond those that hold messages.
const REMEMBERED: usize = 64;

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// A hash of the tenant's name. Two names with one hash share one share.
    pub tenant: u64,
    /// Of the tenant's share, against those of the others.
    pub weight: NonZeroU32,
}

impl Default for Share {
    /// What all messages have that say nothing about it.
    fn default() -> Self {
        Self {
            tenant: 0,
            weight: NonZeroU32::MIN,
        }
    }
}

/// What the lane must know of a message.
pub trait Candidate {
    /// Units that it takes from the paced limit.
    fn cost(&self) -> Cost {
        Cost::ONE
    }
    /// Higher goes first.
    fn priority(&self) -> u16 {
        0
    }
    /// It may take slots that are kept in reserve.
    fn is_urgent(&self) -> bool {
        false
    }
    /// Whose it is.
    fn share(&self) -> Share {
        Share::default()
    }
    /// Whether budgets must be asked before it may be sent, and if so, how long their permission
    /// is good for.
    fn headroom(&self) -> Option<Duration> {
        None
    }
    /// It holds a place in a budget that is good for a moment only: it goes before others.
    fn is_booked(&self) -> bool {
        false
    }
    /// Until when the permission is good that it came with: it need not ask before it is sent.
    fn good_until(&self) -> Option<Mono> {
        None
    }
    /// From this time on it must not be sent any more.
    fn deadline(&self) -> Option<Mono> {
        None
    }
    /// It is not ours any more (its session is gone): sending it would only make a repeat.
    fn is_stale(&self) -> bool {
        false
    }
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub messages: usize,
    pub units: u64,
    /// Units of urgent messages, among the others.
    pub urgent: u64,
    /// Messages that budgets must be asked for.
    pub claims: usize,
}

impl Sum {
    /// Counts one in.
    pub fn add<T: Candidate>(&mut self, item: &T) {
        let units = u64::from(item.cost().get());
        self.messages += 1;
        self.units += units;
        self.urgent += units * u64::from(item.is_urgent());
        self.claims += usize::from(item.headroom().is_some());
    }

    /// Counts one out that was counted in.
    pub fn remove<T: Candidate>(&mut self, item: &T) {
        let units = u64::from(item.cost().get());
        self.messages -= 1;
        self.units -= units;
        self.urgent -= units * u64::from(item.is_urgent());
        self.claims -= usize::from(item.headroom().is_some());
    }
}

/// The ready messages.
#[derive(Clone, Debug)]
pub struct Ready<T> {
    by_priority: BTreeMap<u16, Level<T>>,
    sum: Sum,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        Self {
            by_priority: BTreeMap::new(),
            sum: Sum::default(),
        }
    }
}

impl<T: Candidate> Ready<T> {
    /// Adds one behind those of its priority and tenant.
    pub fn push(&mut self, item: T) {
        self.level_of(&item).push(item);
    }

    /// Puts one before those of its priority: it had its turn already and could not use it, or
    /// holds a place that does not wait.
    pub fn push_front(&mut self, item: T) {
        self.level_of(&item).first.push_front(item);
    }

    /// Adds one that goes before those of its priority, but behind others like it.
    pub fn push_early(&mut self, item: T) {
        self.level_of(&item).first.push_back(item);
    }

    /// Counts an item in; answers the level that it belongs to.
    fn level_of(&mut self, item: &T) -> &mut Level<T> {
        self.sum.add(item);
        self.by_priority.entry(item.priority()).or_default()
    }

    /// The next in order.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.by_priority.values().rev().find_map(Level::peek)
    }

    /// The next in order of those that may take a slot of the reserve.
    #[must_use]
    pub fn peek_urgent(&self) -> Option<&T> {
        // All of one priority are urgent or none is.
        let heads = self.by_priority.values().rev().filter_map(Level::peek);
        heads.into_iter().find(|head| head.is_urgent())
    }

    /// The next of a priority.
    #[must_use]
    pub fn peek_at(&self, priority: u16) -> Option<&T> {
        self.by_priority.get(&priority)?.peek()
    }

    /// Takes the next in order.
    pub fn pop(&mut self) -> Option<T> {
        let priority = *self.by_priority.last_key_value()?.0;
        self.pop_from(priority)
    }

    /// Takes the next of a priority.
    pub fn pop_from(&mut self, priority: u16) -> Option<T> {
        let level = self.by_priority.get_mut(&priority)?;
        let item = level.pop();
        if level.is_empty() {
            self.by_priority.remove(&priority);
        }
        let item = item?;
        self.sum.remove(&item);
        Some(item)
    }

    /// One that was taken was not sent and is gone: its tenant is not charged for it.
    pub fn forgive(&mut self, item: &T) {
        if let Some(level) = self.by_priority.get_mut(&item.priority()) {
            level.forgive(item);
        }
    }

    /// Takes out all that `unwanted` says yes to, in order.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for level in self.by_priority.values_mut().rev() {
            level.extract(&mut unwanted, &mut out);
        }
        self.by_priority.retain(|_, level| !level.is_empty());
        for item in &out {
            self.sum.remove(item);
        }
        out
    }

    /// What all of them come to.
    #[must_use]
    pub const fn sum(&self) -> Sum {
        self.sum
    }

    /// The units that all of them take together.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.sum.units
    }

    /// How many they are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.sum.messages
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sum.messages == 0
    }
}

/// The messages of one priority.
#[derive(Clone, Debug)]
struct Level<T> {
    /// Before all tenants.
    first: VecDeque<T>,
    /// The turn that was served last.
    clock: u64,
    /// The next turn of each tenant that holds messages.
    turns: BTreeSet<(u64, u64)>,
    tenants: HashMap<u64, Tenant<T>>,
}

#[derive(Clone, Debug)]
struct Tenant<T> {
    queue: VecDeque<T>,
    /// When its next message is due.
    turn: u64,
}

impl<T> Default for Level<T> {
    fn default() -> Self {
        Self {
            first: VecDeque::new(),
            clock: 0,
            turns: BTreeSet::new(),
            tenants: HashMap::new(),
        }
    }
}

/// How far a message moves its tenant's turn.
fn stride<T: Candidate>(item: &T) -> u64 {
    let weight = u64::from(item.share().weight.get());
    (u64::from(item.cost().get()) * UNIT / weight).max(1)
}

impl<T: Candidate> Level<T> {
    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.turns.is_empty()
    }

    fn peek(&self) -> Option<&T> {
        self.first.front().or_else(|| {
            let (_, tenant) = self.turns.first()?;
            self.tenants.get(tenant)?.queue.front()
        })
    }

    fn push(&mut self, item: T) {
        let name = item.share().tenant;
        let tenant = self.tenants.entry(name).or_insert_with(|| Tenant {
            queue: VecDeque::new(),
            turn: 0,
        });
        if tenant.queue.is_empty() {
            tenant.turn = tenant.turn.max(self.clock);
            self.turns.insert((tenant.turn, name));
        }
        tenant.queue.push_back(item);
    }

    fn pop(&mut self) -> Option<T> {
        if let Some(item) = self.first.pop_front() {
            return Some(item);
        }
        let (turn, name) = self.turns.pop_first()?;
        let tenant = self.tenants.get_mut(&name)?;
        let item = tenant.queue.pop_front()?;
        self.clock = turn;
        tenant.turn = turn.saturating_add(stride(&item));
        if !tenant.queue.is_empty() {
            self.turns.insert((tenant.turn, name));
        } else if self.tenants.len() > self.turns.len() * 2 + REMEMBERED {
            self.forget();
        }
        Some(item)
    }

    /// Drops tenants without messages: those whose turn has come anyway, or all if that is not enough.
    fn forget(&mut self) {
        let clock = self.clock;
        self.tenants
            .retain(|_, tenant| !tenant.queue.is_empty() || tenant.turn > clock);
        if self.tenants.len() > self.turns.len() * 2 + REMEMBERED {
            self.tenants.retain(|_, tenant| !tenant.queue.is_empty());
        }
    }

    fn forgive(&mut self, item: &T) {
        let name = item.share().tenant;
        let Some(tenant) = self.tenants.get_mut(&name) else {
            return;
        };
        let turn = tenant.turn.saturating_sub(stride(item)).max(self.clock);
        if turn < tenant.turn {
            if self.turns.remove(&(tenant.turn, name)) {
                self.turns.insert((turn, name));
            }
            tenant.turn = turn;
        }
    }

    fn extract(&mut self, unwanted: &mut impl FnMut(&T) -> bool, out: &mut Vec<T>) {
        split(&mut self.first, unwanted, out);
        let turns = std::mem::take(&mut self.turns);
        for (turn, name) in turns {
            let Some(tenant) = self.tenants.get_mut(&name) else {
                continue;
            };
            split(&mut tenant.queue, unwanted, out);
            if !tenant.queue.is_empty() {
                self.turns.insert((turn, name));
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Item {
        priority: u16,
        number: u32,
        tenant: u64,
        weight: u32,
    }

    const fn item(priority: u16, number: u32) -> Item {
        of(priority, number, 0, 1)
    }

    const fn of(priority: u16, number: u32, tenant: u64, weight: u32) -> Item {
        Item {
            priority,
            number,
            tenant,
            weight,
        }
    }

    impl Candidate for Item {
        fn priority(&self) -> u16 {
            self.priority
        }
        fn is_urgent(&self) -> bool {
            self.priority == 3
        }
        fn share(&self) -> Share {
            Share {
                tenant: self.tenant,
                weight: NonZeroU32::new(self.weight).unwrap_or(NonZeroU32::MIN),
            }
        }
    }

    fn numbers(ready: &mut Ready<Item>) -> Vec<u32> {
        std::iter::from_fn(|| ready.pop())
            .map(|item| item.number)
            .collect()
    }

    #[test]
    fn priority_first_then_age() {
        let mut ready = Ready::default();
        for item in [item(0, 1), item(5, 2), item(0, 3), item(5, 4)] {
            ready.push(item);
        }
        assert_eq!(ready.units(), 4);
        assert_eq!(ready.peek(), Some(&item(5, 2)));
        assert_eq!(numbers(&mut ready), [2, 4, 1, 3]);
        assert_eq!(ready.sum(), Sum::default());
    }

    #[test]
    fn who_comes_back_goes_before_those_of_its_priority() {
        let mut ready = Ready::default();
        for item in [item(0, 1), item(5, 2), item(0, 3)] {
            ready.push(item);
        }
        assert_eq!(
            (ready.pop(), ready.pop()),
            (Some(item(5, 2)), Some(item(0, 1)))
        );
        ready.push(item(5, 4));
        ready.push_front(item(0, 1));
        ready.push_front(item(5, 2));
        assert_eq!((ready.units(), ready.len()), (4, 4));
        assert_eq!(numbers(&mut ready), [2, 4, 1, 3]);
    }

    #[test]
    fn the_urgent_one_is_found_behind_others() {
        let mut ready = Ready::default();
        for item in [item(9, 1), item(3, 2), item(0, 3)] {
            ready.push(item);
        }
        assert_eq!(ready.peek_urgent(), Some(&item(3, 2)));
        assert_eq!(ready.sum().urgent, 1);
        assert_eq!(ready.pop_from(3), Some(item(3, 2)));
        assert_eq!(ready.peek_urgent(), None);
    }

    #[test]
    fn extracting_keeps_the_order_of_the_rest() {
        let mut ready = Ready::default();
        for n in 1..=6 {
            ready.push(item(0, n));
        }
        let out = ready.extract(|item| item.number % 2 == 0);
        assert_eq!(out.len(), 3);
        assert_eq!(numbers(&mut ready), [1, 3, 5]);
    }

    #[test]
    fn a_tenant_with_a_hundred_times_the_backlog_gets_no_more_than_its_share() {
        let mut ready = Ready::default();
        for n in 0..1000 {
            ready.push(of(0, n, 1, 1));
        }
        for n in 0..10 {
            ready.push(of(0, n, 2, 1));
            ready.push(of(0, n, 3, 2));
        }
        let first: Vec<_> = (0..20).filter_map(|_| ready.pop()).collect();
        let count = |tenant| first.iter().filter(|item| item.tenant == tenant).count();
        assert_eq!((count(1), count(2), count(3)), (5, 5, 10));
        let rest = std::iter::from_fn(|| ready.pop()).count();
        assert_eq!(rest, 1000, "what nobody else asks for goes to the one");
    }

    #[test]
    fn a_share_is_not_saved_up_while_away() {
        let mut ready = Ready::default();
        for n in 0..100 {
            ready.push(of(0, n, 1, 1));
        }
        for _ in 0..50 {
            ready.pop();
        }
        for n in 0..10 {
            ready.push(of(0, n, 2, 1));
        }
        let next: Vec<_> = (0..10).filter_map(|_| ready.pop()).collect();
        let second = next.iter().filter(|item| item.tenant == 2).count();
        assert_eq!(second, 5, "half of the slots, not all");
    }

    #[test]
    fn what_was_denied_does_not_cost_its_tenant_its_turn() {
        let mut ready = Ready::default();
        for n in 0..100 {
            ready.push(of(0, n, 1, 1));
            ready.push(of(0, n, 2, 1));
        }
        for _ in 0..40 {
            if let Some(taken) = ready.pop().filter(|taken| taken.tenant == 1) {
                ready.forgive(&taken);
            }
        }
        let next: Vec<_> = (0..10).filter_map(|_| ready.pop()).collect();
        let first = next.iter().filter(|item| item.tenant == 1).count();
        assert!(first >= 5, "{first}");
    }

    #[test]
    fn tenants_that_come_and_go_are_not_remembered_for_ever() {
        let mut ready = Ready::default();
        ready.push(of(0, 0, 0, 1));
        for n in 1..10_000 {
            ready.push(of(0, n, u64::from(n), 1));
            ready.pop();
        }
        let level = ready.by_priority.get(&0).map_or(0, |l| l.tenants.len());
        assert!(level <= REMEMBERED + 4, "{level}");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_a_tenants_messages_keep_their_order(
            items in prop::collection::vec((0..3_u16, 0..4_u64, 1..4_u32, any::<bool>()), 1..200),
        ) {
            let mut ready = Ready::default();
            let mut out = Vec::new();
            for (n, (priority, tenant, weight, pop)) in (0_u32..).zip(&items) {
                ready.push(of(*priority, n, *tenant, *weight));
                if *pop {
                    out.extend(ready.pop());
                }
            }
            out.extend(std::iter::from_fn(|| ready.pop()));
            prop_assert_eq!(out.len(), items.len());
            prop_assert_eq!(ready.sum(), Sum::default());
            for priority in 0..3 {
                for tenant in 0..4 {
                    let of_one: Vec<_> = out
                        .iter()
                        .filter(|item| (item.priority, item.tenant) == (priority, tenant))
                        .map(|item| item.number)
                        .collect();
                    prop_assert!(of_one.is_sorted());
                }
            }
        }
    }
}
