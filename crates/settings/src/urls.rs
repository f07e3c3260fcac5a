//! The user and the password in the URL of a server.
//!
//! Problem: a password is made by a generator, and copied into a URL as it is. A `/`, `?` or `#` in it ends the
//! address, so that its first part would be a host or a port and the rest a path, which a log may show; what clients
//! make of a second `@` or of a `%` differs. So each of these must be written as RFC 3986 wants it, and the error says
//! how, without any part of the URL.

/// Checks that nothing in a URL can be a user or a password that was not encoded.
///
/// # Errors
/// The character that must be encoded, and how, for an operator.
pub fn is_encoded(url: &str) -> Result<(), String> {
    let Some((_, rest)) = url.split_once("://") else {
        return Ok(());
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    if let (true, Some(ends)) = (behind.contains('@'), behind.chars().next()) {
        return match authority.contains('@') {
            true => Err(raw('@')),
            false => Err(raw(ends)),
        };
    }
    let Some((user, _)) = authority.rsplit_once('@') else {
        return Ok(());
    };
    if user.contains('@') {
        return Err(raw('@'));
    }
    let mut parts = user.split('%').skip(1);
    let is_hex = |part: &str| {
        let code = part.as_bytes().get(..2);
        code.is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    };
    match parts.all(is_hex) {
        true => Ok(()),
        false => Err(raw('%')),
    }
}

fn raw(character: char) -> String {
    format!(
        "there is a `{character}` in its user or password, or behind its host, that must be written as %{:02X}; or write the password into password_file",
        u32::from(character)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_read_as_something_else_is_named_without_the_password() {
        for (url, named) in [
            ("amqps://app:pa/s3cret@broker:5671/%2f", "`/`"),
            ("amqps://app:pa?s3cret@broker:5671/%2f", "`?`"),
            ("amqps://app:pa#s3cret@broker:5671/%2f", "`#`"),
            ("amqps://app:pa@s3cret@broker:5671/%2f", "`@`"),
            ("amqps://app:pa@s3/cret@broker:5671/%2f", "`@`"),
            ("amqps://app:s3cret%@broker:5671/%2f", "`%`"),
            ("amqps://app:s3cret%zz@broker:5671/%2f", "`%`"),
            ("rediss://:1/s3cret@cache:6379/0", "`/`"),
        ] {
            let said = is_encoded(url).unwrap_err();
            assert!(said.contains(named), "{url}: {said}");
            assert!(!said.contains("cret"), "{said}");
        }
    }

    #[test]
    fn what_is_written_rightly_is_good() {
        for url in [
            "amqp://guest:guest@127.0.0.1:5672/%2f",
            "amqps://app:a%2Fb%40c%23d%3fe%25@[2001:db8::1]:5671/v?heartbeat=5",
            "redis://127.0.0.1:6379/0",
            "rediss://:p@cache",
            "no url",
        ] {
            assert_eq!(is_encoded(url), Ok(()), "{url}");
        }
    }
}
