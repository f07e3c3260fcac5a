//! Models, clouds, and the services of a company.

use super::{NOW, ProviderAnswer};

pub(super) const ROWS: &[ProviderAnswer] = &[
    // github/docs, content/rest/using-the-rest-api/rate-limits-for-the-rest-api.md: a secondary limit, and the primary
    // one. "Continuing to make requests while you are rate limited may result in the banning of your integration."
    (
        "GitHub, secondary",
        403,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-remaining", "4711"),
            ("x-ratelimit-reset", "1795712000"),
        ],
    ),
    (
        "GitHub, primary",
        403,
        &[
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-used", "5000"),
            ("x-ratelimit-reset", "1795708583"),
            ("x-ratelimit-resource", "core"),
        ],
    ),
    // developers.openai.com/api/docs/guides/rate-limits: `Retry-After` "when present"; the resets are "to its initial
    // state". The tokens of a project have headers of their own "when a project-scoped token limit applies".
    (
        "OpenAI",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "6m0s"),
        ],
    ),
    (
        "OpenAI, requests",
        429,
        &[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-requests", "4s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ],
    ),
    (
        "OpenAI, tokens",
        429,
        &[
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-requests", "6ms"),
            ("x-ratelimit-reset-tokens", "0m4s"),
        ],
    ),
    (
        "OpenAI, tokens of a project",
        429,
        &[
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
            ("x-ratelimit-limit-project-tokens", "60000"),
            ("x-ratelimit-remaining-project-tokens", "0"),
            ("x-ratelimit-reset-project-tokens", "4s"),
        ],
    ),
    // openai/openai-python, src/openai/_base_client.py (August 2026): milliseconds first, then `Retry-After`.
    // openai/openai-dotnet, issue 838: Azure's resets are whole seconds, and -1 where there is no such limit.
    (
        "Azure OpenAI",
        429,
        &[
            ("retry-after", "5"),
            ("retry-after-ms", "4000"),
            ("x-ratelimit-reset-requests", "10"),
        ],
    ),
    (
        "Azure OpenAI, seconds",
        429,
        &[
            ("x-ratelimit-remaining-requests", "-1"),
            ("x-ratelimit-reset-requests", "0"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "4"),
        ],
    ),
    // Azure/azure-sdk-for-js, sdk/core/core-rest-pipeline/src/retryStrategies/throttlingRetryStrategy.ts: 429 and 503.
    // learn.microsoft.com, Cosmos DB: "RequestRateTooLarge".
    ("Azure", 429, &[("x-ms-retry-after-ms", "4000")]),
    ("Azure, busy", 503, &[("x-ms-retry-after-ms", "4000")]),
    // platform.claude.com/docs/en/api/rate-limits (October 2026): seconds, "Earlier retries will fail"; the resets say
    // when a limit "will be fully replenished", in RFC 3339.
    (
        "Anthropic",
        429,
        &[
            ("retry-after", "4"),
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2026-11-26T15:57:19Z"),
        ],
    ),
    (
        "Anthropic, no Retry-After",
        429,
        &[
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-26T15:57:19Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            (
                "anthropic-ratelimit-input-tokens-reset",
                "2026-11-26T15:56:23Z",
            ),
        ],
    ),
    // boto/botocore, botocore/retries/standard.py (August 2026), and the SDKs for .NET and Rust: milliseconds.
    ("AWS", 503, &[("x-amz-retry-after", "4000")]),
    // boto/botocore, botocore/data/lambda/2015-03-31/service-2.json, TooManyRequestsException: seconds.
    ("AWS Lambda", 429, &[("retry-after", "4")]),
    // shopify.dev, REST Admin API, rate limits; Shopify/shopify-api-ruby, test/clients (August 2026): "2.0". About an
    // app in a shop.
    (
        "Shopify",
        429,
        &[
            ("retry-after", "4.0"),
            ("x-shopify-shop-api-call-limit", "40/40"),
        ],
    ),
    // developers.hubspot.com/docs/api-reference/error-handling: the account moves between data centres. The only
    // status there with a `Retry-After`, in seconds, "typically up to 24 hours".
    ("HubSpot, moving", 477, &[("retry-after", "4")]),
    // developer.zendesk.com, best practices for avoiding rate limiting; zendesk/zendesk_api_client_rb,
    // lib/zendesk_api/middleware/request/retry.rb (February 2026): 429 and 503.
    (
        "Zendesk",
        429,
        &[
            ("retry-after", "4"),
            ("x-rate-limit", "700"),
            ("x-rate-limit-remaining", "0"),
        ],
    ),
    (
        "Zendesk, lists",
        429,
        &[
            ("x-rate-limit", "700"),
            ("ratelimit-limit", "700"),
            ("x-rate-limit-remaining", "0"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "4"),
            (
                "zendesk-ratelimit-tickets-index",
                "total=100; remaining=99; resets=41",
            ),
        ],
    ),
    // developer.atlassian.com, Jira Cloud, rate limiting (October 2026): three limits; this one is about an issue.
    // jira.atlassian.com, JRACLOUD-69262: the reset is "in the format: yyyy-MM-ddTHH:mmZ", so it may be past.
    (
        "Jira",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-limit", "350"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "2026-11-26T15:56Z"),
            ("ratelimit-reason", "jira-per-issue-on-write"),
        ],
    ),
    ("Jira, busy", 503, &[("retry-after", "4")]),
    // docs.gitlab.com, gitlabhq/gitlabhq, doc/administration/settings/user_and_ip_rate_limits.md.
    (
        "GitLab",
        429,
        &[
            ("ratelimit-limit", "60"),
            ("ratelimit-name", "throttle_authenticated_api"),
            ("ratelimit-observed", "67"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "1795708583"),
            ("ratelimit-resettime", NOW),
            ("retry-after", "4"),
        ],
    ),
    // okta/okta-developer-docs, docs/reference/rl2-monitor (August 2026): too many calls in a window, and too many at a
    // time: "The first two header values are always 0", and the reset is "only a suggested value".
    (
        "Okta",
        429,
        &[
            ("x-rate-limit-limit", "60"),
            ("x-rate-limit-remaining", "0"),
            ("x-rate-limit-reset", "1795708583"),
        ],
    ),
    (
        "Okta, at a time",
        429,
        &[
            ("x-rate-limit-limit", "0"),
            ("x-rate-limit-remaining", "0"),
            ("x-rate-limit-reset", "1795708583"),
        ],
    ),
    // docs.x.com/fundamentals/rate-limits.
    (
        "X",
        429,
        &[
            ("x-rate-limit-limit", "900"),
            ("x-rate-limit-remaining", "0"),
            ("x-rate-limit-reset", "1795708583"),
        ],
    ),
    // docker/docs, content/reference/api/hub/latest.yaml: "a unix timestamp of when you can call the API again".
    ("Docker Hub", 429, &[("x-retry-after", "1795708583")]),
    // developers.smartsheet.com, throttling and rate limiting.
    (
        "Smartsheet",
        429,
        &[
            ("x-ratelimit-limit", "120"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1795708583"),
        ],
    ),
    // docs.honeycomb.io/api/rate-limit: the third draft of the IETF.
    (
        "Honeycomb",
        429,
        &[
            ("ratelimit", "limit=100, remaining=0, reset=4"),
            ("ratelimit-policy", "100;w=60"),
        ],
    ),
    // ietf-wg-httpapi/ratelimit-headers, draft-ietf-httpapi-ratelimit-headers (September 2025).
    (
        "IETF",
        429,
        &[
            ("ratelimit", "\"default\";r=0;t=4"),
            ("ratelimit-policy", "\"default\";q=100;w=60"),
        ],
    ),
    (
        "IETF, two",
        503,
        &[("ratelimit", "\"second\";r=0;t=4, \"day\";r=9;t=3600")],
    ),
    ("IETF, quoted", 429, &[("ratelimit", "\"a,b\";r=0;t=4")]),
    // The same, "Missing Remaining information".
    (
        "IETF, no remaining",
        429,
        &[
            ("ratelimit-policy", "quota;q=100;w=4"),
            ("ratelimit", "quota;t=4"),
        ],
    ),
];
