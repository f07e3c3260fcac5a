//! The hash slot of a key, and which server has it.

use super::*;

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
    let master = Value::Array(vec![host, Value::Int(port), bulk("id")]);
    Value::Array(vec![Value::Int(first), Value::Int(last), master])
}

/// The specification's own example, and replies of a server's `CLUSTER KEYSLOT`.
#[test]
fn slots_are_those_of_the_specification() {
    assert_eq!(crc16(b"123456789"), 0x31C3);
    assert_eq!(hash_slot_of("foo"), 12182);
    assert_eq!(hash_slot_of("somekey"), 11058);
    assert_eq!(hash_slot_of("foo{hash_tag}"), 2515);
    assert_eq!(hash_slot_of("bar{hash_tag}"), 2515);
    assert_eq!(
        hash_slot_of("{user1000}.following"),
        hash_slot_of("user1000")
    );
    // An empty tag does not count, and only the first one does.
    assert_eq!(hash_slot_of("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
    assert_eq!(hash_slot_of("foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    assert_eq!(hash_slot_of("foo{bar}{zap}"), hash_slot_of("bar"));
}

#[test]
fn the_map_is_read_and_followed() {
    let teller = Address::new("10.0.0.1", 7000);
    let reply = Value::Array(vec![
        range(0, 5460, bulk("10.0.0.2"), 7001),
        range(5461, 10922, bulk(""), 7000),
        range(10923, 16000, Value::Nil, 7002),
    ]);
    let mut map = HashSlotMap::read(&reply, &teller).expect("a map");
    let master = |map: &HashSlotMap, slot| map.master(slot).map(ToString::to_string);
    assert_eq!(master(&map, 5460).as_deref(), Some("10.0.0.2:7001"));
    assert_eq!(master(&map, 5461).as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(master(&map, 10923).as_deref(), Some("10.0.0.1:7002"));
    assert_eq!(master(&map, 16001), None);
    assert_eq!((map.masters().len(), map.missing()), (3, 383));
    map.note_moved(5461, Address::new("10.0.0.9", 7009));
    map.note_moved(5461, Address::new("10.0.0.2", 7001));
    assert_eq!(master(&map, 5461).as_deref(), Some("10.0.0.2:7001"));
    assert_eq!(map.moved.len(), 1);
    assert_eq!(HashSlotMap::read(&Value::Nil, &teller), None);
    assert_eq!(
        HashSlotMap::read(&Value::Array(vec![Value::Int(1)]), &teller),
        None
    );
    let none = HashSlotMap::read(&Value::Array(Vec::new()), &teller).expect("a map");
    assert!(none.is_empty() && none.master(0).is_none());
}
