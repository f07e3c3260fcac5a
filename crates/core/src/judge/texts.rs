//! Texts in the body of an answer that decide what it means.
//!
//! JSON is written with blanks and line ends or without them, and means the same. So blanks beside its signs
//! (`{ } [ ] : ,`) do not count, neither in an answer nor in a text.

use super::Meaning;
use super::entries::{ListError, Texts};

/// The texts with their meanings, in the order in which they count.
#[derive(Clone, Debug)]
pub(super) struct TextList(Vec<(Box<[u8]>, Meaning)>);

impl TextList {
    /// The list that is about the whole account comes first, acceptance last: an answer with a text of a refusal and a
    /// text of acceptance did not take the message.
    pub(super) fn new(lists: Texts<'_>) -> Result<Self, ListError> {
        let in_order = [
            (Meaning::Throttled, lists.throttled),
            (Meaning::Held, lists.held),
            (Meaning::Transient, lists.transient),
            (Meaning::Permanent, lists.permanent),
            (Meaning::Accepted, lists.accepted),
        ];
        let with_meaning = |(meaning, texts): &(Meaning, &[String])| {
            let squeeze = |text: &String| (squeezed(text.as_bytes()).into(), *meaning);
            texts.iter().map(squeeze).collect::<Vec<_>>()
        };
        let all: Vec<(Box<[u8]>, _)> = in_order.iter().flat_map(with_meaning).collect();
        if all.iter().any(|(text, _)| text.is_empty()) {
            return Err(ListError::EmptyText);
        }
        Ok(Self(all))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the first text means that is in an answer.
    pub(super) fn find(&self, body: &[u8]) -> Option<Meaning> {
        if self.is_empty() {
            return None;
        }
        let body = squeezed(body);
        let mut texts = self.0.iter();
        let found = texts.find(|(text, _)| contains(&body, text));
        found.map(|(_, meaning)| *meaning)
    }
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|part| part == text)
}

/// Without the blanks beside signs of JSON.
fn squeezed(text: &[u8]) -> Vec<u8> {
    let is_sign = |byte: u8| matches!(byte, b'{' | b'}' | b'[' | b']' | b':' | b',');
    let mut squeezed: Vec<u8> = Vec::with_capacity(text.len());
    for &byte in text {
        if is_sign(byte) {
            let kept = squeezed.trim_ascii_end().len();
            squeezed.truncate(kept);
        }
        let after_sign = squeezed.last().copied().is_some_and(is_sign);
        if !(byte.is_ascii_whitespace() && after_sign) {
            squeezed.push(byte);
        }
    }
    squeezed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_json_does_not_count() {
        let text = [String::from("{\"status\": \"3\"")];
        let lists = Texts {
            permanent: &text,
            ..Texts::default()
        };
        let said = TextList::new(lists).expect("a text");
        for body in [
            "{\"messages\":[{\"status\":\"3\"}]}",
            "{\"messages\": [{\"status\": \"3\"}]}",
            "{\n  \"messages\": [\n    {\n      \"status\" :\t\"3\"\r\n    }\n  ]\n}",
        ] {
            assert_eq!(
                said.find(body.as_bytes()),
                Some(Meaning::Permanent),
                "{body}"
            );
        }
        assert_eq!(said.find(b"{\"messages\": [{\"status\": \"30\"}]}"), None);
        assert_eq!(said.find(b""), None);
    }

    #[test]
    fn blanks_between_words_count() {
        assert_eq!(
            squeezed(b" no  such , thing : here "),
            b" no  such,thing:here "
        );
        assert_eq!(squeezed(b"a b"), b"a b");
        assert_eq!(squeezed(b" \n { "), b"{");
    }

    #[test]
    fn a_text_of_a_refusal_counts_more_than_one_of_acceptance() {
        let (accepted, throttled) = ([String::from("OK")], [String::from("later")]);
        let lists = Texts {
            accepted: &accepted,
            throttled: &throttled,
            ..Texts::default()
        };
        let said = TextList::new(lists).expect("texts");
        assert_eq!(said.find(b"OK"), Some(Meaning::Accepted));
        assert_eq!(said.find(b"OK, but later"), Some(Meaning::Throttled));
    }
}
