//! The events in a fleet, and their order.

use std::cmp::Ordering;
use std::time::Duration;

use sluiced_core::headroom::Headroom;
use sluiced_core::leases::Slot;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::Memory;
use sluiced_core::limits::store_watch::AnswerHead;
use sluiced_core::message::KeyId;
use sluiced_core::pacing::Row;
use sluiced_core::policy::LimitPolicy;
use sluiced_core::schedule::{Ask, Freeze, LeaseAnswer, Pace};
use sluiced_core::scheduler::AskedMessage;
use sluiced_core::version::PolicyVersion;

use super::replica::HeldMessage;
use super::store::Asker;
use crate::surroundings::Fault;

/// Messages that the keyed limits are asked for, and for how many grants.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) asker: Asker,
    pub(super) asked: Vec<AskedMessage<HeldMessage<'a>>>,
    pub(super) wanted: u64,
    pub(super) sent: u64,
    /// How long the answer takes; `None`: it is lost.
    pub(super) back: Option<u64>,
}

/// The answer of the keyed limits to a request.
#[derive(Debug)]
pub(super) struct StoreReply {
    pub(super) asked: Memory,
    pub(super) entered: AnswerHead,
    /// No other replica asks.
    pub(super) alone: bool,
    pub(super) decisions: Vec<Decision>,
    pub(super) sent: u64,
}

#[derive(Debug)]
pub(super) enum SimEvent<'a> {
    // At a replica.
    Wake(u64),
    Deliver(u32),
    Leased {
        id: u64,
        row: Row,
        answer: LeaseAnswer,
        sent: u64,
    },
    AskFailed {
        id: u64,
        row: Row,
    },
    Admitted {
        id: u64,
        reply: StoreReply,
    },
    AdmitFailed {
        id: u64,
    },
    /// Unused grants were returned: the messages are ready again.
    Again(Vec<HeldMessage<'a>>),
    Call {
        held: HeldMessage<'a>,
        slot: Slot,
    },
    Settle(HeldMessage<'a>),
    /// The downstream's "not now" arrives.
    Throttled {
        held: HeldMessage<'a>,
        wait: Duration,
        heard: bool,
    },
    Frozen(Row, Freeze),
    /// Units of a key came free.
    Freed {
        key: KeyId,
        units: u64,
    },
    Beat,
    /// A handshake with the downstream, and a check of the headroom.
    Handshake,
    /// A notice of another policy; the current one, unless the store is away.
    Changed,
    Declared(Option<LimitPolicy>),

    // At the store: its answer takes `back`, or is lost.
    Ask {
        id: u64,
        row: Row,
        ask: Ask,
        /// The policy that the asker knows as the current one.
        known: (Pace, PolicyVersion),
        back: Option<u64>,
        sent: u64,
    },
    Admit {
        id: u64,
        request: Request<'a>,
    },
    Refund {
        asker: Asker,
        held_messages: Vec<HeldMessage<'a>>,
        sent: u64,
    },
    /// A call has ended, or goes on.
    Release {
        asker: Asker,
        held: HeldMessage<'a>,
    },
    Renew {
        asker: Asker,
        calls: Vec<HeldMessage<'a>>,
    },
    Freeze {
        wait: Duration,
        heard: bool,
    },
    Declare(Option<LimitPolicy>),
    /// A replica wants another headroom than that of this policy.
    SetHeadroom(PolicyVersion, Headroom),

    // Elsewhere.
    Start,
    /// A call reaches the downstream.
    Arrive(HeldMessage<'a>),
    /// A message is back from a wait queue.
    Back(u32),
    Strike(Fault),
}

#[derive(Debug)]
pub(super) struct TimedEvent<'a> {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) replica: u32,
    pub(super) event: SimEvent<'a>,
}

impl PartialEq for TimedEvent<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for TimedEvent<'_> {}
impl PartialOrd for TimedEvent<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimedEvent<'_> {
    /// The earliest is the greatest, so that the heap returns it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
