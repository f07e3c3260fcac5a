//! Receipts: what a message centre delivers about a message that was submitted before.
//!
//! A receipt is a `deliver_sm` or `data_sm` whose `esm_class` says so (section 5.2.12). Two forms are in use, often
//! both at once: the optional parameters `receipted_message_id` and `message_state`, and a text of the form of appendix
//! B: `id:IIII sub:SSS dlvrd:DDD submit date:YYMMDDhhmm done date:YYMMDDhhmm stat:DDDDDDD err:E text:…`, of which every
//! centre has its own form (`fields`). The parameters have precedence.
//!
//! Some centres leave the class at zero: what has the parameter, or a text that begins with a field and has both `id:`
//! and `stat:`, is a receipt, too. Some write the text in UCS-2 without saying so, or in ASCII although `data_coding`
//! says UCS-2: of all readings that one is taken in which fields are found.
//!
//! A receipt whose id cannot be read is one all the same ([`Receipt::is_unread`]): its text says more to a person.

use super::message::{Message, tag};
use fields::ReceiptFields;

mod fields;

/// What became of a message, according to the centre. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The id that the centre gave it when it was submitted.
    pub message_id: Option<String>,
    /// Of the parameter `message_state`, or `stat:` of the text.
    pub state: Option<ReceiptState>,
    /// `err:` of the text, or the number of `network_error_code`.
    pub error: Option<String>,
    /// `submit date:` of the text, as it is written: mostly YYMMDDhhmm or YYMMDDhhmmss, in the centre's time zone.
    pub submitted: Option<String>,
    /// `done date:` of the text, in the same forms: when the message reached its state.
    pub done: Option<String>,
    /// The receipt's text as the centre wrote it.
    pub text: String,
}

/// The states of section 5.2.28, of 4.7.15 of version 5.0, and their words of appendix B. A final state does not change
/// any more, by the specification. No decision here depends on that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiptState {
    /// Not final: its delivery has not begun. Version 5.0 only.
    Scheduled,
    /// Not final: the centre has it and tries to deliver it.
    Enroute,
    /// Final: it reached its destination.
    Delivered,
    /// Final: its validity ended before it was delivered.
    Expired,
    /// Final: it was cancelled or deleted.
    Deleted,
    /// Final: it can never be delivered.
    Undeliverable,
    /// Final: staff of the centre took it in the place of the phone.
    Accepted,
    /// The centre cannot say the state, which may still change.
    Unknown,
    /// Final: the centre or a network refused it.
    Rejected,
    /// Final: the centre took it and did not send it. Version 5.0 only.
    Skipped,
    /// A word of the centre's own, in small letters.
    Other(String),
}

/// By number, word of the text, and name in results, which some centres write into the text.
const STATES: [(u8, &str, &str, ReceiptState); 10] = [
    (0, "schedld", "scheduled", ReceiptState::Scheduled),
    (1, "enroute", "enroute", ReceiptState::Enroute),
    (2, "delivrd", "delivered", ReceiptState::Delivered),
    (3, "expired", "expired", ReceiptState::Expired),
    (4, "deleted", "deleted", ReceiptState::Deleted),
    (5, "undeliv", "undeliverable", ReceiptState::Undeliverable),
    (6, "acceptd", "accepted", ReceiptState::Accepted),
    (7, "unknown", "unknown", ReceiptState::Unknown),
    (8, "rejectd", "rejected", ReceiptState::Rejected),
    (9, "skipped", "skipped", ReceiptState::Skipped),
];

impl ReceiptState {
    /// As results name it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Other(word) => word,
            known => known.label(),
        }
    }

    /// The value of the metric label `state`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        let found = STATES.iter().find(|(.., state)| state == self);
        found.map_or("other", |(_, _, name, _)| *name)
    }

    fn numbered(number: u8) -> Option<Self> {
        let found = STATES.iter().find(|(known, ..)| *known == number);
        found.map(|(.., state)| state.clone())
    }

    /// Of the text: a word, or the number.
    fn worded(word: &str) -> Self {
        let word = word.to_ascii_lowercase();
        let number = word.parse().ok().and_then(Self::numbered);
        number.unwrap_or_else(|| {
            let found = STATES
                .iter()
                .find(|(_, short, name, _)| [*short, *name].contains(&word.as_str()));
            found.map_or(Self::Other(word), |(.., state)| state.clone())
        })
    }
}

impl Receipt {
    /// Reads a delivery as a receipt; `None`: it is a message from a phone.
    #[must_use]
    pub fn of(delivery: &Message) -> Option<Self> {
        /// The bits of `esm_class` that name the kind of a message: a receipt, or an intermediate notification.
        const KINDS: u8 = 0x3c;
        let text = text(delivery);
        let fields = ReceiptFields::of(&text);
        let id = delivery
            .tlv(tag::RECEIPTED_MESSAGE_ID)
            .map(parameter)
            .filter(|id| !id.is_empty());
        let is_marked = matches!(delivery.esm_class & KINDS, 0x04 | 0x20);
        if !is_marked && id.is_none() && !fields.is_receipt {
            return None;
        }
        let state = delivery
            .tlv(tag::MESSAGE_STATE)
            .and_then(|value| ReceiptState::numbered(*value.first()?));
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Self {
            message_id: id.or_else(|| owned(fields.id)),
            state: state.or_else(|| fields.state.map(ReceiptState::worded)),
            error: owned(fields.error).or_else(|| network_error(delivery)),
            submitted: owned(fields.submitted),
            done: owned(fields.done),
            text,
        })
    }

    /// The message's state as results name it.
    #[must_use]
    pub fn state_name(&self) -> Option<&str> {
        self.state.as_ref().map(ReceiptState::name)
    }

    /// What came as a delivery and cannot be read as one.
    #[must_use]
    pub fn unreadable(body: &[u8]) -> Self {
        Self {
            text: String::from_utf8_lossy(body).into_owned(),
            ..Self::default()
        }
    }

    /// The receipt does not say which message it is about: its text is all that is known.
    #[must_use]
    pub const fn is_unread(&self) -> bool {
        self.message_id.is_none()
    }

    /// The value of the metric label `state`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match &self.state {
            _ if self.is_unread() => "unread",
            Some(state) => state.label(),
            None => "unknown",
        }
    }
}

/// A text in a parameter: some centres end it with an octet of zero or fill it up, some do not.
fn parameter(value: &[u8]) -> String {
    super::response_id(value).trim().to_owned()
}

/// The number in `network_error_code` (section 5.3.2.31): its network, and two octets.
fn network_error(delivery: &Message) -> Option<String> {
    match delivery.tlv(tag::NETWORK_ERROR_CODE)? {
        [_, high, low] => Some(u16::from_be_bytes([*high, *low]).to_string()),
        _ => None,
    }
}

/// The text of a delivery, in the reading in which there are fields; without any, as it was written.
fn text(delivery: &Message) -> String {
    /// UCS-2 (section 5.2.19).
    const UCS2: u8 = 8;
    let octets = delivery.user_text();
    let wide = |from: fn([u8; 2]) -> u16| {
        let pairs = octets.chunks_exact(2);
        let units: Vec<u16> = pairs.map(|pair| from([pair[0], pair[1]])).collect();
        let text = String::from_utf16_lossy(&units);
        text.trim_start_matches('\u{feff}').to_owned()
    };
    let narrow = || match std::str::from_utf8(octets) {
        Ok(text) => text.to_owned(),
        Err(_) => octets.iter().map(|octet| char::from(*octet)).collect(),
    };
    let mut readings = vec![narrow(), wide(u16::from_be_bytes), wide(u16::from_le_bytes)];
    if delivery.data_coding == UCS2 {
        readings.swap(0, 1);
    }
    let has_fields = |text: &String| {
        let fields = ReceiptFields::of(text);
        fields.is_receipt || fields.id.is_some() || fields.state.is_some()
    };
    let found = readings.iter().position(has_fields);
    readings.swap_remove(found.unwrap_or(0))
}

#[cfg(test)]
mod tests;
