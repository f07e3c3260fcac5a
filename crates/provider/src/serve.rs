//! The provider's connections: accepted, with the faults of the way, and served in the client's protocol.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::connection::{FaultyStream, LastArrival, StampedStream};
use super::endpoint::Endpoint;
use super::{http, smpp};

/// More connections than this are closed as they come.
const MAX_CONNECTIONS: usize = 10_000;
/// How often fresh entries are moved into the ledger.
const ABSORB_EVERY: Duration = Duration::from_millis(50);
/// After a failed accept (for example without file descriptors) the next try waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Serves until it is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
) -> io::Result<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::spawn(keep_ledger(Arc::clone(&endpoint)));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let endpoint = Arc::clone(&endpoint);
        let cut = endpoint.until_cut();
        tokio::spawn(async move {
            cut.run_until_cancelled(connection(socket, endpoint)).await;
            drop(permit);
        });
    }
}

async fn keep_ledger(endpoint: Arc<Endpoint>) {
    let mut ticks = interval(ABSORB_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        endpoint.ledger().begin_round();
        let endpoint = Arc::clone(&endpoint);
        if spawn_blocking(move || endpoint.ledger().absorb())
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn connection(socket: TcpStream, endpoint: Arc<Endpoint>) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let stamped = StampedStream::new(socket);
    let arrival = stamped.last_arrival();
    let way = endpoint.way.subscribe();
    let (tls, handshake) = {
        let faults = way.borrow();
        (faults.tls.clone(), faults.handshake)
    };
    if !handshake.is_zero() {
        sleep(handshake).await;
    }
    let stream = FaultyStream::new(stamped, way);
    match tls {
        None => serve_any(stream, endpoint, arrival).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(socket) => serve_any(socket, endpoint, arrival).await,
            Err(error) => tracing::debug!(%error, "no TLS with a client of the provider"),
        },
    }
}

/// The first octet shows the client's protocol: the length of a bind begins with zero, and no method of HTTP
/// does.
async fn serve_any(
    mut socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
) {
    let mut first = [0];
    match socket.read(&mut first).await {
        Ok(1) if first == [0] => smpp::serve(socket, first.to_vec(), endpoint, arrival).await,
        Ok(1) => {
            let (input, output) = tokio::io::split(socket);
            let whole = tokio::io::join(io::Cursor::new(first).chain(input), output);
            http::serve(whole, endpoint, arrival).await;
        }
        _ => {}
    }
}
