//! Receipts: what a message centre delivers about a message that was submitted before.
//!
//! A receipt is a `deliver_sm` whose `esm_class` says so (section 5.2.12). Two forms are in use, often both at once: the
//! optional parameters `receipted_message_id` and `message_state`, and a text of the form of appendix B:
//! `id:IIII sub:SSS dlvrd:DDD submit date:YYMMDDhhmm done date:YYMMDDhhmm stat:DDDDDDD err:E text:…`. The parameters
//! have precedence. Some centres write the text and leave the class at zero: a text that begins with `id:` and names a
//! `stat:` is a receipt, too.

use super::message::{Message, tag};

/// What became of a message, according to the centre.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The id that the centre gave it when it was submitted.
    pub message_id: String,
    pub state: ReceiptState,
    /// `err:` of the text.
    pub error: Option<String>,
    /// `submit date:` and `done date:` of the text, as they are written: YYMMDDhhmm, in the centre's time zone.
    pub submitted: Option<String>,
    pub done: Option<String>,
}

/// The states of section 5.2.28, and their words of appendix B.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReceiptState {
    Enroute,
    Delivered,
    Expired,
    Deleted,
    Undeliverable,
    Accepted,
    #[default]
    Unknown,
    Rejected,
    /// A word of the centre's own, in small letters.
    Other(String),
}

/// By number, word of the text, and name in results.
const STATES: [(u8, &str, &str, ReceiptState); 8] = [
    (1, "ENROUTE", "enroute", ReceiptState::Enroute),
    (2, "DELIVRD", "delivered", ReceiptState::Delivered),
    (3, "EXPIRED", "expired", ReceiptState::Expired),
    (4, "DELETED", "deleted", ReceiptState::Deleted),
    (5, "UNDELIV", "undeliverable", ReceiptState::Undeliverable),
    (6, "ACCEPTD", "accepted", ReceiptState::Accepted),
    (7, "UNKNOWN", "unknown", ReceiptState::Unknown),
    (8, "REJECTD", "rejected", ReceiptState::Rejected),
];

impl ReceiptState {
    /// As results name it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Other(word) => word,
            known => {
                let found = STATES.iter().find(|(.., state)| state == known);
                found.map_or("unknown", |(_, _, name, _)| *name)
            }
        }
    }

    /// The value of the metric label `state`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        let found = STATES.iter().find(|(.., state)| state == self);
        found.map_or("other", |(_, _, name, _)| *name)
    }

    fn numbered(number: u8) -> Self {
        let found = STATES.iter().find(|(known, ..)| *known == number);
        found.map_or(Self::Unknown, |(.., state)| state.clone())
    }

    fn worded(word: &str) -> Self {
        let found = STATES.iter().find(|(_, known, ..)| *known == word);
        found.map_or_else(
            || Self::Other(word.to_ascii_lowercase()),
            |(.., state)| state.clone(),
        )
    }
}

impl Receipt {
    /// Reads a delivery as a receipt; `None`: it is a message from a phone.
    #[must_use]
    pub fn of(delivery: &Message) -> Option<Self> {
        /// The bits of `esm_class` that name the kind of a message: a receipt, or an intermediate notification.
        const KINDS: u8 = 0x3c;
        let text = String::from_utf8_lossy(delivery.content());
        let text = text.as_ref();
        let is_marked = matches!(delivery.esm_class & KINDS, 0x04 | 0x20);
        let named = field(text, "id:").filter(|_| text.trim_start().starts_with("id:"));
        let worded = field(text, "stat:");
        if !is_marked && (named.is_none() || worded.is_none()) {
            return None;
        }
        let id = delivery.tlv(tag::RECEIPTED_MESSAGE_ID);
        let id = id.map(super::response_id).filter(|id| !id.is_empty());
        let state = delivery.tlv(tag::MESSAGE_STATE).and_then(<[u8]>::first);
        let state = state.map(|number| ReceiptState::numbered(*number));
        let owned = |text: &str| text.to_owned();
        Some(Self {
            message_id: id.or_else(|| named.map(owned)).unwrap_or_default(),
            state: state
                .or_else(|| worded.map(ReceiptState::worded))
                .unwrap_or_default(),
            error: field(text, "err:").map(owned),
            submitted: field(text, "submit date:").map(owned),
            done: field(text, "done date:").map(owned),
        })
    }
}

/// The word behind a name, which centres write in any case.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lower = text.to_ascii_lowercase();
    // The text of the message itself is at the end, and may look like a field.
    let end = lower.find(" text:").unwrap_or(lower.len());
    let at = lower[..end].find(name)? + name.len();
    let word = text[at..end].split_whitespace().next()?;
    (!word.is_empty()).then_some(word)
}
