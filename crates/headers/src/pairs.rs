//! Headers in pairs: what is left of a quota, and when all of it is back. Providers differ in their names.

/// A header for what is left, and one for the reset. Both in lower case.
pub type Pair = (&'static str, &'static str);

pub(super) const DISCORD: Pair = ("x-ratelimit-remaining", "x-ratelimit-reset-after");
/// Earlier drafts of the IETF; Zendesk, GitLab, Resend.
pub(super) const IETF: Pair = ("ratelimit-remaining", "ratelimit-reset");
/// GitHub, SendGrid, Telnyx, Smartsheet.
pub const GITHUB: Pair = ("x-ratelimit-remaining", "x-ratelimit-reset");
/// X, Okta.
pub(super) const X: Pair = ("x-rate-limit-remaining", "x-rate-limit-reset");
/// Requests, of OpenAI.
pub const OPENAI_REQUESTS: Pair = (
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
);
/// Tokens, of OpenAI.
pub const OPENAI_TOKENS: Pair = ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens");
pub(super) const OPENAI_PROJECT_TOKENS: Pair = (
    "x-ratelimit-remaining-project-tokens",
    "x-ratelimit-reset-project-tokens",
);
/// Requests, of Anthropic.
pub const ANTHROPIC_REQUESTS: Pair = (
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
);
/// Tokens, of Anthropic.
pub const ANTHROPIC_TOKENS: Pair = (
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
);
/// Tokens that go in, of Anthropic.
pub const ANTHROPIC_INPUT_TOKENS: Pair = (
    "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-input-tokens-reset",
);
/// Tokens that come out, of Anthropic.
pub const ANTHROPIC_OUTPUT_TOKENS: Pair = (
    "anthropic-ratelimit-output-tokens-remaining",
    "anthropic-ratelimit-output-tokens-reset",
);
pub(super) const BREVO: Pair = ("x-sib-ratelimit-remaining", "x-sib-ratelimit-reset");
