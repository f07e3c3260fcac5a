//! Stores of limits: Redis for a fleet, memory for one process. Both keep the schedules of
//! `core::schedule` and the keyed limits of `core::limits`; only the place differs.

pub mod memory;
pub mod redis;

use sha2::{Digest as _, Sha256};

use crate::ports::limits::LimitKey;

/// The key of a limit from `parts` of a text, in their order. No parts: the single key of a limit without
/// keys.
///
/// Keys come from messages. As digests they cannot name anything else in the store, are equally
/// short, and are hidden: a dump shows no phone number. The parts of a composed key are hashed with
/// their lengths, so that ("ab", "c") is not ("a", "bc").
#[must_use]
pub fn limit_key(parts: &[&str]) -> LimitKey {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let whole = digest.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&whole[..16]);
    LimitKey::from_digest(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_be_mistaken_for_one_another() {
        let keys = [
            limit_key(&[]),
            limit_key(&[""]),
            limit_key(&["", ""]),
            limit_key(&["abc"]),
            limit_key(&["ab", "c"]),
            limit_key(&["a", "bc"]),
            limit_key(&["c", "ab"]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != key));
        }
        assert_eq!(limit_key(&["ab", "c"]), limit_key(&["ab", "c"]));
    }
}
