//! What a change of a policy is ascribed to, and that a changed file is noticed.

use super::*;
use crate::limit::facts::{CurrentLimit, LimitFacts};
use sluiced_core::headroom::Headroom;
use sluiced_core::policy::LimitPolicy;
use sluiced_core::policy::Origin;
use sluiced_core::policy::Pause;
use sluiced_core::time::StoreTime;
use sluiced_store::memory::MemoryStore;
use sluiced_telemetry::recent;

/// A file of a paced limit with this rate.
#[derive(Debug)]
struct Rate(&'static str);

impl FileLimit<String> for Rate {
    fn policy(&self) -> String {
        format!("kind=paced rate={}", self.0)
    }

    fn under(&self, policy: &str) -> Result<CurrentLimit<String>, String> {
        Ok(CurrentLimit {
            used: policy.to_owned(),
            facts: LimitFacts {
                is_paced: true,
                window: Duration::from_secs(1),
                headroom: Headroom::of(Duration::from_millis(5)),
                auto_bounds: None,
                adapts: None,
                per_second: None,
                changed: Box::new(|_| None),
            },
        })
    }
}

#[test]
fn the_end_of_a_pause_is_not_ascribed_to_what_made_the_policy() {
    let pause = Pause {
        until: StoreTime::from_micros(u64::MAX),
        length: Duration::from_secs(60),
        by: "anna@ops".to_owned(),
    };
    let policy = |updates, pause| LimitPolicy {
        version: PolicyVersion::new(updates),
        changed: PolicyVersion::new(1),
        updates,
        origin: Origin::Live,
        text: "rate=1/1s".to_owned(),
        file: "rate=1/1s".to_owned(),
        by: "vm:1: nearly all calls leave within 7.7 ms".to_owned(),
        pause,
        resumed_by: "bob@ops".to_owned(),
        kind_changed_at: StoreTime::from_micros(0),
    };
    let name = "ascribed";
    let known_policy = KnownPolicy {
        known: Some(Arc::new(policy(2, Some(pause.clone())))),
        ..KnownPolicy::new(Arc::from(name))
    };
    known_policy.explain(&policy(3, None));
    let said = recent().into_iter().map(|line| line.text);
    let said: Vec<_> = said.filter(|text| text.contains(name)).collect();
    assert_eq!(said, ["limit ascribed is resumed by bob@ops (version 3)"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_read_while_something_else_wakes_us_is_an_update() {
    let first: Arc<dyn FileLimit<String>> = Arc::new(Rate("30/1s"));
    let (file, reader) = watch::channel(first);
    let outdated = Arc::new(Notify::new());
    let declarer = PolicyDeclarer {
        store: Arc::new(MemoryStore::default()),
        family: Family::Paced,
        limit: Arc::from("account"),
        replica: "a".to_owned(),
    };
    let watch = PolicyWatch::new(
        declarer,
        reader,
        Vec::new(),
        Arc::clone(&outdated),
        Jitter::new(0),
    );
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let run = tokio::spawn(watch.run(move |_, line| sender.send(line).unwrap_or_default()));
    let first = received.recv().await.expect("a policy");
    assert!(first.contains("rate=30/1s"), "{first}");
    // It wakes, and waits for a moment before it asks.
    outdated.notify_one();
    tokio::time::sleep(GAP / 2).await;
    file.send_replace(Arc::new(Rate("10/1s")));
    let next = tokio::time::timeout(2 * PRESENCE, received.recv()).await;
    let next = next.expect("in time").expect("a policy");
    assert!(next.contains("rate=10/1s"), "{next}");
    run.abort();
}
