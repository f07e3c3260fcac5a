//! Which key of a limit a text stands for.
//!
//! Keys come out of messages. A digest keeps them from naming anything else in the store, makes all
//! of them equally short, and hides them: a dump shows no phone number. The parts of a
//! composed key are written with their lengths, so that ("ab", "c") is not ("a", "bc").

use sha2::{Digest as _, Sha256};

use crate::ports::limits::LimitKey;

/// The key of `parts`, in their order. No parts: the one key of a limit that has none.
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
