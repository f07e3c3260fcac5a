//! The lists of the configuration that say which answers mean what.

use super::Meaning;

/// The four lists of the configuration. Entries are codes (`"409"`), classes (`"5xx"`),
/// `"timeout"` and `"connection"`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    pub accepted: &'a [String],
    pub throttled: &'a [String],
    pub transient: &'a [String],
    pub permanent: &'a [String],
    pub texts: Texts<'a>,
}

/// Texts in the body of an answer that mean something, whatever its status.
#[derive(Clone, Copy, Debug, Default)]
pub struct Texts<'a> {
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

/// A list: its name, what it means, its entries.
pub(super) type List<'a> = (&'static str, Meaning, &'a [String]);

/// All entries with what they mean and the list that they come from.
pub(super) struct Entries<E>(Vec<(E, Meaning, &'static str)>);

impl<E: Copy + PartialEq> Entries<E> {
    /// Reads the entries with `read`; `right` describes a valid one.
    pub(super) fn parse(
        lists: &[List<'_>],
        read: impl Fn(&str) -> Option<E>,
        right: &'static str,
    ) -> Result<Self, ListError> {
        let mut entries: Vec<(E, Meaning, &'static str)> = Vec::new();
        for (list, meaning, texts) in lists.iter().copied() {
            for text in texts {
                let entry = read(text).ok_or_else(|| ListError::Unknown {
                    list,
                    entry: text.clone(),
                    right,
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

    pub(super) fn find(&self, wanted: E) -> Option<Meaning> {
        let mut entries = self.0.iter();
        let found = entries.find(|(entry, ..)| *entry == wanted);
        found.map(|(_, meaning, _)| *meaning)
    }
}
