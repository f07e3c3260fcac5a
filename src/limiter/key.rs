//! Which budget of a limit a text stands for.
//!
//! Keys come out of messages. A digest keeps them from naming anything else in the store, makes all
//! of them equally short, and hides them: nobody reads a phone number out of a dump. The parts of a
//! composed key are written with their lengths, so that ("ab", "c") is not ("a", "bc").

use sha2::{Digest as _, Sha256};

use crate::ports::budget::BudgetKey;

/// The budget of `parts`, in their order. No parts: the one budget of a limit without a key.
#[must_use]
pub fn budget_key(parts: &[&str]) -> BudgetKey {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let whole = digest.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&whole[..16]);
    BudgetKey::from_digest(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_be_mistaken_for_one_another() {
        let keys = [
            budget_key(&[]),
            budget_key(&[""]),
            budget_key(&["", ""]),
            budget_key(&["abc"]),
            budget_key(&["ab", "c"]),
            budget_key(&["a", "bc"]),
            budget_key(&["c", "ab"]),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != key));
        }
        assert_eq!(budget_key(&["ab", "c"]), budget_key(&["ab", "c"]));
    }
}
