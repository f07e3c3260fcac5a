//! The contract of `ports::queue::Subscription`, on every backend.
mod support;

use support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let rabbit = Rabbit::shared();
    println!("{}", rabbit.ctl(&["list_queues"]));
    rabbit.kill();
    rabbit.boot();
    println!("{}", rabbit.ctl(&["list_queues"]));
}
