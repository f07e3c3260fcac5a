//! The keys under which the replicas sign the headers of their copies: one in Redis, which all of them use, and in
//! memory the ones that this replica has seen.
//!
//! Problem: if Redis loses the key, copies that wait at the broker are signed under a key that replicas which start
//! later do not know. So each replica that runs writes the key that it knows again, at each connection, when a lease
//! shows that the state was lost ([`KeptKeys::state_is_new`]), and every few seconds; and never over another one. If a
//! replica that knew none was faster, its key is used from then on, and the earlier ones are still believed where they
//! are known.

use std::sync::Arc;
use std::time::Duration;

use redis::Script;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::connection::Connection;
use super::scripts::{Arg, MARKS, ScriptCall};
use sluiced_core::time::Mono;
use sluiced_ports::clock::{self, Thread};
use sluiced_ports::link::Link;
use sluiced_ports::marks::{MarkKey, Marks};
use sluiced_telemetry::LogLimit;

/// How often it is made sure that Redis has the key.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The pause before it is asked again after it gave no answer.
const RETRY: Duration = Duration::from_millis(200);
/// This many keys are known at most: Redis lost it so often while this replica ran.
const KNOWN: usize = 4;

/// A task that keeps the keys, and what it knows.
pub(super) struct KeptKeys {
    known: watch::Receiver<Arc<[MarkKey]>>,
    is_new: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl KeptKeys {
    /// Starts to ask, on the thread of the connections.
    pub(super) fn start(connection: Arc<Connection>, prefix: &str, thread: &Thread) -> Self {
        let (sender, known_keys) = watch::channel(Arc::default());
        let key = format!("{prefix}:{{fleet}}:marks");
        let is_new = Arc::new(Notify::new());
        let keeping = keep(connection, key, sender, Arc::clone(&is_new));
        let task = thread.handle().spawn(keeping);
        Self {
            known: known_keys,
            is_new,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Redis has begun anew: a key that it lost is written again at once, before a replica that starts now makes
    /// another.
    pub(super) fn state_is_new(&self) {
        self.is_new.notify_one();
    }

    pub(super) fn marks(&self) -> Marks {
        Marks::of_fleet(self.known.clone())
    }
}

async fn keep(
    connection: Arc<Connection>,
    key: String,
    known: watch::Sender<Arc<[MarkKey]>>,
    is_new: Arc<Notify>,
) {
    let script = Script::new(MARKS);
    let unread = LogLimit::new(Duration::from_secs(60));
    let fresh = MarkKey::random();
    let mut link = connection.link();
    loop {
        let own_mark = known.borrow().first().unwrap_or(&fresh).text();
        let call = ScriptCall::new(&script, key.clone(), Vec::new(), vec![Arg::Text(&own_mark)]);
        let wait = match connection.call::<String>(&call).await {
            Ok(text) => {
                match MarkKey::read(&text) {
                    Some(current) => learn(&known, current),
                    None => warn_of(&key, &unread, clock::now()),
                }
                CHECK_INTERVAL
            }
            Err(_) => RETRY,
        };
        // A connection that is new may lead to a Redis that lost it.
        tokio::select! {
            () = sleep(wait) => {}
            () = is_new.notified() => {}
            () = reconnected(&mut link) => {}
        }
    }
}

fn warn_of(key: &str, unread: &LogLimit, now: Mono) {
    if let Some(more) = unread.event(now) {
        warn!(
            key,
            "this key of Redis is not what sluiced wrote there, and nothing is consumed without it: delete it{more}"
        );
    }
}

/// Waits until the link goes up, after it was down.
async fn reconnected(link: &mut watch::Receiver<Link>) {
    let down = link.wait_for(|link| !link.is_up()).await.is_ok();
    if !down || link.wait_for(Link::is_up).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The key that Redis has comes first.
fn learn(known: &watch::Sender<Arc<[MarkKey]>>, current: MarkKey) {
    known.send_if_modified(|keys| {
        if keys.first() == Some(&current) {
            return false;
        }
        let earlier = keys.iter().filter(|key| **key != current).cloned();
        *keys = std::iter::once(current.clone())
            .chain(earlier)
            .take(KNOWN)
            .collect();
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_key_signs_and_earlier_ones_are_believed() {
        let (sender, known) = watch::channel(Arc::default());
        let marks = Marks::of_fleet(known);
        let all: Vec<MarkKey> = std::iter::repeat_with(MarkKey::random).take(6).collect();
        for key in &all {
            learn(&sender, key.clone());
            assert_eq!(marks.signing(), *key);
        }
        let newest: Vec<MarkKey> = all[2..].iter().rev().cloned().collect();
        assert_eq!(*marks.keys(), newest);
        learn(&sender, all[3].clone());
        assert_eq!(marks.signing(), all[3]);
        assert_eq!(marks.keys().len(), KNOWN);
    }
}
