//! What a message takes of its keyed limits.
//!
//! The store is asked with charges, the scheduler works with the numbers of keys. They are made together, so that one
//! belongs to the other.

use sluiced_core::message::KeyId;
use sluiced_ports::limits::{Charge, key_id};

/// What a message takes of its keyed limits; empty if none counts it.
#[derive(Clone, Debug)]
pub(crate) struct KeyedCharges {
    charges: Vec<Charge>,
    /// The numbers of the keys, in the order of `charges`.
    keys: Vec<KeyId>,
}

impl KeyedCharges {
    pub(crate) fn new(charges: Vec<Charge>) -> Self {
        let id = |charge: &Charge| key_id(&charge.limit.name, charge.key);
        Self {
            keys: charges.iter().map(id).collect(),
            charges,
        }
    }

    pub(crate) fn charges(&self) -> &[Charge] {
        &self.charges
    }

    pub(crate) fn keys(&self) -> &[KeyId] {
        &self.keys
    }

    /// Whether the limit of this key counts calls in flight.
    pub(crate) fn counts_calls(&self, key: KeyId) -> bool {
        let mut keys_and_charges = self.keys.iter().zip(&self.charges);
        keys_and_charges
            .any(|(charge_key, charge)| *charge_key == key && charge.limit.counts_calls())
    }
}
