//! The journal of a route (`journal = true`): one line for each call and one for each verdict.
//!
//! Problem: "why has this message not gone out, why did that one come twice, what did the provider say?" The metrics
//! count, and the log warns of what is unusual: neither knows a single message. So a route may log what happens to
//! each of its messages, on a tracing target of its own, which journald, Loki or jq can filter by.
//!
//! A line never holds a body, a header, a key or a secret. A key is logged as a short digest: enough to find
//! the lines of one key, and shared by so many others that it does not reveal the phone number. The
//! operator's template makes the provider's id of the message from the answer (`journal_id`).

use std::fmt::{self, Write as _};
use std::time::Duration;

use tracing::{Level, enabled, info};

use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::downstream::{Answer, Facts, Judgement};
use sluiced_ports::limits::{Charge, limit_key};
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::types::Route as Settings;
use sluiced_template::{About, Template, Templates, WrongTemplate};

use super::actual::Used;
use super::history::History;
use super::job::Job;
use super::route::Route;
use super::verdict::value;

/// The target of its lines, to filter them by.
const TARGET: &str = "sluiced::journal";
/// The most characters of a provider's id.
const LONGEST_ID: usize = 128;

/// What a route's journal needs; a route without one has none.
#[derive(Debug)]
pub struct Journal {
    /// Makes the provider's id from an answer.
    id: Option<(Templates, Template)>,
}

impl Journal {
    /// The journal of a route, if it has one.
    ///
    /// # Errors
    /// When `journal_id` is wrong, which a checked configuration excludes.
    pub fn of(route: &Settings) -> Result<Option<Self>, WrongTemplate> {
        if !route.journal {
            return Ok(None);
        }
        let id = route.journal_id.as_ref().map(|text| {
            let mut templates = Templates::about(About::Answer);
            let template = templates.add("journal_id", text.as_str())?;
            Ok((templates, template))
        });
        Ok(Some(Self {
            id: id.transpose()?,
        }))
    }

    /// The provider's id of the message, if the answer has one.
    fn provider_id(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Option<String> {
        let (templates, template) = self.id.as_ref()?;
        let context = templates.context_with(message, facts, Some(answer)).ok()?;
        let id = templates.render(template, &context).ok()?;
        let id: String = id.trim().chars().take(LONGEST_ID).collect();
        (!id.is_empty()).then_some(id)
    }
}

/// Why a message waits or goes back, where neither its verdict nor the line of its call has the reason.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why<'a> {
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

impl Job {
    /// Logs a call that was made at `sent` and has ended, after so long.
    pub(super) fn journal_call(
        &self,
        judgement: &Judgement,
        used: &[Used<'_>],
        length: Duration,
        sent: StoreTime,
    ) {
        let Some(journal) = self.route.journal() else {
            return;
        };
        let message = self.delivery.message();
        let facts = self.route.facts(&self.history);
        let answer = judgement.answer.as_ref();
        let provider_id = answer.and_then(|answer| journal.provider_id(message, facts, answer));
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
            ms = micros(length) / 1000,
            age_ms = micros(sent.since(self.history.born(message))) / 1000,
            redelivered = message.redelivered,
            provider_id,
            used = (!used.is_empty()).then(|| display(Units(used))),
            keys = %Keys(self.charges()),
            "call"
        );
    }

    /// Logs its verdict, with a reason that neither the verdict nor the line of its call has.
    pub(super) fn journal_verdict(&self, verdict: &Verdict, why: Option<Why<'_>>) {
        let (delivery, history) = (&self.delivery, &self.history);
        let line = (verdict, why);
        self.route
            .journal_verdict(delivery, history, self.charges(), line);
    }
}

impl Route {
    /// Its journal, if it has one and its lines are logged.
    fn journal(&self) -> Option<&Journal> {
        let journal = self.journal.as_ref()?;
        enabled!(target: TARGET, Level::INFO).then_some(journal)
    }

    /// Logs the verdict of a message with these charges.
    pub(super) fn journal_verdict(
        &self,
        delivery: &Delivery,
        history: &History,
        charges: &[Charge],
        (verdict, why): (&Verdict, Option<Why<'_>>),
    ) {
        if self.journal().is_none() {
            return;
        }
        let message = delivery.message();
        let text = |name| match verdict {
            Verdict::Dead { headers, .. } => value(headers, name).and_then(HeaderValue::as_text),
            _ => None,
        };
        let set_aside = match verdict {
            Verdict::Later { headers, .. } => value(headers, header::SET_ASIDE),
            _ => None,
        };
        let wait = match verdict {
            Verdict::Later { delay, .. } => Some(micros(*delay) / 1000),
            _ => None,
        };
        info!(
            target: TARGET,
            route = &*self.name,
            message_id = message.id().unwrap_or_default(),
            verdict = verdict.label(),
            reason = text(header::REASON),
            detail = text(header::DETAIL).or(set_aside.and_then(HeaderValue::as_text)),
            why = why.map(display),
            attempts = history.attempts,
            wait_ms = wait,
            // The verdict is lost then: the broker delivers the message again.
            stale = delivery.is_stale().then_some(true),
            redelivered = message.redelivered,
            keys = %Keys(charges),
            "verdict"
        );
    }
}

/// What a call used, by the names of the limits: `tokens=812`.
struct Units<'a>(&'a [Used<'a>]);

impl fmt::Display for Units<'_> {
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
struct Keys<'a>(&'a [Charge]);

impl fmt::Display for Keys<'_> {
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
