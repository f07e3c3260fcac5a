//! Tokens for the header `Authorization`: asked for with the credentials of a client (OAuth 2.0, RFC 6749, section 4.4)
//! or with claims that are signed (RFC 7523, section 2.1), or the signed claims themselves, as Apple wants them.

mod grant;
mod key;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request};
use http_body_util::Full;
use url::form_urlencoded::{Serializer, byte_serialize};

use self::grant::{header, read_token, refusal};
use self::key::Claims;
use super::IssuedToken;
use super::client::TokenClient;
use crate::fields::basic;
use sluiced_net::dial::Misconfigured;
use sluiced_settings::types::{ClientAuth, Jwt, Oauth2};

/// How a token server is asked with a signed claim (RFC 7523, section 2.1).
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// Where tokens come from. The secret is not in it, because it may change. Two routes with the same source and the same
/// secret share their tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum OauthSource {
    Client {
        token_url: String,
        id: String,
        auth: ClientAuth,
        scope: Option<String>,
        audience: Option<String>,
    },
    Key {
        /// `None`: the signed claim is the token.
        token_url: Option<String>,
        id: Option<String>,
        claims: BTreeMap<String, String>,
        expires: bool,
        lifetime: Duration,
    },
}

/// The next step to a token.
enum TokenStep {
    /// The token is asked for.
    Ask(Box<Request<Full<Bytes>>>),
    /// The token itself, and how long it is valid.
    Made(String, Duration),
}

impl From<&Oauth2> for OauthSource {
    fn from(client: &Oauth2) -> Self {
        Self::Client {
            token_url: client.token_url.clone(),
            id: client.client_id.clone(),
            auth: client.client_auth,
            scope: client.scope.clone(),
            audience: client.audience.clone(),
        }
    }
}

impl From<&Jwt> for OauthSource {
    fn from(jwt: &Jwt) -> Self {
        Self::Key {
            token_url: jwt.token_url.clone(),
            id: jwt.key_id.clone(),
            claims: jwt.claims.clone(),
            expires: jwt.expires,
            lifetime: jwt.lifetime.get(),
        }
    }
}

impl OauthSource {
    /// Whether a token can be made or asked for with this secret, as far as it shows.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, secret: &str) -> Result<(), Misconfigured> {
        if let Some(Err(_)) = self.token_url().map(str::parse::<http::Uri>) {
            return Err(Misconfigured::new("auth.token_url", "is no URL"));
        }
        match self {
            Self::Client { .. } => Ok(()),
            Self::Key { .. } => {
                key::check(secret).map_err(|why| Misconfigured::new("auth.key_file", why))
            }
        }
    }

    /// The server that is asked.
    pub(super) fn token_url(&self) -> Option<&str> {
        match self {
            Self::Client { token_url, .. } => Some(token_url),
            Self::Key { token_url, .. } => token_url.as_deref(),
        }
    }

    /// A token, made or asked for with the secret as it is at present.
    ///
    /// # Errors
    /// Why there is none, for a person. Never a part of the secret.
    pub(super) async fn ask(
        &self,
        client: &TokenClient,
        secret: &str,
    ) -> Result<IssuedToken, String> {
        let request = match self.step(secret, SystemTime::now())? {
            TokenStep::Made(token, life) => {
                let (gives, life) = (header(&token)?, Some(life));
                return Ok(IssuedToken { gives, life });
            }
            TokenStep::Ask(request) => *request,
        };
        let answer = client.ask(request).await?;
        let (status, body) = (answer.status(), answer.body());
        if !status.is_success() {
            return Err(refusal(status, body));
        }
        read_token(status, body)
    }

    /// What comes next.
    fn step(&self, secret: &str, now: SystemTime) -> Result<TokenStep, String> {
        match self {
            Self::Client {
                token_url,
                id,
                auth,
                scope,
                audience,
            } => {
                let mut form = Serializer::new(String::new());
                form.append_pair("grant_type", "client_credentials");
                for (name, value) in [("scope", scope), ("audience", audience)] {
                    if let Some(value) = value {
                        form.append_pair(name, value);
                    }
                }
                let header = credentials(*auth, id, secret, &mut form);
                ask(token_url, header, &form.finish())
            }
            Self::Key {
                token_url,
                id,
                claims,
                expires,
                lifetime,
            } => {
                let claims = Claims {
                    id: id.as_deref(),
                    claims,
                    expires: *expires,
                    lifetime: *lifetime,
                };
                let (signed, lasts) = key::sign_claims(&claims, secret, now)?;
                let Some(token_url) = token_url else {
                    return Ok(TokenStep::Made(signed, lasts));
                };
                let mut form = Serializer::new(String::new());
                form.append_pair("grant_type", JWT_BEARER);
                form.append_pair("assertion", &signed);
                ask(token_url, None, &form.finish())
            }
        }
    }
}

/// The client's name and secret: in the form, or in a header.
fn credentials(
    auth: ClientAuth,
    id: &str,
    secret: &str,
    form: &mut Serializer<'_, String>,
) -> Option<HeaderValue> {
    match auth {
        ClientAuth::Body => {
            form.append_pair("client_id", id);
            form.append_pair("client_secret", secret);
            None
        }
        ClientAuth::Basic => {
            // Both are encoded like a form first (RFC 6749, section 2.3.1).
            let part = |text: &str| byte_serialize(text.as_bytes()).collect();
            let (id, secret): (String, String) = (part(id), part(secret));
            Some(basic(&id, &secret))
        }
    }
}

/// A POST of a form (RFC 6749, section 4.4.2).
fn ask(
    token_url: &str,
    authorization: Option<HeaderValue>,
    form: &str,
) -> Result<TokenStep, String> {
    let mut request = Request::post(token_url)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(ACCEPT, "application/json");
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    request
        .body(Full::new(Bytes::from(form.to_owned())))
        .map(|request| TokenStep::Ask(Box::new(request)))
        .map_err(|_| "token_url is no URL".to_owned())
}
