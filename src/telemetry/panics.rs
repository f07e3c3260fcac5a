//! What a panic does, on whatever thread: it is logged, and the process stops.
//!
//! Problem: a panic ends one task or one thread, also one of the AMQP or Redis client, and the process
//! goes on without it: deaf, with green probes. No code of ours panics on purpose, so each one is a bug
//! that left something half done. A restart is the one way out that is always right: the queue
//! delivers again what was not settled.

use std::any::Any;
use std::panic;
use std::thread;

use super::health::Health;

/// The most of a message that is logged: libraries quote what they were given.
const QUOTED: usize = 200;

/// From now on every panic in this process is logged and fails `health`.
pub fn watch(health: &Health) {
    let health = health.clone();
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let thread = thread.name().unwrap_or("without a name");
        let place = panic.location().map(ToString::to_string);
        let place = place.unwrap_or_default();
        tracing::error!(thread, place, said = said(panic.payload()), "a panic");
        health.fail(&format!("thread {thread}"));
    }));
}

/// The message of a panic, or its beginning.
fn said(payload: &dyn Any) -> String {
    let whole = payload.downcast_ref::<String>().map(String::as_str);
    let text = whole.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or_default().chars().take(QUOTED).collect()
}
