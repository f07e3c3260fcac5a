//! The token that callers carry.
//!
//! The file is read again for a request, at most every second: after a rotation the new token is accepted and the old
//! one refused within that time, and guesses do not read the file without end. Digests are compared, so that the time
//! of the comparison says nothing about the token.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use sluiced_core::time::Mono;
use sluiced_net::connect::Secret;
use sluiced_ports::lock;

/// The file is read at most once in this time.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The token of a listener.
pub(crate) struct Token {
    secret: Secret,
    known: Mutex<(Fingerprint, Mono)>,
}

type Fingerprint = [u8; 32];

impl Token {
    pub(crate) fn new(secret: Secret, now: Mono) -> Self {
        let first = fingerprint(secret.get().expose_secret());
        Self {
            secret,
            known: Mutex::new((first, now)),
        }
    }

    /// Whether a request carries it (RFC 6750, section 2.1).
    pub(crate) fn is_in(&self, headers: &HeaderMap, now: Mono) -> bool {
        let text = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let parts = text.and_then(|text| text.split_once(' '));
        let Some((scheme, token)) = parts else {
            return false;
        };
        scheme.eq_ignore_ascii_case("bearer") && self.fits(token.trim(), now)
    }

    fn fits(&self, token: &str, now: Mono) -> bool {
        let given = fingerprint(token);
        let mut last_read = lock(&self.known);
        if now.since(last_read.1) >= MIN_REREAD_INTERVAL {
            *last_read = (fingerprint(self.secret.get().expose_secret()), now);
        }
        given == last_read.0
    }
}

fn fingerprint(token: &str) -> Fingerprint {
    Sha256::digest(token.trim().as_bytes()).into()
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::sync::Arc;

    fn with(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(text).expect("a value"));
        headers
    }

    #[test]
    fn only_the_token_fits_and_a_new_one_is_read_once_a_second() {
        let file = Arc::new(Mutex::new("first\n".to_owned()));
        let read = Arc::clone(&file);
        let secret = Secret::rotating("first\n".into(), move || Ok(lock(&read).clone().into()));
        let at = |millis: u64| Mono::from_micros(millis * 1_000);
        let token = Token::new(secret, at(0));
        for (text, fits) in [
            ("Bearer first", true),
            ("bearer  first ", true),
            ("Basic first", false),
            ("Bearer", false),
            ("Bearer firs", false),
            ("Bearer ", false),
        ] {
            assert_eq!(token.is_in(&with(text), at(1)), fits, "{text}");
        }
        assert!(!token.is_in(&HeaderMap::new(), at(1)));
        *lock(&file) = "second".to_owned();
        assert!(
            !token.is_in(&with("Bearer second"), at(999)),
            "not read yet"
        );
        assert!(
            !token.is_in(&with("Bearer first"), at(1_000)),
            "a leaked one ends"
        );
        assert!(token.is_in(&with("Bearer second"), at(1_000)));
        assert!(!token.is_in(&with("Bearer first"), at(1_001)));
    }
}
