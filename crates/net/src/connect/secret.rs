//! Secrets that are replaced while the program runs.
//!
//! Problem: a password that was read once at the start is wrong after a rotation, and every
//! later attempt to connect fails. So the secret is read again for each login. If that fails (a file is being
//! replaced), the last good one is used, with a warning.

use std::fmt;
use std::sync::{Arc, Mutex};

use secrecy::SecretString;
use tracing::warn;

use sluiced_ports::lock;

/// Reads the secret; the error gives the reason, without the secret.
type Read = dyn Fn() -> Result<SecretString, String> + Send + Sync;

/// A secret, and how to read it again. Copies are the same.
#[derive(Clone)]
pub struct Secret(Arc<SecretSource>);

struct SecretSource {
    /// `None`: it is in the configuration.
    read: Option<Box<Read>>,
    known: Mutex<LastRead>,
}

struct LastRead {
    last: SecretString,
    /// The failure that was logged.
    logged: Option<String>,
}

impl Secret {
    /// A secret that `read` reads again, with its first value.
    pub fn rotating(
        first: SecretString,
        read: impl Fn() -> Result<SecretString, String> + Send + Sync + 'static,
    ) -> Self {
        Self::new(first, Some(Box::new(read)))
    }

    fn new(last: SecretString, read: Option<Box<Read>>) -> Self {
        let last_read = Mutex::new(LastRead { last, logged: None });
        Self(Arc::new(SecretSource {
            read,
            known: last_read,
        }))
    }

    /// The current secret, or the last one that could be read.
    #[must_use]
    pub fn get(&self) -> SecretString {
        let now = self.0.read.as_ref().map(|read| read());
        let mut last_read = lock(&self.0.known);
        match now {
            None => {}
            Some(Ok(now)) => {
                last_read.last = now;
                last_read.logged = None;
            }
            // Once for each reason, not once for each attempt.
            Some(Err(why)) if last_read.logged.as_ref() != Some(&why) => {
                warn!(why, "a secret cannot be read again; the last one is used");
                last_read.logged = Some(why);
            }
            Some(Err(_)) => {}
        }
        last_read.last.clone()
    }

    /// The secret as it was used last.
    #[must_use]
    pub fn last(&self) -> SecretString {
        lock(&self.0.known).last.clone()
    }
}

impl From<SecretString> for Secret {
    fn from(fixed: SecretString) -> Self {
        Self::new(fixed, None)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn it_is_read_each_time_and_the_last_good_one_stays() {
        let file = Arc::new(Mutex::new(Ok("new")));
        let read = {
            let file = Arc::clone(&file);
            move || {
                let read = *file.lock().unwrap();
                read.map(SecretString::from).map_err(str::to_owned)
            }
        };
        let secret = Secret::rotating(SecretString::from("old"), read);
        assert_eq!(secret.last().expose_secret(), "old");
        assert_eq!(secret.get().expose_secret(), "new");
        *file.lock().unwrap() = Err("gone");
        assert_eq!(secret.get().expose_secret(), "new");
        *file.lock().unwrap() = Ok("newer");
        assert_eq!(secret.get().expose_secret(), "newer");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
