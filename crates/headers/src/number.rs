//! A number as headers and templates write it: digits, and perhaps a point and more digits.

/// The digits before and behind the point; without a point there is a `0` behind it. `None`: it is no such number.
#[must_use]
pub fn decimal(text: &str) -> Option<(&str, &str)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    (is_digits(whole) && is_digits(fraction)).then_some((whole, fraction))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}
