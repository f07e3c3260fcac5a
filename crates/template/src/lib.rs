//! Text made from a message: minijinja templates, compiled once.
//!
//! Problem: messages are as others wrote them, and a call, a key or a cost that is made of them must be right or not be
//! made at all.
//!
//! A template can use `body` (the message's body as JSON), `headers`, `properties`, `routing_key`, `exchange`,
//! `message_id`, `route` and `attempt`. Templates about a call that was made also have `answer`, with `status`,
//! `headers` and `body`. Templates of a call have `secret`, with the names of the table `[secrets]` (module `secret`).
//! Templates of a signature can also use the request (module `sent`). Only variables that some template names are
//! looked up, and the body is parsed only if some template names `body`. So a message that is not JSON is no problem if
//! no template uses its fields. `message_id` is the publisher's, otherwise the one that the pipeline made for the
//! message.
//!
//! A missing field is an error and never an empty text: a call with a gap in it is worse than a dead letter.
//! A printed `null` is an error, too. In an `if` a missing field is false, except where a limit would count
//! by it. `| default(...)`, `| tojson` and `is defined` are for fields that may be missing. Nothing is
//! escaped automatically. Write `{{ body.to | tojson }}` in a JSON body and `{{ body.to | urlencode }}` in a
//! URL.
//!
//! Besides minijinja's filters there are `sms_segments`, `pointer` and `host`. Templates are checked when
//! they are compiled: a variable or a filter that does not exist is found then.
//!
//! Numbers: integers from -2^63 to 2^64-1 are exact. A larger one cannot be used (it would be
//! rounded silently) but does no harm if no template prints it. Fractions are doubles.
//!
//! A body in which an object has two members with one name is refused, because the downstream may read the
//! other one (`json`).
//!
//! **Public API**: `Templates` compiles and renders; `LimitTemplates` makes keys and costs of a message; `content`
//! undoes what is around a body; `sms` cuts texts into segments.
//!
//! **May know**: `core`, `headers`, `ports`.

#![warn(missing_docs)]

mod answers;
pub mod content;
mod context;
mod fault;
mod filters;
mod json;
mod limit_inputs;
mod secret;
mod sent;
pub mod sms;
mod templates;

pub use self::answers::{
    AnswerReading, AnswerTemplates, QuotaIn, QuotaReading, RouteActuals, RouteFigures, RouteQuotas,
    RouteThrottles,
};
pub use self::context::Context;
pub use self::fault::{WrongLimitTemplate, WrongTemplate, says_none};
pub use self::limit_inputs::{
    CostOf, LimitCounting, LimitTemplates, MAX_PRIORITY, OwnRules, SegmentCounting,
};
use self::secret::SECRET;
pub use self::secret::{SecretValues, secrets_in};
pub use self::sent::SentRequest;
use self::sent::{REQUEST_NAMES, SIGNATURE_NAMES};
pub use self::templates::{Template, Templates, check};

/// The variables of every template.
pub const NAMES: [&str; 8] = [
    "body",
    "headers",
    "properties",
    "routing_key",
    "exchange",
    "message_id",
    "route",
    "attempt",
];

/// The fields of `answer`.
const ANSWER_FIELDS: [&str; 3] = ["answer.status", "answer.headers", "answer.body"];

/// What a template is about, which decides what it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A message before its call.
    Message,
    /// A message before its call, with the secrets that the call needs.
    Call,
    /// A message and the answer to its call. Where there was no answer, `answer` is undefined.
    Answer,
    /// A message and the request that was made from it, which will be signed.
    Request,
    /// A message, the request that was made from it, and its signature.
    Signature,
}

impl About {
    /// The variables that it may name.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        let more: [&'static [&'static str]; 3] = match self {
            Self::Message => [&[], &[], &[]],
            Self::Call => [&[SECRET], &[], &[]],
            Self::Answer => [&["answer"], &[], &[]],
            Self::Request => [&[SECRET], &REQUEST_NAMES, &[]],
            Self::Signature => [&[SECRET], &REQUEST_NAMES, &SIGNATURE_NAMES],
        };
        NAMES.iter().chain(more.into_iter().flatten()).copied()
    }

    /// The variables that it may name, with the fields of an answer.
    pub fn fields(self) -> impl Iterator<Item = &'static str> + Clone {
        let fields: &[_] = match self {
            Self::Answer => &ANSWER_FIELDS,
            _ => &[],
        };
        self.names().chain(fields.iter().copied())
    }
}

/// Whether a text is a template and not just itself.
#[must_use]
pub fn is_template(text: &str) -> bool {
    first_tag(text).is_some()
}

/// Where the first expression, statement or comment starts.
#[must_use]
pub fn first_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"]
        .iter()
        .filter_map(|tag| text.find(tag))
        .min()
}

#[cfg(test)]
mod tests;
