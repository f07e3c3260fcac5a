//! Messages: SMS, chats, mails, pushes.

use super::ProviderAnswer;

pub(super) const ROWS: &[ProviderAnswer] = &[
    // docs.slack.dev/apis/web-api/rate-limits; slackapi/python-slack-sdk, slack_sdk/http_retry/builtin_handlers.py
    // (August 2026): whole seconds. About a method in a workspace; `chat.postMessage`: about a channel.
    ("Slack", 429, &[("retry-after", "4")]),
    // discord/discord-api-docs, developers/topics/rate-limits.mdx (August 2026). `Retry-After` is rounded up. The three
    // scopes: a bot on a route, a resource that others share (the bot has units left), a bot on all routes.
    (
        "Discord, user",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1795708582.529"),
            ("x-ratelimit-reset-after", "3.529"),
            ("x-ratelimit-bucket", "abcd1234"),
            ("x-ratelimit-scope", "user"),
        ],
    ),
    (
        "Discord, shared",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "9"),
            ("x-ratelimit-reset", "1795708643.57"),
            ("x-ratelimit-reset-after", "64.57"),
            ("x-ratelimit-scope", "shared"),
        ],
    ),
    (
        "Discord, global",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-global", "true"),
            ("x-ratelimit-scope", "global"),
        ],
    ),
    // tdlib/telegram-bot-api, telegram-bot-api/HttpConnection.cpp and Query.cpp (May 2026): the header stands beside
    // `parameters.retry_after` of the body.
    ("Telegram", 429, &[("retry-after", "4")]),
    // twilio.com/docs/api/errors/59004: "Read the Retry-After response header and wait the indicated number of
    // seconds". That is the API for webhooks; 20429, that of messages, names no such header.
    ("Twilio, webhooks", 429, &[("retry-after", "4")]),
    // developer.8x8.com/connect/docs/api-rate-limiting.
    ("8x8", 429, &[("retry-after", "4")]),
    // developers.telnyx.com, API fundamentals, rate limiting: seconds.
    (
        "Telnyx",
        429,
        &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4")],
    ),
    // whatsapp.turn.io/docs/api/rate_limiting: about a number and a type of message.
    (
        "Turn.io",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-bucket", "text"),
            ("x-ratelimit-remaining", "21"),
            ("x-ratelimit-reset", "1795708583"),
        ],
    ),
    // twilio.com/docs/sendgrid, v3 API, rate limits: seconds since 1970. About an endpoint.
    (
        "SendGrid",
        429,
        &[
            ("x-ratelimit-limit", "150"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1795708583"),
        ],
    ),
    // resend.com/docs/api-reference/rate-limit; the recorded answers in resend/resend-node (August 2026).
    (
        "Resend",
        429,
        &[
            ("ratelimit-limit", "2"),
            ("ratelimit-policy", "2;w=1"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "4"),
            ("retry-after", "4"),
        ],
    ),
    // developers.brevo.com/docs/limit-headers: "expressed in the granularity unit (typically seconds)".
    (
        "Brevo",
        429,
        &[
            ("x-sib-ratelimit-limit", "1000"),
            ("x-sib-ratelimit-remaining", "0"),
            ("x-sib-ratelimit-reset", "4"),
        ],
    ),
    // developers-classic.mailerlite.com/docs/api-rate-limits: seconds beside "a date and time value", whose form is not
    // shown there.
    (
        "MailerLite",
        429,
        &[
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "2026-11-26 15:57:00"),
            ("x-ratelimit-retry-after", "4"),
        ],
    ),
    // braze.com/docs/api/messaging_api/rate_limits: seconds beside seconds since 1970. About a workspace.
    (
        "Braze",
        429,
        &[
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1795708620"),
            ("x-ratelimit-retry-after", "4"),
        ],
    ),
    // developer.salesforce.com, Marketing Cloud, rate limiting errors, code 50100.
    ("Marketing Cloud", 429, &[("retry-after", "4")]),
    // developer.lemlist.com, rate limits: with every answer, and a date of JavaScript. About an API key.
    (
        "lemlist",
        429,
        &[
            ("retry-after", "4"),
            ("x-ratelimit-limit", "20"),
            ("x-ratelimit-remaining", "0"),
            (
                "x-ratelimit-reset",
                "Thu Nov 26 2026 16:56:23 GMT+0100 (Central European Standard Time)",
            ),
        ],
    ),
    // firebase.google.com/docs/cloud-messaging/scale-fcm: 429 "retry after waiting for the duration set in the
    // retry-after header", else 60 s. About the project, or about a device: the body says which.
    ("FCM", 429, &[("retry-after", "4")]),
];
