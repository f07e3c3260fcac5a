//! What a message took of its keyed limits.
//!
//! However a message leaves the pacer before it was sent (its slot never came, it expired, its session is
//! gone, the daemon stops), dropping its permit refunds what it took. A call counts in `concurrency` limits
//! until its permit is dropped; what it holds of `once` limits is kept in its [`Claims`].
//!
//! A call whose task ends before its answer (it panicked, or the grace of a stop is over) may have arrived: nothing is
//! refunded then, and its claims become unknown.
//!
//! While the downstream is away because it refuses the credentials, no recipient gets anything. What a probe took of
//! limits with a key is refunded then, as for a call that was not sent. Otherwise the probes of an outage of seconds
//! would use up what a recipient may get in a day.
//!
//! | module | what it is |
//! |---|---|
//! | `claims` | what a call holds of its `once` limits until its result is known |
//! | `refunder` | the task that refunds what was not used, renews calls in flight, and writes down what was accepted |
//! | `corrections` | what answers reported about keys, until the refunder writes it |
//! | `tickets` | the names of messages and calls in their limits |

pub(crate) mod claims;
mod corrections;
pub(crate) mod refunder;
pub(crate) mod tickets;

use sluiced_core::limits::Ticket;
use sluiced_core::message::KeyId;
use sluiced_ports::limits::{Charge, ChargeInFlight, GrantedAt, GrantedCharge, key_id};

use claims::Claims;
use refunder::Refunder;

/// What a message took; nothing, if no keyed limit counts it.
pub(super) struct Permit(Option<Taken>);

struct Taken {
    granted: Vec<GrantedCharge>,
    /// Until the call is over, its units count as in flight in limits that need such a count.
    in_flight: Vec<ChargeInFlight>,
    /// Where to return what is not used.
    refunder: Refunder,
    /// The call has begun, and has not come back.
    is_called: bool,
}

impl Permit {
    /// The permit of a message that took nothing.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// The permit for charges that were granted then.
    pub(super) fn new(
        charges: &[Charge],
        at: GrantedAt,
        ticket: Ticket,
        refunder: Refunder,
    ) -> Self {
        let each = charges.iter();
        let granted: Vec<GrantedCharge> = each
            .map(|charge| GrantedCharge::new(charge, at, ticket))
            .collect();
        refunder.began(&granted);
        Self(Some(Taken {
            granted,
            in_flight: charges.iter().filter_map(ChargeInFlight::begin).collect(),
            refunder,
            is_called: false,
        }))
    }

    /// Waits for the end of the call. If it is dropped before, nothing is refunded.
    pub(super) async fn during<T>(&mut self, call: impl Future<Output = T>) -> T {
        self.set_called(true);
        let end = call.await;
        self.set_called(false);
        end
    }

    const fn set_called(&mut self, is_called: bool) {
        if let Some(taken) = &mut self.0 {
            taken.is_called = is_called;
        }
    }

    /// The message may have been sent: its units stay spent, and its calls count until this permit is dropped. Returns
    /// the units.
    pub(super) fn consume(&mut self) -> Vec<GrantedCharge> {
        let Some(taken) = &mut self.0 else {
            return Vec::new();
        };
        taken.refunder.used(&taken.granted);
        taken.extract(|charge| !charge.is_leased())
    }

    /// These units were consumed, and those of the keys are not spent after all.
    pub(super) fn refund_key_units(&mut self, units: Vec<GrantedCharge>, keys: &[KeyId]) {
        let of_keys = units.into_iter().filter(|granted_charge| {
            let charge = granted_charge.charge();
            keys.contains(&key_id(&charge.limit.name, charge.key))
        });
        if let Some(taken) = &mut self.0 {
            taken.granted.extend(of_keys);
        }
    }

    /// The call has ended: it no longer counts in `concurrency` limits. Its claims last until it is settled. What it
    /// did not spend is in the permit that is returned.
    pub(super) fn end_call(mut self) -> (Claims, Self) {
        let Some(taken) = &mut self.0 else {
            return (Claims::none(), Self::none());
        };
        let claims = taken.extract(GrantedCharge::is_claim);
        let unspent = Taken {
            granted: taken.extract(|charge| !charge.is_leased()),
            in_flight: Vec::new(),
            refunder: taken.refunder.clone(),
            is_called: false,
        };
        let claims = Claims::new(claims, taken.refunder.clone());
        (claims, Self(Some(unspent)))
    }

    /// Refunds what is left, and waits for that: before the message asks its limits again for another route, where
    /// its own units could deny it.
    pub(super) async fn refund(mut self) {
        if let Some(taken) = &mut self.0 {
            let granted = taken.take_refundable();
            // If the store is away, they count as used.
            taken.refunder.refund_now(&granted).await;
        }
    }

    /// Takes out what to give back for a message that was certainly not sent, without waiting for the drop.
    pub(super) fn take_refundable(&mut self) -> Vec<GrantedCharge> {
        self.0
            .as_mut()
            .map_or_else(Vec::new, Taken::take_refundable)
    }
}

impl Taken {
    fn extract(&mut self, is_taken: impl Fn(&GrantedCharge) -> bool) -> Vec<GrantedCharge> {
        let granted = &mut self.granted;
        granted.extract_if(.., |charge| is_taken(charge)).collect()
    }

    fn take_refundable(&mut self) -> Vec<GrantedCharge> {
        self.in_flight.clear();
        std::mem::take(&mut self.granted)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let granted = self.take_refundable();
        match self.is_called {
            true => self.refunder.abandon(granted),
            false => self.refunder.ended(granted),
        }
    }
}
