//! How a message is known again by what it carries: an id is not always there, and need not be its own.

use std::collections::HashMap;

use lapin::BasicProperties;
use lapin::message::BasicReturnMessage;
use lapin::protocol::basic::gen_properties;
use sha2::{Digest, Sha256};

/// The same for messages with the same properties and body, which are interchangeable.
pub(super) type Fingerprint = [u8; 32];

pub(super) fn fingerprint(properties: &BasicProperties, body: &[u8]) -> Fingerprint {
    let written = gen_properties(properties)(Vec::new().into());
    let written = written.map_or(Vec::new(), |written| written.into_inner().0);
    let mut hash = Sha256::new();
    hash.update((written.len() as u64).to_be_bytes());
    hash.update(written);
    hash.update(body);
    hash.finalize().into()
}

/// What a copy is known by: its queue, and what it carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CopyPrint {
    queue: String,
    print: Fingerprint,
}

impl CopyPrint {
    pub(super) fn new(queue: String, properties: &BasicProperties, body: &[u8]) -> Self {
        let print = fingerprint(properties, body);
        Self { queue, print }
    }
}

/// Which of these copies the broker returned, because their queue was gone. The others are in their queue, and
/// would exist twice if they were published again: another replica may declare it between two of them. Where
/// a returned message is none of the copies, none for its queue counts as taken.
///
/// Beside each copy stands whether it was confirmed. The broker refuses or returns a copy, never both: of several
/// that carry the same, one that was confirmed is the one that came back.
pub(super) fn came_back(
    copies: impl Iterator<Item = (CopyPrint, bool)>,
    returned: &[BasicReturnMessage],
) -> Vec<usize> {
    if returned.is_empty() {
        return Vec::new();
    }
    let print = |back: &BasicReturnMessage| {
        let queue = back.routing_key.to_string();
        CopyPrint::new(queue, &back.properties, &back.data)
    };
    those(copies.collect(), returned.iter().map(print))
}

fn those(copies: Vec<(CopyPrint, bool)>, returned: impl Iterator<Item = CopyPrint>) -> Vec<usize> {
    let mut left: HashMap<&CopyPrint, Vec<usize>> = HashMap::new();
    for confirmed in [false, true] {
        let numbered = copies.iter().enumerate();
        for (i, (copy, _)) in numbered.filter(|(_, (_, is))| *is == confirmed) {
            left.entry(copy).or_default().push(i);
        }
    }
    let mut all = Vec::new();
    for back in returned {
        // The confirmed ones lie behind the others.
        if let Some(i) = left.get_mut(&back).and_then(Vec::pop) {
            all.push(i);
        } else {
            let same = copies.iter().enumerate();
            all.extend(same.filter_map(|(i, (copy, _))| (copy.queue == back.queue).then_some(i)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(queue: &str, body: &[u8]) -> CopyPrint {
        CopyPrint::new(queue.to_owned(), &BasicProperties::default(), body)
    }

    /// All of these copies were confirmed but those with a `!`.
    fn came_back(copies: &[(&str, &str)], returned: &[(&str, &str)]) -> Vec<usize> {
        let copies = copies.iter().map(|(queue, body)| {
            let refused = body.strip_prefix('!');
            let print = copy(queue, refused.unwrap_or(body).as_bytes());
            (print, refused.is_none())
        });
        let returned = returned
            .iter()
            .map(|(queue, body)| copy(queue, body.as_bytes()));
        let mut all = those(copies.collect(), returned);
        all.sort_unstable();
        all
    }

    #[test]
    fn each_is_known_by_its_queue_and_what_it_carries() {
        let copies = [("w", "a"), ("w", "b"), ("v", "a"), ("w", "c")];
        assert!(came_back(&copies, &[]).is_empty());
        assert_eq!(came_back(&copies, &[("w", "b")]), [1]);
        assert_eq!(came_back(&copies, &[("v", "a"), ("w", "c")]), [2, 3]);
    }

    #[test]
    fn of_copies_that_carry_the_same_as_many_came_back_as_were_returned() {
        let copies = [("w", "a"), ("w", "a"), ("w", "a")];
        assert_eq!(came_back(&copies, &[("w", "a"), ("w", "a")]).len(), 2);
    }

    /// If the refused one were taken for the returned one, the other would count as taken and be lost.
    #[test]
    fn a_refused_copy_hides_no_returned_one_that_carries_the_same() {
        for copies in [[("w", "!a"), ("w", "a")], [("w", "a"), ("w", "!a")]] {
            let confirmed = copies.iter().position(|(_, body)| *body == "a");
            let confirmed = confirmed.expect("one of them");
            assert_eq!(came_back(&copies, &[("w", "a")]), [confirmed]);
        }
    }

    #[test]
    fn where_a_returned_one_is_not_known_none_for_its_queue_counts() {
        let copies = [("w", "a"), ("v", "a"), ("w", "b")];
        assert_eq!(came_back(&copies, &[("w", "other")]), [0, 2]);
    }
}
