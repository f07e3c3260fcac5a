//! What a template can do with a value, beyond what minijinja brings along.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

use super::fault::{IS_NULL, TOO_LARGE};

/// Prints a value, but no `null`: it would read as a word.
pub(super) fn print(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, IS_NULL));
    }
    minijinja::escape_formatter(out, state, value)
}

/// Unlike minijinja's own it takes nothing for a missing field, and it also encodes `/`, so that
/// a value can never become more than one segment of a path.
pub(super) fn urlencode(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, IS_NULL));
    }
    if value.kind() == ValueKind::Invalid {
        return Err(Error::new(ErrorKind::InvalidOperation, TOO_LARGE));
    }
    minijinja::filters::urlencode(value).map(|text| text.replace('/', "%2F"))
}

/// Unlike minijinja's own it takes nothing for a missing field; a `null` stays a `null`.
pub(super) fn tojson(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    minijinja::filters::tojson(value, indent, args)
}
