//! First configurations: by the kind of what is called, and by the provider. Each comes with tests of it (`sluiced
//! test`).
//!
//! They are files of `config/`, and compiled in. Those of providers have the numbers of their documentation, each with
//! its source; doubles that answer as it says prove them (`tests/it/catalogue.rs`).

use clap::ValueEnum;

/// A configuration, and its tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts {
    pub(super) configuration: &'static str,
    pub(super) tests: &'static str,
}

macro_rules! start {
    ($path:literal) => {
        Texts {
            configuration: include_str!(concat!("../../../config/", $path, ".toml")),
            tests: include_str!(concat!("../../../config/", $path, ".tests.toml")),
        }
    };
}

/// A kind of provider.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SMS: a rate for the account and one for each sender, in segments
    Sms,
    /// SMS over SMPP: a rate for the account, in segments
    Smpp,
    /// E-mail: a rate, a quota a day, patience with failures
    Email,
    /// Webhooks: servers that state no limit and may be away for hours
    Webhook,
    /// Language models: requests a minute and tokens a minute, by what each call really used
    Llm,
    /// No rate for the account, only one for each key
    Unpaced,
}

impl Kind {
    pub(super) const fn texts(self) -> Texts {
        match self {
            Self::Sms => start!("init/sms"),
            Self::Smpp => start!("init/smpp"),
            Self::Email => start!("init/email"),
            Self::Webhook => start!("init/webhook"),
            Self::Llm => start!("init/llm"),
            Self::Unpaced => start!("init/unpaced"),
        }
    }
}

/// A provider of the catalogue (`docs/providers.md`).
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Anthropic: messages
    Anthropic,
    /// Apple Push Notification service
    Apns,
    /// Amazon SNS: SMS
    AwsSns,
    /// Bird: channels
    Bird,
    /// Discord: messages of a bot
    Discord,
    /// Firebase Cloud Messaging
    Fcm,
    /// GitHub: comments on issues
    Github,
    /// Infobip: SMS
    Infobip,
    /// OpenAI: chat completions
    Openai,
    /// Postmark: mail
    Postmark,
    /// SendGrid: mail
    Sendgrid,
    /// Shopify: GraphQL Admin API of a shop
    Shopify,
    /// Sinch: SMS
    Sinch,
    /// Slack: messages
    Slack,
    /// A message centre over SMPP 3.4
    SmppGeneric,
    /// Telegram: messages of a bot
    Telegram,
    /// Twilio: SMS
    Twilio,
    /// Vonage: SMS
    Vonage,
}

impl Provider {
    pub(super) const fn texts(self) -> Texts {
        match self {
            Self::Anthropic => start!("providers/anthropic"),
            Self::Apns => start!("providers/apns"),
            Self::AwsSns => start!("providers/aws-sns"),
            Self::Bird => start!("providers/bird"),
            Self::Discord => start!("providers/discord"),
            Self::Fcm => start!("providers/fcm"),
            Self::Github => start!("providers/github"),
            Self::Infobip => start!("providers/infobip"),
            Self::Openai => start!("providers/openai"),
            Self::Postmark => start!("providers/postmark"),
            Self::Sendgrid => start!("providers/sendgrid"),
            Self::Shopify => start!("providers/shopify"),
            Self::Sinch => start!("providers/sinch"),
            Self::Slack => start!("providers/slack"),
            Self::SmppGeneric => start!("providers/smpp-generic"),
            Self::Telegram => start!("providers/telegram"),
            Self::Twilio => start!("providers/twilio"),
            Self::Vonage => start!("providers/vonage"),
        }
    }
}
