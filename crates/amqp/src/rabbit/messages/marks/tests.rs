//! Which headers a mark covers, and that only marks under a known key are believed.

use std::collections::BTreeMap;

use super::*;

type Set = BTreeMap<&'static str, HeaderValue>;

const MESSAGE: Marked<'static> = Marked {
    id: Some("m-1"),
    body: b"{}",
};

fn headers() -> Set {
    Set::from([
        (header::ROUTING_KEY, HeaderValue::Text("sms.de".to_owned())),
        (header::EXCHANGE, HeaderValue::Text(String::new())),
        (header::ATTEMPTS, HeaderValue::Int(2)),
        (header::DENIED_BEFORE, HeaderValue::Bool(true)),
        (header::DETAIL, HeaderValue::Text("500".to_owned())),
    ])
}

/// A copy that a replica made under this key.
fn signed(key: &MarkKey) -> Set {
    let mut all = headers();
    let marks = MESSAGE.sign(|name| headers().get(name).cloned(), key);
    all.extend(marks.map(|(name, mark)| (name, HeaderValue::Text(mark))));
    all
}

fn trust(message: Marked<'_>, headers: &Set, keys: &[MarkKey]) -> Trust {
    message.trust(|name| headers.get(name).cloned(), keys)
}

#[test]
fn what_a_replica_wrote_is_believed_under_each_known_key() {
    let (new, old) = (MarkKey::random(), MarkKey::random());
    let keys = [new.clone(), old.clone()];
    for key in [&new, &old] {
        assert_eq!(trust(MESSAGE, &signed(key), &keys), Trust::All);
    }
    assert_eq!(trust(MESSAGE, &signed(&old), &[new]), Trust::Nothing);
    assert_eq!(trust(MESSAGE, &signed(&old), &[]), Trust::Nothing);
}

#[test]
fn each_header_that_decides_is_covered() {
    let key = [MarkKey::random()];
    for name in LASTING {
        for value in [HeaderValue::Text("x".to_owned()), HeaderValue::Int(7)] {
            let mut forged = signed(&key[0]);
            forged.insert(name, value);
            assert_eq!(trust(MESSAGE, &forged, &key), Trust::Nothing, "{name}");
        }
    }
    for name in ROUND {
        let mut forged = signed(&key[0]);
        forged.insert(name, HeaderValue::Int(7));
        assert_eq!(trust(MESSAGE, &forged, &key), Trust::Lasting, "{name}");
    }
    let mut less = signed(&key[0]);
    less.remove(header::ATTEMPTS);
    assert_eq!(trust(MESSAGE, &less, &key), Trust::Lasting);
    less.remove(header::ROUTING_KEY);
    assert_eq!(trust(MESSAGE, &less, &key), Trust::Nothing);
    // What is for people may be changed.
    let mut other = signed(&key[0]);
    other.insert(header::DETAIL, HeaderValue::Int(1));
    assert_eq!(trust(MESSAGE, &other, &key), Trust::All);
}

#[test]
fn marks_are_of_one_message() {
    let key = [MarkKey::random()];
    let copy = signed(&key[0]);
    for (id, body) in [
        (Some("m-2"), &b"{}"[..]),
        (None, b"{}"),
        (Some("m-1"), b"{ }"),
    ] {
        assert_eq!(trust(Marked { id, body }, &copy, &key), Trust::Nothing);
    }
}

#[test]
fn a_replay_keeps_what_lasts() {
    let key = [MarkKey::random()];
    let mut copy = signed(&key[0]);
    copy.retain(|name, _| Trust::Lasting.believes(name));
    assert!(!copy.contains_key(header::ATTEMPTS));
    assert_eq!(trust(MESSAGE, &copy, &key), Trust::Lasting);
}

#[test]
fn nonsense_is_no_mark() {
    let key = [MarkKey::random()];
    for mark in ["", "zz", "ä", "00", &"00".repeat(32)] {
        let mut forged = headers();
        forged.insert(MARK, HeaderValue::Text(mark.to_owned()));
        forged.insert(ROUND_MARK, HeaderValue::Text(mark.to_owned()));
        assert_eq!(trust(MESSAGE, &forged, &key), Trust::Nothing, "{mark}");
    }
    let mut number = headers();
    number.insert(MARK, HeaderValue::Int(1));
    assert_eq!(trust(MESSAGE, &number, &key), Trust::Nothing);
}

/// Replicas of an earlier version read these marks: the values are RFC 2104's over the text that the first version
/// signs, made by another program. A change that breaks this needs a mark of another name.
#[test]
fn the_marks_are_those_of_the_first_version() {
    let bytes: String = (0..32).map(|byte: u8| format!("{byte:02x}")).collect();
    let key = MarkKey::read(&bytes).unwrap();
    let marks = MESSAGE.sign(|name| headers().get(name).cloned(), &key);
    let first = "6e309b6694af3e3b01f01420e3874a32bd3c9e00f13debe967b80c179b048fe3";
    let round = "efd977473487c08b79121aab77c8ffaa8b72b9198978e37318b8f5969e97d8d5";
    assert_eq!(
        marks,
        [(MARK, first.to_owned()), (ROUND_MARK, round.to_owned())]
    );
}
