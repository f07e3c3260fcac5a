//! What a limit and a route will do, in words, for `sluiced check`.

use url::Url;

use super::made::Costing;
use super::made::ZoneText;
use super::text::WindowRate;
use super::types::{
    Auth, Downstream, FixedWindow, HashFunction, JournalLines, Limit, OnUnknown, Quota, ResultOn,
    Results, Route, Settings, Unroutable, WhenUnsendable,
};
use sluiced_core::headroom::Headroom;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::most_plausible;
use sluiced_core::rate::{Cost, Span};
use sluiced_template::{is_template, says_none};

impl Limit {
    /// Sentences about it: what passes, how late a call may be, and what happens if the store that replicas
    /// share loses its state (`None` if each replica is alone).
    #[must_use]
    pub fn in_words(&self, store: Option<&str>) -> Vec<String> {
        let queues = match self.as_once().map(|once| once.shared) {
            None => "",
            Some(true) => "of all queues together ",
            Some(false) => "of each queue ",
        };
        let each = self
            .key()
            .map(|key| format!("for each `{}` {queues}", key.as_str()));
        let over = store.map_or("in this process", |_| "over all replicas");
        let passes = format!("{}, {}{over}", self.passes(), each.unwrap_or_default());
        let passed_over = self.key().filter(|key| says_none(key.as_str()));
        let passed_over = passed_over
            .map(|_| "messages whose key is none are not counted by this limit".to_owned());
        let lost = store.filter(|_| self.as_paced().is_none());
        let lost = lost.map(|store| self.lost_words(store, self.lost_wait()));
        let shared = store.filter(|_| self.shared()).map(|store| {
            format!("it is shared with every other fleet of this {store} whose file says shared = true, too; write the same values there")
        });
        [
            Some(passes),
            shared,
            self.unknown_words(),
            self.reserve_words(),
            Some(self.late_words()),
        ]
        .into_iter()
        .flatten()
        .chain(passed_over)
        .chain(self.actual_words())
        .chain(lost)
        .collect()
    }

    fn passes(&self) -> String {
        match self {
            Self::Paced(limit) => {
                let passes = in_any(limit.rate.0.units().get(), limit.rate.0.window());
                match limit.largest_cost().get() {
                    1 => passes,
                    most => format!(
                        "{passes} ({} of them unused, because a message may cost up to {most}: max_cost)",
                        most - 1
                    ),
                }
            }
            Self::SlidingLog(limit) => {
                in_any(limit.own.rate.0.units().get(), limit.own.rate.0.window())
            }
            Self::Gcra(limit) => {
                let (rate, burst) = (limit.own.rate.0, limit.own.burst);
                let more = if burst > 0 {
                    format!(", and up to {burst} more at once")
                } else {
                    String::new()
                };
                format!(
                    "{} evenly in {}{more}",
                    units(rate.units().get()),
                    Span(rate.window())
                )
            }
            Self::TokenBucket(limit) => {
                let bucket = &limit.own;
                let most = bucket.capacity.get().saturating_add(bucket.borrow);
                let (back, interval) = (bucket.refill, Span(bucket.interval.get()));
                format!(
                    "up to {} at once, and {back} more every {interval}",
                    units(most)
                )
            }
            Self::FixedWindow(limit) => window_words(&limit.own),
            Self::Concurrency(limit) => {
                format!("at most {} in flight at once", units(limit.own.limit.get()))
            }
            Self::Once(limit) => {
                let ttl = Span(limit.ttl.get());
                format!("one accepted message within {ttl}, and later ones are repeats")
            }
        }
    }

    fn actual_words(&self) -> Option<String> {
        let actual = self.actual()?.as_str();
        let estimate = match self.cost() {
            Costing::Fixed(cost) => units(cost.get()),
            Costing::Made(text) => format!("`{}`", text.as_str()),
        };
        let most = match self.max_actual() {
            Some(most) => most.to_string(),
            None => format!("{} times the estimate", most_plausible(Cost::ONE, None)),
        };
        Some(format!(
            "a message takes {estimate} as an estimate before its call; what the call really used (`{actual}`) is corrected after its answer, and what was used beyond the limit makes later messages wait; without such an answer, or with one that says more than {most}, the estimate stands"
        ))
    }

    fn unknown_words(&self) -> Option<String> {
        let once = self.as_once()?;
        let becomes = match once.on_unknown {
            OnUnknown::Resend => "is called, perhaps for the second time",
            OnUnknown::DeadLetter => {
                "is a dead letter with the reason unknown, perhaps without a call"
            }
        };
        Some(format!(
            "a repeat is done without a call; a message whose replica died during its call waits for {} and then {becomes}",
            Span(once.lease.get())
        ))
    }

    fn reserve_words(&self) -> Option<String> {
        let limit = self.as_paced()?;
        let (share, from) = (limit.reserve?, limit.reserve_priority);
        Some(format!(
            "{share} of it only for messages of priority {from} and above, which may take the rest, too"
        ))
    }

    fn late_words(&self) -> String {
        let from = match self {
            Self::Paced(_) => "its slot",
            _ => "it was allowed",
        };
        let Headroom { late, way } = self.headroom();
        if let Some(bounds) = self.follows() {
            return format!(
                "how late a call may leave after {from}, and by how much the time of its way to the downstream may vary, follow what the replicas measure: from {} to {} in all, {} at first",
                Span(bounds.least.all()),
                Span(bounds.most),
                Span(late + way)
            );
        }
        format!(
            "a call may leave up to {} after {from}; the time of its way to the downstream may vary by {}",
            Span(late),
            Span(way)
        )
    }

    fn lost_words(&self, store: &str, wait: LostWait) -> String {
        if self.as_once().is_some() {
            return format!(
                "if {store} loses its state, it is forgotten what was accepted: a repeat is called once more"
            );
        }
        let memory = Span(self.memory());
        match wait {
            LostWait::For(wait) if wait < memory.0 => {
                let closed = if wait.is_zero() {
                    "calls go on at once".to_owned()
                } else {
                    format!("nothing passes for {}", Span(wait))
                };
                format!(
                    "if {store} loses its state, {closed}; what was used up to {memory} before is forgotten then, and up to twice the limit may pass"
                )
            }
            LostWait::For(_) | LostWait::Forever => format!(
                "if {store} loses its state, nothing passes until nothing that was used before can count: up to {memory}"
            ),
        }
    }
}

impl Settings {
    /// How a route shares its queue with other routes, if there are any.
    #[must_use]
    pub fn sharing_words(&self, name: &str, route: &Route) -> Option<String> {
        if let Some(main) = &route.standby_for {
            let late = self.routes.get(main).and_then(|main| main.max_delay);
            let late = late.map_or(String::new(), |most| {
                format!(
                    ", and for some while that route is late by more than {}",
                    Span(most.get())
                )
            });
            return Some(format!(
                "consumes nothing itself: it calls for messages that routes.{main} cannot send{late}"
            ));
        }
        let others = || {
            self.of_queue(&route.queue)
                .filter(|(other, _)| *other != name)
        };
        let named = |routes: Vec<&str>| {
            let names = routes.iter().map(|name| format!("routes.{name}"));
            names.collect::<Vec<_>>().join(" and ")
        };
        let consuming = others().filter(|(_, other)| other.standby_for.is_none());
        let consuming: Vec<_> = consuming.map(|(other, _)| other).collect();
        let standbys = others().filter(|(_, other)| other.standby_for.as_deref() == Some(name));
        let standbys: Vec<_> = standbys.map(|(other, _)| other).collect();
        let together = (!consuming.is_empty()).then(|| {
            let others = named(consuming);
            format!(
                "consumes `{}` together with {others}; each takes over what the other cannot send",
                route.queue
            )
        });
        let standing_by = (!standbys.is_empty())
            .then(|| format!("what it cannot send moves to {}", named(standbys)));
        let both: Vec<_> = together.into_iter().chain(standing_by).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }
}

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
        let old = self.max_age.map(|age| {
            let what = match self.on_expired {
                WhenUnsendable::Drop => "dropped",
                WhenUnsendable::DeadLetter => "a dead letter",
            };
            format!(
                "a message older than {} is not sent: it is {what}",
                Span(age.get())
            )
        });
        let old = old.unwrap_or_else(|| "a message is sent however old it is".to_owned());
        let quotas = self.quotas().iter();
        let quotas = quotas.map(|(limit, quota)| quota_words(limit, quota));
        [fails, old]
            .into_iter()
            .chain(self.hours_words())
            .chain(self.hosts_words())
            .chain(self.credential_words())
            .chain(self.results_words())
            .chain(self.deliveries_words())
            .chain(self.journal_words())
            .chain(quotas)
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
            let ends = ends.join(" or ");
            let keyless = without_key(results);
            format!(
                "once a message is {ends}, a result is published to {to}; a result that no queue takes {unroutable}{keyless}"
            )
        })
    }

    fn deliveries_words(&self) -> Option<String> {
        let results = self.results.as_ref()?;
        let kinds = [
            (ResultOn::Receipt, "a receipt"),
            (ResultOn::Inbound, "a message from a phone"),
        ];
        let kinds = kinds.iter().filter(|(kind, _)| results.on.contains(kind));
        let kinds: Vec<_> = kinds.map(|(_, words)| *words).collect();
        let to = place(results);
        let unroutable = match results.unroutable() {
            Unroutable::Retry => "stays with the message centre, which delivers it again",
            Unroutable::Drop => "is dropped",
        };
        (!kinds.is_empty()).then(|| {
            let (kinds, keyless) = (kinds.join(" or "), without_key(results));
            format!("{kinds} is published to {to}; one that no queue takes {unroutable}{keyless}")
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
        let hours = self
            .open
            .as_ref()
            .map(|ranges| list(ranges.iter().map(ToString::to_string).collect()));
        let days = self
            .days
            .as_ref()
            .map(|days| list(days.iter().map(ToString::to_string).collect()));
        let zone = match &self.timezone {
            Some(ZoneText::Fixed(zone)) => zone.name(),
            Some(ZoneText::Made(_)) => "each message's own time zone",
            None => "UTC",
        };
        let wait = match &self.timezone {
            Some(ZoneText::Made(_)) => "a message waits in a wait queue, and others pass",
            _ => "messages wait in their queue",
        };
        let hours = hours.unwrap_or_else(|| "all day".to_owned());
        let days = days.map_or_else(String::new, |days| format!(" on {days}"));
        Some(format!(
            "it sends {hours}{days} by the clock of {zone}; outside of that {wait}"
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

fn units(number: u32) -> String {
    format!("{number} unit{}", if number == 1 { "" } else { "s" })
}

fn in_any(number: u32, window: std::time::Duration) -> String {
    format!("at most {} in any {}", units(number), Span(window))
}

fn window_words(limit: &FixedWindow) -> String {
    let most = units(limit.rate.units().get());
    let span = Span(limit.rate.longest());
    let window = match (limit.rate, limit.aligned) {
        (WindowRate::Calendar { each, .. }, _) => format!("{each} of {}", limit.zone().name()),
        (WindowRate::Every(_), false) => format!("{span} from a first call on"),
        (WindowRate::Every(_), true) => format!("{span} of the clock"),
    };
    format!("at most {most} in each {window}, and up to twice as many around the end of one")
}
