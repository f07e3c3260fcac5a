//! What the answers of a downstream say: of its own count, for the limits of a route, and what a call really used.
//!
//! Its count is said either in headers that are in use (`headers::quota`), or where templates find it. What cannot
//! be read says nothing.

use std::fmt;
use std::num::NonZeroU32;
use std::time::SystemTime;

use super::{About, Template, Templates, WrongLabel};
use sluiced_core::judge::{Found, Meaning, Remaining};
use sluiced_headers::quota::{self, Format};
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

/// Where answers say what is left for a limit.
#[derive(Clone, Copy, Debug)]
pub enum QuotaIn<T> {
    Headers(Format),
    Templates { remaining: T, reset: Option<T> },
}

/// Reads from the answers to a route's calls what limits need. Each part makes a context of its own: a body that the
/// templates of one cannot read says nothing to that one alone.
#[derive(Debug)]
pub struct RouteFigures {
    /// What is left of the provider's quotas.
    pub quotas: RouteQuotas,
    /// What a call used.
    pub actuals: RouteActuals,
    /// Which limit a throttled call was refused for.
    pub throttles: RouteThrottles,
}

impl RouteFigures {
    /// For answers that are not seen: nothing is read.
    #[must_use]
    pub fn none() -> Self {
        let templates = || Templates::about(About::Answer);
        Self {
            quotas: RouteQuotas {
                templates: templates(),
                each: Vec::new(),
            },
            actuals: RouteActuals {
                templates: templates(),
                each: Vec::new(),
            },
            throttles: RouteThrottles {
                templates: templates(),
                limit: None,
            },
        }
    }
}

/// Reads the quotas of a route from its answers.
pub struct RouteQuotas {
    templates: Templates,
    each: Vec<RouteQuota>,
}

/// One of them.
struct RouteQuota {
    limit: Box<str>,
    spare: u64,
    says: QuotaIn<Template>,
}

/// The report of an answer for a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    pub limit: &'a str,
    /// Units that are kept for others.
    pub spare: u64,
    /// `None`: nothing that can be read.
    pub left: Option<Vec<Remaining>>,
}

impl RouteQuotas {
    /// Compiles the quotas of the route named `route`: the name of a limit, the units to spare, and where its
    /// quota is.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new<'a>(
        route: &str,
        quotas: impl Iterator<Item = (&'a str, u32, QuotaIn<&'a str>)>,
    ) -> Result<Self, WrongLabel> {
        let mut templates = Templates::about(About::Answer);
        let mut each = Vec::new();
        for (limit, spare, text) in quotas {
            let mut compile = |what: &str, text: &str| {
                let key = format!("routes.{route}.downstream.quota.{limit}.{what}");
                templates.add_key(key, text)
            };
            let says = match text {
                QuotaIn::Headers(format) => QuotaIn::Headers(format),
                QuotaIn::Templates { remaining, reset } => QuotaIn::Templates {
                    remaining: compile("remaining", remaining)?,
                    reset: reset.map(|text| compile("reset", text)).transpose()?,
                },
            };
            each.push(RouteQuota {
                limit: limit.into(),
                spare: u64::from(spare),
                says,
            });
        }
        Ok(Self { templates, each })
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// The limits that have one.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.each.iter().map(|quota| &*quota.limit)
    }

    /// Reads the answer to a message. `now` counts for points in time if the answer has no date.
    pub fn read<'a>(
        &'a self,
        message: &Message,
        facts: Facts<'_>,
        answer: &Answer,
        now: SystemTime,
    ) -> Vec<Said<'a>> {
        let date = answer.headers.get("date").map(String::as_str);
        let now = date.and_then(sluiced_headers::date).unwrap_or(now);
        let get = |name: &str| answer.headers.get(name).map(String::as_str);
        let made = |units: &Template, until: &Option<Template>| {
            let context = self.templates.context_with(message, facts, Some(answer));
            let context = context.ok()?;
            let text = |template| self.templates.render(template, &context).ok();
            let until = until.as_ref().and_then(text);
            Some(vec![Remaining {
                units: quota::remaining(&text(units)?)?,
                reset: until.and_then(|text| quota::reset(&text, now)),
            }])
        };
        let each = self.each.iter().map(|quota| Said {
            limit: &quota.limit,
            spare: quota.spare,
            left: match &quota.says {
                QuotaIn::Headers(format) => quota::read(*format, get, now),
                QuotaIn::Templates { remaining, reset } => made(remaining, reset),
            },
        });
        each.collect()
    }
}

impl fmt::Debug for RouteQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

/// What throttled answers of a route say that they throttle.
#[derive(Debug)]
pub struct RouteThrottles {
    templates: Templates,
    /// `None`: nothing says it.
    limit: Option<Template>,
}

impl RouteThrottles {
    /// Compiles the name of a limit, or a template that returns one, of the route named `route`.
    ///
    /// # Errors
    /// When the template is wrong, which a checked configuration excludes.
    pub fn new(route: &str, text: Option<&str>) -> Result<Self, WrongLabel> {
        let mut templates = Templates::about(About::Answer);
        let key = || format!("routes.{route}.downstream.throttles");
        let limit = text
            .map(|text| templates.add_key(key(), text))
            .transpose()?;
        Ok(Self { templates, limit })
    }

    /// The name of the limit that the answer to a message was throttled for; `None` if it does not say.
    #[must_use]
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Option<String> {
        let limit = self.limit.as_ref()?;
        let context = self.templates.context_with(message, facts, Some(answer));
        let text = self.templates.render(limit, &context.ok()?).ok()?;
        let name = text.trim();
        (!name.is_empty()).then(|| name.to_owned())
    }
}

/// Where the answers of a route say what calls really used: for limits with costs that are known only afterwards.
pub struct RouteActuals {
    templates: Templates,
    each: Vec<RouteActual>,
}

/// One of them.
struct RouteActual {
    limit: Box<str>,
    template: Template,
    most: Option<NonZeroU32>,
}

impl RouteActuals {
    /// Compiles the templates of limits, by their names, each with the most that it is believed, if that is written.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new<'a>(
        limits: impl Iterator<Item = (&'a str, &'a str, Option<NonZeroU32>)>,
    ) -> Result<Self, WrongLabel> {
        let mut templates = Templates::about(About::Answer);
        let each = limits.map(|(limit, text, most)| {
            let template = templates.add_key(format!("limits.{limit}.actual"), text)?;
            let limit = Box::from(limit);
            Ok(RouteActual {
                limit,
                template,
                most,
            })
        });
        let each = each.collect::<Result<_, _>>()?;
        Ok(Self { templates, each })
    }

    /// The limits that have one, each with the most that it is believed, if that is written.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Option<NonZeroU32>)> {
        self.each.iter().map(|one| (&*one.limit, one.most))
    }

    /// What the call of a message used, for each of [`limits`](Self::limits). `None`: its answer says no number.
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Vec<Option<u64>> {
        let context = self.templates.context_with(message, facts, Some(answer));
        let read = |one: &RouteActual| {
            let text = self.templates.render(&one.template, context.as_ref().ok()?);
            units(&text.ok()?)
        };
        self.each.iter().map(read).collect()
    }
}

/// What the templates of an operator say that answers mean.
#[derive(Debug)]
pub struct AnswerWords {
    templates: Templates,
    outcome: Option<Template>,
    wait: Option<Template>,
}

/// What they say of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub outcome: Found,
    /// Why the template `outcome` failed, if it did. Nothing of the answer.
    pub why: Option<String>,
    /// When to come back, as it stands there.
    pub wait: Option<String>,
}

impl AnswerWords {
    /// Compiles the templates `outcome` and `wait` of a downstream.
    ///
    /// # Errors
    /// When one is wrong, with its key.
    pub fn new(outcome: Option<&str>, wait: Option<&str>) -> Result<Self, WrongLabel> {
        let mut templates = Templates::about(About::Answer);
        let mut compile = |key: &str, text: Option<&str>| {
            let added = text.map(|text| templates.add_key(key.to_owned(), text));
            added.transpose()
        };
        Ok(Self {
            outcome: compile("outcome", outcome)?,
            wait: compile("wait", wait)?,
            templates,
        })
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.outcome.is_none() && self.wait.is_none()
    }

    /// Whether one of them says what an answer means.
    #[must_use]
    pub const fn decides(&self) -> bool {
        self.outcome.is_some()
    }

    /// Reads the answer to a message.
    #[must_use]
    pub fn read(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> Heard {
        let context = self.templates.context_with(message, facts, Some(answer));
        let text = |template: &Template| match &context {
            Ok(context) => self.templates.render(template, context),
            Err(undecodable) => Err(undecodable.clone()),
        };
        let wait = self.wait.as_ref().and_then(|wait| text(wait).ok());
        let Some(outcome) = &self.outcome else {
            return Heard {
                wait,
                ..Heard::default()
            };
        };
        let found = text(outcome).map_err(|undecodable| undecodable.to_string());
        let found = found.and_then(|text| meaning(text.trim()));
        let (outcome, why) = match found {
            Ok(Some(meaning)) => (Found::Meaning(meaning), None),
            Ok(None) => (Found::Nothing, None),
            Err(why) => (Found::Failed, Some(why)),
        };
        Heard { outcome, why, wait }
    }
}

/// The meaning that a template names, if it names one.
fn meaning(text: &str) -> Result<Option<Meaning>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let named = Meaning::ALL.into_iter().find(|one| one.word() == text);
    // The text may be content of the answer.
    named.map(Some).ok_or_else(|| {
        "outcome: returns none of accepted, throttled, held, transient and permanent".to_owned()
    })
}

/// Whole units; a fraction of one counts as one.
fn units(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let more = u64::from(fraction.bytes().any(|b| b != b'0'));
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(more))
}

impl fmt::Debug for RouteActuals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FACTS: Facts<'_> = Facts {
        route: "llm",
        attempt: 1,
        max_body: 1 << 20,
    };

    fn answer(headers: &[(&str, &str)], body: &str) -> Answer {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Answer {
            status: 200,
            headers: headers.collect(),
            body: body.to_owned().into(),
            is_whole: true,
        }
    }

    #[test]
    fn headers_and_templates_say_what_is_left() {
        let headers = QuotaIn::Headers(Format::Pair("x-left", "x-reset"));
        let templates = QuotaIn::Templates {
            remaining: "{{ answer.body.left }}",
            reset: Some("{{ answer.headers['x-reset'] }}"),
        };
        let each = [("requests", 3, headers), ("tokens", 0, templates)];
        let quotas = RouteQuotas::new("llm", each.into_iter()).unwrap();
        let read = |answer: &Answer| {
            let said = quotas.read(&Message::default(), FACTS, answer, SystemTime::UNIX_EPOCH);
            let left = |said: &Said<'_>| Some(said.left.as_ref()?[0]);
            [left(&said[0]), left(&said[1])]
        };
        let says = |units, seconds| Remaining {
            units,
            reset: Some(Duration::from_secs(seconds)),
        };
        // A point in time counts from the date of the answer.
        let dated = [
            ("x-left", "7"),
            ("x-reset", "1800000030"),
            ("date", "Fri, 15 Jan 2027 08:00:00 GMT"),
        ];
        let both = read(&answer(&dated, r#"{"left": 900}"#));
        assert_eq!(both, [Some(says(7, 30)), Some(says(900, 30))]);
        let none = read(&answer(&[("x-left", "many")], "no JSON"));
        assert_eq!(none, [None, None]);
    }

    #[test]
    fn a_throttled_answer_names_the_limit_or_nothing() {
        let scope = "{{ 'channel' if answer.headers['x-ratelimit-scope'] == 'user' }}";
        let throttles = RouteThrottles::new("r", Some(scope)).unwrap();
        let read = |headers: &[(&str, &str)]| {
            throttles.read(&Message::default(), FACTS, &answer(headers, ""))
        };
        let user = [("x-ratelimit-scope", "user")];
        assert_eq!(read(&user), Some("channel".to_owned()));
        assert_eq!(read(&[("x-ratelimit-scope", "global")]), None);
        assert_eq!(read(&[]), None);
        let fixed = RouteThrottles::new("r", Some("channel")).unwrap();
        let said = fixed.read(&Message::default(), FACTS, &answer(&[], ""));
        assert_eq!(said, Some("channel".to_owned()));
        let none = RouteThrottles::new("r", None).unwrap();
        assert_eq!(
            none.read(&Message::default(), FACTS, &answer(&user, "")),
            None
        );
    }

    #[test]
    fn a_wrong_template_is_reported_with_its_key() {
        let text = QuotaIn::Templates {
            remaining: "{{ anser.status }}",
            reset: None,
        };
        let error = RouteQuotas::new("llm", [("tokens", 0, text)].into_iter()).unwrap_err();
        assert_eq!(error.key, "routes.llm.downstream.quota.tokens.remaining");
    }

    #[test]
    fn answers_say_whole_numbers_or_nothing() {
        let actuals = RouteActuals::new(
            [
                ("tokens", "{{ answer.body.usage.total_tokens }}", None),
                ("bytes", "{{ answer.headers['x-bytes'] }}", None),
            ]
            .into_iter(),
        )
        .unwrap();
        let read = |body: &str, bytes: &str| {
            let answer = answer(&[("x-bytes", bytes)], body);
            actuals.read(&Message::default(), FACTS, &answer)
        };
        let says = |tokens| format!(r#"{{"usage": {{"total_tokens": {tokens}}}}}"#);
        assert_eq!(read(&says("812"), "0"), [Some(812), Some(0)]);
        assert_eq!(read(&says("812.0"), "7.25"), [Some(812), Some(8)]);
        assert_eq!(read(&says("-3"), "many"), [None, None]);
        assert_eq!(read(&says("null"), ""), [None, None]);
        assert_eq!(
            read("no JSON", "99999999999999999999"),
            [None, Some(u64::MAX)]
        );
    }

    #[test]
    fn templates_say_what_an_answer_means_and_when_to_come_back() {
        let outcome = "{% set failed = answer.body.messages | selectattr('status', 'ne', '0') | list %}\
            {{ 'permanent' if failed and failed[0].status == '6' else 'held' if failed }}";
        let wait = "{{ answer.body.parameters.retry_after }}";
        let words = AnswerWords::new(Some(outcome), Some(wait)).unwrap();
        let read = |body: &str| {
            let heard = words.read(&Message::default(), FACTS, &answer(&[], body));
            (heard.outcome, heard.wait)
        };
        let found = |meaning| (Found::Meaning(meaning), None);
        assert_eq!(
            read(r#"{"messages": [{"status": "0"}]}"#),
            (Found::Nothing, None)
        );
        let refused = "{\n \"messages\": [\n  {\"status\": \"0\"}, {\"status\": \"6\"}\n ]\n}";
        assert_eq!(read(refused), found(Meaning::Permanent));
        assert_eq!(
            read(r#"{"messages": [{"status": "1"}]}"#),
            found(Meaning::Held)
        );
        // Telegram: docs of the Bot API, ResponseParameters.
        let telegram = r#"{"ok": false, "messages": [], "parameters": {"retry_after": 7}}"#;
        assert_eq!(read(telegram), (Found::Nothing, Some("7".to_owned())));
        assert_eq!(read("<html>"), (Found::Failed, None));
    }

    #[test]
    fn a_word_that_is_no_outcome_is_a_failure_that_does_not_repeat_it() {
        let words = AnswerWords::new(Some("{{ answer.body.status }}"), None).unwrap();
        let read = |body: &str| words.read(&Message::default(), FACTS, &answer(&[], body));
        let heard = read(r#"{"status": "held"}"#);
        assert_eq!(heard.outcome, Found::Meaning(Meaning::Held));
        let heard = read(r#"{"status": "+49170"}"#);
        assert_eq!(heard.outcome, Found::Failed);
        assert!(!heard.why.unwrap().contains("49170"));
        assert_eq!(read("{}").outcome, Found::Failed);
        let error = AnswerWords::new(None, Some("{{ anser.status }}")).unwrap_err();
        assert_eq!(error.key, "wait");
    }

    #[test]
    fn a_wrong_template_of_what_was_used_is_reported_with_its_key() {
        let limits = [("tokens", "{{ anser.status }}", None)];
        let error = RouteActuals::new(limits.into_iter()).unwrap_err();
        assert_eq!(error.key, "limits.tokens.actual");
    }
}
