//! The quota that a downstream reports: where it is in its answers.

use serde::Deserialize;

use crate::forms::templates::ANSWER_TEMPLATE;
use crate::schema::Shape::Whole;
use crate::schema::{table, words};
use crate::text::TemplateText;
use sluiced_core::rate::MAX_UNITS;
use sluiced_headers::pairs;
use sluiced_headers::quota::Format;

table! {
    /// Either `format`, or `remaining` and perhaps `reset`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Quota {
        /// Headers that are in use. ietf: RateLimit and RateLimit-Policy, or RateLimit-Remaining and RateLimit-Reset.
        /// github: X-RateLimit-Remaining and X-RateLimit-Reset. openai_requests, openai_tokens:
        /// x-ratelimit-remaining-requests and so on. anthropic_requests, anthropic_tokens, anthropic_input_tokens,
        /// anthropic_output_tokens: anthropic-ratelimit-requests-remaining and so on.
        format: Option<QuotaFormat> = QuotaFormat::SHAPE, Optional "ietf";
        /// Instead of format: a template over the answer (answer.status, answer.headers, answer.body) that returns
        /// the units that are left.
        remaining: Option<TemplateText> = ANSWER_TEMPLATE, Apart "{{ answer.headers['x-credits-left'] }}";
        /// With remaining: when all of it is back. Seconds, a length such as 6m0s, or a point in time (seconds or
        /// milliseconds since 1970, RFC 3339, a date of HTTP). Absent: throttle_wait from now.
        reset: Option<TemplateText> = ANSWER_TEMPLATE, Apart "{{ answer.headers['x-credits-reset'] }}";
        /// Units that stay for others: for programs beside this fleet that use the same account, as many as these may
        /// use between two answers to us.
        spare: u32 = Whole(0..=MAX_UNITS as i64), Default 0;
    }
}

words! {
    /// Headers that are in use.
    pub enum QuotaFormat {
        Ietf = "ietf",
        Github = "github",
        OpenaiRequests = "openai_requests",
        OpenaiTokens = "openai_tokens",
        AnthropicRequests = "anthropic_requests",
        AnthropicTokens = "anthropic_tokens",
        AnthropicInputTokens = "anthropic_input_tokens",
        AnthropicOutputTokens = "anthropic_output_tokens",
    }
}

impl QuotaFormat {
    /// The headers, as answers have them: in lower case.
    #[must_use]
    pub const fn headers(self) -> Format {
        Format::Pair(match self {
            Self::Ietf => return Format::Ietf,
            Self::Github => pairs::GITHUB,
            Self::OpenaiRequests => pairs::OPENAI_REQUESTS,
            Self::OpenaiTokens => pairs::OPENAI_TOKENS,
            Self::AnthropicRequests => pairs::ANTHROPIC_REQUESTS,
            Self::AnthropicTokens => pairs::ANTHROPIC_TOKENS,
            Self::AnthropicInputTokens => pairs::ANTHROPIC_INPUT_TOKENS,
            Self::AnthropicOutputTokens => pairs::ANTHROPIC_OUTPUT_TOKENS,
        })
    }
}
