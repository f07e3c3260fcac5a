//! The hash slots of a Redis Cluster: in which one a key lies, and which node serves it.
//!
//! From the cluster specification: a key lies in one of 16384 slots, which is CRC16 (XMODEM) of the key modulo 16384,
//! and where a key holds a non-empty text in braces, only that text counts. All keys of one decision carry the same
//! tag, so they lie in one slot, and one script may touch them all.

use std::collections::BTreeSet;

use redis::Value;

use super::address::Address;

/// One of the 16384 hash slots.
pub(super) type HashSlot = u16;

/// How many there are.
const SLOTS: u16 = 16384;

/// The slot of a key.
pub(super) fn hash_slot_of(key: &str) -> HashSlot {
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
pub(super) struct HashSlotMap {
    ranges: Vec<(HashSlot, HashSlot, Address)>,
    /// Slots that were redirected since.
    moved: Vec<(HashSlot, Address)>,
}

impl HashSlotMap {
    /// Reads the reply of `CLUSTER SLOTS` of the node at `teller`. `None`: it is no such reply.
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
    pub(super) fn master(&self, slot: HashSlot) -> Option<&Address> {
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
    pub(super) fn note_moved(&mut self, slot: HashSlot, to: Address) {
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
mod tests;
