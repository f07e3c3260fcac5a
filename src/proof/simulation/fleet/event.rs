//! What happens in a fleet, and the order in which it does.

use std::cmp::Ordering;
use std::time::Duration;

use sluiced_core::headroom::Headroom;
use sluiced_core::leases::Slot;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::Memory;
use sluiced_core::limits::store_watch::AnswerHead;
use sluiced_core::pacing::Row;
use sluiced_core::policy::{LimitPolicy, PolicyVersion};
use sluiced_core::schedule::{Answer, Ask, Freeze, Grant, Pace};
use sluiced_core::scheduler::{Asked, KeyId};

use super::replica::Parcel;
use super::store::Asker;
use crate::setting::Fault;

/// Messages that the keyed limits are asked for, and for how many grants.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) asker: Asker,
    pub(super) asked: Vec<Asked<Parcel<'a>>>,
    pub(super) wanted: u64,
    pub(super) sent: u64,
    /// How long the answer takes; `None`: it is lost.
    pub(super) back: Option<u64>,
}

/// Their answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) asked: Memory,
    pub(super) entered: AnswerHead,
    /// No other replica asks.
    pub(super) alone: bool,
    pub(super) decisions: Vec<Decision>,
    pub(super) sent: u64,
}

#[derive(Debug)]
pub(super) enum Event<'a> {
    // At a replica.
    Wake(u64),
    Deliver(u32),
    Leased {
        id: u64,
        row: Row,
        answer: Answer,
        sent: u64,
    },
    AskFailed {
        id: u64,
        row: Row,
    },
    Admitted {
        id: u64,
        reply: Reply,
    },
    AdmitFailed {
        id: u64,
    },
    /// What was granted and not used has gone back: the messages are ready again.
    Again(Vec<Parcel<'a>>),
    Call {
        parcel: Parcel<'a>,
        slot: Slot,
    },
    Settle(Parcel<'a>),
    /// The downstream's "not now" comes back.
    Throttled {
        parcel: Parcel<'a>,
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
    /// Handshakes with the downstream, and a look at what the headroom should be.
    Handshakes(u32),
    /// A notice of another policy; the current one, unless the store is away.
    Changed,
    Told(Option<LimitPolicy>),

    // At the store: it answers after `back`, or is not heard.
    Ask {
        id: u64,
        row: Row,
        ask: Ask,
        /// What the asker takes for the current policy.
        known: (Pace, PolicyVersion),
        back: Option<u64>,
        sent: u64,
    },
    Admit {
        id: u64,
        request: Request<'a>,
    },
    TakeBack {
        asker: Asker,
        parcels: Vec<Parcel<'a>>,
    },
    /// A call has ended, or goes on.
    Release {
        asker: Asker,
        parcel: Parcel<'a>,
    },
    Renew {
        asker: Asker,
        calls: Vec<Parcel<'a>>,
    },
    Freeze {
        wait: Duration,
        heard: bool,
    },
    GiveBack(Row, Pace, Grant),
    Declare(Option<LimitPolicy>),
    /// The headroom should be another one than under this policy.
    Follow(PolicyVersion, Headroom),

    // Elsewhere.
    Start,
    /// A call reaches the downstream.
    Arrive(Parcel<'a>),
    /// A message is back from a wait queue.
    Back(u32),
    Strike(Fault),
}

#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) replica: u32,
    pub(super) event: Event<'a>,
}

impl PartialEq for Entry<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Entry<'_> {}
impl PartialOrd for Entry<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry<'_> {
    /// The earliest is the greatest, so that the heap returns it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
