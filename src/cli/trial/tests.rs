//! When a message would go, and by which route.

use std::collections::BTreeMap;

use super::*;
use sluiced_status::{Replica, RouteState};

/// When a message is sent that a limit lets pass after this, behind this many others and without a paced
/// limit.
fn goes(wait: Option<u64>, ready: u64) -> String {
    let answer = LimitAnswer {
        limit: "recipient".to_owned(),
        key: None,
        cost: 1,
        now: String::new(),
        wait: wait.map(Duration::from_secs),
        is_end: false,
    };
    let route = RouteState {
        open: true,
        ready,
        held: 10,
        ..RouteState::default()
    };
    let replica = Replica {
        routes: BTreeMap::from([("sms".to_owned(), route)]),
        ..Replica::default()
    };
    when(&[answer], &Ahead::of(vec![replica], "sms", None, false))
}

#[test]
fn without_a_paced_limit_it_goes_after_those_before_it() {
    assert_eq!(goes(Some(0), 0), "now");
    assert_eq!(goes(Some(90), 0), "in 1m30s at the earliest");
    assert_eq!(goes(None, 0), "once a call has ended");
    let before = "once the 10010 messages before it are gone";
    assert_eq!(goes(Some(0), 10_000), before);
    let both = format!("in 1m30s at the earliest, and {before}");
    assert_eq!(goes(Some(90), 10_000), both);
    let both = format!("once a call has ended, and {before}");
    assert_eq!(goes(None, 10_000), both);
}

/// The message does not wait for the limits of its own route.
#[test]
fn a_message_of_a_route_that_cannot_send_goes_by_another_route_of_its_queue() {
    let paused = LimitAnswer {
        limit: "account".to_owned(),
        key: None,
        cost: 1,
        now: String::new(),
        wait: Some(Duration::from_secs(1_200)),
        is_end: false,
    };
    let route = RouteState {
        open: true,
        moving: true,
        away: true,
        ..RouteState::default()
    };
    let replica = Replica {
        routes: BTreeMap::from([("sms".to_owned(), route)]),
        ..Replica::default()
    };
    let (answers, ahead) = ([paused], Ahead::of(vec![replica], "sms", None, false));
    assert_eq!(
        when(&answers, &ahead),
        "by another route of its queue: messages of this one move there"
    );
    assert_eq!(longest(&answers, &ahead), None);
}
