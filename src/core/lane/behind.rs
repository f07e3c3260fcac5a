//! Messages that stand in line behind others of their budget.
//!
//! Problem: where a paced limit is saturated, many messages of one budget are late together: their places
//! passed by while they waited for slots. If the store grants each of them a moment ahead, they all wait with
//! permissions for slots that are not there, take room from everybody else, ask again, and stand at the end
//! of a row of moments that grows, until it is so long that they are denied once more. So who is late and has
//! more messages than slots has the store say when his budget has room again instead
//! ([`Ruling::Late`](crate::core::budget::admit::Ruling::Late)). Until then nobody of that budget is asked for:
//! they stand in line, in memory, and go one by one. Messages of other budgets pass them.
//!
//! Only messages that hold places stand in line: the others have to ask for theirs. And only as many as leave
//! room for others (`Candidate::line_room`): beyond that they are granted moments ahead, or denied again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::core::ready::{Candidate, Sum};
use crate::core::time::Mono;

/// If nothing is heard of one who was called for so long, the next one is. Long enough for the slowest account to
/// have a slot: whoever is called meanwhile would go before him.
const PATIENCE: Duration = Duration::from_secs(600);

/// Which budget: a digest of its limit and key. If two have the same, they stand in one line, and no more.
pub(super) type Budget = u64;

/// Who may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nobody before then.
    Shut(Mono),
    /// One, who was called. The next one at this time, if nobody was asked for until then.
    Called(Mono),
    /// Nobody: one is asked for.
    Asked,
}

impl Gate {
    /// The next one is called at once.
    const NEXT: Self = Self::Shut(Mono::from_micros(0));

    const fn changes_at(self) -> Option<Mono> {
        match self {
            Self::Shut(at) | Self::Called(at) => Some(at),
            Self::Asked => None,
        }
    }

    const fn lets_one_pass(self) -> bool {
        matches!(self, Self::Called(_))
    }
}

#[derive(Clone, Debug)]
struct Line<T> {
    gate: Gate,
    waiting: VecDeque<T>,
}

/// The lines of all budgets that have any.
#[derive(Clone, Debug)]
pub(super) struct Behind<T> {
    lines: HashMap<Budget, Line<T>>,
    changes: BTreeSet<(Mono, Budget)>,
    len: usize,
    heads: Sum,
}

impl<T> Default for Behind<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            changes: BTreeSet::new(),
            len: 0,
            heads: Sum::default(),
        }
    }
}

impl<T: Candidate> Behind<T> {
    /// How many stand in line.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// All that stand in line.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.values().flat_map(|line| &line.waiting)
    }

    /// What could be sent of it about now: the first of each line.
    pub(super) const fn heads(&self) -> Sum {
        self.heads
    }

    /// When somebody is called, at the earliest.
    pub(super) fn next(&self) -> Option<Mono> {
        self.changes.first().map(|(at, _)| *at)
    }

    /// The message if it may be asked for now; if not, it stands in line.
    pub(super) fn pass(&mut self, item: T) -> Option<T> {
        if self.lines.is_empty() || !item.is_booked() {
            return Some(item);
        }
        let has_room = self.len < item.line_room();
        let lines = item
            .budgets()
            .filter_map(|budget| Some((budget, self.lines.get(&budget)?.gate)));
        let (called, closed): (Vec<_>, Vec<_>) = lines.partition(|(_, gate)| gate.lets_one_pass());
        // Where it waits longest, as far as anybody knows.
        let longest = closed.iter().max_by_key(|(_, gate)| gate.changes_at());
        let Some((behind, _)) = longest.filter(|_| has_room) else {
            for (budget, _) in called {
                self.turn(budget, Gate::Asked);
            }
            return Some(item);
        };
        // Who was first in another line has waited for long, and that one goes on without him.
        for (budget, _) in &called {
            self.turn(*budget, Gate::NEXT);
        }
        self.join(item, *behind, !called.is_empty());
        None
    }

    /// A message that was asked for has to wait for this budget, and so have all others of it.
    pub(super) fn wait(&mut self, item: T, budget: Budget, until: Mono) {
        self.lines.entry(budget).or_insert_with(|| Line {
            gate: Gate::Asked,
            waiting: VecDeque::new(),
        });
        self.turn(budget, Gate::Shut(until));
        self.join(item, budget, true);
    }

    /// A message was asked for and ruled on: the next one is called at once, unless that was told to wait.
    pub(super) fn answered(&mut self, item: &T) {
        self.go_on(item, |gate| gate == Gate::Asked);
    }

    /// A message that may have been called is gone, and nobody was asked.
    pub(super) fn gone(&mut self, item: &T) {
        self.go_on(item, Gate::lets_one_pass);
    }

    /// Everybody may be asked for: other terms are in force.
    pub(super) fn open(&mut self) -> Vec<T> {
        let lines = std::mem::take(self).lines;
        lines.into_values().flat_map(|line| line.waiting).collect()
    }

    /// Somebody whose turn has come, in front of all others of his budget.
    pub(super) fn called(&mut self, now: Mono) -> Option<T> {
        while let Some((_, budget)) = self.changes.first().copied().filter(|(at, _)| *at <= now) {
            if let Some(item) = self.change(budget, VecDeque::pop_front) {
                self.turn(budget, Gate::Called(now + PATIENCE));
                return Some(item);
            }
            self.changes.pop_first();
            self.lines.remove(&budget);
        }
        None
    }

    /// Takes out all that `unwanted` says yes to.
    pub(super) fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        let budgets: Vec<_> = self.lines.keys().copied().collect();
        for budget in budgets {
            self.change(budget, |waiting| {
                for item in std::mem::take(waiting) {
                    if unwanted(&item) {
                        out.push(item);
                    } else {
                        waiting.push_back(item);
                    }
                }
                None::<()>
            });
        }
        out
    }

    /// By priority, and behind others of his own, or before them.
    fn join(&mut self, item: T, budget: Budget, before: bool) {
        self.change(budget, |waiting| {
            let own = item.priority();
            let goes_first = |other: &T| {
                let other = other.priority();
                own > other || before && own == other
            };
            let place = waiting.iter().position(goes_first);
            waiting.insert(place.unwrap_or(waiting.len()), item);
            None::<()>
        });
    }

    fn go_on(&mut self, item: &T, from: impl Fn(Gate) -> bool) {
        if self.lines.is_empty() {
            return;
        }
        for budget in item.budgets() {
            if self.lines.get(&budget).is_some_and(|line| from(line.gate)) {
                self.turn(budget, Gate::NEXT);
            }
        }
    }

    fn turn(&mut self, budget: Budget, gate: Gate) {
        let Some(line) = self.lines.get_mut(&budget) else {
            return;
        };
        if let Some(at) = line.gate.changes_at() {
            self.changes.remove(&(at, budget));
        }
        line.gate = gate;
        if let Some(at) = gate.changes_at() {
            self.changes.insert((at, budget));
        }
    }

    /// Changes who waits in a line, and what depends on it.
    fn change<R>(
        &mut self,
        budget: Budget,
        how: impl FnOnce(&mut VecDeque<T>) -> Option<R>,
    ) -> Option<R> {
        let waiting = &mut self.lines.get_mut(&budget)?.waiting;
        if let Some(first) = waiting.front() {
            self.heads.remove(first);
        }
        self.len -= waiting.len();
        let done = how(waiting);
        self.len += waiting.len();
        if let Some(first) = waiting.front() {
            self.heads.add(first);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of one budget or more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Item(u32, Vec<Budget>);

    impl Candidate for Item {
        fn is_booked(&self) -> bool {
            self.0 < 100
        }
        fn priority(&self) -> u16 {
            u16::from((90..100).contains(&self.0))
        }
        fn budgets(&self) -> impl Iterator<Item = u64> {
            self.1.iter().copied()
        }
        fn line_room(&self) -> usize {
            5
        }
    }

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    fn item(id: u32) -> Item {
        Item(id, vec![1])
    }

    /// A line of these behind one that has to wait.
    fn line(first: u32, others: &[u32]) -> Behind<Item> {
        let mut behind = Behind::default();
        assert_eq!(behind.pass(item(first)), Some(item(first)));
        behind.wait(item(first), 1, at(3));
        for id in others {
            assert_eq!(behind.pass(item(*id)), None);
        }
        behind
    }

    #[test]
    fn they_go_one_by_one_from_the_moment_on() {
        let mut behind = line(1, &[2, 3]);
        // Those without a place, and those of other budgets, pass.
        assert_eq!(behind.pass(item(100)), Some(item(100)));
        assert_eq!(behind.pass(Item(50, vec![2])), Some(Item(50, vec![2])));
        assert_eq!((behind.len(), behind.next()), (3, Some(at(3))));
        assert_eq!(behind.heads().messages, 1);
        assert_eq!(behind.called(at(2)), None);
        assert_eq!(behind.called(at(3)), Some(item(1)));
        assert_eq!(behind.called(at(3)), None, "one at a time");
        assert_eq!(behind.pass(item(1)), Some(item(1)));
        assert_eq!(behind.next(), None, "until it is ruled on");
        // It was granted; the second one has to wait.
        behind.answered(&item(1));
        assert_eq!(behind.called(at(3)), Some(item(2)));
        assert_eq!(behind.pass(item(2)), Some(item(2)));
        behind.answered(&item(2));
        behind.wait(item(2), 1, at(5));
        assert_eq!(behind.called(at(4)), None);
        for id in [2, 3] {
            assert_eq!(behind.called(at(5)), Some(item(id)), "the same one first");
            assert_eq!(behind.pass(item(id)), Some(item(id)));
            behind.answered(&item(id));
        }
        assert_eq!(behind.called(at(5)), None);
        assert!(behind.lines.is_empty() && behind.changes.is_empty());
        assert_eq!((behind.len(), behind.heads()), (0, Sum::default()));
    }

    #[test]
    fn who_is_more_urgent_goes_first() {
        let mut behind = line(1, &[90, 2, 91]);
        let mut order = Vec::new();
        while let Some(next) = behind.called(at(3)) {
            order.push(next.0);
            assert_eq!(behind.pass(next.clone()), Some(next.clone()));
            behind.answered(&next);
        }
        assert_eq!(order, [90, 91, 1, 2]);
    }

    #[test]
    fn if_nothing_is_heard_of_one_the_next_is_called() {
        let mut behind = line(1, &[2]);
        assert_eq!(behind.called(at(3)), Some(item(1)));
        assert_eq!(behind.called(at(60)), None, "it may wait for a slot");
        behind.gone(&item(1));
        assert_eq!(behind.called(at(60)), Some(item(2)), "it expired");
        assert_eq!(behind.pass(item(3)), Some(item(3)), "as if it were called");
        behind.wait(item(3), 1, at(61));
        behind.wait(item(4), 1, at(61));
        assert_eq!(behind.called(at(61)), Some(item(4)));
        let later = at(61) + PATIENCE;
        assert_eq!(behind.called(later), Some(item(3)), "whatever became of it");
    }

    #[test]
    fn of_several_lines_it_stands_in_the_longest_and_holds_up_no_other() {
        let mut behind = line(1, &[]);
        let both = Item(2, vec![1, 2]);
        behind.wait(Item(3, vec![2]), 2, at(4));
        assert_eq!(behind.pass(both.clone()), None);
        assert_eq!(behind.called(at(3)), Some(item(1)));
        assert_eq!(behind.called(at(4)), Some(Item(3, vec![2])));
        assert_eq!(behind.pass(Item(3, vec![2])), Some(Item(3, vec![2])));
        behind.answered(&Item(3, vec![2]));
        assert_eq!(behind.called(at(4)), Some(both.clone()));
        // Its other budget has no room any more.
        behind.wait(item(4), 1, at(9));
        assert_eq!(behind.pass(both.clone()), None);
        assert_eq!(behind.called(at(8)), None, "nobody is left in its line");
        assert_eq!(behind.called(at(9)), Some(both), "it was first in its line");
    }

    /// Whoever is called and finds no room to wait in is asked for, and the line goes on after him.
    #[test]
    fn a_line_leaves_room_for_others_and_goes_on_beyond_it() {
        let mut behind = line(0, &[1, 2, 3, 4]);
        assert_eq!(behind.pass(item(5)), Some(item(5)));
        assert_eq!(behind.next(), Some(at(3)), "the line waits all the same");
        // Granted ahead nevertheless, it could not keep the others from being told to wait.
        behind.wait(Item(6, vec![2]), 2, at(9));
        assert_eq!(behind.called(at(3)), Some(item(0)));
        behind.wait(Item(7, vec![2]), 2, at(9));
        assert_eq!(behind.pass(item(0)), Some(item(0)));
        behind.answered(&item(0));
        assert_eq!(behind.called(at(3)), Some(item(1)));
        let odd = behind.extract(|item| item.0 % 2 == 1);
        assert_eq!(odd.len(), 2, "{odd:?}");
        assert_eq!((behind.len(), behind.heads().messages), (3, 2));
        let mut left: Vec<_> = behind.open().into_iter().map(|item| item.0).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 4, 6]);
        assert_eq!((behind.len(), behind.next()), (0, None));
        assert_eq!(behind.heads(), Sum::default());
    }
}
