//! What is left of the provider's own count.
//!
//! It is said either in headers that are in use (`headers::quota`), or where templates find it.

use std::fmt;
use std::time::SystemTime;

use crate::{About, Template, Templates, WrongLimitTemplate};
use sluiced_core::judge::Remaining;
use sluiced_headers::quota::{self, Format};
use sluiced_ports::downstream::{Answer, Facts};
use sluiced_ports::message::Message;

/// Where answers say what is left for a limit.
#[derive(Clone, Copy, Debug)]
pub enum QuotaIn<T> {
    /// In headers of this format. An answer may have several quotas there.
    Headers(Format),
    /// Where templates find one quota.
    Templates {
        /// Makes the units that are left: a number, which is rounded down; below zero it counts as zero.
        remaining: T,
        /// Makes the time at which all of it is back: a length or a point in time, in any form of
        /// [`quota::reset`]. `None`: the time is not known.
        reset: Option<T>,
    },
}

/// Reads the quotas of a route from its answers.
pub struct RouteQuotas {
    templates: Templates,
    each: Vec<RouteQuota>,
}

/// The quota of one limit, and where answers say it.
struct RouteQuota {
    limit: Box<str>,
    spare: u64,
    says: QuotaIn<Template>,
}

/// The report of an answer for a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReading<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// Units of `left` that are kept for others. They are not subtracted from it here.
    pub spare: u64,
    /// `None`: nothing that can be read.
    pub left: Option<Vec<Remaining>>,
}

impl RouteQuotas {
    /// For answers that are not seen.
    pub(super) fn none() -> Self {
        Self {
            templates: Templates::about(About::Answer),
            each: Vec::new(),
        }
    }

    /// Compiles the quotas of the route named `route`: the name of a limit, the units to spare, and where its
    /// quota is.
    ///
    /// # Errors
    /// When a template is wrong, which a checked configuration excludes.
    pub fn new<'a>(
        route: &str,
        quotas: impl Iterator<Item = (&'a str, u32, QuotaIn<&'a str>)>,
    ) -> Result<Self, WrongLimitTemplate> {
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
    ) -> Vec<QuotaReading<'a>> {
        let date = answer.headers.get("date").map(String::as_str);
        let answered_at = date.and_then(sluiced_headers::date).unwrap_or(now);
        let get = |name: &str| answer.headers.get(name).map(String::as_str);
        let made = |units: &Template, until: &Option<Template>| {
            let context = self
                .templates
                .context_with(message, facts, Some(answer))
                .ok()?;
            let text = |template| self.templates.render(template, &context).ok();
            let until = until.as_ref().and_then(text);
            Some(vec![Remaining {
                units: quota::remaining(&text(units)?)?,
                reset: until.and_then(|text| quota::reset(&text, answered_at)),
            }])
        };
        let readings = self.each.iter().map(|quota| QuotaReading {
            limit: &quota.limit,
            spare: quota.spare,
            left: match &quota.says {
                QuotaIn::Headers(format) => quota::read(*format, get, answered_at),
                QuotaIn::Templates { remaining, reset } => made(remaining, reset),
            },
        });
        readings.collect()
    }
}

impl fmt::Debug for RouteQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}
