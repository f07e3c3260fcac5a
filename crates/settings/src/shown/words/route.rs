//! What a route will do, in words.

use url::Url;

use super::units;
use crate::fixed_or_template::ZoneText;
use crate::types::{
    Auth, Downstream, HashFunction, JournalLines, Quota, ResultOn, Results, Route, Unroutable,
    WhenUnsendable,
};
use sluiced_core::rate::Span;
use sluiced_template::is_template;

impl Route {
    /// Sentences about it: what becomes of a message whose calls fail, of an old message, and when the route
    /// sends.
    #[must_use]
    pub fn in_words(&self) -> Vec<String> {
        let fails = match self.max_attempts {
            1 => "a message whose call fails is a dead letter at once".to_owned(),
            most => format!(
                "a message is a dead letter once {most} calls have failed; the first repeat comes within {}, later ones within up to {}",
                Span(self.retry.base.get()),
                Span(self.retry.max.get())
            ),
        };
        let too_old = self.max_age.map(|age| {
            let what = match self.on_expired {
                WhenUnsendable::Drop => "dropped",
                WhenUnsendable::DeadLetter => "a dead letter",
            };
            format!(
                "a message older than {} is not sent: it is {what}",
                Span(age.get())
            )
        });
        let old = too_old.unwrap_or_else(|| "a message is sent however old it is".to_owned());
        let quotas = self.quotas();
        let quota_words = quotas
            .iter()
            .map(|(limit, quota)| quota_words(limit, quota));
        [fails, old]
            .into_iter()
            .chain(self.hours_words())
            .chain(self.hosts_words())
            .chain(self.credential_words())
            .chain(self.results_words())
            .chain(self.deliveries_words())
            .chain(self.journal_words())
            .chain(quota_words)
            .chain(self.throttles_words())
            .collect()
    }

    fn throttles_words(&self) -> Option<String> {
        let named = self.throttles()?;
        Some(match is_template(named) {
            true => format!(
                "a throttled call closes the key of the limit that `{named}` names, for every replica; where that is empty, the other calls show what it is about"
            ),
            false => {
                format!("a throttled call closes its key of limits.{named} for every replica")
            }
        })
    }

    fn results_words(&self) -> Option<String> {
        let results = self.results.as_ref()?;
        let end = |end: &ResultOn| match end {
            ResultOn::Accepted => Some("accepted"),
            ResultOn::Dead => Some("dead"),
            ResultOn::Receipt | ResultOn::Inbound => None,
        };
        let ends: Vec<_> = results.on.iter().filter_map(end).collect();
        let to = place(results);
        let unroutable = match results.unroutable() {
            Unroutable::Retry => "is tried until one does, and its message is not settled before",
            Unroutable::Drop => "is dropped",
        };
        (!ends.is_empty()).then(|| {
            format!(
                "once a message is {}, a result is published to {to}; a result that no queue takes {unroutable}{}",
                ends.join(" or "),
                without_key(results)
            )
        })
    }

    fn deliveries_words(&self) -> Option<String> {
        let results = self.results.as_ref()?;
        let kinds_and_words = [
            (ResultOn::Receipt, "a receipt"),
            (ResultOn::Inbound, "a message from a phone"),
        ];
        let published = kinds_and_words
            .iter()
            .filter(|(kind, _)| results.on.contains(kind));
        let kinds: Vec<_> = published.map(|(_, words)| *words).collect();
        let to = place(results);
        let unroutable = match results.unroutable() {
            Unroutable::Retry => "stays with the message centre, which delivers it again",
            Unroutable::Drop => "is dropped",
        };
        (!kinds.is_empty()).then(|| {
            format!(
                "{} is published to {to}; one that no queue takes {unroutable}{}",
                kinds.join(" or "),
                without_key(results)
            )
        })
    }

    fn journal_words(&self) -> Option<String> {
        let lines = match self.journal {
            JournalLines::None => return None,
            JournalLines::After => "each call and each verdict is a line",
            JournalLines::Before => {
                "each call, before and after it is made, and each verdict is a line"
            }
        };
        Some(format!(
            "{lines} of the log, with the target sluiced::journal"
        ))
    }

    fn hosts_words(&self) -> Option<String> {
        let Downstream::Http(http) = &self.downstream else {
            return None;
        };
        http.hosts_differ().then(|| {
            format!(
                "the host of a call is from its message, one of {}; a connection is opened when a message for a host comes, and the way to it is not measured, so a far host may lose its first slots and needs a headroom that is written; a host that is away stops no other",
                http.allowed_hosts.join(", ")
            )
        })
    }

    fn credential_words(&self) -> Option<String> {
        let Downstream::Http(http) = &self.downstream else {
            return None;
        };
        let hmac = match http.auth.as_ref()? {
            Auth::Basic(_) | Auth::Bearer(_) => return None,
            Auth::Hmac(hmac) => hmac,
            Auth::Aws(aws) => {
                return Some(format!(
                    "each call is signed when it is sent, by AWS Signature Version 4 for {} in {}, with credentials {}",
                    aws.service,
                    aws.region,
                    aws.credentials.words()
                ));
            }
            Auth::Jwt(jwt) => {
                let url = jwt
                    .token_url
                    .as_deref()
                    .and_then(|url| Url::parse(url).ok());
                let server = url.as_ref().and_then(Url::host_str);
                return Some(match server {
                    Some(server) => format!(
                        "each call has a token, which {server} gives for claims that are signed with a private key; without one nothing is sent"
                    ),
                    None => "each call has a token that is signed with a private key, a new one at least once in its lifetime".to_owned(),
                });
            }
            Auth::Oauth2(client) => {
                let url = Url::parse(&client.token_url).ok();
                let server = url.as_ref().and_then(Url::host_str).unwrap_or("its server");
                return Some(format!(
                    "each call has a token of OAuth 2.0, which {server} gives to the client `{}`; without one nothing is sent",
                    client.client_id
                ));
            }
        };
        let function = match hmac.algorithm {
            HashFunction::Sha1 => "SHA-1",
            HashFunction::Sha256 => "SHA-256",
            HashFunction::Sha512 => "SHA-512",
        };
        let names = hmac.headers.keys().cloned().collect::<Vec<_>>().join(", ");
        Some(format!(
            "each call is signed when it is sent, by HMAC with {function}: in {names}"
        ))
    }

    fn hours_words(&self) -> Option<String> {
        if self.open.is_none() && self.days.is_none() {
            return None;
        }
        let list = |texts: Vec<String>| texts.join(", ");
        let hours = self.open.as_ref().map_or_else(
            || "all day".to_owned(),
            |ranges| list(ranges.iter().map(ToString::to_string).collect()),
        );
        let on_days = self.days.as_ref().map_or_else(String::new, |days| {
            format!(
                " on {}",
                list(days.iter().map(ToString::to_string).collect())
            )
        });
        let zone = match &self.timezone {
            Some(ZoneText::Fixed(zone)) => zone.name(),
            Some(ZoneText::Template(_)) => "each message's own time zone",
            None => "UTC",
        };
        let wait = match &self.timezone {
            Some(ZoneText::Template(_)) => "a message waits in a wait queue, and others pass",
            _ => "messages wait in their queue",
        };
        Some(format!(
            "it sends {hours}{on_days} by the clock of {zone}; outside of that {wait}"
        ))
    }
}

/// Where results go.
fn place(results: &Results) -> String {
    let key = results.routing_key.as_str();
    match results.exchange.as_str() {
        "" => format!("the queue `{key}`"),
        exchange => format!("the exchange `{exchange}` with the key `{key}`"),
    }
}

/// What happens if no routing key can be made from a message.
fn without_key(results: &Results) -> &'static str {
    match is_template(results.routing_key.as_str()) {
        true => "; one without a valid routing key is dropped",
        false => "",
    }
}

fn quota_words(limit: &str, quota: &Quota) -> String {
    let spare = match quota.spare {
        0 => String::new(),
        spare => format!("; {} of it stay for others", units(spare)),
    };
    format!(
        "where an answer says what is left of the downstream's own count, `{limit}` lets no more than that pass until its reset{spare}"
    )
}
