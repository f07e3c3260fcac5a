//! Tenants share an account, whatever the limits by key say of their messages.

use super::{Backlog, By, account, gcra, scramble};

/// Keys from here on are the second tenant's.
const SECOND: u32 = 10_000;
const EACH: u32 = 1_200;

/// What the first of two tenants got of an account of 100/1s, in parts of one, while both wait. Their messages
/// come in turns; those of the first have few keys, those of the second as many as are said.
fn share(name: &'static str, first: u32, second: u32, replicas: u32) -> f64 {
    let rules = vec![(gcra("10/1s", 0), By::Keys(1))];
    let keys = (0..EACH).flat_map(|n| [scramble(n) % first, SECOND + scramble(n) % second]);
    let backlog = Backlog {
        replicas,
        prefetch: 800,
        tenant: |key| u64::from(key >= SECOND),
        ..Backlog::of(name, Some(account("100/1s", 1)), rules, keys.collect())
    };
    let run = backlog.runs(3);
    // Both still wait then.
    let part = &run.calls[..EACH as usize];
    let of_first = part.iter().filter(|(_, charges)| charges[0].key < SECOND);
    let share = of_first.count() as f64 / part.len() as f64;
    println!("{name} x{replicas}: {share:.2}");
    share
}

#[test]
fn busy_keys_bring_a_tenant_no_more_and_no_less_than_its_share() {
    let mut wrong = Vec::new();
    for replicas in [1, 3] {
        for (name, first, second) in [
            // Its keys have room for 70, 90 and 200 a second, where 50 are its share.
            ("seven busy keys", 7, EACH),
            ("nine busy keys", 9, EACH),
            ("twenty keys", 20, EACH),
            ("both busy", 9, 9),
            ("none busy", EACH, EACH),
        ] {
            let share = share(name, first, second, replicas);
            if !(0.45..=0.55).contains(&share) {
                wrong.push(format!("{name} x{replicas}: {share:.2}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
