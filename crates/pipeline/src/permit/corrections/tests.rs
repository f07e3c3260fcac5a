//! What calls really used is written with few requests, and kept until it is written.

use std::num::NonZeroU32;
use std::sync::{LazyLock, Mutex};

use futures::FutureExt as _;

use super::*;
use sluiced_core::limits::Rule;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::rate::Cost;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock;
use sluiced_ports::limits::{Candidate, Decisions, GrantedAt, GrantedCharge, Look};
use sluiced_ports::lock;
use sluiced_ports::store::{Notice, StoreFuture};

/// A store that remembers what is written, and leaves the corrections at some places undone.
#[derive(Debug, Default)]
struct CorrectionsStore {
    all: Mutex<Vec<Vec<Corrected>>>,
    refuses: bool,
    /// Places that are not done.
    undone: Vec<usize>,
}

impl LimitStore for CorrectionsStore {
    fn notices(&self) -> tokio::sync::broadcast::Receiver<Notice> {
        tokio::sync::broadcast::channel(1).1
    }

    fn admit<'a>(&'a self, _: &'a [Candidate], _: u64) -> StoreFuture<'a, Decisions> {
        unreachable!("nothing is asked for")
    }

    fn release<'a>(&'a self, _: &'a [GrantedCharge]) -> StoreFuture<'a, usize> {
        unreachable!("nothing is released")
    }

    fn mark_done<'a>(&'a self, _: &'a [GrantedCharge]) -> StoreFuture<'a, ()> {
        unreachable!("nothing is done")
    }

    fn renew<'a>(&'a self, _: &'a [GrantedCharge]) -> StoreFuture<'a, Vec<GrantedCharge>> {
        unreachable!("nothing is renewed")
    }

    fn correct<'a>(&'a self, corrections: &'a [Correction]) -> StoreFuture<'a, Vec<usize>> {
        let what = corrections.iter().map(|one| one.what);
        lock(&self.all).push(what.collect());
        let answer = if self.refuses {
            Err(StoreError::Unreachable {
                store: "test",
                reason: "away".to_owned(),
            })
        } else {
            Ok(self.undone.clone())
        };
        async { answer }.boxed()
    }

    fn askers(&self) -> u64 {
        3
    }

    fn look<'a>(&'a self, _: &'a Arc<KeyedLimit>, _: LimitKey) -> StoreFuture<'a, Look> {
        unreachable!("nothing is looked at")
    }
}

fn limit() -> Arc<KeyedLimit> {
    let rule = Gcra::new("10/1s".parse().unwrap(), 99, Duration::ZERO).unwrap();
    Arc::new(KeyedLimit::new(
        "tokens",
        Rule::Gcra(rule),
        LostWait::Forever,
    ))
}

fn of(limit: &Arc<KeyedLimit>, what: Corrected) -> Correction {
    Correction {
        limit: Arc::clone(limit),
        key: LimitKey::from_digest([7; 16]),
        what,
    }
}

static ASKED: LazyLock<Mono> = LazyLock::new(clock::now);

fn less(units: u32) -> Corrected {
    Corrected::Less {
        units: Cost::new(NonZeroU32::new(units).unwrap()),
        at: GrantedAt {
            at: StoreTime::from_micros(5),
            asked: *ASKED,
        },
    }
}

const fn left(units: u64) -> Corrected {
    let length = Duration::from_secs(30);
    Corrected::Quota { units, length }
}

/// What a store is given of these, and what of it is kept.
async fn written(store: &CorrectionsStore, all: &[Corrected]) -> (Vec<Corrected>, Vec<Corrected>) {
    let limit = limit();
    let now = clock::now();
    let mut corrections = Corrections::new(now);
    for what in all {
        corrections.note(of(&limit, *what), now);
    }
    assert!(corrections.due() >= now + COLLECT);
    let result = corrections.write(store).await;
    assert_eq!(result.is_err(), store.refuses);
    assert!(
        corrections.due() > clock::now() + COLLECT,
        "the next one waits"
    );
    let given = lock(&store.all).concat();
    let kept = corrections.take(1, now);
    (given, kept.into_iter().map(|one| one.what).collect())
}

#[tokio::test]
async fn many_answers_about_a_key_are_few_corrections() {
    let more = |units| Corrected::More { units };
    let all = [
        more(5),
        left(9),
        less(2),
        more(7),
        left(4),
        left(6),
        less(1),
    ];
    let store = CorrectionsStore::default();
    let (given, kept) = written(&store, &all).await;
    let [first, second, third, Corrected::Quota { units: 4, .. }] = given[..] else {
        panic!("{given:?}");
    };
    assert_eq!([first, second, third], [less(2), less(1), more(12)]);
    assert_eq!(kept, []);
}

#[tokio::test]
async fn what_was_used_beyond_a_cost_is_kept_until_it_is_written() {
    let all = [Corrected::More { units: 5 }, less(2), left(4)];
    for store in [
        CorrectionsStore {
            refuses: true,
            ..CorrectionsStore::default()
        },
        CorrectionsStore {
            undone: vec![0, 1, 2],
            ..CorrectionsStore::default()
        },
    ] {
        let (_, kept) = written(&store, &all).await;
        assert_eq!(kept, [Corrected::More { units: 5 }]);
    }
}

#[tokio::test]
async fn a_key_that_is_closed_for_long_opens_no_earlier_because_of_a_second_answer() {
    let left = |units, seconds| Corrected::Quota {
        units,
        length: Duration::from_secs(seconds),
    };
    for (all, seconds) in [
        ([left(0, 3600), left(0, 1)], 3600),
        ([left(3, 3600), left(0, 1)], 3600),
        ([left(0, 1), left(0, 3600)], 3600),
        // More units say nothing new.
        ([left(0, 1), left(3, 3600)], 1),
    ] {
        let (given, _) = written(&CorrectionsStore::default(), &all).await;
        let [Corrected::Quota { units: 0, length }] = given[..] else {
            panic!("{given:?}");
        };
        assert_eq!(length.as_secs_f64().ceil() as u64, seconds, "{all:?}");
    }
}

#[test]
fn what_no_longer_counts_does_not_hide_what_a_later_answer_says() {
    let (limit, start) = (limit(), Mono::default());
    let left = |units, millis| Corrected::Quota {
        units,
        length: Duration::from_millis(millis),
    };
    let mut corrections = Corrections::new(start);
    corrections.note(of(&limit, left(0, 200)), start);
    let later = start + Duration::from_millis(300);
    corrections.note(of(&limit, left(4, 60_000)), later);
    let written = corrections.take(1, later);
    assert!(
        matches!(
            written[..],
            [Correction {
                what: Corrected::Quota { units: 4, .. },
                ..
            }]
        ),
        "{written:?}"
    );
}
