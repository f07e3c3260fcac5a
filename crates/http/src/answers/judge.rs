//! What an answer of HTTP means: by its status, what it says of when to come back, and what the operator says of it.
//!
//! An operator lists status codes, classes, `timeout`, `connection` and `unreadable`. A code beats its class.
//! What no list names follows the defaults:
//! - 2xx: accepted;
//! - 420, 429 and 430: throttled;
//! - 403, 477, 503 and 529: throttled if they say when to come back;
//! - 401, 403, 407, 408, 421, 423, 425 and 5xx, and no answer: transient;
//! - 409: transient if the call may be a repeat of one that was taken, since the first one may still run
//!   (draft-ietf-httpapi-idempotency-key-header, section 2.7);
//! - every other 4xx that says when to come back: transient;
//! - everything else, redirects included: permanent.
//!
//! Texts in the body have precedence over the status: some downstreams answer 200 and say "throttled". A template of
//! the operator has precedence over both. What an answer says of when to come back is read by `headers`.

use std::fmt;
use std::time::{Duration, SystemTime};

use sluiced_core::judge::{
    AnswerMeaning, AskedWait, Judge, ListError, Listed, Lists, Meaning, Outcome, Silence,
    TemplateOutcome,
};
use sluiced_headers::{Headers, waits};

/// The parts of an answer that matter.
#[derive(Clone, Copy)]
pub(super) struct HttpReply<'a> {
    /// 100 to 999.
    pub(super) status: u16,
    pub(super) headers: Headers<'a>,
    /// The first bytes of the body. They count only if [`HttpJudge::has_texts`].
    pub(super) body: &'a [u8],
    /// The body matters, and a part of it did not come or cannot be decoded.
    pub(super) body_is_incomplete: bool,
    /// An earlier call of this message may have been taken, or the downstream recognizes repeats by a key.
    pub(super) may_repeat: bool,
    pub(super) found: TemplateFindings<'a>,
}

impl fmt::Debug for HttpReply<'_> {
    /// Shows neither its headers nor its body: both may repeat content of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpReply")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// What the templates of the operator found in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TemplateFindings<'a> {
    pub(super) outcome: TemplateOutcome,
    /// When to come back, as it stands there.
    pub(super) wait: Option<&'a str>,
}

/// Judges the answers of a downstream.
#[derive(Clone, Debug)]
pub(super) struct HttpJudge(Judge<ListedCode>);

impl HttpJudge {
    /// Reads the lists. The waits are those of [`Judge::new`].
    ///
    /// # Errors
    /// When an entry is no status, is in two lists, or would lose messages.
    pub(super) fn new(
        lists: Lists<'_>,
        throttle_wait: Duration,
        max_throttle_wait: Duration,
    ) -> Result<Self, ListError> {
        Judge::new(lists, throttle_wait, max_throttle_wait).map(Self)
    }

    /// What an answer means. `None`: nothing is certain, because a part that did not come, or that cannot be read,
    /// may decide. `now` counts for points in time if the answer has no `Date`.
    pub(super) fn judge_reply(
        &self,
        reply: HttpReply<'_>,
        now: SystemTime,
    ) -> Option<AnswerMeaning> {
        let stated_meaning = match reply.found.outcome {
            TemplateOutcome::Meaning(meaning) => Some(meaning),
            TemplateOutcome::Nothing | TemplateOutcome::Failed => self.0.said(reply.body),
        };
        let read = || waits(reply.headers, reply.found.wait, now);
        let meaning = match stated_meaning.or_else(|| self.listed_meaning(reply.status)) {
            Some(meaning) => meaning,
            // The usual answer needs no more.
            None if reply.status / 100 == 2 => Meaning::Accepted,
            None => default_meaning(reply.status, read().asked.is_some(), reply.may_repeat),
        };
        let is_unsure = match meaning {
            Meaning::Accepted => {
                reply.body_is_incomplete || reply.found.outcome == TemplateOutcome::Failed
            }
            Meaning::Permanent => reply.body_is_incomplete && stated_meaning.is_none(),
            _ => false,
        };
        let needs_wait = !matches!(meaning, Meaning::Accepted | Meaning::Permanent);
        let waits = if needs_wait {
            read()
        } else {
            AskedWait::default()
        };
        (!is_unsure).then(|| self.0.judged(meaning, waits))
    }

    /// What the lists say of a status.
    pub(super) fn listed_meaning(&self, status: u16) -> Option<Meaning> {
        let listed = |entry| self.0.listed(entry);
        listed(ListedCode::One(status)).or_else(|| listed(ListedCode::Class(status / 100)))
    }

    /// What the lists say of the lack of an answer.
    pub(super) fn listed_silence(&self, silence: Silence) -> Option<Meaning> {
        self.0.listed_silence(silence)
    }

    /// What the lack of an answer means.
    pub(super) fn judge_silence(&self, silence: Silence) -> Outcome {
        self.0.silence(silence)
    }

    /// What it means that the downstream refuses calls before it looks at them.
    pub(super) fn refusal(&self) -> Outcome {
        self.0
            .judged(Meaning::Throttled, AskedWait::default())
            .outcome
    }

    /// Whether there are texts, so that the bodies of answers matter.
    pub(super) fn has_texts(&self) -> bool {
        self.0.has_texts()
    }
}

/// `asks`: the answer says when to come back. `may_repeat`: as in [`HttpReply`].
pub(super) const fn default_meaning(status: u16, asks: bool, may_repeat: bool) -> Meaning {
    match status {
        200..=299 => Meaning::Accepted,
        // 420 is X's, and 430 Shopify's.
        420 | 429 | 430 => Meaning::Throttled,
        // A limit (GitHub answers 403), a maintenance, an overload (529 is Anthropic's), and an account that moves (477
        // is HubSpot's): about all messages.
        403 | 477 | 503 | 529 if asks => Meaning::Throttled,
        // Unauthorized, forbidden, a proxy that does not know us: about us, as a rule, not the message. The others
        // are about the moment: too slow, the wrong server, locked, too early.
        401 | 403 | 407 | 408 | 421 | 423 | 425 | 500..=599 => Meaning::Transient,
        409 if may_repeat => Meaning::Transient,
        400..=499 if asks => Meaning::Transient,
        _ => Meaning::Permanent,
    }
}

/// The statuses of HTTP that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListedCode {
    One(u16),
    /// The statuses that begin with this digit.
    Class(u16),
}

impl Listed for ListedCode {
    const RIGHT: &'static str = "write a code such as \"409\", a class such as \"5xx\", \"timeout\", \"connection\" or \"unreadable\"";
    const CAN_BE_UNREADABLE: bool = true;
    const NEVER_ACCEPTED: &'static [Silence] = &[Silence::Connection, Silence::Unreadable];

    fn read(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => Some(Self::Class(u16::from(class - b'0'))),
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => text.parse().ok().map(Self::One),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
