//! The lists of the configuration that say which answers mean what.

use std::fmt;

use super::{Meaning, Silence};

/// The lists of the configuration. Entries are statuses as a protocol has them ([`Listed`]), `"timeout"`,
/// `"connection"` and `"unreadable"`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    /// The downstream took the message.
    pub accepted: &'a [String],
    /// "Not now", for the message, a key of it, or all messages.
    pub throttled: &'a [String],
    /// "Not now" for the message alone.
    pub held: &'a [String],
    /// The call failed, and may succeed later.
    pub transient: &'a [String],
    /// The downstream will never take the message.
    pub permanent: &'a [String],
    /// Texts in the body, which have precedence over the status.
    pub texts: Texts<'a>,
}

/// Texts in the body of an answer that mean something, whatever its status. Blanks beside the signs of JSON do not
/// count. If an answer contains texts of several lists, the first of throttled, held, transient, permanent and accepted
/// counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Texts<'a> {
    /// The downstream took the message. Counts only if the answer contains no other text.
    pub accepted: &'a [String],
    /// "Not now", for the message, a key of it, or all messages.
    pub throttled: &'a [String],
    /// "Not now" for the message alone.
    pub held: &'a [String],
    /// The call failed, and may succeed later.
    pub transient: &'a [String],
    /// The downstream will never take the message.
    pub permanent: &'a [String],
}

/// What is wrong with the lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// An entry that the protocol cannot read.
    #[error("`{entry}` in `{list}` is no status; {right}")]
    Unknown {
        /// The name of the list.
        list: &'static str,
        /// The entry, as it is written.
        entry: String,
        /// What would be right ([`Listed::RIGHT`]).
        right: &'static str,
    },
    /// An entry is in two lists. Twice in one list is no error.
    #[error("`{entry}` is in `{first}` and in `{second}`; it can mean only one thing")]
    Twice {
        /// The entry, as the second list writes it.
        entry: String,
        /// The name of the first list.
        first: &'static str,
        /// The name of the second list.
        second: &'static str,
    },
    /// An empty text is in every answer.
    #[error("a text of an answer is empty; write what the answer contains")]
    EmptyText,
    /// `accepted` has an entry of [`Listed::NEVER_ACCEPTED`]: it would remove messages that no downstream may ever have
    /// received.
    #[error("`connection` cannot be in `accepted`: a call that was never made delivered nothing")]
    AcceptedUnsent,
}

/// The statuses of a protocol, as entries name them.
pub trait Listed: Copy + PartialEq + fmt::Debug {
    /// What an entry must be.
    const RIGHT: &'static str;
    /// Whether an answer may come and its meaning still be unknown.
    const CAN_BE_UNREADABLE: bool;
    /// What must not be in `accepted`.
    const NEVER_ACCEPTED: &'static [Silence];

    /// The status that an entry names. `None`: the text names none.
    fn read(text: &str) -> Option<Self>;
}

/// What an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListEntry<E> {
    Status(E),
    Silence(Silence),
}

impl<E: Listed> ListEntry<E> {
    fn read(text: &str) -> Option<Self> {
        match text {
            "timeout" => Some(Self::Silence(Silence::Timeout)),
            "connection" => Some(Self::Silence(Silence::Connection)),
            "unreadable" if E::CAN_BE_UNREADABLE => Some(Self::Silence(Silence::Unreadable)),
            status => E::read(status).map(Self::Status),
        }
    }
}

/// All entries with what they mean and the list that they come from.
#[derive(Clone, Debug)]
pub(super) struct Entries<E>(Vec<(ListEntry<E>, Meaning, &'static str)>);

impl<E: Listed> Entries<E> {
    pub(super) fn parse(lists: &Lists<'_>) -> Result<Self, ListError> {
        let named = [
            ("accepted", Meaning::Accepted, lists.accepted),
            ("throttled", Meaning::Throttled, lists.throttled),
            ("held", Meaning::Held, lists.held),
            ("transient", Meaning::Transient, lists.transient),
            ("permanent", Meaning::Permanent, lists.permanent),
        ];
        let mut entries = Self(Vec::new());
        for (list, meaning, texts) in named {
            for text in texts {
                entries.add(list, meaning, text)?;
            }
        }
        Ok(entries)
    }

    fn add(&mut self, list: &'static str, meaning: Meaning, text: &str) -> Result<(), ListError> {
        let entry = ListEntry::read(text).ok_or_else(|| ListError::Unknown {
            list,
            entry: text.to_owned(),
            right: E::RIGHT,
        })?;
        match self.0.iter().find(|(listed, ..)| *listed == entry) {
            Some((_, before, first)) if *before != meaning => Err(ListError::Twice {
                entry: text.to_owned(),
                first,
                second: list,
            }),
            _ => {
                self.0.push((entry, meaning, list));
                Ok(())
            }
        }
    }

    pub(super) fn find(&self, wanted: ListEntry<E>) -> Option<Meaning> {
        let mut entries = self.0.iter();
        let found = entries.find(|(entry, ..)| *entry == wanted);
        found.map(|(_, meaning, _)| *meaning)
    }
}
