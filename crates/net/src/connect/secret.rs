//! Secrets that are replaced while the program runs.
//!
//! Problem: a password that was read once at the start is wrong after a rotation, and every later attempt to connect
//! fails. So the secret is read again for each login. If that fails (a file is being replaced), the last good one is
//! used, with a warning.
//!
//! A file may lie on a mount that hangs, and some logins are made on threads that send. So a thread of its own reads
//! it, and a login waits for [`READING`] at most, and not at all while an earlier read hangs: the last secret is used.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use secrecy::SecretString;
use tracing::warn;

use sluiced_ports::lock;

/// A login waits no longer than this for the secret to be read: longer than a busy machine takes for a file.
const READING: Duration = Duration::from_secs(1);

/// Reads the secret; the error gives the reason, without the secret.
type Read = dyn Fn() -> Result<SecretString, String> + Send + Sync;

/// A secret, and how to read it again. Copies are the same.
#[derive(Clone)]
pub struct Secret(Arc<SecretSource>);

struct SecretSource {
    /// `None`: it is in the configuration.
    read: Option<Box<Read>>,
    known: Mutex<LastRead>,
    /// Notified when a read has ended.
    has_ended: Condvar,
}

struct LastRead {
    last: SecretString,
    /// The failure that was logged.
    logged: Option<String>,
    is_reading: bool,
    /// The read takes too long: nothing waits for it any more.
    hangs: bool,
}

/// A read that is under way. Dropped, it has ended, even by a panic.
struct Reading(Arc<SecretSource>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mut known = lock(&self.0.known);
        (known.is_reading, known.hangs) = (false, false);
        self.0.has_ended.notify_all();
    }
}

impl SecretSource {
    /// Reads it again.
    fn read_again(&self) {
        let now = self.read.as_ref().map(|read| read());
        let mut known = lock(&self.known);
        match now {
            None => {}
            Some(Ok(now)) => {
                known.last = now;
                known.logged = None;
            }
            // Once for each reason, not once for each attempt.
            Some(Err(why)) if known.logged.as_ref() != Some(&why) => {
                warn!(why, "a secret cannot be read again; the last one is used");
                known.logged = Some(why);
            }
            Some(Err(_)) => {}
        }
    }
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
        Self(Arc::new(SecretSource {
            read,
            known: Mutex::new(LastRead {
                last,
                logged: None,
                is_reading: false,
                hangs: false,
            }),
            has_ended: Condvar::new(),
        }))
    }

    /// The current secret, or the last one that could be read. Blocks for a second at most.
    #[must_use]
    pub fn get(&self) -> SecretString {
        if self.0.read.is_none() {
            return self.last();
        }
        let is_reading = std::mem::replace(&mut lock(&self.0.known).is_reading, true);
        if !is_reading {
            let reading = Reading(Arc::clone(&self.0));
            let reader = thread::Builder::new().name("secret".to_owned());
            // Where the system has no thread, `reading` is dropped, and the last secret is used.
            reader.spawn(move || reading.0.read_again()).ok();
        }
        let mut known = lock(&self.0.known);
        if !known.hangs {
            let waited = self
                .0
                .has_ended
                .wait_timeout_while(known, READING, |known| known.is_reading);
            let (still_known, wait) = waited.unwrap_or_else(PoisonError::into_inner);
            known = still_known;
            if wait.timed_out() {
                warn!("a secret is not read within {READING:?}; the last one is used");
                known.hangs = true;
            }
        }
        known.last.clone()
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

    #[test]
    fn a_read_that_hangs_keeps_nothing_waiting_and_counts_once_it_ends() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = Mutex::new(ends);
        let read = move || {
            ends.lock().unwrap().recv().ok();
            Ok(SecretString::from("new"))
        };
        let secret = Secret::rotating(SecretString::from("old"), read);
        for _ in 0..1_000 {
            assert_eq!(secret.get().expose_secret(), "old");
        }
        end.send(()).unwrap();
        while secret.last().expose_secret() == "old" {
            thread::yield_now();
        }
        drop(end);
        assert_eq!(secret.get().expose_secret(), "new");
    }
}
