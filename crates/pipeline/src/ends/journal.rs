//! The journal of a route (`journal`): one line for each call and one for each verdict; with `before` also one before
//! each call.
//!
//! Problem: "why has this message not gone out, why did that one come twice, what did the provider say?" The metrics
//! count, and the log warns of what is unusual: neither knows a single message. So a route may log what happens to
//! each of its messages, on a tracing target of its own, which journald, Loki or jq can filter by.
//!
//! A replica that is killed cannot log how its calls ended. The line before a call says that it was begun: without a
//! second line of the same replica about it, the downstream may have the message.
//!
//! A line never holds a body, a header, a key or a secret. A key is logged as a short digest: enough to find
//! the lines of one key, and shared by so many others that it does not reveal the phone number. The
//! operator's template makes the provider's id of the message from the answer (`journal_id`).

use std::fmt::{self, Write as _};
use std::time::Duration;

use tracing::{Level, enabled, info};

use sluiced_core::rate::Cost;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::downstream::{Answer, Facts, Judgement};
use sluiced_ports::limits::{Charge, limit_key};
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_template::{About, Template, Templates, WrongTemplate};

use super::LeavingMessage;
use crate::history::History;

/// The target of its lines, to filter them by.
const TARGET: &str = "sluiced::journal";
/// The most characters of a provider's id.
const LONGEST_ID: usize = 128;

/// What a route's journal needs; a route without one has none.
#[derive(Debug)]
pub struct Journal {
    /// Makes the provider's id from an answer.
    id: Option<(Templates, Template)>,
    /// The name of this replica, if calls are logged before they are made.
    before: Option<String>,
}

impl Journal {
    /// `id` is the template that makes the provider's id from an answer, if there is one; `before` the name of this
    /// replica, if calls are logged before they are made too.
    ///
    /// # Errors
    /// When the template is wrong, which a checked configuration excludes.
    pub fn new(id: Option<&str>, before: Option<String>) -> Result<Self, WrongTemplate> {
        let id = id.map(|text| {
            let mut templates = Templates::about(About::Answer);
            let template = templates.add("journal_id", text)?;
            Ok((templates, template))
        });
        Ok(Self {
            id: id.transpose()?,
            before,
        })
    }

    /// Whether its lines are logged.
    pub(super) fn is_logged() -> bool {
        enabled!(target: TARGET, Level::INFO)
    }

    /// The provider's id of the message, if the answer has one.
    #[must_use]
    pub fn provider_id(
        &self,
        message: &Message,
        facts: Facts<'_>,
        answer: &Answer,
    ) -> Option<String> {
        let (templates, template) = self.id.as_ref()?;
        let context = templates.context_with(message, facts, Some(answer)).ok()?;
        let rendered = templates.render(template, &context).ok()?;
        let id: String = rendered.trim().chars().take(LONGEST_ID).collect();
        (!id.is_empty()).then_some(id)
    }
}

/// Why a message waits or goes back, where neither its verdict nor the line of its call has the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why<'a> {
    /// A limit of this name denied it.
    DeniedBy(&'a str),
    CallFailed,
    /// A message of its key was accepted before.
    Repeat,
    /// The downstream refuses it for now.
    Throttled,
    RouteClosed,
    HeldTooLong,
    ReplicaStops,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeniedBy(limit) => return write!(f, "denied by limits.{limit}"),
            Self::CallFailed => "its call failed",
            Self::Repeat => "a repeat",
            Self::Throttled => "the downstream refuses it for now",
            Self::RouteClosed => "the route is closed",
            Self::HeldTooLong => "held for too long",
            Self::ReplicaStops => "the replica stops",
        })
    }
}

/// A message that is called, as far as a line shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalledMessage<'a> {
    pub(crate) message: &'a Message,
    pub(crate) history: &'a History,
    /// What its templates know of this call.
    pub(crate) facts: Facts<'a>,
    /// What it takes of its keyed limits.
    pub(crate) charges: &'a [Charge],
}

/// What a call used of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitsUsed<'a> {
    pub(crate) limit: &'a str,
    pub(crate) units: Cost,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLine<'a> {
    pub(crate) judgement: &'a Judgement,
    pub(crate) used: &'a [UnitsUsed<'a>],
    pub(crate) length: Duration,
    /// When it was made.
    pub(crate) sent: StoreTime,
}

impl Journal {
    /// Logs that a call is about to be made, where that is wanted.
    pub(crate) fn calling(&self, called: CalledMessage<'_>) {
        self.begun(called, "calling");
    }

    /// Logs that a call was not made after all.
    pub(crate) fn uncalled(&self, called: CalledMessage<'_>) {
        self.begun(called, "not called");
    }

    fn begun(&self, called: CalledMessage<'_>, what: &'static str) {
        let Some(replica) = &self.before else {
            return;
        };
        let CalledMessage { message, facts, .. } = called;
        info!(
            target: TARGET,
            route = facts.route,
            message_id = message.id().unwrap_or_default(),
            attempt = facts.attempt,
            redelivered = message.redelivered,
            replica,
            keys = %KeyDigests(called.charges),
            "{what}"
        );
    }

    /// Logs a call for a message.
    pub(crate) fn call(&self, called: CalledMessage<'_>, line: CallLine<'_>) {
        let (judgement, used) = (line.judgement, line.used);
        let CalledMessage { message, facts, .. } = called;
        let answer = judgement.answer.as_ref();
        let provider_id = answer.and_then(|answer| self.provider_id(message, facts, answer));
        let failure = judgement.reply.is_err().then(|| judgement.reply_label());
        info!(
            target: TARGET,
            route = facts.route,
            message_id = message.id().unwrap_or_default(),
            attempt = facts.attempt,
            outcome = judgement.outcome.label(),
            status = judgement.status(),
            failure,
            maybe_delivered = judgement.maybe_delivered,
            ms = micros(line.length) / 1000,
            age_ms = micros(line.sent.since(called.history.born(message))) / 1000,
            redelivered = message.redelivered,
            replica = self.before.as_deref(),
            provider_id,
            used = (!used.is_empty()).then(|| display(UsedUnits(used))),
            keys = %KeyDigests(called.charges),
            "call"
        );
    }

    /// Logs the verdict of a message.
    pub(super) fn verdict(&self, route: &str, delivery: &Delivery, leaving: &LeavingMessage<'_>) {
        let (message, verdict) = (delivery.message(), &leaving.verdict);
        let (reason, detail, wait) = match verdict {
            Verdict::Dead { reason, .. } => {
                let detail = verdict.header(header::DETAIL);
                (Some(reason.label()), detail, None)
            }
            Verdict::Later { delay, .. } => {
                let set_aside = verdict.header(header::SET_ASIDE);
                (None, set_aside, Some(micros(*delay) / 1000))
            }
            _ => (None, None, None),
        };
        info!(
            target: TARGET,
            route,
            message_id = message.id().unwrap_or_default(),
            verdict = verdict.label(),
            reason,
            detail = detail.and_then(HeaderValue::as_text),
            why = leaving.why.map(display),
            attempts = leaving.history.tries.spent(),
            wait_ms = wait,
            // The verdict is lost then: the broker delivers the message again.
            stale = delivery.is_stale().then_some(true),
            redelivered = message.redelivered,
            keys = %KeyDigests(leaving.charges),
            "verdict"
        );
    }
}

/// What a call used, by the names of the limits: `tokens=812`.
struct UsedUnits<'a>(&'a [UnitsUsed<'a>]);

impl fmt::Display for UsedUnits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, used) in self.0.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{}={}", used.limit, used.units.get())?;
        }
        Ok(())
    }
}

/// The keys of a message, by the names of their limits: `recipient=1f2e3d sender=99aa00`. A limit that counts all
/// messages together has none.
struct KeyDigests<'a>(&'a [Charge]);

impl fmt::Display for KeyDigests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = limit_key(&[]);
        let keyed = self.0.iter().filter(|charge| charge.key != all);
        for (i, charge) in keyed.enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            write!(f, "{}={}", charge.limit.name, charge.key.short())?;
        }
        Ok(())
    }
}
