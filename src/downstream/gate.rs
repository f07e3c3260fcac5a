//! A request's body that is only given out in time.
//!
//! Problem: between the decision to send and the write, a call passes the pool, another task,
//! perhaps a new connection with its handshakes, or a machine that stands still. A call that leaves
//! too late could overfill a window.
//!
//! The connection's task asks for the body right before it writes head and body together. So this
//! is the last moment at which a call can be held back. A body that is asked for too late fails,
//! the connection closes without a byte of it, and the message waits for another slot. A request
//! without a body is only checked before it is handed to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::ports::downstream::{Gate, TooLate};

/// A whole body behind a gate.
#[derive(Debug)]
pub(super) struct Gated {
    body: Bytes,
    gate: Gate,
    passed: Passed,
}

/// Whether a body was let through its gate: before that, certainly nothing was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed(Arc<AtomicBool>);

impl Passed {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Gated {
    pub(super) const fn new(body: Bytes, gate: Gate, passed: Passed) -> Self {
        Self { body, gate, passed }
    }
}

impl Body for Gated {
    type Data = Bytes;
    type Error = TooLate;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TooLate>>> {
        let this = self.get_mut();
        if this.body.is_empty() {
            return Poll::Ready(None);
        }
        if this.gate.is_closed() {
            return Poll::Ready(Some(Err(TooLate)));
        }
        this.passed.0.store(true, Ordering::Release);
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.body)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.len() as u64)
    }
}
