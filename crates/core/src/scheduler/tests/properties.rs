//! What holds for all messages, whatever comes in whatever order.

use std::cmp::Reverse;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A message that is refused because of that time would have had no turn before it.
    #[test]
    fn no_message_is_sent_before_the_time_that_was_said_when_it_came(
        items in prop::collection::vec((0..30_000_u64, 0..7_u16, 0..3_u64, 1..4_u32), 1..200),
        reserve in any::<bool>(),
    ) {
        let cost = Cost::new(NonZeroU32::new(3).unwrap());
        let kept = reserve.then(|| pace("20/1s").with_costs_up_to(cost));
        let mut bench = Bench::new(pace("100/1s").with_costs_up_to(cost), kept, HEADROOM, 500);
        let mut said = Vec::new();
        for (id, (apart, priority, tenant, cost)) in (0..).zip(items) {
            bench.run(Duration::from_micros(apart));
            let item = Item { priority, tenant, cost, ..Item::plain(id) };
            said.push(bench.scheduler.no_turn_before(&item, Mono::from_micros(bench.now)));
            bench.push(item);
        }
        bench.run(Duration::from_secs(10));
        for sent in &bench.sent {
            let said = said[sent.item.id as usize];
            prop_assert!(said.is_none_or(|said| sent.at >= said.as_micros()), "{sent:?} {said:?}");
        }
        prop_assert!(!bench.sent.is_empty());
    }

    /// Each send is checked for its slot and its permit by the bench.
    #[test]
    fn nothing_is_lost_or_repeated_and_keys_keep_their_distance(
        items in prop::collection::vec(
            (0..4_000_000_u64, 0..12_u32, 0..10_u16, 0..3_u64, any::<bool>()),
            1..300,
        ),
        trip in 100..4_000_u64,
        reserve in any::<bool>(),
        free in any::<bool>(),
        every in 1..2_000_u64,
    ) {
        let kept = reserve.then(|| pace("50/1s"));
        let headroom = Duration::from_millis(400);
        let mut bench = match free {
            true => Bench::free(headroom, trip),
            false => Bench::new(pace("200/1s"), kept, headroom, trip),
        };
        bench.keys.every = NonZeroU64::new(every * 1_000);
        let start = bench.now;
        for (id, (at, key, priority, tenant, keyed)) in (0_u32..).zip(&items) {
            let item = Item {
                priority: *priority,
                tenant: *tenant,
                key: keyed.then_some(*key),
                permit_validity: headroom,
                ..Item::plain(id)
            };
            bench.push_at(start + at, item);
        }
        bench.run(Duration::from_secs(700));
        once_each(&bench, items.len() as u32);
        if !free {
            let most = most_in_a_second(&bench, |_| true);
            prop_assert!(most <= 250, "{most}");
        }
        // Per key: granted no closer than its interval.
        for key in 0..12 {
            let of_key = bench.sent.iter().filter(|s| s.item.key == Some(key));
            let places: Vec<_> = of_key.map(|s| s.item.granted.unwrap_or_default()).collect();
            let mut sorted = places.clone();
            sorted.sort_unstable();
            for pair in sorted.windows(2) {
                prop_assert!(pair[1] - pair[0] >= every * 1_000);
            }
        }
    }

    #[test]
    fn of_those_that_wait_together_the_order_is_priority_and_age(
        priorities in prop::collection::vec(0..10_u16, 2..150),
    ) {
        let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 500);
        for (id, priority) in (0_u32..).zip(&priorities) {
            bench.push(Item { priority: *priority, ..Item::keyed(id, id) });
        }
        bench.run(Duration::from_secs(5));
        once_each(&bench, priorities.len() as u32);
        let order = bench.sent.iter().map(|s| (Reverse(s.item.priority), s.item.id));
        prop_assert!(order.is_sorted());
    }
}
