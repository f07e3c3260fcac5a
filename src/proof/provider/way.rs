//! The way to the provider, and what can be wrong with it.
//!
//! Problem: a test may want TLS, a network that is silent, or answers that are garbled. A proxy in front of the
//! provider could do all of that, but it passes bytes on when a busy machine lets it, and the provider would
//! judge the proxy. So the provider does it itself, at its own socket, where the kernel has stamped the bytes
//! before.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::stamp::Stamped;

/// How connections are treated, from now on.
#[derive(Clone, Default)]
pub struct Way {
    /// New connections speak TLS, with this certificate.
    pub tls: Option<TlsAcceptor>,
    /// So long passes before a new connection is spoken to.
    pub handshake: Duration,
    /// Connections are accepted, and nothing is read from any.
    pub silent: bool,
    /// What is written instead of each piece of an answer.
    pub instead: Option<&'static [u8]>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way")
            .field("tls", &self.tls.is_some())
            .field("handshake", &self.handshake)
            .field("silent", &self.silent)
            .field("instead", &self.instead)
            .finish()
    }
}

/// A connection, as its way lets it be.
pub(super) struct Treated {
    inner: Stamped,
    way: watch::Receiver<Way>,
    /// The end of a silence that is waited for.
    goes_on: Option<BoxFuture<'static, ()>>,
}

impl Treated {
    pub(super) const fn new(inner: Stamped, way: watch::Receiver<Way>) -> Self {
        Self {
            inner,
            way,
            goes_on: None,
        }
    }
}

impl AsyncRead for Treated {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.way.borrow().silent {
            let mut way = this.way.clone();
            let silence = this.goes_on.get_or_insert_with(|| {
                async move { way.wait_for(|way| !way.silent).await.map_or((), drop) }.boxed()
            });
            ready!(silence.poll_unpin(cx));
            this.goes_on = None;
        }
        Pin::new(&mut this.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Treated {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let instead = this.way.borrow().instead;
        let written = Pin::new(&mut this.inner).poll_write(cx, instead.unwrap_or(buf));
        written.map_ok(|count| if instead.is_some() { buf.len() } else { count })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
