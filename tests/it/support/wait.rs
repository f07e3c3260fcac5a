//! Waiting for a condition, never for a time.

use std::future::Future;
use std::time::Duration;

/// How often a program may be started.
const SELDOM: Duration = Duration::from_millis(200);

/// Waits until `condition` holds. Panics with `what` after `bound`.
pub async fn eventually(bound: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    eventually_async(bound, what, || std::future::ready(condition())).await;
}

/// As [`eventually`], for a condition that starts a program: at 100 of them a second the machine would do little else.
pub async fn eventually_by_program(
    bound: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    let mut looked = None::<tokio::time::Instant>;
    eventually(bound, what, || {
        if looked.is_some_and(|looked| looked.elapsed() < SELDOM) {
            return false;
        }
        let holds = condition();
        looked = Some(tokio::time::Instant::now());
        holds
    })
    .await;
}

/// As [`eventually`], for a condition that must ask a server.
pub async fn eventually_async<F>(bound: Duration, what: &str, mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let end = tokio::time::Instant::now() + bound;
    loop {
        if condition().await {
            return;
        }
        assert!(
            tokio::time::Instant::now() < end,
            "not within {bound:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The result of `future`. Panics with `what` after `bound`.
pub async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(bound, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {bound:?}: {what}"),
    }
}
