//! The keys and costs of a message, for the limits of its route.
//!
//! A template of a key may return `none`: then the limit does not count this message. Two limits with opposite
//! conditions so make two classes of messages. A `null` of the message is an error in a template without
//! `none`, and so is a message that no limit counts: it would be sent without a limit.

use std::fmt;

use super::fault::says_none;
use super::sms::Cutting;
use super::{Context, Template, Templates, WrongLimitTemplate};
use sluiced_core::limits::admission::Charge;
use sluiced_core::rate::Cost;
use sluiced_core::zone::Zone;
use sluiced_ports::downstream::{Facts, UnfitReason};
use sluiced_ports::limits::{KeyText, LimitInputs};
use sluiced_ports::message::Message;

/// The highest priority that a message may have for itself.
pub const MAX_PRIORITY: u8 = 9;

/// How a limit counts messages, as configured.
#[derive(Clone, Copy, Debug)]
pub struct LimitCounting<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// A template; `None`: the limit counts all messages together.
    pub key: Option<&'a str>,
    /// Units of the limit that a message takes. A limit that counts segments takes their number instead.
    pub cost: CostOf<&'a str>,
    /// Messages of one key are called once.
    pub once: bool,
    /// More than this can never be granted. `None`: that is in the policy, which may change.
    pub largest: Option<Cost>,
}

/// The texts that a route sends in segments, as configured.
#[derive(Clone, Copy, Debug)]
pub struct SegmentCounting<'a> {
    /// The limit that counts the segments: one unit each, whatever its own cost is.
    pub limit: &'a str,
    /// The template of the text.
    pub text: &'a str,
    /// How the text is cut: the same as where it is sent.
    pub cutting: Cutting,
}

/// What a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostOf<T> {
    /// Every message the same.
    Units(Cost),
    /// What this template makes of the message: a whole number from 1 to 4294967295. Anything else makes the message
    /// unfit.
    Made(T),
}

/// The compiled templates of the limits of a route.
pub struct LimitTemplates {
    templates: Templates,
    limits: Vec<Counter>,
    tenant: Option<Template>,
    own: Own,
    segments: Option<Segments>,
}

/// The templates of `priority` and `timezone`, where messages have their own. `None`: the whole route has one, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnRules<'a> {
    /// Makes a whole number from 0 to [`MAX_PRIORITY`]. With anything else the message has priority 0, and is sent.
    pub priority: Option<&'a str>,
    /// Makes the name of a time zone, such as `Europe/Berlin`. Anything else makes the message unfit.
    pub timezone: Option<&'a str>,
}

#[derive(Default)]
struct Own {
    priority: Option<Template>,
    timezone: Option<Template>,
}

/// What counts the segments of a text. A missing field gives the same text here as in the request.
struct Segments {
    /// The place of their limit.
    limit: usize,
    templates: Templates,
    text: Template,
    cutting: Cutting,
}

struct Counter {
    key: Option<Template>,
    /// The key may be `none`.
    passes_over: bool,
    /// The key is that of a `once` limit and is made from the publisher's id: an id that is made here would be another
    /// one if the broker delivered the message again.
    of_own_id: bool,
    cost: CostOf<Template>,
    largest: Option<Cost>,
}

impl LimitTemplates {
    /// Compiles the keys and costs of a route's limits, in the order of the route, and its
    /// `fair_by`.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new(
        limits: &[LimitCounting<'_>],
        fair_by: Option<&str>,
    ) -> Result<Self, WrongLimitTemplate> {
        let mut templates = Templates::of_limits();
        let mut compile = |key: String, text: &str| templates.add_key(key, text);
        let mut counters = Vec::with_capacity(limits.len());
        for limit in limits {
            let at = |what: &str| format!("limits.{}.{what}", limit.limit);
            let key = limit.key.map(|text| compile(at("key"), text)).transpose()?;
            let cost = match limit.cost {
                CostOf::Units(cost) => CostOf::Units(cost),
                CostOf::Made(text) => CostOf::Made(compile(at("cost"), text)?),
            };
            counters.push(Counter {
                of_own_id: false,
                key,
                passes_over: limit.key.is_some_and(says_none),
                cost,
                largest: limit.largest,
            });
        }
        let tenant = fair_by
            .map(|text| compile("fair_by".to_owned(), text))
            .transpose()?;
        for (limit, counter) in limits.iter().zip(&mut counters) {
            let key = counter.key.as_ref().filter(|_| limit.once);
            counter.of_own_id = key.is_some_and(|key| templates.takes(key, "message_id"));
        }
        Ok(Self {
            templates,
            limits: counters,
            tenant,
            own: Own::default(),
            segments: None,
        })
    }

    /// These templates, with what each message has for itself.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn with_own(mut self, rules: OwnRules<'_>) -> Result<Self, WrongLimitTemplate> {
        let mut compile = |key: &str, text: Option<&str>| {
            text.map(|text| self.templates.add_key(key.to_owned(), text))
                .transpose()
        };
        self.own = Own {
            priority: compile("priority", rules.priority)?,
            timezone: compile("timezone", rules.timezone)?,
        };
        Ok(self)
    }

    /// These templates, with a limit that counts segments. Nothing changes if the route does not have it.
    ///
    /// # Errors
    /// When the template of the text is wrong, which a checked configuration excludes.
    pub fn counting_segments(
        mut self,
        limits: &[LimitCounting<'_>],
        of: SegmentCounting<'_>,
    ) -> Result<Self, WrongLimitTemplate> {
        let Some(limit) = limits.iter().position(|limit| limit.limit == of.limit) else {
            return Ok(self);
        };
        let mut templates = Templates::new();
        let text = templates.add_key("downstream.text".to_owned(), of.text)?;
        self.segments = Some(Segments {
            limit,
            templates,
            text,
            cutting: of.cutting,
        });
        Ok(self)
    }

    /// The keys and costs of a message.
    ///
    /// # Errors
    /// When a limit cannot count it: a field is missing, a cost is no whole number from 1 or is more than can
    /// ever be granted, a key of a `once` limit would differ after each delivery, or no limit counts it at
    /// all; or when its time zone cannot be read. The route's `on_invalid` decides what happens to the message.
    pub fn of(&self, message: &Message, facts: Facts<'_>) -> Result<LimitInputs, UnfitReason> {
        let context = self.templates.context(message, facts)?;
        let charge = |limit| self.charge(limit, message, &context);
        let mut charges: Box<[_]> = self.limits.iter().map(charge).collect::<Result<_, _>>()?;
        if let Some(segments) = &self.segments
            && let Some(Some(charge)) = charges.get_mut(segments.limit)
        {
            charge.cost = segments.of(message, facts);
            let largest = self.limits[segments.limit].largest;
            if let Some(most) = largest.filter(|most| charge.cost > *most) {
                return Err(UnfitReason {
                    what: "downstream.text".to_owned(),
                    why: format!(
                        "takes {} segments, and the limit lets up to {} pass (max_cost)",
                        charge.cost.get(),
                        most.get()
                    ),
                });
            }
        }
        if !charges.is_empty() && charges.iter().all(Option::is_none) {
            return Err(UnfitReason {
                what: "limits".to_owned(),
                why: "none of them counts it: each key is none".to_owned(),
            });
        }
        let text = |template| self.text(template, &context);
        let tenant = self.tenant.as_ref().map(text);
        let (priority, zone) = (self.own.priority.as_ref(), self.own.timezone.as_ref());
        let zone = zone.map(|template| self.zone(template, &context));
        Ok(LimitInputs {
            charges,
            tenant: tenant.transpose()?,
            priority: priority.map(|template| self.priority(template, &context)),
            zone: zone.transpose()?,
        })
    }

    /// The text that a template makes, which must not be empty.
    fn text(&self, template: &Template, context: &Context) -> Result<Box<str>, UnfitReason> {
        let text = self.templates.render(template, context)?;
        if text.is_empty() {
            return Err(undecodable(template, "is empty"));
        }
        Ok(text.into_boxed_str())
    }

    /// The priority that a message has for itself.
    fn priority(&self, template: &Template, context: &Context) -> Result<u8, UnfitReason> {
        let text = self.text(template, context)?;
        let number = whole_number(&text).and_then(|digits| digits.parse().ok());
        let priority = number.filter(|number| *number <= MAX_PRIORITY);
        priority.ok_or_else(|| {
            let why = format!("is no whole number from 0 to {MAX_PRIORITY}");
            undecodable(template, &why)
        })
    }

    /// The zone that a message has for itself.
    fn zone(&self, template: &Template, context: &Context) -> Result<Zone, UnfitReason> {
        let text = self.text(template, context)?;
        // The text may be anything, and is not shown.
        let zone = Zone::named(text.trim()).ok();
        zone.ok_or_else(|| {
            undecodable(template, "is no name of a time zone, such as Europe/Berlin")
        })
    }

    fn charge(
        &self,
        limit: &Counter,
        message: &Message,
        context: &Context,
    ) -> Result<Option<Charge<(), KeyText>>, UnfitReason> {
        let key = match &limit.key {
            Some(template) if limit.passes_over && self.templates.gives_none(template, context) => {
                return Ok(None);
            }
            Some(template) if limit.of_own_id && message.own_id().is_none() => {
                let why = "has no message_id of the publisher: whether it is a repeat is unknown";
                return Err(undecodable(template, why));
            }
            Some(template) => Some(self.text(template, context)?),
            None => None,
        };
        Ok(Some(Charge {
            limit: (),
            key: KeyText(key),
            cost: self.cost(limit, context)?,
        }))
    }

    /// What the message costs of `limit`.
    fn cost(&self, limit: &Counter, context: &Context) -> Result<Cost, UnfitReason> {
        let template = match &limit.cost {
            CostOf::Units(cost) => return Ok(*cost),
            CostOf::Made(template) => template,
        };
        let text = self.templates.render(template, context)?;
        let cost = whole(&text)
            .ok_or_else(|| undecodable(template, "is no whole number from 1 to 4294967295"))?;
        match limit.largest.filter(|largest| cost > *largest) {
            None => Ok(cost),
            Some(largest) => {
                let (cost, largest) = (cost.get(), largest.get());
                let why = format!("is {cost}, and no more than {largest} can ever fit");
                Err(undecodable(template, &why))
            }
        }
    }
}

impl Segments {
    /// How many segments a message takes. One from which no text can be made is not sent: making its request says why.
    fn of(&self, message: &Message, facts: Facts<'_>) -> Cost {
        let context = self.templates.context(message, facts);
        let text = context.and_then(|context| self.templates.render(&self.text, &context));
        text.map_or(Cost::ONE, |text| Cost::new(self.cutting.count(&text)))
    }
}

impl fmt::Debug for LimitTemplates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitTemplates")
            .field("limits", &self.limits.len())
            .field("fair", &self.tenant.is_some())
            .finish_non_exhaustive()
    }
}

fn undecodable(template: &Template, why: &str) -> UnfitReason {
    UnfitReason {
        what: template.name().to_owned(),
        why: why.to_owned(),
    }
}

/// A whole number from 1; arithmetic in templates may write it with a fraction of zero.
fn whole(text: &str) -> Option<Cost> {
    whole_number(text)?.parse().ok().map(Cost::new)
}

fn whole_number(text: &str) -> Option<&str> {
    let text = text.trim();
    let digits = text.strip_suffix(".0").unwrap_or(text);
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)
}

#[cfg(test)]
mod tests;
