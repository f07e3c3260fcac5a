//! What happens in a simulated world, and the order in which it does.

use std::cmp::Ordering;
use std::time::Duration;

use crate::replica::Parcel;
use crate::scenario::Fault;
use crate::store::Asker;
use sluiced_core::leases::Slot;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::Memory;
use sluiced_core::limits::known::Entered;
use sluiced_core::policy::{LimitPolicy, PolicyVersion};
use sluiced_core::schedule::{Answer, Ask, Freeze, Grant, Pace};
use sluiced_core::scheduler::KeyId;

/// Messages that are asked for, and for how many grants.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) asker: Asker,
    pub(super) parcels: Vec<Parcel>,
    /// Others wait for calls of these to end.
    pub(super) others_wait: Vec<bool>,
    pub(super) wanted: u64,
    pub(super) sent: u64,
    /// How long the answer takes; `None`: it is lost.
    pub(super) back: Option<u64>,
}

/// The store's answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) asked: Memory,
    pub(super) entered: Entered,
    pub(super) decisions: Vec<Decision>,
    pub(super) sent: u64,
}

#[derive(Debug)]
pub(super) enum Event {
    Start,
    Wake(u64),
    Deliver(Parcel),
    /// A request reaches the store; the answer will, or will not, come back.
    Ask {
        id: u64,
        ask: Ask,
        /// What the asker takes to be in force.
        known: (Pace, PolicyVersion),
        back: Option<u64>,
        sent: u64,
    },
    Answered {
        id: u64,
        answer: Answer,
        sent: u64,
    },
    AskFailed {
        id: u64,
    },
    Call {
        parcel: Parcel,
        slot: Slot,
    },
    Arrive {
        parcel: Parcel,
    },
    Settle {
        parcel: Parcel,
    },
    /// The downstream's "not now" comes back.
    Throttled {
        parcel: Parcel,
        wait: Duration,
        heard: bool,
    },
    Freeze {
        wait: Duration,
        heard: bool,
    },
    Frozen(Freeze),
    GiveBack(Pace, Grant),
    /// A notice that another policy is in force.
    Changed,
    /// A replica asks what is in force; it is told, or the store is away.
    Declare(Option<LimitPolicy>),
    Told(Option<LimitPolicy>),
    /// A question about keyed limits reaches the store; its answer, if there is one.
    Admit {
        id: u64,
        request: Request,
    },
    Admitted {
        id: u64,
        reply: Reply,
    },
    AdmitFailed {
        id: u64,
    },
    /// What was granted and not used goes back, and then the messages.
    TakeBack {
        asker: Asker,
        parcels: Vec<Parcel>,
    },
    Again {
        parcels: Vec<Parcel>,
    },
    /// A call has ended, and a replica is told that units came free.
    Release {
        asker: Asker,
        parcel: Parcel,
    },
    Freed {
        key: KeyId,
        units: u64,
    },
    Beat,
    Renew {
        asker: Asker,
        calls: Vec<Parcel>,
    },
    Publish(u32),
    Strike(Fault),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) replica: u32,
    pub(super) event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// The earliest is the greatest, so that the heap answers it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
