//! Messages that stand in line behind others of their budget.
//!
//! Problem: where a paced limit is saturated, many messages of one budget are late together: their places
//! passed by while they waited for slots. The first of them that asks is granted the next moment ahead, the
//! others moments behind his. They all wait with permissions for slots that are not there, take room from
//! everybody else, ask again, and stand at the end of a line that grows, until it is so long that they are
//! denied once more. So while one of them waits for his moment, the others of his budget are not asked for.
//! They stand in line, in memory, and go one by one: each when the moment of the one before him has come.
//! Messages of other budgets pass them.
//!
//! Only messages that hold places stand in line: the others have to ask for theirs. And only as many as leave
//! room for others (`Candidate::line_room`): beyond that they ask, and may be denied again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::core::ready::{Candidate, Sum};
use crate::core::time::Mono;

/// If nothing is heard of one who was sent ahead for so long, the next one goes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which budget: a digest of its limit and key. If two have the same, they stand in one line, and no more.
pub(super) type Budget = u64;

/// Who may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nobody before then.
    Shut(Mono),
    /// One, who was sent ahead. The next one at this time, if nobody was asked for until then.
    Open(Mono),
    /// Nobody: one is asked for.
    Asked,
}

impl Gate {
    /// The next one may be asked for at once.
    const NEXT: Self = Self::Shut(Mono::from_micros(0));

    const fn changes_at(self) -> Option<Mono> {
        match self {
            Self::Shut(at) | Self::Open(at) => Some(at),
            Self::Asked => None,
        }
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
}

impl<T> Default for Behind<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            changes: BTreeSet::new(),
            len: 0,
        }
    }
}

impl<T: Candidate> Behind<T> {
    /// How many stand in line.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What could be sent of it about now: the first of each line.
    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for line in self.lines.values() {
            if let Some(first) = line.waiting.front() {
                sum.add(first);
            }
        }
        sum
    }

    /// When somebody can be sent ahead, at the earliest.
    pub(super) fn next(&self) -> Option<Mono> {
        self.changes.first().map(|(at, _)| *at)
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

    /// Nobody else may be asked for before `until`: a moment until then is granted.
    pub(super) fn shut(&mut self, budget: Budget, until: Mono) {
        self.lines.entry(budget).or_insert_with(|| Line {
            gate: Gate::Asked,
            waiting: VecDeque::new(),
        });
        self.turn(budget, Gate::Shut(until));
    }

    /// The message if it may be asked for now; if not, it stands in line.
    pub(super) fn pass(&mut self, item: T) -> Option<T> {
        if self.lines.is_empty() || !item.is_booked() || self.len() >= item.line_room() {
            return Some(item);
        }
        let lines = item
            .budgets()
            .filter_map(|budget| Some((budget, self.lines.get(&budget)?.gate)));
        let lines: Vec<_> = lines.collect();
        let is_open = |gate: &Gate| matches!(gate, Gate::Open(_));
        let closed = lines.iter().filter(|(_, gate)| !is_open(gate));
        // Where it waits longest, as far as anybody knows.
        let Some((behind, _)) = closed.max_by_key(|(_, gate)| gate.changes_at()).copied() else {
            for (budget, _) in lines {
                self.turn(budget, Gate::Asked);
            }
            return Some(item);
        };
        let mut was_first = false;
        for (budget, _) in lines.iter().filter(|(_, gate)| is_open(gate)) {
            self.turn(*budget, Gate::NEXT);
            was_first = true;
        }
        if let Some(line) = self.lines.get_mut(&behind) {
            self.len += 1;
            // By priority; and who was first in another line has waited for long.
            let own = item.priority();
            let goes_behind = |other: &T| match other.priority() {
                other if was_first => other > own,
                other => other >= own,
            };
            let place = line.waiting.iter().position(|other| !goes_behind(other));
            line.waiting
                .insert(place.unwrap_or(line.waiting.len()), item);
        }
        None
    }

    /// A message was asked for and ruled on: at once the next one may be asked for, unless it has to wait
    /// ([`Self::shut`]).
    pub(super) fn answered(&mut self, item: &T) {
        if self.lines.is_empty() {
            return;
        }
        for budget in item.budgets() {
            if self
                .lines
                .get(&budget)
                .is_some_and(|line| line.gate == Gate::Asked)
            {
                self.turn(budget, Gate::NEXT);
            }
        }
    }

    /// Everybody may be asked for: other terms are in force.
    pub(super) fn open(&mut self) -> Vec<T> {
        self.changes.clear();
        self.len = 0;
        let lines = std::mem::take(&mut self.lines);
        lines.into_values().flat_map(|line| line.waiting).collect()
    }

    /// Somebody whose turn has come, in front of all others of his budget.
    pub(super) fn ahead(&mut self, now: Mono) -> Option<T> {
        while let Some((_, budget)) = self.changes.first().copied().filter(|(at, _)| *at <= now) {
            let line = self.lines.get_mut(&budget);
            if let Some(item) = line.and_then(|line| line.waiting.pop_front()) {
                self.len -= 1;
                self.turn(budget, Gate::Open(now + PATIENCE));
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
        for line in self.lines.values_mut() {
            for item in std::mem::take(&mut line.waiting) {
                if unwanted(&item) {
                    out.push(item);
                } else {
                    line.waiting.push_back(item);
                }
            }
        }
        self.len -= out.len();
        out
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

    #[test]
    fn they_go_one_by_one_when_the_moment_has_come() {
        let mut behind = Behind::default();
        assert_eq!(behind.pass(item(1)), Some(item(1)));
        behind.shut(1, at(3));
        for id in 2..5 {
            assert_eq!(behind.pass(item(id)), None);
        }
        // Those without a place, and those of other budgets, pass.
        assert_eq!(behind.pass(item(100)), Some(item(100)));
        assert_eq!(behind.pass(Item(50, vec![2])), Some(Item(50, vec![2])));
        assert_eq!((behind.len(), behind.next()), (3, Some(at(3))));
        assert_eq!(behind.ahead(at(2)), None);
        assert_eq!(behind.ahead(at(3)), Some(item(2)));
        assert_eq!(behind.ahead(at(3)), None, "one at a time");
        assert_eq!(behind.pass(item(2)), Some(item(2)));
        assert_eq!(behind.next(), None, "until it is ruled on");
        behind.answered(&item(2));
        behind.shut(1, at(5));
        assert_eq!(behind.ahead(at(4)), None);
        assert_eq!(behind.ahead(at(5)), Some(item(3)));
        assert_eq!(behind.pass(item(3)), Some(item(3)));
        behind.answered(&item(3));
        assert_eq!(behind.ahead(at(5)), Some(item(4)), "granted at once");
        assert_eq!(behind.pass(item(4)), Some(item(4)));
        behind.answered(&item(4));
        assert_eq!(behind.ahead(at(5)), None);
        assert!(behind.lines.is_empty() && behind.changes.is_empty());
    }

    #[test]
    fn who_is_more_urgent_goes_first() {
        let mut behind = Behind::default();
        behind.shut(1, at(3));
        for id in [1, 90, 2, 91] {
            assert_eq!(behind.pass(item(id)), None);
        }
        let mut order = Vec::new();
        while let Some(next) = behind.ahead(at(3)) {
            order.push(next.0);
            assert_eq!(behind.pass(next.clone()), Some(next.clone()));
            behind.answered(&next);
        }
        assert_eq!(order, [90, 91, 1, 2]);
    }

    #[test]
    fn if_nothing_is_heard_of_one_the_next_goes() {
        let mut behind = Behind::default();
        behind.shut(1, at(3));
        assert_eq!(behind.pass(item(1)), None);
        assert_eq!(behind.pass(item(2)), None);
        assert_eq!(behind.ahead(at(3)), Some(item(1)));
        // It expired before anybody was asked.
        assert_eq!(behind.ahead(at(4)), Some(item(2)));
    }

    #[test]
    fn of_several_lines_it_stands_in_the_longest_and_holds_up_no_other() {
        let mut behind = Behind::default();
        let both = Item(1, vec![1, 2]);
        behind.shut(1, at(3));
        behind.shut(2, at(4));
        assert_eq!(behind.pass(item(2)), None);
        assert_eq!(behind.pass(both.clone()), None);
        assert_eq!(behind.ahead(at(3)), Some(item(2)));
        assert_eq!(behind.ahead(at(4)), Some(both.clone()));
        behind.shut(1, at(9));
        assert_eq!(behind.pass(both.clone()), None);
        assert_eq!(behind.ahead(at(8)), None);
        assert_eq!(behind.ahead(at(9)), Some(both));
    }

    #[test]
    fn a_line_leaves_room_for_others_and_all_can_be_taken_out() {
        let mut behind = Behind::default();
        behind.shut(1, at(3));
        for id in 0..5 {
            assert_eq!(behind.pass(item(id)), None);
        }
        assert_eq!(behind.pass(item(5)), Some(item(5)));
        let odd = behind.extract(|item| item.0 % 2 == 1);
        assert_eq!((odd, behind.len()), (vec![item(1), item(3)], 3));
        assert_eq!(behind.open(), [item(0), item(2), item(4)]);
        assert_eq!((behind.len(), behind.next()), (0, None));
    }
}
