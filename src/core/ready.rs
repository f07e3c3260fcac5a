//! Messages that may be sent as soon as a slot comes: by priority, then by age.
//!
//! The order is decided when a slot falls due, not when the slot is leased, so that a one-time
//! password that arrives a moment before the slot still takes it.

use std::collections::{BTreeMap, VecDeque};

use super::rate::Cost;
use super::time::Mono;

/// What the lane must know of a message.
pub trait Candidate {
    /// Units it takes.
    fn cost(&self) -> Cost {
        Cost::ONE
    }
    /// Higher goes first.
    fn priority(&self) -> u8 {
        0
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

/// The ready messages.
#[derive(Clone, Debug)]
pub struct Ready<T> {
    by_priority: BTreeMap<u8, VecDeque<T>>,
    units: u64,
    len: usize,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        Self {
            by_priority: BTreeMap::new(),
            units: 0,
            len: 0,
        }
    }
}

impl<T: Candidate> Ready<T> {
    /// Adds one behind those of its priority.
    pub fn push(&mut self, item: T) {
        self.row_of(&item).push_back(item);
    }

    /// Puts one back before those of its priority: it had its turn already and could not use it.
    pub fn push_front(&mut self, item: T) {
        self.row_of(&item).push_front(item);
    }

    /// Counts an item in; answers the row that it belongs to.
    fn row_of(&mut self, item: &T) -> &mut VecDeque<T> {
        self.units += u64::from(item.cost().get());
        self.len += 1;
        self.by_priority.entry(item.priority()).or_default()
    }

    /// The next in order.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.by_priority.values().rev().find_map(VecDeque::front)
    }

    /// Takes the next in order.
    pub fn pop(&mut self) -> Option<T> {
        let mut entry = self.by_priority.last_entry()?;
        let item = entry.get_mut().pop_front();
        if entry.get().is_empty() {
            entry.remove();
        }
        let item = item?;
        self.units -= u64::from(item.cost().get());
        self.len -= 1;
        Some(item)
    }

    /// Takes out all that `unwanted` says yes to, in order.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let all = std::mem::take(self);
        let mut out = Vec::new();
        for item in all.by_priority.into_values().rev().flatten() {
            if unwanted(&item) {
                out.push(item);
            } else {
                self.push(item);
            }
        }
        out
    }

    /// The units that all of them take together.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// How many they are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item(u8, u32);

    impl Candidate for Item {
        fn priority(&self) -> u8 {
            self.0
        }
    }

    #[test]
    fn priority_first_then_age() {
        let mut ready = Ready::default();
        for item in [Item(0, 1), Item(5, 2), Item(0, 3), Item(5, 4)] {
            ready.push(item);
        }
        assert_eq!(ready.units(), 4);
        assert_eq!(ready.peek(), Some(&Item(5, 2)));
        let order: Vec<u32> = std::iter::from_fn(|| ready.pop())
            .map(|item| item.1)
            .collect();
        assert_eq!(order, [2, 4, 1, 3]);
        assert!(ready.is_empty() && ready.units() == 0);
    }

    #[test]
    fn who_comes_back_goes_before_those_of_its_priority() {
        let mut ready = Ready::default();
        for item in [Item(0, 1), Item(5, 2), Item(0, 3)] {
            ready.push(item);
        }
        assert_eq!(
            (ready.pop(), ready.pop()),
            (Some(Item(5, 2)), Some(Item(0, 1)))
        );
        ready.push(Item(5, 4));
        ready.push_front(Item(0, 1));
        ready.push_front(Item(5, 2));
        assert_eq!((ready.units(), ready.len()), (4, 4));
        let order: Vec<u32> = std::iter::from_fn(|| ready.pop())
            .map(|item| item.1)
            .collect();
        assert_eq!(order, [2, 4, 1, 3]);
    }

    #[test]
    fn extracting_keeps_the_order_of_the_rest() {
        let mut ready = Ready::default();
        for n in 1..=6 {
            ready.push(Item(0, n));
        }
        let out = ready.extract(|item| item.1 % 2 == 0);
        assert_eq!(out.len(), 3);
        let rest: Vec<u32> = std::iter::from_fn(|| ready.pop())
            .map(|item| item.1)
            .collect();
        assert_eq!(rest, [1, 3, 5]);
    }
}
