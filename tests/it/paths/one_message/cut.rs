//! An answer that is cut off: the message may have been taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::{config, header, holds, numbered, queue};
use crate::support::daemon::{Daemon, NEW_SCHEDULE, Route};

/// A provider that takes a message and cuts the connection, as behind a gateway that dies: no call of one message
/// more than `max_attempts`, although the breaker is open all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_taken_is_called_no_more_than_max_attempts() {
    let name = "taken-and-cut";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 1)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&taken);
    let provider = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let counts = Arc::clone(&counts);
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                while let Ok(read) = socket.read(&mut request).await {
                    if read == 0 {
                        return;
                    }
                    if request[..read].windows(4).any(|end| end == b"\r\n\r\n") {
                        counts.fetch_add(1, Ordering::SeqCst);
                        // The head of an answer, and no more.
                        socket.write_all(b"HTTP/1.1 200 OK\r\nServ").await.ok();
                        return;
                    }
                }
            });
        }
    });
    let mut route = Route::new(name, address);
    route.keys = "max_attempts = 5\nretry = { base = \"50ms\", max = \"100ms\" }\n".to_owned();
    route.downstream =
        "breaker = { failures = 2, pause = \"100ms\", max_pause = \"200ms\" }\n".to_owned();
    let daemon = Daemon::start(&config(name, vec![route]));
    let dead = format!("{name}.dead");
    holds(&broker, &dead, 1).await;
    assert_eq!(taken.load(Ordering::SeqCst), 5);
    let letter = broker.drain(&dead).await.remove(0);
    let says = |name| header(&letter.1, name).unwrap_or_default();
    assert_eq!(says("x-sluiced-reason"), "attempts_exhausted");
    assert!(says("x-sluiced-detail").contains("may have been taken"));
    let known = [NEW_SCHEDULE, "the downstream is away", "dead letter"];
    daemon.stop(&known).await;
    provider.abort();
}
