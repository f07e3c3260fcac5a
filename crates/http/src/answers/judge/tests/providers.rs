//! What providers answer when a call came too early, as their own pages, client libraries or servers have it.
//!
//! The numbers are changed, so that each row means four seconds. Each row names its source. The pages were read in
//! November 2026; a date in parentheses is that of the page or of the commit.

use super::*;
use sluiced_headers::date;

mod messages;
mod services;

/// The date of every answer here.
const NOW: &str = "Thu, 26 Nov 2026 15:56:19 GMT";

type HeaderPairs = &'static [(&'static str, &'static str)];

/// A provider, its status, and the headers that matter.
type ProviderAnswer = (&'static str, u16, HeaderPairs);

fn judged(status: u16, headers: HeaderPairs, wait: Option<&str>) -> Outcome {
    let get = |name: &str| {
        let found = headers.iter().find(|(header, _)| *header == name);
        found.map(|(_, value)| *value)
    };
    let reply = HttpReply {
        headers: &get,
        found: TemplateFindings {
            outcome: TemplateOutcome::Nothing,
            wait,
        },
        ..plain(status)
    };
    let judged = default_judge().judge_reply(reply, date(NOW).expect("it is a date"));
    judged.expect("nothing is missing").outcome
}

#[test]
fn what_providers_send() {
    let wait = Duration::from_secs(4);
    for (provider, status, headers) in messages::ROWS.iter().chain(services::ROWS) {
        let outcome = judged(*status, headers, None);
        assert_eq!(outcome, Outcome::Throttled { wait }, "{provider}");
    }
}

/// Such an answer is throttled for `throttle_wait`.
#[test]
fn providers_that_do_not_say_when() {
    let rows: &[(&str, HeaderPairs)] = &[
        // twilio.com/docs/api/errors/20429 (March 2026): "safe to retry after backing off". About calls at a time.
        ("Twilio", &[("twilio-concurrent-requests", "101")]),
        // docs.stripe.com/rate-limits; stripe/stripe-python, CHANGELOG.md, 15.3.1 (July 2026): "Remove unused
        // Retry-After header support".
        ("Stripe", &[("stripe-rate-limited-reason", "global-rate")]),
        // developers.hubspot.com, usage guidelines. A window of ten seconds that rolls: HubSpot/hubspot-api-nodejs,
        // src/services/decorators/RetryDecorator.ts (March 2026) waits for ten.
        (
            "HubSpot",
            &[
                ("x-hubspot-ratelimit-max", "100"),
                ("x-hubspot-ratelimit-remaining", "0"),
                ("x-hubspot-ratelimit-interval-milliseconds", "10000"),
            ],
        ),
        // docs.bird.com/api/channels-api/rate-limit: "the request has not been processed and can be retried at a later
        // time". About a workspace.
        ("Bird", &[]),
        // infobip.com/docs, rate limits and throttling: the body has `E429`.
        ("Infobip", &[]),
        // developers.sinch.com/docs/errors/registry/too-many-requests: "follow the service's rate-limit guidance".
        ("Sinch", &[]),
        // A reset beside units that are left.
        (
            "GitHub, secondary",
            &[
                ("x-ratelimit-remaining", "4711"),
                ("x-ratelimit-reset", "1795712000"),
            ],
        ),
        // confluence.atlassian.com, Data Center: "If you still have tokens left, it shows 0".
        ("Confluence", &[("retry-after", "0")]),
        // openai/openai-dotnet, issue 838: no such limit.
        (
            "Azure OpenAI",
            &[
                ("x-ratelimit-limit-tokens", "-1"),
                ("x-ratelimit-remaining-tokens", "-1"),
                ("x-ratelimit-reset-tokens", "0"),
            ],
        ),
    ];
    for (provider, headers) in rows {
        assert_eq!(judged(429, headers, None), THROTTLED, "{provider}");
    }
}

/// What `wait` finds in bodies: Telegram's `parameters.retry_after`, Discord's `retry_after` (a fraction), Google's
/// `RetryInfo.retryDelay` (googleapis/googleapis, google/rpc/error_details.proto), Marketing Cloud's `retryAfter`, and
/// HubSpot's interval with its unit behind it.
#[test]
fn what_bodies_say() {
    for (text, millis) in [
        ("7", 7000),
        ("64.57", 64_570),
        ("7s", 7000),
        ("5", 5000),
        ("10000ms", 10_000),
    ] {
        let wait = Duration::from_millis(millis);
        let outcome = judged(429, &[], Some(text));
        assert_eq!(outcome, Outcome::Throttled { wait }, "{text}");
    }
}
