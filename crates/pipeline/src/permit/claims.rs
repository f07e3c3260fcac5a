//! What a call holds of its `once` limits until its result is known.
//!
//! Accepted: the store must know it before the message is settled, or a repeat would be called. If the store
//! is away, the verdict waits for it, for as long as the claim counts by itself. After that the message is
//! still settled, because it was accepted; for repeats its key is then unknown. So it is at the end of a stop's grace.
//!
//! If dropped, the claims are released: the call failed, and the next attempt may take them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use sluiced_core::limits::Rule;
use sluiced_core::limits::once::OnUnknown;
use sluiced_ports::clock;
use sluiced_ports::limits::GrantedCharge;
use sluiced_telemetry::LogLimit;

use super::refunder::Refunder;

static UNWRITTEN: LogLimit = LogLimit::new(Duration::from_secs(10));

/// The pause before the store is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// The claims of one call, if it has any.
#[derive(Debug)]
pub(crate) struct Claims(Option<HeldClaims>);

#[derive(Debug)]
struct HeldClaims {
    granted: Vec<GrantedCharge>,
    refunder: Refunder,
}

impl Claims {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    pub(super) fn new(granted: Vec<GrantedCharge>, refunder: Refunder) -> Self {
        let has_claims = !granted.is_empty();
        Self(has_claims.then_some(HeldClaims { granted, refunder }))
    }

    /// Whether a message that may have been accepted must not be called again.
    pub(crate) fn keep_unknown(&self) -> bool {
        self.0.as_ref().is_some_and(|held| {
            rules(&held.granted).any(
                |rule| matches!(rule, Rule::Once(once) if once.on_unknown() == OnUnknown::DeadLetter),
            )
        })
    }

    /// The message was accepted. Waits until the store knows it, or until `grace_is_over`.
    pub(crate) async fn accepted(mut self, grace_is_over: &CancellationToken) {
        // Taken out: not released if the replica stops before the store knows, the key is unknown then.
        let Some(HeldClaims { granted, refunder }) = self.0.take() else {
            return;
        };
        let lease = rules(&granted).filter_map(|rule| rule.lease()).min();
        let until = clock::now() + lease.unwrap_or_default();
        let is_known = async {
            while !refunder.done(&granted).await {
                if clock::now() >= until || refunder.has_ended() {
                    return false;
                }
                tokio::time::sleep(RETRY).await;
            }
            true
        };
        let is_known = grace_is_over.run_until_cancelled(is_known).await;
        if is_known != Some(true)
            && let Some(more) = UNWRITTEN.event(clock::now())
        {
            warn!(
                "a message was accepted, and the store could not be informed: of a repeat it will be unknown{more}"
            );
        }
        refunder.abandon(granted);
    }

    /// Whether the message was accepted is unknown, and remains so: the claims end with their leases, unreleased.
    pub(crate) fn unknown(mut self) {
        if let Some(HeldClaims { granted, refunder }) = self.0.take() {
            refunder.abandon(granted);
        }
    }
}

fn rules(claims: &[GrantedCharge]) -> impl Iterator<Item = Rule> {
    let limits = claims.iter().map(|claim| &claim.charge().limit);
    limits.map(|limit| limit.policy().rule.clone())
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some(HeldClaims { granted, refunder }) = self.0.take() {
            refunder.ended(granted);
        }
    }
}
