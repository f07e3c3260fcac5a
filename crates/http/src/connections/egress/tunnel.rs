//! A connection through an HTTP proxy (CONNECT, RFC 9110, section 9.3.6).
//!
//! Problem: a server may speak first, as HTTP/2 without TLS does, and its first bytes can arrive together with the
//! proxy's answer. Bytes that are read beyond the answer would be lost, and both ends would wait for each other.
//!
//! So bytes are looked at in the socket before they are taken from it. As long as the answer is not complete, all of
//! them belong to it; then only what is left of the answer is taken.

use std::io;

use http::StatusCode;
use httparse::{EMPTY_HEADER, Response, Status};
use sluiced_net::dial::connect_detail;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Bytes of an answer: a line and a few headers.
const MAX_ANSWER: usize = 8 * 1024;
const MAX_HEADERS: usize = 100;

/// Why a proxy opened no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("it asks for another user and password ({0})")]
    Unauthorized(StatusCode),
    #[error("it refuses this host or port ({0})")]
    Forbidden(StatusCode),
    #[error("it does not reach the server ({0})")]
    Unreachable(StatusCode),
    #[error("it opens no connection ({0})")]
    Refused(StatusCode),
    #[error("its answer is no HTTP")]
    Strange,
    #[error("{}", connect_detail(.0))]
    Io(#[from] io::Error),
}

/// Sends a request for a connection, and takes the answer from the stream. What comes next is from the server.
pub(super) async fn open(proxy: &mut TcpStream, request: &[u8]) -> Result<(), TunnelError> {
    proxy.write_all(request).await?;
    let mut head = vec![0; MAX_ANSWER];
    let mut taken = 0;
    loop {
        if taken == head.len() {
            return Err(TunnelError::Strange);
        }
        let seen = taken + proxy.peek(&mut head[taken..]).await?;
        if seen == taken {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let answer = parse(&head[..seen])?;
        let end = answer.map_or(seen, |answer| answer.length);
        proxy.read_exact(&mut head[taken..end]).await?;
        taken = end;
        if let Some(answer) = answer {
            return judge(answer.status);
        }
    }
}

#[derive(Clone, Copy)]
struct ProxyAnswer {
    status: StatusCode,
    /// Bytes up to its end.
    length: usize,
}

/// `None`: its end has not arrived.
fn parse(bytes: &[u8]) -> Result<Option<ProxyAnswer>, TunnelError> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut answer = Response::new(&mut headers);
    let Status::Complete(length) = answer.parse(bytes).map_err(|_| TunnelError::Strange)? else {
        return Ok(None);
    };
    let status = answer
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(TunnelError::Strange)?;
    Ok(Some(ProxyAnswer { status, length }))
}

const fn judge(status: StatusCode) -> Result<(), TunnelError> {
    Err(match status.as_u16() {
        200..=299 => return Ok(()),
        401 | 407 => TunnelError::Unauthorized(status),
        403 | 405 => TunnelError::Forbidden(status),
        500 | 502..=504 => TunnelError::Unreachable(status),
        _ => TunnelError::Refused(status),
    })
}

#[cfg(test)]
mod tests;
