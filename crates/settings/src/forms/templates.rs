//! Forms of templates, and of values that a template can make instead.

use http::HeaderValue;

use super::{check, form};
use crate::fixed_or_template::{FixedOrTemplate, Octet, ParseValue, Priority};
use crate::schema::{Form, Shape, nearest};
use crate::text::TextError;
use sluiced_core::rate::Cost;
use sluiced_core::zone::Zone;
use sluiced_template::{self as template, About, WrongTemplate};

/// A name of the tz database, or a template that makes one.
pub(crate) const ZONE_OF: Shape = Shape::Text(Form {
    check: fixed_or_template::<Zone>,
    pattern: r"\{\{|\{%|\{#|^[A-Za-z0-9_+/-]+$",
});
/// The priority of a route, or a template that makes one.
pub(crate) const PRIORITY: Shape = Shape::WholeOr(
    0,
    Form {
        check: fixed_or_template::<Priority>,
        pattern: r"\{\{|\{%|\{#|^ *[0-9] *$",
    },
);
/// A template over a message.
pub(crate) const TEMPLATE: Shape = Shape::Text(form(template));
/// A template over a message and the answer to its call.
pub(crate) const ANSWER_TEMPLATE: Shape = Shape::Text(form(|text| wrong_in(text, About::Answer)));
/// The body of a call: a template that may hold a key of an API.
pub(crate) const BODY: Shape = Shape::Hidden(form(|text| wrong_in(text, About::Call)));
/// A whole number of units, or a template that makes one.
pub(crate) const COST: Shape = Shape::WholeOr(
    1,
    Form {
        check: fixed_or_template::<Cost>,
        pattern: r"\{\{|\{%|\{#|^ *[0-9]+ *$",
    },
);
/// A number of one octet, or a template that makes one.
pub(crate) const OCTET: Shape = Shape::WholeOr(
    0,
    Form {
        check: fixed_or_template::<Octet>,
        pattern: r"\{\{|\{%|\{#|^ *[0-9]+ *$",
    },
);
pub(crate) const HEADER: Shape = Shape::Hidden(form(header));
/// What is signed: a template over a request.
pub(crate) const SIGNED: Shape = Shape::Hidden(form(|text| wrong_in(text, About::Request)));
/// A header with a signature.
pub(crate) const SIGNATURE_HEADER: Shape =
    Shape::Hidden(form(|text| wrong_in_header(text, About::Signature)));

/// All faults of a template about a message.
fn template(text: &str) -> Result<(), String> {
    wrong_in(text, About::Message)
}

pub(super) fn wrong_in(text: &str, about: About) -> Result<(), String> {
    let in_words = |wrong: WrongTemplate| {
        let near = match &wrong {
            WrongTemplate::Variable { name, .. } => {
                nearest(name, about.fields()).map(|near| (name, near))
            }
            _ => None,
        };
        near.map_or_else(
            || wrong.to_string(),
            |(name, near)| format!("templates know no `{name}`; did you mean `{near}`?"),
        )
    };
    let found = template::check(text, about);
    let faults: Vec<_> = found.into_iter().map(in_words).collect();
    check(faults.is_empty(), faults.join("; "))
}

/// A value, or a template that makes it.
fn fixed_or_template<T: ParseValue>(text: &str) -> Result<(), String> {
    match text
        .parse::<FixedOrTemplate<T>>()
        .map_err(|TextError(why)| why)?
    {
        FixedOrTemplate::Fixed(_) => Ok(()),
        FixedOrTemplate::Template(made) => template(made.as_str()),
    }
}

fn header(text: &str) -> Result<(), String> {
    wrong_in_header(text, About::Call)
}

fn wrong_in_header(text: &str, about: About) -> Result<(), String> {
    check(
        HeaderValue::from_str(text).is_ok(),
        "a header's value must be visible ASCII on one line",
    )?;
    wrong_in(text, about)
}
