//! A broker, or a balancer before it, that accepts connections and stays silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::config;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

/// Accepts connections, keeps them open, and never sends anything.
async fn silent() -> (u16, Arc<AtomicUsize>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let server = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            kept.push(socket);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (port, accepted, AbortOnDropHandle::new(server))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_a_silent_broker_leave_no_thread_and_no_socket() {
    let (port, accepted, _server) = silent().await;
    let downstream = Recorder::accepting().await;
    let mut config = config("silent", vec![Route::new("silent", downstream.address)]);
    config.rabbit = Some(format!("amqp://guest:guest@127.0.0.1:{port}/%2f"));
    // The table of the broker comes first, so the key belongs to it.
    let text = config.text().replacen(
        "[rabbitmq]\n",
        "[rabbitmq]\nconnect_timeout = \"200ms\"\n",
        1,
    );
    let daemon = Daemon::start_with(&text, |_| {});
    let attempts = |count: usize| {
        let accepted = &accepted;
        eventually(LONG, "attempts", move || {
            accepted.load(Ordering::Relaxed) >= count
        })
    };
    attempts(2).await;
    // One attempt may be under way at the time of either look.
    let (threads, sockets) = (daemon.client_threads(), daemon.sockets());
    attempts(10).await;
    eventually(LONG, "the threads of old attempts are gone", || {
        daemon.client_threads() <= 1
    })
    .await;
    assert!(daemon.client_threads() <= threads.max(1));
    let most = sockets + 1;
    eventually(LONG, "the sockets of old attempts are gone", || {
        daemon.sockets() <= most
    })
    .await;
    daemon
        .kill(&[NEW_SCHEDULE, "no connection to RabbitMQ"])
        .await;
}
