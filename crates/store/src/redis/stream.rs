//! The streams to servers: sockets and TLS; and the task that drives a connection over one.
//!
//! The crate could open its own, but it would trust certificates in its own way, and look up names on threads that a
//! silent name server blocks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisFuture, RedisResult, Value,
};
use rustls::ClientConfig;
use tokio_util::task::AbortOnDropHandle;

use super::address::Address;
use sluiced_net::connect::{ServerStream, first_stream, secured};

const KEEPALIVE: Duration = Duration::from_secs(10);

/// The stream to the first address of `at` that answers. Has no bound in time.
pub(super) async fn open(
    at: &Address,
    found: &[IpAddr],
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<ServerStream> {
    let addresses: Vec<_> = found
        .iter()
        .map(|&ip| SocketAddr::new(ip, at.port))
        .collect();
    let stream = first_stream(&addresses).await?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE / 2))?;
    socket.set_tcp_user_timeout(Some(2 * KEEPALIVE))?;
    secured(stream, tls, &at.host).await
}

/// A connection, and the task that drives it, which ends with the last copy of it.
#[derive(Clone)]
pub(super) struct DrivenConnection {
    connection: MultiplexedConnection,
    _driver: Arc<AbortOnDropHandle<()>>,
}

impl DrivenConnection {
    /// Logs in.
    pub(super) async fn start(
        login: &RedisConnectionInfo,
        stream: ServerStream,
        config: AsyncConnectionConfig,
    ) -> RedisResult<Self> {
        let made = MultiplexedConnection::new_with_config(login, stream, config);
        let (connection, driver) = made.await?;
        Ok(Self {
            connection,
            _driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))),
        })
    }
}

impl ConnectionLike for DrivenConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}
