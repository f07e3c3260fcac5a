//! When a process is stuck, not ready or failed.

use super::*;

fn at(seconds: u64) -> Mono {
    Mono::from_micros(seconds * 1_000_000)
}

fn watched(name: &str, last: u64) -> Loop {
    Loop {
        name: name.into(),
        last: Arc::new(AtomicU64::new(last)),
    }
}

#[test]
fn a_loop_is_stuck_after_ten_missed_beats_and_not_before() {
    let state = HealthState {
        loops: vec![
            watched("sms", at(100).as_micros()),
            watched("mail", at(104).as_micros()),
        ],
        ..HealthState::default()
    };
    assert_eq!(state.stuck(at(110)), []);
    let stuck = state.stuck(at(111));
    assert_eq!(stuck.len(), 1);
    assert_eq!(&*stuck[0].name, "sms");
    assert_eq!(stuck[0].lasted, Duration::from_secs(11));
    assert_eq!(&*state.missing(at(111))[0].name, "loop sms");
}

#[test]
fn a_loop_that_ended_on_purpose_is_not_stuck_and_one_that_broke_is() {
    let health = Health::default();
    health.watch_loop("ended").end();
    let broken = health.watch_loop("broken");
    broken.beat(at(1));
    drop(broken);
    let stuck = health.stuck();
    assert_eq!(stuck.len(), 1);
    assert_eq!(&*stuck[0].name, "broken");
}

#[test]
fn since_is_when_it_was_lost_not_when_the_reason_last_changed() {
    let mut state = HealthState::default();
    state.components.push(Component {
        name: "redis".into(),
        link: Link::Up,
        since: at(0),
    });
    state.change(0, Link::Down("refused".into()), at(50));
    state.change(0, Link::Down("no answer".into()), at(55));
    let missing = state.missing(at(60));
    assert_eq!(missing[0].lasted, Duration::from_secs(10));
    assert_eq!(&*missing[0].reason, "no answer");
    state.change(0, Link::Up, at(61));
    assert_eq!(state.missing(at(62)), []);
}

#[tokio::test]
async fn components_are_followed_and_a_lost_supervisor_is_down() {
    let health = Health::default();
    let (sender, link) = watch::channel(Link::Connecting);
    health.component("redis", link);
    assert_eq!(&*health.missing()[0].reason, "connecting");

    sender.send_replace(Link::Up);
    until(|| health.missing().is_empty()).await;
    sender.send_replace(Link::Down("refused".into()));
    until(|| !health.missing().is_empty()).await;
    assert_eq!(&*health.missing()[0].reason, "refused");

    drop(sender);
    until(|| &*health.missing()[0].reason == "its supervisor ended").await;
}

#[test]
fn a_connection_that_came_back_is_counted_and_the_first_is_not() {
    let recorder = crate::recorder::build(&[]);
    metrics::with_local_recorder(&recorder, || {
        let mut tally = LinkTally {
            meters: Some(LinkMeters::new("redis")),
            up: false,
            was_up: false,
        };
        for link in [
            Link::Connecting,
            Link::Up,
            Link::Up,
            Link::Down("refused".into()),
            Link::Up,
        ] {
            tally.note(&link);
        }
    });
    let text = recorder.handle().render();
    assert!(text.contains("sluiced_reconnects_total{target=\"redis\"} 1"));
    assert!(text.contains("sluiced_link_up{target=\"redis\"} 1"));
}

#[test]
fn what_stops_is_not_ready_but_alive() {
    let health = Health::default();
    assert!(health.missing().is_empty());
    health.stopping();
    assert_eq!(&*health.missing()[0].reason, "stopping");
    assert!(health.stuck().is_empty());
}

async fn until(condition: impl Fn() -> bool) {
    tokio::time::timeout(Duration::from_secs(10), async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the condition holds in time");
}

#[tokio::test]
async fn a_task_that_ends_unasked_is_a_failure_and_the_first_one_counts() {
    let health = Health::default();
    drop(health.lifelong("dropped", std::future::ready(())));
    assert!(!health.has_failed(), "to drop it is to stop it");
    health.lifelong("first", std::future::ready(())).await;
    health.lifelong("second", std::future::ready(())).await;
    health.failed().await;
    assert_eq!(&*health.stuck()[0].name, "first");
    assert_eq!(health.stuck().len(), 1);
}

#[tokio::test]
async fn a_task_may_end_once_the_process_stops() {
    let health = Health::default();
    health.stopping();
    health.lifelong("last", std::future::ready(())).await;
    assert!(!health.has_failed());
    assert_eq!(health.stuck(), []);
}
