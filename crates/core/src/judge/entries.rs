//! The lists of the configuration that say which answers mean what.

use std::fmt;

use super::{Meaning, Silence};

/// The lists of the configuration. Entries are statuses as a protocol has them ([`Listed`]), `"timeout"`,
/// `"connection"` and `"unreadable"`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    pub accepted: &'a [String],
    pub throttled: &'a [String],
    /// "Not now" for the message alone.
    pub held: &'a [String],
    pub transient: &'a [String],
    pub permanent: &'a [String],
    pub texts: Texts<'a>,
}

/// Texts in the body of an answer that mean something, whatever its status.
#[derive(Clone, Copy, Debug, Default)]
pub struct Texts<'a> {
    pub accepted: &'a [String],
    pub throttled: &'a [String],
    pub held: &'a [String],
    pub transient: &'a [String],
    pub permanent: &'a [String],
}

/// What is wrong with the lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("`{entry}` in `{list}` is no status; {right}")]
    Unknown {
        list: &'static str,
        entry: String,
        right: &'static str,
    },
    #[error("`{entry}` is in `{first}` and in `{second}`; it can mean only one thing")]
    Twice {
        entry: String,
        first: &'static str,
        second: &'static str,
    },
    /// An empty text is in every answer.
    #[error("a text of an answer is empty; write what the answer contains")]
    EmptyText,
    /// It would remove messages that no downstream ever received.
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

    fn read(text: &str) -> Option<Self>;
}

/// What an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<E> {
    Status(E),
    Silence(Silence),
}

impl<E: Listed> Entry<E> {
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
pub(super) struct Entries<E>(Vec<(Entry<E>, Meaning, &'static str)>);

impl<E: Listed> Entries<E> {
    pub(super) fn parse(lists: &Lists<'_>) -> Result<Self, ListError> {
        let lists = [
            ("accepted", Meaning::Accepted, lists.accepted),
            ("throttled", Meaning::Throttled, lists.throttled),
            ("held", Meaning::Held, lists.held),
            ("transient", Meaning::Transient, lists.transient),
            ("permanent", Meaning::Permanent, lists.permanent),
        ];
        let mut entries: Vec<(Entry<E>, Meaning, &'static str)> = Vec::new();
        for (list, meaning, texts) in lists {
            for text in texts {
                let entry = Entry::read(text).ok_or_else(|| ListError::Unknown {
                    list,
                    entry: text.clone(),
                    right: E::RIGHT,
                })?;
                match entries.iter().find(|(known, ..)| *known == entry) {
                    Some((_, before, first)) if *before != meaning => {
                        return Err(ListError::Twice {
                            entry: text.clone(),
                            first,
                            second: list,
                        });
                    }
                    _ => entries.push((entry, meaning, list)),
                }
            }
        }
        Ok(Self(entries))
    }

    pub(super) fn find(&self, wanted: Entry<E>) -> Option<Meaning> {
        let mut entries = self.0.iter();
        let found = entries.find(|(entry, ..)| *entry == wanted);
        found.map(|(_, meaning, _)| *meaning)
    }
}
