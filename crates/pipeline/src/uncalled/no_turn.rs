//! Messages that have no turn before their deadline are sent away, on a route whose messages wait for a known time
//! (`OnDenied::TellCaller`).
//!
//! Such a message could wait, and would be too old then. So it leaves as soon as that is known, with the time at which
//! its limit lets it pass. A keyed limit says so when it is asked (`core::scheduler::answers`). Here are the other
//! reasons: the paced limit is frozen, paused or used up, the route itself is shut, or more
//! messages wait before it than the whole limit lets pass in time.
//!
//! A pause or a freeze may end earlier than is known, and a caller that went away does not hear of that. So its answer
//! asks it to come back no later than [`LONGEST_TOLD`].

use std::time::Duration;

use sluiced_core::gate::{SendRule, ShutReason};
use sluiced_core::leases::{Availability, WaitReason};
use sluiced_core::limits::Room;
use sluiced_core::message::Queued as _;
use sluiced_core::scheduler::Scheduler;
use sluiced_core::time::Mono;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::Verdict;

use crate::ends::journal::Why;
use crate::handle::PacerHandle;
use crate::job::WaitingMessage;
use crate::verdict::{DeniedHeaders, add_denied_headers};
use sluiced_core::gate::OnDenied;

/// The shortest `Retry-After` for a caller that has no turn because others wait before it.
const SHORTEST_TOLD: Duration = Duration::from_secs(1);
/// The longest `Retry-After` for a caller whose wait may end earlier: a freeze, a pause, a shut route.
const LONGEST_TOLD: Duration = Duration::from_secs(30);

/// When a message has its turn at the earliest, and why not before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoTurn {
    at: Mono,
    why: NoTurnReason,
}

#[derive(Clone, Copy, Debug)]
enum NoTurnReason {
    /// The paced limit.
    Slots(WaitReason),
    /// The route itself.
    Route(ShutReason),
    /// Too many wait before it. After `comes_back` there would be fewer, as far as is known.
    Others { comes_back: Duration },
}

/// When the message has its turn at the earliest, if that is known and after its deadline.
pub(crate) fn comes_too_late(
    waiting: &WaitingMessage,
    availability: Availability,
    now: Mono,
) -> Option<NoTurn> {
    let route = &waiting.job.route;
    // A caller that closed its connection gets no answer: its message is stale.
    if route.rules.on_denied != OnDenied::TellCaller || waiting.is_stale() {
        return None;
    }
    let deadline = waiting.deadline()?;
    let paced = match availability {
        Availability::Until(at, why) => Some((at, NoTurnReason::Slots(why))),
        Availability::Open | Availability::NotKnownYet | Availability::OutOfReach(_) => None,
    };
    let sends = route.gate.sends();
    let why_shut = match sends {
        SendRule::Nothing(_, why) => NoTurnReason::Route(why),
        SendRule::All(_) | SendRule::OnlyPermitted { .. } => NoTurnReason::Route(ShutReason::Limit),
    };
    let shut = sends.held_until().map(|at| (at, why_shut));
    let latest = paced.into_iter().chain(shut).max_by_key(|(at, _)| *at);
    let (at, why) = latest.filter(|(at, _)| *at > now && *at >= deadline)?;
    Some(NoTurn { at, why })
}

/// When a message that comes now has its turn at the earliest, if others that wait take all slots until its deadline.
/// Where the store is out of reach nothing is known of its slots.
pub(crate) fn others_take_all(
    waiting: &WaitingMessage,
    scheduler: &Scheduler<WaitingMessage>,
    availability: Availability,
    now: Mono,
) -> Option<NoTurn> {
    let refuses = waiting.job.route.rules.on_denied == OnDenied::TellCaller;
    let is_known = !matches!(
        availability,
        Availability::NotKnownYet | Availability::OutOfReach(_)
    );
    let deadline = waiting.deadline().filter(|_| refuses && is_known)?;
    let at = scheduler.no_turn_before(waiting, now)?;
    let why = NoTurnReason::Others {
        comes_back: at.since(deadline),
    };
    (at > deadline).then_some(NoTurn { at, why })
}

/// Settles a message that has its turn too late.
pub(crate) fn send_away_without_turn(
    waiting: WaitingMessage,
    late: NoTurn,
    pacer: &PacerHandle,
    now: Mono,
) {
    let job = waiting.job;
    job.route.meters.denials.increment(1);
    let (wait, store_now) = (late.at.since(now), pacer.store_time(now));
    let told = match late.why {
        NoTurnReason::Slots(WaitReason::Turn) => wait,
        // Many callers may get this answer: a second between their tries bounds how often they ask.
        NoTurnReason::Others { comes_back } => comes_back.max(SHORTEST_TOLD),
        NoTurnReason::Slots(WaitReason::Frozen | WaitReason::Paused) | NoTurnReason::Route(_) => {
            wait.min(LONGEST_TOLD)
        }
    };
    let mut verdict = job.history().later(told, store_now);
    let name = &pacer.name;
    match (late.why, pacer.rows()) {
        (NoTurnReason::Slots(WaitReason::Turn), Some(rows)) => add_denied_headers(
            &mut verdict,
            &DeniedHeaders {
                name,
                limit: rows.main.pace.units(),
                room: Room {
                    remaining: 0,
                    reset_at: store_now + wait,
                },
                retry_after: wait,
                now: store_now,
            },
        ),
        (why, _) => say(&mut verdict, why.in_words(name)),
    }
    job.settle_because(verdict, Some(Why::DeniedBy(name)), store_now);
}

impl NoTurnReason {
    fn in_words(self, limit: &str) -> String {
        match self {
            Self::Slots(WaitReason::Turn) => format!("the limit {limit} is used up"),
            Self::Slots(WaitReason::Frozen) => {
                format!("the limit {limit} is frozen, because the downstream refused calls")
            }
            Self::Slots(WaitReason::Paused) => format!("an operator paused the limit {limit}"),
            Self::Others { .. } => "others came first".to_owned(),
            Self::Route(ShutReason::Paused) => "an operator paused these callers".to_owned(),
            Self::Route(ShutReason::Limit) => {
                "a limit is paused, or lets nothing pass now".to_owned()
            }
            Self::Route(ShutReason::Hours | ShutReason::Away) => "nothing passes now".to_owned(),
        }
    }
}

fn say(verdict: &mut Verdict, why: String) {
    if let Verdict::Later { headers, .. } = verdict {
        headers.push((header::DETAIL, HeaderValue::Text(why)));
    }
}
