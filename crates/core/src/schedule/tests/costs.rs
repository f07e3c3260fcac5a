//! Messages that take several slots.

use super::*;

#[test]
fn large_costs_ask_for_more_headroom() {
    let grown = |text: &str, headroom, most| {
        let rate: Rate = text.parse().expect("a rate");
        let pace = Pace::new(rate, Duration::from_millis(headroom), DEFAULT_HORIZON);
        micros(pace.with_costs_up_to(cost(most)).headroom_in_all())
    };
    assert_eq!(grown("400/1s", 5, 1), 5_000);
    // 1.005 s * 400 / 391 = 1.028132...: no rounding down.
    assert_eq!(grown("400/1s", 5, 10), 28_133);
    // All of the window at once: then one message a window, spaced by all of its slots.
    assert_eq!(grown("5/1s", 0, 5), 4_000_000);
    assert_eq!(grown("5/1s", 0, 6), 4_000_000);
}

/// The bound at its exact edge: messages of any costs in a row of slots, each sent at the last
/// of its slots and up to the headroom late, never fill a window.
#[test]
fn no_mix_of_costs_fills_a_window() {
    const LATE: u64 = 5_000;
    for (units, most) in [(20, 4), (10, 10), (7, 3)] {
        let pace = pace(&format!("{units}/1s")).with_costs_up_to(cost(most));
        assert_eq!(micros(pace.headroom()), LATE);
        // Varying costs: many different runs of them occur in this row.
        let costs = (0..200).map(|i| u64::from(1 + (i * i + i / 3) % most));
        let mut slot = 0;
        let sent: Vec<(u64, u64)> = costs
            .map(|cost| {
                slot += cost;
                (slot * pace.period() / pace.units(), cost)
            })
            .collect();
        for (i, (first, _)) in sent.iter().enumerate() {
            // The first one as late as can be, the others in time: the fullest window.
            let end = first + LATE + 1_000_000;
            let within = sent[i..].iter().take_while(|(at, _)| *at < end);
            let all: u64 = within.map(|(_, cost)| cost).sum();
            assert!(all <= pace.units(), "{units} {most}: {all}");
        }
    }
}
