//! Our own filters and functions for templates, besides those of minijinja: how many segments an SMS takes
//! (`template::sms`), which is what providers count and charge, for example.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use url::Url;

use super::fault::{IS_NULL, OPTION, TOO_LARGE};
use super::sms::{Cutting, Encoding, Reference};

/// Prints a value. A `null` is an error: it would be printed as text.
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

/// Unlike minijinja's own it refuses a missing field, and it also encodes `/`, so that a value
/// can never become more than one segment of a path.
pub(super) fn urlencode(value: &Value) -> Result<String, Error> {
    is_given(value)?;
    if value.kind() == ValueKind::Invalid {
        return Err(Error::new(ErrorKind::InvalidOperation, TOO_LARGE));
    }
    minijinja::filters::urlencode(value).map(|text| text.replace('/', "%2F"))
}

/// Unlike minijinja's own it refuses a missing field; a `null` stays a `null`.
pub(super) fn tojson(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    minijinja::filters::tojson(value, indent, args)
}

/// The value that a JSON pointer (RFC 6901) leads to, undefined if there is none: `/to/0/number`,
/// with `~1` for a slash in a name and `~0` for a tilde.
pub(super) fn pointer(value: &Value, path: &str) -> Result<Value, Error> {
    let Some(steps) = path.strip_prefix('/') else {
        return if path.is_empty() {
            Ok(value.clone())
        } else {
            Err(wrong_option(
                "pointer: a path starts with `/`, such as \"/to/0\"",
            ))
        };
    };
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let mut at = value.clone();
    for step in steps.split('/') {
        at = match at.kind() {
            ValueKind::Map => {
                at.get_item(&Value::from(step.replace("~1", "/").replace("~0", "~")))?
            }
            ValueKind::Seq => match index(step) {
                Some(index) => at.get_item_by_index(index)?,
                None => Value::UNDEFINED,
            },
            _ => Value::UNDEFINED,
        };
    }
    Ok(at)
}

/// An index of a list: digits without leading zeros.
fn index(step: &str) -> Option<usize> {
    let digits = step.bytes().all(|b| b.is_ascii_digit());
    let plain = digits && (step == "0" || !step.starts_with('0'));
    step.parse().ok().filter(|_| plain)
}

/// The host of a URL, in small letters and without its port: the destination of a webhook.
pub(super) fn host(value: &Value) -> Result<String, Error> {
    is_given(value)?;
    let text = value.as_str().and_then(|text| Url::parse(text).ok());
    let host = text.as_ref().and_then(Url::host_str);
    // With a dot at its end it is the same host.
    host.map(|host| host.trim_end_matches('.').to_owned())
        .ok_or_else(|| Error::from(ErrorKind::InvalidOperation))
}

/// How many segments a text takes as an SMS: `sms_segments`, `sms_segments(encoding="ucs2")`,
/// `sms_segments(reference=16)`, `sms_segments(transliterate=true)`.
pub(super) fn sms_segments(text: &Value, options: Kwargs) -> Result<u32, Error> {
    let encoding: Option<Value> = options.get("encoding")?;
    let forced = match encoding.as_ref().map(Value::as_str) {
        None | Some(Some("auto")) => None,
        Some(Some("gsm7")) => Some(Encoding::Gsm7),
        Some(Some("latin1")) => Some(Encoding::Latin1),
        Some(Some("ucs2")) => Some(Encoding::Ucs2),
        Some(_) => {
            return Err(wrong_option(
                "sms_segments: encoding is \"auto\", \"gsm7\", \"latin1\" or \"ucs2\"",
            ));
        }
    };
    let choice: Option<Value> = options.get("transliterate")?;
    let transliterate = match choice.map(bool::try_from) {
        None => false,
        Some(Ok(transliterate)) => transliterate,
        Some(Err(_)) => return Err(wrong_option("sms_segments: transliterate is true or false")),
    };
    let bits: Option<Value> = options.get("reference")?;
    let reference = match bits.as_ref().map(Value::as_usize) {
        None | Some(Some(8)) => Reference::Short,
        Some(Some(16)) => Reference::Long,
        Some(_) => return Err(wrong_option("sms_segments: reference is 8 or 16 (bits)")),
    };
    if options.assert_all_used().is_err() {
        return Err(wrong_option(
            "sms_segments: its options are encoding, reference and transliterate",
        ));
    }
    is_given(text)?;
    let Some(text) = text.as_str() else {
        return Err(ErrorKind::InvalidOperation.into());
    };
    let cutting = Cutting {
        encoding: forced,
        reference,
        transliterate,
    };
    Ok(cutting.count(text).get())
}

/// Neither a missing field nor a `null`.
fn is_given(value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, IS_NULL));
    }
    Ok(())
}

fn wrong_option(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{OPTION}{what}"))
}
