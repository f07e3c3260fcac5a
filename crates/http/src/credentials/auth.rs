//! The header `Authorization`, even after a rotation of the secret. Signatures are made by `sign`.
//!
//! Requests are made before their slots, with the secret of that time. It is read again as `reading` says, and later
//! calls have the new one.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use secrecy::ExposeSecret;

use super::reading::Reread;
use super::sign::AnySigner;
use crate::fields::basic;
use sluiced_net::connect::Secret;
use sluiced_net::dial::Misconfigured;
use sluiced_settings::types::Auth;

/// The header of these credentials, with the secret as it was read last. `None`: each call is signed instead.
pub(crate) fn header(auth: &Auth, secret: &Secret) -> Result<Option<HeaderValue>, Misconfigured> {
    let last = secret.last();
    let secret = last.expose_secret();
    let text = match auth {
        Auth::Basic(with) if with.user.contains(':') => {
            return Err(Misconfigured::new("auth.user", "has a colon"));
        }
        Auth::Basic(with) => return Ok(Some(basic(&with.user, secret))),
        Auth::Bearer(_) => format!("Bearer {secret}"),
        // Made for each call.
        Auth::Hmac(_) | Auth::Oauth2(_) | Auth::Jwt(_) | Auth::Aws(_) => return Ok(None),
    };
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| Misconfigured::new("auth", "the secret has a control character"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Credentials whose secret may change. The value is the header that replaces the first one after a rotation.
pub(crate) struct RotatingAuth(Reread<Option<HeaderValue>>);

impl RotatingAuth {
    /// `signer`: where calls are signed.
    pub(crate) fn new(auth: Auth, secret: Secret, signer: Option<AnySigner>) -> Self {
        let read = move || read(&auth, &secret, signer.as_ref());
        Self(Reread::new(None, read))
    }

    /// Puts the current secret into a request that was made before.
    pub(crate) fn renew(&self, headers: &mut HeaderMap) {
        if let (Some(value), _) = self.0.current() {
            headers.insert(AUTHORIZATION, value);
        }
    }

    /// Changes with the secret.
    pub(crate) fn version(&self) -> u64 {
        self.0.version().number()
    }

    /// Reads the secret again if this answer refused it.
    pub(crate) async fn note_answer(&self, status: StatusCode) {
        self.0.note_answer(status).await;
    }

    /// Reads it again from time to time.
    pub(crate) fn refresh_if_due(&self) {
        self.0.refresh_if_due();
    }
}

fn read(auth: &Auth, secret: &Secret, signer: Option<&AnySigner>) -> Option<Option<HeaderValue>> {
    let before = secret.last();
    if secret.get().expose_secret() == before.expose_secret() {
        return None;
    }
    let renewed = match signer {
        Some(signer) => signer.renew().map(|()| None),
        None => header(auth, secret),
    };
    match &renewed {
        Ok(_) => tracing::info!("the secret of the downstream has changed: the new one is used"),
        Err(why) => tracing::warn!(%why, "the changed secret cannot be used"),
    }
    renewed.ok()
}
