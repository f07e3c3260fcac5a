//! Addresses: the type of a number (TON) and its plan (NPI), which follow from the address where they are not given.
//!
//! Providers agree on these ("What are TON and NPI settings?" of Infobip, "Sending messages" of Sinch): an address with
//! letters of the alphabet is 5 and 0, a short code 3 and 0, a number with its country 1 and 1. A number that begins
//! with 0 has no country in front (E.164): what it means depends on where it is dialled, so its type is unknown.
//!
//! The type "international" says what a `+` says. A centre that gets both refuses the address.

use sluiced_pdu::Address;

/// The longest address, in octets.
const MAX_ADDRESS: usize = 20;
/// A number of this many digits or more begins with its country.
const INTERNATIONAL: usize = 9;
/// Types of numbers (SMPP 3.4, section 5.2.5): with the country in front, without it, of the network itself, letters.
const TON_UNKNOWN: u8 = 0;
const TON_INTERNATIONAL: u8 = 1;
const TON_NATIONAL: u8 = 2;
const TON_NETWORK: u8 = 3;
const TON_ALPHANUMERIC: u8 = 5;
/// The plan of telephone numbers (E.164; section 5.2.6).
const NPI_ISDN: u8 = 1;

/// An address. What is not given of its type and its plan follows from the text.
pub(super) fn address(
    text: &str,
    ton: Option<u8>,
    npi: Option<u8>,
) -> Result<Address, &'static str> {
    let digits = international(text);
    let is_number = !text.is_empty() && text.bytes().all(|octet| octet.is_ascii_digit());
    let is_short = is_number && text.len() < INTERNATIONAL;
    let ton = ton.unwrap_or(match &digits {
        Some(_) => TON_INTERNATIONAL,
        None if !is_number => TON_ALPHANUMERIC,
        None if is_short => TON_NETWORK,
        None if text.starts_with('0') => TON_UNKNOWN,
        None => TON_INTERNATIONAL,
    });
    let is_telephone = digits.is_some() || is_number;
    let npi = npi.unwrap_or(match ton {
        TON_INTERNATIONAL | TON_NATIONAL if is_telephone => NPI_ISDN,
        TON_UNKNOWN if is_telephone && !is_short => NPI_ISDN,
        _ => 0,
    });
    let text = match &digits {
        Some(digits) if ton == TON_INTERNATIONAL => digits,
        _ => text,
    };
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > MAX_ADDRESS {
        return Err("has more than 20 octets");
    }
    if !text.bytes().all(|octet| matches!(octet, b' '..=b'~')) {
        return Err("has a character that is not ASCII");
    }
    Ok(Address {
        ton,
        npi,
        digits: text.as_bytes().to_vec(),
    })
}

/// The digits of a number that begins with `+`, without what people write between them; `None`: it is no such number.
/// `(0)` is the prefix that is dialled inside the country alone: it is no part of the number.
fn international(text: &str) -> Option<String> {
    let number = text.strip_prefix('+')?.replacen("(0)", "", 1);
    let (digits, others): (String, String) = number.chars().partition(char::is_ascii_digit);
    let is_number = !digits.is_empty() && others.chars().all(|other| " -./()".contains(other));
    is_number.then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, ton: Option<u8>, npi: Option<u8>) -> (u8, u8, String) {
        let address = address(text, ton, npi).expect("an address");
        let digits = String::from_utf8(address.digits).expect("ASCII");
        (address.ton, address.npi, digits)
    }

    #[test]
    fn the_type_and_the_plan_follow_from_the_address() {
        for (text, ton, npi, sent) in [
            ("ACME", 5, 0, "ACME"),
            ("1-800-ACME", 5, 0, "1-800-ACME"),
            ("12345", 3, 0, "12345"),
            ("+4915112345678", 1, 1, "4915112345678"),
            ("+49 (151) 123-456.78", 1, 1, "4915112345678"),
            ("+49 (0)151 12345678", 1, 1, "4915112345678"),
            ("4915112345678", 1, 1, "4915112345678"),
            ("015112345678", 0, 1, "015112345678"),
            ("004915112345678", 0, 1, "004915112345678"),
            ("+", 5, 0, "+"),
            ("+49 ACME", 5, 0, "+49 ACME"),
        ] {
            let wanted = (ton, npi, sent.to_owned());
            assert_eq!(made(text, None, None), wanted, "{text}");
        }
    }

    #[test]
    fn where_one_is_given_the_other_follows() {
        for (text, given, ton, npi, sent) in [
            // A plus is never sent with the type that says the same.
            ("+4915112345678", (Some(1), None), 1, 1, "4915112345678"),
            ("+4915112345678", (Some(1), Some(1)), 1, 1, "4915112345678"),
            ("+4915112345678", (None, Some(1)), 1, 1, "4915112345678"),
            ("+4915112345678", (None, Some(0)), 1, 0, "4915112345678"),
            // Another type says less than the plus.
            ("+4915112345678", (Some(0), None), 0, 1, "+4915112345678"),
            ("4915112345678", (Some(0), None), 0, 1, "4915112345678"),
            ("0151123456", (Some(2), None), 2, 1, "0151123456"),
            ("12345", (Some(2), None), 2, 1, "12345"),
            ("12345", (Some(0), None), 0, 0, "12345"),
            ("12345", (None, Some(1)), 3, 1, "12345"),
            ("ACME", (Some(1), None), 1, 0, "ACME"),
            ("ACME", (None, Some(1)), 5, 1, "ACME"),
            ("4915112345678", (Some(5), None), 5, 0, "4915112345678"),
        ] {
            let made = made(text, given.0, given.1);
            assert_eq!(made, (ton, npi, sent.to_owned()), "{text} {given:?}");
        }
    }
}
