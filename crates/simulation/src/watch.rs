//! What can be seen of a run while it happens: each event, when it happens.

use std::time::Duration;

use sluiced_core::leases::LeaseTally;
use sluiced_core::rate::Rate;
use sluiced_core::time::StoreTime;

use super::surroundings::Fault;

/// Sees a run while it happens.
pub trait FleetWatch {
    /// An event at a true time, in microseconds.
    fn see(&mut self, at: u64, replica: u32, what: &FleetEvent);
    /// Whether the run is over.
    fn is_over(&mut self, at: u64) -> bool;
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    Started,
    /// The replica stopped, or the run ended.
    Gone {
        tally: LeaseTally,
    },
    /// The replica died with this many slots.
    Crashed {
        tally: LeaseTally,
        leased: u64,
    },
    /// A message is in the work queue, for the first time or again.
    Queued {
        message: u32,
        is_new: bool,
    },
    QueueEmpty,
    Delivered {
        message: u32,
    },
    /// A replica asks for slots; `twice` or `early` mark a forbidden ask: a second one at the same
    /// time, or one before its turn.
    Asked {
        want: u64,
        turn: Option<StoreTime>,
        stepped: bool,
        twice: bool,
        early: bool,
    },
    Leased {
        first: StoreTime,
        count: u32,
        turn: Option<StoreTime>,
        guarded: bool,
    },
    Denied {
        turn: Option<StoreTime>,
        guarded: bool,
        /// The ask came at its turn, and nothing else hindered it.
        at_turn: bool,
    },
    AskFailed,
    Heard {
        trip: Duration,
    },
    /// A replica asks the keyed limits for this many messages.
    Question {
        messages: u64,
    },
    /// The keyed limits decided.
    Admitted {
        granted: u64,
        looked_at: u64,
        generation: u64,
        writes: u64,
    },
    /// The keyed limits' reply with the grants was lost.
    ReplyLost,
    SawStep,
    /// A replica learns that the keyed limit `by` denied a message, or that none did.
    Decided {
        message: u32,
        denied: Option<u8>,
    },
    /// A permit ran out unused.
    RanOut {
        message: u32,
    },
    /// A message goes through a wait queue.
    Away {
        message: u32,
        why: WaitQueueCause,
    },
    Called {
        message: u32,
    },
    Arrived {
        message: u32,
        /// When the downstream has answered it.
        ends: u64,
        /// What the store's clock shows.
        clock: StoreTime,
    },
    Accepted {
        message: u32,
    },
    TooLate {
        message: u32,
    },
    Throttled {
        message: u32,
    },
    Settled {
        message: u32,
    },
    /// A message ended without a call.
    Ended {
        message: u32,
        how: EndWithoutCall,
    },
    /// A fault; no replica but the victim is there to send for this long.
    Struck {
        fault: Fault,
        alone: Duration,
    },
    /// The replica is broken for good.
    Broken,
    Stepped {
        clock: StoreTime,
    },
    Retimed {
        rate: Rate,
    },
}

/// Why a message goes through a wait queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitQueueCause {
    /// A limit denied it.
    Denied,
    /// This keyed limit is known to be full, and was not asked.
    Full(u8),
    /// No slot comes for long.
    NoSlot,
    /// The message came back before its time.
    Again,
    /// The downstream refused it.
    Refused,
}

/// Why a message ended without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndWithoutCall {
    TooOld,
    /// The message would have to wait for longer than its route holds messages.
    Denied,
    /// The message costs more than this keyed limit ever holds.
    Never(u8),
}
