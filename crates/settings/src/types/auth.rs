//! How a downstream recognizes the caller: credentials, or a signature.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use super::{AwsCredentials, AwsVariables};
use crate::forms::templates::{SIGNATURE_HEADER, SIGNED};
use crate::forms::urls::{METADATA_URL, TOKEN_URL};
use crate::forms::{SECRET, TEXT, USER};
use crate::schema::Shape::{Flag, Named};
use crate::schema::{SPAN, kinds, table, words};
use crate::text::Length;

kinds! {
    #[derive(Clone, Debug, Deserialize)]
    pub enum Auth, None; {
        /// user, and password or password_file.
        Basic(Basic) = "basic", "", Basic::KEYS, &[];
        /// token or token_file.
        Bearer(Bearer) = "bearer", "", Bearer::KEYS, &[];
        /// each call is signed when it is sent: secret or secret_file, what is signed, and the headers that carry it.
        Hmac(Box<Hmac>) = "hmac", "", Hmac::KEYS, &[];
        /// a token of OAuth 2.0, which is asked for with the credentials of a client (RFC 6749, 4.4) and renewed before it
        /// ends. Routes with the same client share it.
        Oauth2(Box<Oauth2>) = "oauth2", "", Oauth2::KEYS, &[];
        /// a token that is signed with a private key (a JSON Web Token, RFC 7519), as Apple wants it, or the one that a
        /// token server gives for it (RFC 7523), as Google wants it. It is renewed before it ends.
        Jwt(Box<Jwt>) = "jwt", "", Jwt::KEYS, &[];
        /// each call is signed when it is sent, by AWS Signature Version 4.
        Aws(Box<AwsSigv4>) = "aws_sigv4", "", AwsSigv4::KEYS, &[];
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

table! {
    /// Exactly one of `client_secret` and `client_secret_file`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Oauth2 {
        /// Where the token is asked for, with a POST that goes through the downstream's proxy and trusts its ca_file.
        token_url: String = TOKEN_URL, Required "https://auth.example.com/oauth/token";
        /// The client's name.
        client_id: String = TEXT, Required "sluiced";
        /// The client's secret itself; client_secret_file is better.
        client_secret: Option<SecretString> = SECRET, Apart "…";
        /// The file that holds the client's secret. It is read for each token.
        client_secret_file: Option<PathBuf> = TEXT, Optional "credential:client";
        /// Where the client's name and secret stand: in the header (basic), as every server takes them by RFC 6749, or in
        /// the body (body), where a server wants them there.
        client_auth: ClientAuth = ClientAuth::SHAPE, Default "basic";
        /// What the token shall be good for, in words of the server.
        scope: Option<String> = TEXT, Optional "messages:send";
        /// The audience that the token is for, where the server asks for one.
        audience: Option<String> = TEXT, Optional "https://api.example.com";
    }
}

table! {
    /// Claims that are signed: by ES256 with a key of P-256, by RS256 with one of RSA.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Jwt {
        /// The file that holds the private key: PEM, or the JSON of a service account of Google, which also names the key
        /// and the account. It is read for each token.
        key_file: PathBuf = TEXT, Required "credential:provider";
        /// The provider's name of the key (kid).
        key_id: Option<String> = TEXT, Optional "ABC123DEFG";
        /// What is said in the token: texts. iat is added, and exp where expires is true; with the file of a service
        /// account also its iss.
        claims: BTreeMap<String, String> = Named { of: &TEXT, example: "iss = \"TEAM123456\"" }, Default {};
        /// Whether the token says when it ends (exp). Apple counts from iat alone.
        expires: bool = Flag, Default true;
        /// How long a token is good for, from 2 minutes to a day. A new one is made after three to four fifths of that.
        lifetime: Length = SPAN, Default "50m";
        /// Where another token is given for the signed one, with a POST that goes through the downstream's proxy and trusts
        /// its ca_file. Absent: calls have the signed one.
        token_url: Option<String> = TOKEN_URL, Optional "https://oauth2.googleapis.com/token";
    }
}

table! {
    /// For a service other than S3, whose paths are signed in another way.
    #[derive(Clone, Debug, Deserialize)]
    pub struct AwsSigv4 {
        /// The region, as in the host's name.
        region: String = TEXT, Required "eu-central-1";
        /// The service, as in the host's name.
        service: String = TEXT, Required "sns";
        /// Where the credentials are: file (credentials_file), environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and,
        /// where they end, AWS_SESSION_TOKEN), container (the role of a container of ECS, Fargate or EKS Pod Identity) or
        /// instance (the role of an instance of EC2, by IMDSv2). No other place is looked at.
        credentials: AwsCredentials = AwsCredentials::SHAPE, Default "file";
        /// For file: one in the form of ~/.aws/credentials, with aws_access_key_id, aws_secret_access_key and, where the
        /// credentials end, aws_session_token. It is read again when AWS answers 401 or 403.
        credentials_file: Option<PathBuf> = TEXT, Optional "credential:aws";
        /// The part of that file.
        profile: String = TEXT, Default "default";
        /// For instance: where its metadata is, which is asked without a proxy. By IPv6 its host is fd00:ec2::254, in brackets.
        metadata_url: String = METADATA_URL, Default "http://169.254.169.254";
        + /// Those of AWS in the environment.
        variables: AwsVariables;
    }
}

words! {
    /// Where a client's name and secret stand.
    pub enum ClientAuth {
        Basic = "basic",
        Body = "body",
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
    /// The templates that may name secrets, each with its key.
    pub(crate) fn of_call(&self) -> Vec<(Vec<&str>, &str)> {
        let Self::Hmac(hmac) = self else {
            return Vec::new();
        };
        let signed = (vec!["signed"], hmac.signed.as_str());
        let headers = hmac
            .headers
            .iter()
            .map(|(name, text)| (vec!["headers", name], text.as_str()));
        std::iter::once(signed).chain(headers).collect()
    }

    /// Whether it sets this header, whose name is in small letters.
    #[must_use]
    pub fn sets(&self, header: &str) -> bool {
        match self {
            Self::Basic(_) | Self::Bearer(_) | Self::Oauth2(_) | Self::Jwt(_) => {
                header == "authorization"
            }
            Self::Aws(_) => matches!(
                header,
                "authorization" | "x-amz-date" | "x-amz-security-token"
            ),
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
