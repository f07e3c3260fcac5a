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

/// A copy that was published: to which queue, and what it carries.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Known {
    queue: String,
    print: Fingerprint,
}

impl Known {
    pub(super) fn new(queue: String, properties: &BasicProperties, body: &[u8]) -> Self {
        let print = fingerprint(properties, body);
        Self { queue, print }
    }
}

/// Which of these copies the broker returned, because their queue was gone. The others are in their queue, and
/// would exist twice if they were published again: another replica may declare it between two of them. Where
/// a returned message is none of the copies, none for its queue counts as taken.
pub(super) fn came_back(
    copies: impl Iterator<Item = Known>,
    returned: &[BasicReturnMessage],
) -> Vec<usize> {
    if returned.is_empty() {
        return Vec::new();
    }
    let mut left: HashMap<Known, Vec<usize>> = HashMap::new();
    for (i, copy) in copies.enumerate() {
        left.entry(copy).or_default().push(i);
    }
    let mut all = Vec::new();
    for back in returned {
        let queue = back.routing_key.as_str();
        let known = Known::new(queue.to_owned(), &back.properties, &back.data);
        if let Some(i) = left.get_mut(&known).and_then(Vec::pop) {
            all.push(i);
        } else {
            let same = left.iter().filter(|(copy, _)| copy.queue == queue);
            all.extend(same.flat_map(|(_, places)| places));
        }
    }
    all
}
