//! The end of a channel with copies.
//!
//! lapin sends `channel.close` ahead of copies that are not written yet, and the
//! broker answers a copy on a closed channel by closing the connection of all routes. So a channel is closed
//! only when everything is written. If nothing was written for the bound, the connection is useless to all
//! routes, and is cut.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::timeout;

use super::ConfirmChannel;

/// How long closing a channel may take.
const CLOSING: Duration = Duration::from_secs(1);

impl<T> ConfirmChannel<T> {
    /// Ends it; if the broker does not answer, it ends by itself. Returns the `T` of the copies that were
    /// under way.
    pub(in crate::rabbit) async fn close(mut self) -> Vec<T> {
        self.close_channel().await;
        let under_way = std::mem::take(&mut self.under_way).into_values();
        under_way.map(|pending| pending.of).collect()
    }

    async fn close_channel(&mut self) {
        if !self.channel.status().connected() {
            return;
        }
        if self.is_unwritten() {
            tracing::debug!("nothing is written any more: the connection is cut");
            self.live.cut();
            return;
        }
        let closing = self.channel.close(200, "copies were not confirmed".into());
        match timeout(CLOSING, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "closing a channel failed"),
            Err(_) => tracing::debug!("closing a channel takes too long"),
        }
    }
}

impl<T> Drop for ConfirmChannel<T> {
    /// If a session ends with copies that are not written, the channel stays until they are.
    fn drop(&mut self) {
        let (live, bytes) = (Arc::clone(&self.live), self.bytes);
        if !self.is_unwritten() || !self.channel.status().connected() {
            return live.copies.end(bytes);
        }
        let answers = std::mem::take(&mut self.answers);
        let answered = timeout(self.patience(), answers.for_each(async |_| {}));
        tokio::spawn(async move {
            // Whether all were answered or not, they are given up.
            answered.await.ok();
            live.copies.end(bytes);
        });
    }
}
