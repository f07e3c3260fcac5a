//! The order of messages that wait for a slot: by priority, by tenant, by age.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::message::TenantShare;
use crate::rate::Cost;

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

impl Queued for Item {
    fn arrival(&self) -> u64 {
        0
    }
    fn priority(&self) -> u16 {
        self.priority
    }
    fn is_urgent(&self) -> bool {
        self.priority == 3
    }
    fn share(&self) -> TenantShare {
        TenantShare {
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
    assert_eq!(ready.sum().units, 4);
    assert_eq!(ready.peek(), Some(&item(5, 2)));
    assert_eq!(numbers(&mut ready), [2, 4, 1, 3]);
    assert_eq!(ready.sum(), MessageTotals::default());
}

#[test]
fn a_message_that_comes_back_goes_before_those_of_its_priority() {
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
    assert_eq!((ready.sum().units, ready.sum().messages), (4, 4));
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
    assert_eq!(rest, 1000, "what no other tenant asks for goes to this one");
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

/// As with `fair_by` by recipient: each has one message, and new ones come all the time.
#[test]
fn a_tenant_gets_its_share_beside_tenants_with_a_message_each() {
    for (weight, share) in [(1, 10), (5, 50)] {
        let mut ready = Ready::default();
        for n in 0..100 {
            ready.push(of(0, n, 0, weight));
        }
        let mut others = 1_u64..;
        let mut come = |ready: &mut Ready<Item>| ready.push(of(0, 0, others.next().unwrap(), 1));
        (0..9).for_each(|_| come(&mut ready));
        let mut taken = 0;
        for _ in 0..100 {
            match ready.pop().expect("a message").tenant {
                0 => taken += 1,
                _ => come(&mut ready),
            }
        }
        assert!(taken * 2 >= share && taken <= share * 2, "{taken} of 100");
    }
}

#[test]
fn what_was_denied_costs_its_tenant_nothing() {
    let mut ready = Ready::default();
    for n in 0..100 {
        ready.push(of(0, n, 1, 1));
        ready.push(of(0, n, 2, 1));
    }
    for _ in 0..40 {
        if let Some(taken) = ready.pop().filter(|taken| taken.tenant == 1) {
            ready.restore_start_tag(&taken, 0);
        }
    }
    let next: Vec<_> = (0..10).filter_map(|_| ready.pop()).collect();
    let first = next.iter().filter(|item| item.tenant == 1).count();
    assert!(first >= 5, "{first}");
}

/// Messages of a key that is full are taken and sent away in a row.
#[test]
fn what_was_denied_does_not_hold_up_a_tenant_that_comes() {
    let mut ready = Ready::default();
    for n in 0..1000 {
        ready.push(of(0, n, 1, 1));
        ready.push(of(0, n, 2, 1));
    }
    for _ in 0..400 {
        if let Some(taken) = ready.pop().filter(|taken| taken.tenant == 1) {
            ready.restore_start_tag(&taken, 0);
        }
    }
    ready.push(of(0, 0, 3, 1));
    let next: Vec<_> = (0..6).filter_map(|_| ready.pop()).collect();
    assert!(next.iter().any(|item| item.tenant == 3), "{next:?}");
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

/// All messages wait for keys, and go from there: none of them is ready.
#[test]
fn tenants_whose_messages_waited_for_keys_are_not_remembered_for_ever() {
    let mut ready = Ready::default();
    for n in 0..10_000 {
        ready.advance_start_tag(&of(0, n, u64::from(n), 1), 1);
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
        prop_assert_eq!(ready.sum(), MessageTotals::default());
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

/// An item that takes this many slots.
struct CostlyItem(Item, u32);

impl Queued for CostlyItem {
    fn arrival(&self) -> u64 {
        0
    }
    fn priority(&self) -> u16 {
        self.0.priority
    }
    fn share(&self) -> TenantShare {
        self.0.share()
    }
    fn cost(&self) -> Cost {
        Cost::new(NonZeroU32::new(self.1).expect("at least one"))
    }
}

proptest! {
    /// A lease is for the messages that will be taken, in that order.
    #[test]
    fn the_costs_ahead_are_those_of_what_is_taken_next(
        items in prop::collection::vec((0..3_u16, 0..4_u64, 1..4_u32, 1..11_u32, any::<bool>()), 0..60),
        taken in 0..20_usize,
        most in 0..70_usize,
    ) {
        let mut ready = Ready::default();
        for (priority, tenant, weight, cost, is_back) in items {
            let item = CostlyItem(of(priority, 0, tenant, weight), cost);
            if is_back {
                ready.push_front(item);
            } else {
                ready.push(item);
            }
        }
        for _ in 0..taken {
            ready.pop();
        }
        let ahead = ready.costs(most);
        let popped = std::iter::from_fn(|| ready.pop()).take(most);
        let popped: Vec<u64> = popped.map(|item| item.cost().units()).collect();
        prop_assert_eq!(ahead, popped);
    }
}

/// Each of them is the only message of its tenant, and due at once; the clock stood still for them once.
#[test]
fn messages_that_waited_for_keys_leave_the_others_their_share() {
    let mut ready = Ready::default();
    for number in 0..100 {
        ready.push(of(0, number, 1, 1));
    }
    let mut taken = 0;
    for tenant in 2..402 {
        let queued = of(0, 0, tenant, 1);
        let first = ready.peek().expect("it has a hundred");
        if ready.start_tag(first) < ready.start_tag(&queued) {
            ready.pop();
            taken += 1;
        } else {
            ready.advance_start_tag(&queued, 7);
        }
    }
    // At least its share beside seven that could go and one that may come, and about twice as much at most.
    assert!((44..=90).contains(&taken), "{taken}");
}
