//! How a downstream recognizes the caller: credentials, or a signature.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use crate::forms::{SECRET, SIGNATURE_HEADER, SIGNED, TEXT, USER};
use crate::schema::Shape::Named;
use crate::schema::{kinds, table, words};

kinds! {
    #[derive(Clone, Debug, Deserialize)]
    pub enum Auth, None; {
        /// user, and password or password_file.
        Basic(Basic) = "basic", "", Basic::KEYS, &[];
        /// token or token_file.
        Bearer(Bearer) = "bearer", "", Bearer::KEYS, &[];
        /// each call is signed when it is sent: secret or secret_file, what is signed, and the headers that carry it.
        Hmac(Box<Hmac>) = "hmac", "", Hmac::KEYS, &[];
    }
}

table! {
    /// Exactly one of `password` and `password_file`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Basic {
        /// The user's name.
        user: String = USER, Required "sluiced";
        /// The password itself; password_file is better.
        password: Option<SecretString> = SECRET, Apart "…";
        /// The file that holds the password.
        password_file: Option<PathBuf> = TEXT, Optional "credential:provider";
    }
}

table! {
    /// Exactly one of `token` and `token_file`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Bearer {
        /// The token itself; token_file is better.
        token: Option<SecretString> = SECRET, Apart "…";
        /// The file that holds the token.
        token_file: Option<PathBuf> = TEXT, Optional "credential:provider";
    }
}

table! {
    /// Exactly one of `secret` and `secret_file`.
    #[derive(Clone, Deserialize)]
    pub struct Hmac {
        /// The secret itself; secret_file is better.
        secret: Option<SecretString> = SECRET, Apart "…";
        /// The file that holds the secret.
        secret_file: Option<PathBuf> = TEXT, Optional "credential:webhook";
        /// How the secret is written: text, hex or base64. base64 may have the prefix whsec_ of Standard Webhooks.
        secret_encoding: SecretEncoding = SecretEncoding::SHAPE, Default "text";
        /// The hash function: sha1, sha256 or sha512.
        algorithm: HashFunction = HashFunction::SHAPE, Default "sha256";
        /// What is signed: a template. Besides what all templates know it has timestamp (the seconds since 1970 when
        /// the call is sent), request_method, request_path (with the query) and request_body, which must be a text.
        signed: String = SIGNED, Required "{{ message_id }}.{{ timestamp }}.{{ request_body }}";
        /// The headers that carry it, templates by name. They also know signature_hex and signature_base64.
        headers: BTreeMap<String, String> = Named {
            of: &SIGNATURE_HEADER,
            example: "x-signature = \"sha256={{ signature_hex }}\"",
        }, Required { x-signature = "sha256={{ signature_hex }}" };
    }
}

words! {
    /// How a secret of bytes is written.
    pub enum SecretEncoding {
        /// The bytes of the text itself.
        Text = "text",
        Hex = "hex",
        /// With or without `=` at the end, and with or without `whsec_` in front.
        Base64 = "base64",
    }
}

words! {
    /// The hash function of a signature.
    pub enum HashFunction {
        Sha1 = "sha1",
        Sha256 = "sha256",
        Sha512 = "sha512",
    }
}

impl Auth {
    /// Whether it sets this header, whose name is in small letters.
    #[must_use]
    pub fn sets(&self, header: &str) -> bool {
        match self {
            Self::Basic(_) | Self::Bearer(_) => header == "authorization",
            Self::Hmac(hmac) => hmac
                .headers
                .keys()
                .any(|own| own.eq_ignore_ascii_case(header)),
        }
    }
}

impl fmt::Debug for Hmac {
    /// Neither the templates nor the secret: keys of an API hide in all of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hmac")
            .field("algorithm", &self.algorithm)
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
    }
}
