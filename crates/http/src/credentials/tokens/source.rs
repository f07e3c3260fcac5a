//! Where tokens come from, and what each kind is called.

use std::path::PathBuf;

use http::{HeaderMap, StatusCode};

use super::IssuedToken;
use super::client::TokenClient;
use super::metadata::Metadata;
use super::oauth::OauthSource;
use sluiced_net::dial::Misconfigured;
use sluiced_settings::types::Auth;

/// Where tokens come from. The secret is not in it, because it may change. Two routes with the same source and the same
/// secret share their tokens.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Oauth(OauthSource),
    Metadata(Metadata),
}

/// For a person.
pub(super) struct Words {
    /// What is given.
    pub(super) what: &'static str,
    /// What follows when it cannot be used any more.
    pub(super) again: &'static str,
    pub(super) secret: &'static str,
}

impl Source {
    /// Where what this `auth` needs comes from, with the file of the secret. `None`: it needs nothing of a server.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub(super) fn for_auth(auth: &Auth) -> Result<Option<(Self, Option<PathBuf>)>, Misconfigured> {
        Ok(match auth {
            Auth::Oauth2(client) => {
                let file = client.client_secret_file.clone();
                Some((Self::Oauth((&**client).into()), file))
            }
            Auth::Jwt(jwt) => Some((Self::Oauth((&**jwt).into()), Some(jwt.key_file.clone()))),
            // A process has the same variables for all routes, and so the same file.
            Auth::Aws(aws) => {
                Metadata::for_aws(aws)?.map(|metadata| (Self::Metadata(metadata), None))
            }
            Auth::Basic(_) | Auth::Bearer(_) | Auth::Hmac(_) => None,
        })
    }

    /// Whether a token can be asked for with this secret, as far as it shows.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, secret: &str) -> Result<(), Misconfigured> {
        match self {
            Self::Oauth(source) => source.check(secret),
            Self::Metadata(_) => Ok(()),
        }
    }

    /// The server that is asked, if one is.
    pub(super) fn url(&self) -> Option<&str> {
        match self {
            Self::Oauth(source) => source.token_url(),
            Self::Metadata(metadata) => Some(metadata.url()),
        }
    }

    /// Whether the server is on this machine or beside it, where no proxy leads: it would see what is given.
    pub(super) const fn is_near(&self) -> bool {
        matches!(self, Self::Metadata(_))
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
        match self {
            Self::Oauth(source) => source.ask(client, secret).await,
            Self::Metadata(metadata) => metadata.ask(client, secret).await,
        }
    }

    /// Whether the downstream refused a call because of its token.
    pub(super) fn is_refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
        match self {
            Self::Oauth(_) => status == StatusCode::UNAUTHORIZED,
            Self::Metadata(_) => Metadata::have_ended(status, headers, body),
        }
    }

    pub(super) const fn words(&self) -> Words {
        match self {
            Self::Oauth(_) => Words {
                what: "token",
                again: "another one is asked for",
                secret: "the secret of the tokens",
            },
            Self::Metadata(_) => Words {
                what: "credentials",
                again: "others are asked for",
                secret: "the token that metadata of the container wants",
            },
        }
    }
}
