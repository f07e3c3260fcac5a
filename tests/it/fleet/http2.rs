//! A fleet that calls over HTTP/2, through a front that others wrote: its calls share connections, and these end in the
//! middle, as they do when a load balancer gets another configuration.

use super::{Plan, id};
use crate::support::daemon::NEW_SCHEDULE;
use crate::support::nghttpx::Nghttpx;
use crate::support::soak::at_length;

const RATE: u64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_2_the_limit_holds_while_the_front_says_goodbye() {
    let all = at_length(2_400, 24_000) as u64;
    let plan = Plan {
        rate: "400/1s",
        // The front is a part of the way, and may stand still.
        headroom: "250ms",
        settings: vec![("horizon = \"200ms\"", "horizon = \"1s\"".to_owned())],
        downstream: "http = \"2\"\n",
        ..Plan::of("fleet-http2")
    };
    let mut fleet = plan.prepare().await;
    fleet.publish((1..=all).map(|n| (id(n), "any"))).await;
    let front = Nghttpx::start(fleet.provider.address());
    fleet.via.provider = Some(front.address());
    fleet.add(3);
    let mut reloads = 0;
    for part in (RATE..all - RATE).step_by(RATE as usize) {
        fleet.arrived(part).await;
        front.reload();
        reloads += 1;
    }
    let report = fleet.finish(&[NEW_SCHEDULE]).await;
    // A goodbye says which calls were not looked at, so none is repeated.
    assert_eq!((report.over, report.repeated), (0, 0), "{report:?}");
    assert_eq!(front.reloads(), reloads);
}
