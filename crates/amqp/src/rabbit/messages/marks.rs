//! Marks: signatures by which replicas recognize the headers that one of them wrote.
//!
//! Problem: a copy comes back through the default exchange, and so does a message of any publisher that writes to the
//! queue directly. A header that moves a message to another key, or that allows a call again, must be ours. So each
//! copy is signed with HMAC-SHA-256 (RFC 2104) under the key of the fleet (`ports::marks`), and headers without a valid
//! signature are ignored, as if the publisher had not written them.
//!
//! There are two marks. [`MARK`] covers what lasts as long as the message: where it was published to, its id, when it
//! died. [`ROUND_MARK`] covers also what belongs to its life until it is replayed: attempts, times, the way that it
//! went. So `sluiced dead replay` can remove the second part without the key, and the first part is still believed.
//!
//! Both cover the message itself, too: the digest of its body and the publisher's message id. Headers that are copied
//! to another message are worth nothing there. A publisher that can read the queue may
//! send a message again with its marks: they stay valid, as for a redelivery.
//!
//! **Versions.** Copies wait at the broker while sluiced is upgraded, and replicas of two versions read each other's.
//! So the name of a header is its version: what it means never changes, and a later form is another header. The same
//! holds for a mark, which covers the same headers for ever: a version that signs more writes a mark of another name,
//! beside these two as long as an earlier version may read them. A header whose name a version does not know is
//! ignored.

use ring::{digest, hmac};

use sluiced_ports::marks::MarkKey;
use sluiced_ports::message::{HeaderValue, header};

/// Signs what lasts.
pub(super) const MARK: &str = "x-sluiced-mark";
/// Signs the rest, too.
pub(super) const ROUND_MARK: &str = "x-sluiced-round-mark";

/// What lasts as long as the message.
const LASTING: [&str; 4] = [
    header::EXCHANGE,
    header::ROUTING_KEY,
    header::MESSAGE_ID,
    header::DIED,
];
/// What belongs to its life until it is replayed.
const ROUND: [&str; 13] = [
    header::ATTEMPTS,
    header::FIRST_SEEN,
    header::NOT_BEFORE,
    header::EXPIRES,
    header::LAST_STATUS,
    header::DENIED_BEFORE,
    header::PARKED,
    header::REDELIVERED,
    header::UNREADABLE,
    header::THROTTLED,
    header::SET_ASIDE,
    header::KEPT,
    header::KEPT_ROUNDS,
];

/// Which headers of ours on a message were written by a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    Nothing,
    /// Only the headers that last.
    Lasting,
    All,
}

impl Trust {
    /// Whether a header counts on a message with this trust. Those that decide nothing always do.
    pub(super) fn believes(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Lasting => !ROUND.contains(&name) && name != ROUND_MARK,
            Self::Nothing => !decides(name),
        }
    }
}

/// Whether a decision depends on this header.
pub(super) fn decides(name: &str) -> bool {
    LASTING.contains(&name) || ROUND.contains(&name) || name == MARK || name == ROUND_MARK
}

/// The message that marks are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    /// The publisher's id for the message.
    pub(super) id: Option<&'a str>,
    pub(super) body: &'a [u8],
}

impl Marked<'_> {
    /// Which headers one of these keys has signed.
    pub(super) fn trust(
        &self,
        header: impl Fn(&str) -> Option<HeaderValue>,
        keys: &[MarkKey],
    ) -> Trust {
        let mark = |name| match header(name) {
            Some(HeaderValue::Text(text)) => hex::decode(text).ok(),
            _ => None,
        };
        let Some(lasting) = mark(MARK) else {
            return Trust::Nothing;
        };
        let [first, second] = self.texts(&header);
        let valid = |key: &&MarkKey| hmac::verify(&signing(key), &first, &lasting).is_ok();
        let Some(key) = keys.iter().find(valid) else {
            return Trust::Nothing;
        };
        match mark(ROUND_MARK) {
            Some(round) if hmac::verify(&signing(key), &second, &round).is_ok() => Trust::All,
            _ => Trust::Lasting,
        }
    }

    /// The marks for these headers.
    pub(super) fn sign(
        &self,
        header: impl Fn(&str) -> Option<HeaderValue>,
        key: &MarkKey,
    ) -> [(&'static str, String); 2] {
        let [first, second] = self.texts(&header);
        let sign = |text: &[u8]| hex::encode(hmac::sign(&signing(key), text));
        [(MARK, sign(&first)), (ROUND_MARK, sign(&second))]
    }

    /// The texts that are signed. No two messages with different headers have the same ones: every part has its length,
    /// and parts that are missing are named, too.
    fn texts(&self, header: &impl Fn(&str) -> Option<HeaderValue>) -> [Vec<u8>; 2] {
        let mut first = b"sluiced mark".to_vec();
        part(&mut first, self.id.map(str::as_bytes));
        let body = digest::digest(&digest::SHA256, self.body);
        part(&mut first, Some(body.as_ref()));
        for name in LASTING {
            value(&mut first, header(name));
        }
        let mut second = b"sluiced round ".to_vec();
        second.extend(&first);
        for name in ROUND {
            value(&mut second, header(name));
        }
        [first, second]
    }
}

fn signing(key: &MarkKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key.bytes())
}

fn part(text: &mut Vec<u8>, part: Option<&[u8]>) {
    let Some(part) = part else {
        return text.push(0);
    };
    text.push(1);
    text.extend((part.len() as u64).to_be_bytes());
    text.extend(part);
}

/// A value by what it means: programs that move a message may write a number in another width.
fn value(text: &mut Vec<u8>, value: Option<HeaderValue>) {
    match value {
        None => text.push(0),
        Some(HeaderValue::Text(value)) => part(text, Some(value.as_bytes())),
        Some(HeaderValue::Int(value)) => {
            text.push(2);
            text.extend(value.to_be_bytes());
        }
        Some(HeaderValue::Bool(value)) => text.extend([3, u8::from(value)]),
        // Not written by sluiced, and read as absent.
        Some(HeaderValue::Float(_) | HeaderValue::Opaque) => text.push(4),
    }
}

#[cfg(test)]
mod tests;
