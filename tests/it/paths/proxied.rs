//! A downstream that can be reached only through a proxy, with a user: from the configuration to the call.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::http_proxy::HttpProxy;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_through_a_proxy() {
    let name = "proxied";
    let proxy = HttpProxy::start("");
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(200)).await;
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    fs::write(&password, HttpProxy::PASSWORD).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let mut route = Route::new(name, downstream.address);
    route.downstream = format!(
        "proxy = {:?}\nproxy_password_file = {password:?}\n",
        proxy.url()
    );
    let config = config(name, vec![route]);

    let file = dir.path().join("sluiced.toml");
    fs::write(&file, config.text()).unwrap();
    let checked = program(&["check", "--connect", "--config"])
        .arg(&file)
        .output();
    let checked = String::from_utf8(checked.unwrap().stdout).unwrap();
    assert!(
        checked.contains("routes.proxied.downstream: ok"),
        "{checked}"
    );

    let before = proxy.asked();
    let daemon = Daemon::start(&config);
    broker.publish(name, numbered(1, 20)).await;
    eventually(LONG, "all are called", || downstream.numbers().len() == 20).await;
    let asked = || proxy.asked() > before;
    eventually(LONG, "the proxy was asked for connections", asked).await;
    // Proxies add this header to requests that they forward.
    let forwarded = downstream.count_of(|call| call.headers.contains_key("via"));
    assert_eq!(forwarded, 0, "it carries bytes, and forwards no requests");
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
}
