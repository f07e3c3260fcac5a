//! The request that is made from a message.
//!
//! The parts that do not depend on the message are made once: the method, a URL without
//! templates, and all headers without templates. A message's body is passed on without a copy,
//! unless `body` is configured. Sections of AMQP 1.0 are taken off: no receiver of HTTP knows them.
//!
//! Headers that are always sent, each replaced by a header of the same name in the configuration
//! and left out if that is empty (or a template that makes nothing):
//!
//! | header | value |
//! |---|---|
//! | `content-type` | the message's `content_type`; `application/json` without one, and for a configured body |
//! | `content-encoding` | the message's, or that of Celery's header `compression`, by its name in HTTP (gzip, deflate, br, zstd), if the body is untouched |
//! | `x-message-id` | the publisher's `message_id`, if there is one |
//! | `x-attempt` | 1 for the first call |
//! | `traceparent`, `tracestate` | the message's headers of these names (W3C Trace Context); where calls are spans (`telemetry::traces`), the call's |
//! | `accept-encoding` | `identity`: an answer that is compressed is decoded, but costs time |
//! | `user-agent` | `sluiced/<version>` |
//!
//! `Idempotency-Key` is sent only if it is configured, because a downstream may give it a meaning
//! of its own: `headers.Idempotency-Key = "{{ message_id }}"`.
//!
//! GET and HEAD carry no body unless one is configured.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

use super::credentials::auth::header;
use super::fields::{compile, header_name, header_value};
use super::url::{Url, checked_url, host_header};
use sluiced_net::connect::Secret;
use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::{Facts, UnfitReason};
use sluiced_ports::message::Message;
use sluiced_settings::types::{Auth, Http};
use sluiced_telemetry::traces;
use sluiced_template::{About, SecretValues, Template, Templates, content, is_template};

const X_MESSAGE_ID: HeaderName = HeaderName::from_static("x-message-id");
const X_ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("sluiced/", env!("CARGO_PKG_VERSION")));

/// How requests are made. Compiled once.
pub(super) struct RequestTemplate {
    templates: Templates,
    method: Method,
    url: Url,
    /// Headers that are the same on every request.
    fixed: HeaderMap,
    /// Headers that are made from the message.
    made: Vec<(HeaderName, Template)>,
    /// Which headers that are always sent the configuration replaces.
    replaced: ReplacedHeaders,
    body: BodySource,
}

enum BodySource {
    /// The message's own.
    Message,
    /// None at all: GET and HEAD.
    Nothing,
    Fixed(Bytes),
    Made(Template),
}

#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "one per header, and nothing else"
)]
struct ReplacedHeaders {
    content_type: bool,
    content_encoding: bool,
    message_id: bool,
    attempt: bool,
    trace: bool,
}

impl RequestTemplate {
    pub(super) fn new(http: &Http, auth: Option<(&Auth, &Secret)>) -> Result<Self, Misconfigured> {
        let mut templates = Templates::about(About::Call);
        let method = method(&http.method)?;
        let url = Url::new(&http.url, &http.allowed_hosts, &mut templates)?;
        let body = match &http.body {
            Some(text) if is_template(text) => {
                BodySource::Made(compile(&mut templates, "body", "body", text)?)
            }
            Some(text) => BodySource::Fixed(Bytes::from(text.clone())),
            None if method == Method::GET || method == Method::HEAD => BodySource::Nothing,
            None => BodySource::Message,
        };
        let mut template = Self {
            method,
            fixed: HeaderMap::new(),
            made: Vec::new(),
            replaced: ReplacedHeaders::default(),
            url,
            body,
            templates,
        };
        template.fixed.insert(USER_AGENT, AGENT);
        template.fixed.insert(ACCEPT_ENCODING, IDENTITY);
        // Otherwise the client would make it for each request.
        if let Some(host) = template.origin().and_then(host_header) {
            template.fixed.insert(HOST, host);
        }
        for (name, text) in &http.headers {
            template.add_header(name, text)?;
        }
        if let Some((auth, secret)) = auth {
            template.add_auth(auth, secret)?;
        }
        Ok(template)
    }

    /// Scheme and host of every call, if no template can change them.
    pub(super) fn origin(&self) -> Option<&Uri> {
        match &self.url {
            Url::Fixed(uri) => Some(uri),
            Url::Made { origin, .. } => origin.as_ref(),
        }
    }

    /// Whether every call has the same URL.
    pub(super) const fn is_fixed(&self) -> bool {
        matches!(self.url, Url::Fixed(_))
    }

    /// The secrets that the templates name.
    pub(super) const fn secrets(&self) -> &BTreeSet<String> {
        self.templates.secrets()
    }

    /// The method.
    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    /// Whether the message's trace continues in the request, and no header of the configuration replaces
    /// it.
    pub(super) const fn passes_trace(&self) -> bool {
        !self.replaced.trace
    }

    fn add_header(&mut self, name: &str, text: &str) -> Result<(), Misconfigured> {
        let key = format!("headers.{name}");
        let header = header_name(&key, name)?;
        if self.made.iter().any(|(made, _)| *made == header) {
            return Err(Misconfigured::new(&key, "is there twice"));
        }
        self.replaced.note(&header);
        self.fixed.remove(&header);
        if is_template(text) {
            let what = format!("header {header}");
            let template = compile(&mut self.templates, &what, &key, text)?;
            self.made.push((header, template));
        } else if !text.is_empty() {
            let mut value = HeaderValue::from_bytes(text.as_bytes())
                .map_err(|_| Misconfigured::new(&key, "has a control character"))?;
            value.set_sensitive(header == AUTHORIZATION);
            self.fixed.insert(header, value);
        }
        Ok(())
    }

    fn add_auth(&mut self, auth: &Auth, secret: &Secret) -> Result<(), Misconfigured> {
        let Some(value) = header(auth, secret)? else {
            return Ok(());
        };
        if self.fixed.contains_key(AUTHORIZATION)
            || self.made.iter().any(|(name, _)| *name == AUTHORIZATION)
        {
            return Err(Misconfigured::new(
                "auth",
                "there is a header `Authorization` too; keep one of them",
            ));
        }
        self.fixed.insert(AUTHORIZATION, value);
        Ok(())
    }

    /// Makes the request. `secrets`: the values of those that the templates name.
    pub(super) fn request(
        &self,
        message: &Message,
        facts: Facts<'_>,
        secrets: Option<&SecretValues>,
    ) -> Result<Request<Bytes>, UnfitReason> {
        let about_message = self.templates.context(message, facts)?;
        let context = match secrets {
            Some(secrets) => about_message.with_secrets(secrets),
            None => about_message,
        };
        let render = |template| self.templates.render(template, &context);
        let uri = match &self.url {
            Url::Fixed(uri) => uri.clone(),
            Url::Made {
                template,
                origin,
                allowed,
            } => {
                let made = checked_url(&render(template)?)?;
                if origin.is_none() {
                    allowed.check(&made)?;
                }
                made
            }
        };
        let (body, coding) = match &self.body {
            BodySource::Message => match content::passed_on(message)? {
                (Cow::Borrowed(_), coding) => (message.body.clone(), coding),
                (Cow::Owned(body), coding) => (Bytes::from(body), coding),
            },
            BodySource::Nothing => (Bytes::new(), None),
            BodySource::Fixed(bytes) => (bytes.clone(), None),
            BodySource::Made(template) => (Bytes::from(render(template)?), None),
        };
        let mut headers = self.fixed.clone();
        self.add_defaults(&mut headers, message, facts, coding)?;
        for (name, template) in &self.made {
            let text = render(template)?;
            if !text.is_empty() {
                let mut value = header_value(name, text)?;
                value.set_sensitive(*name == AUTHORIZATION || self.templates.is_secret(template));
                headers.insert(name.clone(), value);
            }
        }
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn add_defaults(
        &self,
        headers: &mut HeaderMap,
        message: &Message,
        facts: Facts<'_>,
        coding: Option<&'static str>,
    ) -> Result<(), UnfitReason> {
        let properties = &message.properties;
        let untouched = matches!(self.body, BodySource::Message);
        if !self.replaced.content_type && !matches!(self.body, BodySource::Nothing) {
            let value = match &properties.content_type {
                Some(kind) if untouched => header_value(&CONTENT_TYPE, kind.clone())?,
                _ => JSON,
            };
            headers.insert(CONTENT_TYPE, value);
        }
        if let Some(coding) = coding.filter(|_| !self.replaced.content_encoding) {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        if !self.replaced.message_id
            && let Some(id) = &properties.message_id
        {
            headers.insert(X_MESSAGE_ID, header_value(&X_MESSAGE_ID, id.clone())?);
        }
        if !self.replaced.trace {
            headers.extend(traces::headers_of(message));
        }
        if !self.replaced.attempt {
            headers.insert(X_ATTEMPT, HeaderValue::from(facts.attempt));
        }
        Ok(())
    }
}

impl ReplacedHeaders {
    fn note(&mut self, header: &HeaderName) {
        self.content_type |= *header == CONTENT_TYPE;
        self.content_encoding |= *header == CONTENT_ENCODING;
        self.message_id |= *header == X_MESSAGE_ID;
        self.attempt |= *header == X_ATTEMPT;
        self.trace |= traces::HEADERS.contains(header);
    }
}

impl fmt::Debug for RequestTemplate {
    /// Shows neither the path, header values nor the body: any of them may have keys of an API.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.origin().and_then(Uri::host);
        f.debug_struct("RequestTemplate")
            .field("method", &self.method)
            .field("host", &host)
            .finish_non_exhaustive()
    }
}

fn method(text: &str) -> Result<Method, Misconfigured> {
    match Method::from_bytes(text.as_bytes()) {
        Ok(Method::CONNECT) => Err(Misconfigured::new("method", "CONNECT makes no call")),
        Ok(method) if text.bytes().any(|b| b.is_ascii_lowercase()) => Err(Misconfigured::new(
            "method",
            format_args!("`{method}` must be written in capital letters"),
        )),
        Ok(method) => Ok(method),
        Err(_) => Err(Misconfigured::new("method", "is no method of HTTP")),
    }
}

#[cfg(test)]
mod tests;
