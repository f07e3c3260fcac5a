//! The header `Authorization`, also after the secret was rotated.
//!
//! Requests are made before their slots, with the secret of that time. When the downstream refuses it
//! (401, 403), the secret is read again, at most once a second: a downstream that refuses for another
//! reason costs no more than that. What is sent from then on carries the new one.

use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::options::{Misconfigured, ResolvedAuth};

use crate::ports::locks::lock;

/// How often the secret is read at most.
const EVERY: Duration = Duration::from_secs(1);

/// The header of these credentials, with the secret as it was read last.
pub(super) fn header(auth: &ResolvedAuth) -> Result<HeaderValue, Misconfigured> {
    let text = match auth {
        ResolvedAuth::Basic { user, .. } if user.contains(':') => {
            return Err(Misconfigured::new("auth.user", "has a colon"));
        }
        ResolvedAuth::Basic { user, password } => {
            let pair = format!("{user}:{}", password.last().expose_secret());
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        }
        ResolvedAuth::Bearer { token } => format!("Bearer {}", token.last().expose_secret()),
    };
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| Misconfigured::new("auth", "the secret has a control character"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Credentials whose secret may change.
pub(super) struct RotatingAuth {
    auth: ResolvedAuth,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What replaces the header of the start.
    renewed: Option<HeaderValue>,
    read: Option<Instant>,
}

impl RotatingAuth {
    pub(super) fn new(auth: ResolvedAuth) -> Self {
        Self {
            auth,
            state: Mutex::default(),
        }
    }

    /// Puts the secret of now into a request that was made before.
    pub(super) fn renew(&self, headers: &mut HeaderMap) {
        if let Some(value) = &lock(&self.state).renewed {
            headers.insert(AUTHORIZATION, value.clone());
        }
    }

    /// Reads the secret again if this answer refused it.
    pub(super) fn answered(&self, status: StatusCode) {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return;
        }
        let mut state = lock(&self.state);
        if state.read.is_some_and(|read| read.elapsed() < EVERY) {
            return;
        }
        state.read = Some(Instant::now());
        let secret = self.auth.secret();
        let before = secret.last();
        if secret.get().expose_secret() == before.expose_secret() {
            return;
        }
        match header(&self.auth) {
            Ok(value) => {
                tracing::info!("the secret of the downstream has changed: the new one is used");
                state.renewed = Some(value);
            }
            Err(why) => tracing::warn!(%why, "the changed secret cannot be used"),
        }
    }
}
