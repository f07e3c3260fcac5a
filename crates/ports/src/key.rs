//! The key of a limit.
//!
//! Problem: keys come out of messages, and are often phone numbers. A key must name nothing else in the store, and must
//! not show there. So the text of a key is hashed, and only the digest goes to the store.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use sha2::{Digest as _, Sha256};

use sluiced_core::message::KeyId;

/// A key of a limit: a digest of its text, so that no message can name the state of another limit, a
/// key has the same length whatever it says, and its text does not show in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitKey([u8; 16]);

impl LimitKey {
    /// From the first 16 bytes of a digest of the key's text ([`limit_key`] makes it).
    #[must_use]
    pub const fn from_digest(digest: [u8; 16]) -> Self {
        Self(digest)
    }

    /// The digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 16] {
        &self.0
    }

    /// The beginning of the digest, for the journal: enough to find the lines of one key, but not enough to
    /// identify a phone number, because several numbers have the same.
    #[must_use]
    pub fn short(&self) -> String {
        let [a, b, c, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}")
    }
}

impl fmt::Debug for LimitKey {
    /// Not even the digest of a phone number belongs in a log: there are few phone numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitKey(..)")
    }
}

/// The key of a limit that `parts` of a text stand for, in their order. No parts: the one key of a limit that has none.
///
/// Keys come out of messages. A digest keeps them from naming anything else in the store, makes all
/// of them equally short, and hides them: a dump shows no phone number. The parts of a
/// composed key are hashed with their lengths, so that ("ab", "c") is not ("a", "bc").
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

/// The key of a message: `text` is what the limit's template made of it, `queue` its queue where each queue has keys
/// of its own.
#[must_use]
pub fn message_key(queue: Option<&str>, text: Option<&str>) -> LimitKey {
    match (queue, text) {
        (Some(queue), Some(text)) => limit_key(&[queue, text]),
        (Some(only), None) | (None, Some(only)) => limit_key(&[only]),
        (None, None) => limit_key(&[]),
    }
}

/// A number for a (limit, key), the same in this process for all messages.
#[must_use]
pub fn key_id(limit: &str, key: LimitKey) -> KeyId {
    let mut hasher = DefaultHasher::new();
    (limit, key).hash(&mut hasher);
    hasher.finish()
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
