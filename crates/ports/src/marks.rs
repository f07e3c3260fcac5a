//! The key under which replicas mark the headers that they write on copies.
//!
//! Problem: a message that waits at the broker carries its history in headers, and a publisher can write any header. So
//! replicas sign what they write, under a key that only they have. They share it in the store, because a copy comes
//! back to any of them. What is signed is decided where the copies are made (`amqp::rabbit::messages::marks`).

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// Bytes of a key: as many as an output of SHA-256, which HMAC recommends (RFC 2104, section 3).
const BYTES: usize = 32;

/// A secret key for marks.
#[derive(Clone, PartialEq, Eq)]
pub struct MarkKey([u8; BYTES]);

impl MarkKey {
    /// A key that nothing else has.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// As the store keeps it: hexadecimal.
    #[must_use]
    pub fn text(&self) -> String {
        hex::encode(self.0)
    }

    /// The key that such a text stands for; `None`: the text is no key.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut key = [0; BYTES];
        hex::decode_to_slice(text, &mut key).ok()?;
        Some(Self(key))
    }

    /// For the function that signs.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey(..)")
    }
}

/// The keys of a fleet, as far as this replica knows them.
#[derive(Clone, Debug)]
pub struct Marks(watch::Receiver<Arc<[MarkKey]>>);

impl Marks {
    /// The first of the keys signs, and each of them is believed. None: the store was not reached yet.
    #[must_use]
    pub const fn of_fleet(keys: watch::Receiver<Arc<[MarkKey]>>) -> Self {
        Self(keys)
    }

    /// For a process that shares nothing: what an earlier process marked is not believed.
    #[must_use]
    pub fn of_this_process() -> Self {
        // The value stays there when the sender is gone.
        Self(watch::channel([MarkKey::random()].into()).1)
    }

    /// The keys that are known now.
    #[must_use]
    pub fn keys(&self) -> Arc<[MarkKey]> {
        Arc::clone(&self.0.borrow())
    }

    /// The key that signs. Only after one is known.
    ///
    /// # Panics
    /// When none is known yet.
    #[must_use]
    pub fn signing(&self) -> MarkKey {
        let keys = self.0.borrow();
        keys.first()
            .cloned()
            .expect("a session begins after a key is known, and no key is forgotten")
    }

    /// Waits until a key is known. It is never forgotten.
    pub async fn known(&self) {
        let mut keys = self.0.clone();
        if keys.wait_for(|keys| !keys.is_empty()).await.is_err() {
            // The store is gone, and with it this process.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = MarkKey::random();
        assert_eq!(MarkKey::read(&key.text()), Some(key.clone()));
        assert_ne!(MarkKey::random(), key);
        let long = "0".repeat(65);
        let foreign = "ä".repeat(32);
        for wrong in ["", "12", &long, &long[..63], &foreign, &"+1".repeat(32)] {
            assert_eq!(MarkKey::read(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "MarkKey(..)");
    }
}
