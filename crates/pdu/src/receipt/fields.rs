//! The text of a receipt, taken apart.
//!
//! Problem: appendix B of the specification shows a typical text and leaves its form to the centre. In use are names in
//! any case, fields that are missing, empty, in another order or without a space between them, dates of 10, 12 or 14
//! digits or with a zone, and words of the centre's own between the fields.
//!
//! So a field is a known name before a colon, and its value ends where the next known name begins. Behind `text:` comes
//! the text of the message itself, which may look like a field; the first field of a name counts.

/// What is known of a text. A field that is missing or empty is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceiptFields<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) state: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    pub(super) submitted: Option<&'a str>,
    pub(super) done: Option<&'a str>,
    /// The text begins with a field, and has the fields that every receipt has, even if they are empty.
    pub(super) is_receipt: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldName {
    Id,
    Submitted,
    Done,
    State,
    Error,
    Text,
    /// How many messages were submitted or delivered.
    Count,
}

/// As they are written, in small letters. A name comes before one that it ends with.
const NAMES: [(&str, FieldName); 12] = [
    ("submit date", FieldName::Submitted),
    ("submit_date", FieldName::Submitted),
    ("submitdate", FieldName::Submitted),
    ("done date", FieldName::Done),
    ("done_date", FieldName::Done),
    ("donedate", FieldName::Done),
    ("dlvrd", FieldName::Count),
    ("sub", FieldName::Count),
    ("stat", FieldName::State),
    ("err", FieldName::Error),
    ("text", FieldName::Text),
    ("id", FieldName::Id),
];

impl<'a> ReceiptFields<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let lower = text.to_ascii_lowercase();
        let mut names = names(&lower).peekable();
        let mut fields = Self::default();
        let (mut has_id, mut has_state) = (false, false);
        let first = names.peek().map(|first| first.begins);
        while let Some(field) = names.next() {
            let end = names.peek().map_or(text.len(), |next| next.begins);
            let value = &text[field.value..end];
            match field.name {
                FieldName::Id => {
                    has_id = true;
                    fields.id = fields.id.or_else(|| word(value));
                }
                FieldName::State => {
                    has_state = true;
                    fields.state = fields.state.or_else(|| word(value));
                }
                FieldName::Error => fields.error = fields.error.or_else(|| word(value)),
                FieldName::Submitted => fields.submitted = fields.submitted.or_else(|| date(value)),
                FieldName::Done => fields.done = fields.done.or_else(|| date(value)),
                FieldName::Count => {}
                FieldName::Text => break,
            }
        }
        let begins = first.is_some_and(|first| text[..first].trim().is_empty());
        fields.is_receipt = begins && has_id && has_state;
        fields
    }
}

/// Where a known name stands in a text.
struct NamePlace {
    name: FieldName,
    /// Where the name begins.
    begins: usize,
    /// Where its value begins.
    value: usize,
}

/// The known names of a text, in their order.
fn names(lower: &str) -> impl Iterator<Item = NamePlace> {
    lower.match_indices(':').filter_map(|(colon, _)| {
        let before = lower[..colon].trim_end();
        let (before_name, name) = NAMES
            .iter()
            .find_map(|(written, name)| Some((before.strip_suffix(written)?, *name)))?;
        // The end of a longer word is no name.
        let is_whole = !before_name.ends_with(|end: char| end.is_ascii_alphabetic());
        is_whole.then_some(NamePlace {
            name,
            begins: before_name.len(),
            value: colon + 1,
        })
    })
}

/// The first word of a value; `None`: it is empty, or an unknown field follows at once.
fn word(value: &str) -> Option<&str> {
    let word = value
        .split_whitespace()
        .next()?
        .trim_matches([',', ';', '"']);
    (!word.is_empty() && !word.ends_with(':')).then_some(word)
}

/// A date as it is written: words that begin with a digit. Nothing but zeros is no date.
fn date(value: &str) -> Option<&str> {
    let value = value.trim();
    let length = value
        .split_inclusive(char::is_whitespace)
        .take_while(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::len)
        .sum();
    let date = value[..length].trim_end().trim_end_matches([',', ';']);
    date.contains(|c: char| matches!(c, '1'..='9'))
        .then_some(date)
}
