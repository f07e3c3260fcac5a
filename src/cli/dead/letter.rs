//! The headers of a dead letter, and which letters a command is about.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Refusal;
use crate::cli::text::utc_of;
use sluiced_core::judge::DeadReason;
use sluiced_core::rate::parse_duration;
use sluiced_core::time::StoreTime;
use sluiced_ports::downstream;
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_template::{Template, Templates, is_template};

/// A dead letter, by the headers that sluiced wrote on it. A field is absent if something else put the message into the
/// queue. JSON has all fields.
#[derive(Debug, Serialize)]
pub(super) struct LetterFacts<'a> {
    /// The publisher's id of the message, or the one that was made for it.
    pub(super) message_id: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
    pub(super) detail: Option<&'a str>,
    pub(super) last_status: Option<i64>,
    pub(super) attempts: Option<i64>,
    pub(super) route: Option<&'a str>,
    /// The work queue that it came from.
    pub(super) queue: Option<&'a str>,
    #[serde(serialize_with = "in_utc")]
    pub(super) died: Option<StoreTime>,
    #[serde(serialize_with = "in_utc")]
    pub(super) first_seen: Option<StoreTime>,
    #[serde(serialize_with = "in_utc")]
    pub(super) expires: Option<StoreTime>,
    pub(super) unreadable: Option<&'a str>,
    bytes: usize,
}

impl<'a> LetterFacts<'a> {
    pub(super) fn of(message: &'a Message) -> Self {
        let value = |name| message.headers.get(name);
        let text = |name| value(name).and_then(HeaderValue::as_text);
        let number = |name| value(name).and_then(HeaderValue::as_int);
        let time = |name| Some(StoreTime::from_micros(u64::try_from(number(name)?).ok()?));
        Self {
            message_id: message.id(),
            reason: text(header::REASON),
            detail: text(header::DETAIL),
            last_status: number(header::LAST_STATUS),
            attempts: number(header::ATTEMPTS),
            route: text(header::ROUTE),
            // Others can write the header: what cannot be a queue's name is none.
            queue: text(header::QUEUE).filter(|name| can_be_queue(name)),
            died: time(header::DIED),
            first_seen: time(header::FIRST_SEEN),
            expires: time(header::EXPIRES),
            unreadable: value(header::UNREADABLE)
                .map(|mark| mark.as_text().unwrap_or("its properties cannot be read")),
            bytes: message.body.len(),
        }
    }

    /// The letter with this number, for programs.
    pub(super) fn as_json(&self, number: u64) -> Value {
        let mut all = json!(self);
        all["number"] = json!(number);
        all
    }
}

/// Whether AMQP can name a queue so: its short strings have 255 octets.
pub(super) fn can_be_queue(name: &str) -> bool {
    (1..=255).contains(&name.len())
}

/// The name of a queue on the command line.
pub(super) fn queue_name(text: &str) -> Result<String, String> {
    match can_be_queue(text) {
        true => Ok(text.to_owned()),
        false => Err("the name of a queue has 1 to 255 bytes".to_owned()),
    }
}

/// A time for programs, if it is known.
pub(super) fn in_utc<S: Serializer>(
    at: &(impl Into<Option<StoreTime>> + Copy),
    to: S,
) -> Result<S::Ok, S::Error> {
    (*at).into().map(utc_of).serialize(to)
}

/// The arguments that say which letters are meant: all of them must fit.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct FilterArgs {
    /// Only with this reason; may repeat
    #[arg(long, value_name = "REASON", value_parser = PossibleValuesParser::new(DeadReason::ALL.map(DeadReason::label)))]
    pub(super) reason: Vec<String>,
    /// Only with this last status of the downstream; may repeat
    #[arg(long, value_name = "CODE")]
    pub(super) status: Vec<u32>,
    /// Only those that died longer ago, such as 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) older: Option<Duration>,
    /// Only those that died within this time, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) newer: Option<Duration>,
    /// Only with this message id; may repeat
    #[arg(long, value_name = "ID")]
    pub(super) id: Vec<String>,
    /// Only where this is true, such as '{{ body.to == "+4915550123456" }}'
    #[arg(long = "where", value_name = "TEMPLATE")]
    pub(super) condition: Option<String>,
}

/// The filter, ready to be asked.
pub(super) struct Filter {
    args: FilterArgs,
    condition: Option<(Templates, Template)>,
    /// For a queue that routes share: the route that gave up.
    route: Option<String>,
}

/// Whether a letter is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Meant,
    Other,
    /// `--where` could not be evaluated for it, and why.
    Unasked(String),
}

impl Filter {
    /// Compiles the condition. One without `{{ }}` is read as an expression. `route`: only its letters.
    pub(super) fn new(args: &FilterArgs, route: Option<&str>) -> Result<Self, Refusal> {
        let compile = |text: &String| -> Result<_, Refusal> {
            let source = match is_template(text) {
                true => text.clone(),
                false => format!("{{{{ {text} }}}}"),
            };
            let mut templates = Templates::new();
            let template = templates
                .add("--where", &source)
                .map_err(|wrong| Refusal::Arguments(format!("--where: {wrong}")))?;
            Ok((templates, template))
        };
        Ok(Self {
            condition: args.condition.as_ref().map(compile).transpose()?,
            args: args.clone(),
            route: route.map(str::to_owned),
        })
    }

    pub(super) fn decide(&self, message: &Message, now: StoreTime) -> Decision {
        if self.fits(&LetterFacts::of(message), now) {
            self.condition(message)
        } else {
            Decision::Other
        }
    }

    fn fits(&self, facts: &LetterFacts<'_>, now: StoreTime) -> bool {
        let args = &self.args;
        let (status, id) = (facts.last_status, facts.message_id);
        let age = facts.died.map(|died| now.since(died));
        let named = |wanted_reason: &String| Some(wanted_reason.as_str()) == facts.reason;
        let route = self.route.as_deref();
        route.is_none_or(|route| facts.route == Some(route))
            && (args.reason.is_empty() || args.reason.iter().any(named))
            && (args.status.is_empty() || args.status.iter().any(|s| Some((*s).into()) == status))
            && (args.id.is_empty() || args.id.iter().any(|wanted| Some(wanted.as_str()) == id))
            && args
                .older
                .is_none_or(|least| age.is_some_and(|age| age > least))
            && args
                .newer
                .is_none_or(|most| age.is_some_and(|age| age <= most))
    }

    fn condition(&self, message: &Message) -> Decision {
        /// A queue of dead letters has those of any route, so the bound is one for all.
        const MAX_BODY: u64 = 16 * 1024 * 1024;
        let Some((templates, template)) = &self.condition else {
            return Decision::Meant;
        };
        let facts = LetterFacts::of(message);
        let made = facts.attempts.unwrap_or(0);
        let about = downstream::Facts {
            max_body: MAX_BODY,
            route: facts.route.unwrap_or_default(),
            attempt: u32::try_from(made).unwrap_or(0).saturating_add(1),
            may_repeat: false,
        };
        let rendered = templates
            .context(message, about)
            .and_then(|context| templates.render(template, &context));
        match rendered.as_deref().map(str::trim) {
            // An expression is printed in one way, a template may write the other.
            Ok("True" | "true") => Decision::Meant,
            Ok("False" | "false") => Decision::Other,
            Ok(_) => Decision::Unasked("--where is neither true nor false".to_owned()),
            Err(why) => Decision::Unasked(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

    fn letter(reason: &str, status: i64, age: u64) -> Message {
        let died = NOW - Duration::from_secs(age);
        let died = i64::try_from(died.as_micros()).unwrap();
        let headers = [
            (header::REASON, HeaderValue::Text(reason.to_owned())),
            (header::LAST_STATUS, HeaderValue::Int(status)),
            (header::DIED, HeaderValue::Int(died)),
            (header::ATTEMPTS, HeaderValue::Int(2)),
        ];
        let mut message = Message {
            body: br#"{"to":"+49","n":3}"#.as_slice().into(),
            headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Message::default()
        };
        message.properties.message_id = Some("m1".to_owned());
        message
    }

    fn decide(args: FilterArgs, message: &Message) -> Decision {
        Filter::new(&args, None).unwrap().decide(message, NOW)
    }

    fn meant(change: impl FnOnce(&mut FilterArgs)) -> bool {
        let mut args = FilterArgs::default();
        change(&mut args);
        decide(args, &letter("rejected", 400, 600)) == Decision::Meant
    }

    #[test]
    fn every_argument_must_fit() {
        let minutes = |n: u64| Some(Duration::from_secs(60 * n));
        assert!(meant(|_| {}), "no filter means all");
        assert!(meant(
            |args| args.reason = vec!["expired".into(), "rejected".into()]
        ));
        assert!(!meant(|args| args.reason = vec!["expired".into()]));
        assert!(meant(|args| args.status = vec![400]));
        assert!(!meant(|args| args.status = vec![404]));
        assert!(meant(|args| args.older = minutes(9)));
        assert!(!meant(|args| args.older = minutes(10)));
        assert!(meant(|args| args.newer = minutes(10)));
        assert!(!meant(|args| args.newer = minutes(9)));
        assert!(meant(|args| args.id = vec!["m0".into(), "m1".into()]));
        assert!(!meant(|args| args.id = vec!["m0".into()]));
        assert!(!meant(|args| {
            args.reason = vec!["rejected".into()];
            args.status = vec![500];
        }));
    }

    #[test]
    fn a_letter_without_our_headers_fits_no_filter_about_them() {
        let foreign = Message::default();
        let args = |change: fn(&mut FilterArgs)| {
            let mut args = FilterArgs::default();
            change(&mut args);
            decide(args, &foreign)
        };
        assert_eq!(args(|_| {}), Decision::Meant);
        assert_eq!(args(|a| a.newer = Some(Duration::MAX)), Decision::Other);
        assert_eq!(args(|a| a.older = Some(Duration::ZERO)), Decision::Other);
        assert_eq!(args(|a| a.status = vec![400]), Decision::Other);
    }

    #[test]
    fn a_condition_sees_what_templates_see() {
        let ask = |text: &str| {
            let args = FilterArgs {
                condition: Some(text.to_owned()),
                ..FilterArgs::default()
            };
            decide(args, &letter("rejected", 400, 600))
        };
        for yes in [
            r#"{{ body.to == "+49" }}"#,
            r#"body.to == "+49""#,
            "body.n > 2 and attempt == 3",
            r#"message_id == "m1""#,
            r#"headers["x-sluiced-reason"] == "rejected""#,
            "{% if body.n %}true{% else %}false{% endif %}",
        ] {
            assert_eq!(ask(yes), Decision::Meant, "{yes}");
        }
        assert_eq!(ask("body.n > 3"), Decision::Other);
        let Decision::Unasked(why) = ask("body.name == 1") else {
            panic!("a field that is missing is no answer");
        };
        assert!(why.contains("missing"), "{why}");
        let Decision::Unasked(why) = ask("body.to") else {
            panic!("a number is no answer");
        };
        assert!(!why.contains("+49"), "nothing of a message: {why}");
    }

    #[test]
    fn a_condition_that_can_never_work_is_refused() {
        let wrong = |text: &str| {
            let args = FilterArgs {
                condition: Some(text.to_owned()),
                ..FilterArgs::default()
            };
            matches!(Filter::new(&args, None), Err(Refusal::Arguments(_)))
        };
        assert!(wrong("boddy.to == 1"));
        assert!(wrong("body.to | nothing"));
        assert!(wrong("body.to =="));
    }
}
