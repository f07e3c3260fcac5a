//! The 16384 slots of a Redis Cluster: which one a key lies in, and which master serves it.
//!
//! From the cluster specification: the slot is CRC16 (XMODEM) of the key modulo 16384, and where a
//! key holds a non-empty text in braces, only that text counts. All keys of one decision carry the
//! same tag, so they lie in one slot, and one script may touch them all.

use std::collections::BTreeSet;

use redis::Value;

use super::connection::Address;

/// One of the 16384.
pub(super) type Slot = u16;

/// How many there are.
const SLOTS: u16 = 16384;

/// The slot of a key.
pub(super) fn slot_of(key: &str) -> Slot {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key).as_bytes()) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

/// Which master serves which slots, as one node reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    ranges: Vec<(Slot, Slot, Address)>,
    /// Slots that were redirected since.
    moved: Vec<(Slot, Address)>,
}

impl SlotMap {
    /// Reads the reply of `CLUSTER SLOTS` of the node at `teller`. None: no such reply.
    pub(super) fn read(reply: &Value, teller: &Address) -> Option<Self> {
        let mut ranges = Vec::new();
        for range in array(reply)? {
            let [first, last, master, ..] = array(range)? else {
                return None;
            };
            let [host, port, ..] = array(master)? else {
                return None;
            };
            let host = match host {
                Value::Nil => "",
                other => text(other)?,
            };
            let address = Address {
                host: Address::or_own(host, teller),
                port: number(port)?,
            };
            ranges.push((number(first)?, number(last)?, address));
        }
        Some(Self {
            ranges,
            moved: Vec::new(),
        })
    }

    /// Whether no slot is known at all.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The master of a slot.
    pub(super) fn master(&self, slot: Slot) -> Option<&Address> {
        let moved = self.moved.iter().rev();
        moved
            .filter(|(at, _)| *at == slot)
            .map(|(_, to)| to)
            .next()
            .or_else(|| {
                let mut ranges = self.ranges.iter();
                let range = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot));
                range.map(|(_, _, master)| master)
            })
    }

    /// Every master, once.
    pub(super) fn masters(&self) -> BTreeSet<&Address> {
        let moved = self.moved.iter().map(|(_, to)| to);
        let ranges = self.ranges.iter().map(|(_, _, master)| master);
        ranges.chain(moved).collect()
    }

    /// A redirection: `slot` is served by `to` now.
    pub(super) fn follow(&mut self, slot: Slot, to: Address) {
        self.moved.retain(|(at, _)| *at != slot);
        self.moved.push((slot, to));
    }

    /// Slots that no master serves.
    pub(super) fn missing(&self) -> usize {
        let served: usize = self
            .ranges
            .iter()
            .map(|(first, last, _)| usize::from(last.saturating_sub(*first)) + 1)
            .sum();
        usize::from(SLOTS).saturating_sub(served)
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = Value::Array(vec![host, Value::Int(port), bulk("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    /// The specification's own example, and what `CLUSTER KEYSLOT` of a server says.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("somekey"), 11058);
        assert_eq!(slot_of("foo{hash_tag}"), 2515);
        assert_eq!(slot_of("bar{hash_tag}"), 2515);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        // An empty tag is none, and only the first one counts.
        assert_eq!(slot_of("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of("foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
    }

    #[test]
    fn the_map_is_read_and_followed() {
        let teller = Address::new("10.0.0.1", 7000);
        let reply = Value::Array(vec![
            range(0, 5460, bulk("10.0.0.2"), 7001),
            range(5461, 10922, bulk(""), 7000),
            range(10923, 16000, Value::Nil, 7002),
        ]);
        let mut map = SlotMap::read(&reply, &teller).expect("a map");
        let master = |map: &SlotMap, slot| map.master(slot).map(ToString::to_string);
        assert_eq!(master(&map, 5460).as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(master(&map, 5461).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(master(&map, 10923).as_deref(), Some("10.0.0.1:7002"));
        assert_eq!(master(&map, 16001), None);
        assert_eq!((map.masters().len(), map.missing()), (3, 383));
        map.follow(5461, Address::new("10.0.0.9", 7009));
        map.follow(5461, Address::new("10.0.0.2", 7001));
        assert_eq!(master(&map, 5461).as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(map.moved.len(), 1);
        assert_eq!(SlotMap::read(&Value::Nil, &teller), None);
        assert_eq!(
            SlotMap::read(&Value::Array(vec![Value::Int(1)]), &teller),
            None
        );
        let none = SlotMap::read(&Value::Array(Vec::new()), &teller).expect("a map");
        assert!(none.is_empty() && none.master(0).is_none());
    }
}
