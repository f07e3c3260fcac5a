//! From a message to its call: the request that is made, and what sends it (`call`).
//!
//! Redirects are not followed: a 3xx is judged like any code, and permanent by default; its reason says where it leads
//! (`redirect`). The call would not be the one that the limit counted.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use tokio::time::timeout;

use super::answer::CallFailure;
use super::answers::reader::AnswerReader;
use super::call::{Client, HttpCall, LOG_EVERY, PreparedRequest};
use super::connections::connect::{WarmConnector, network, place};
use super::connections::egress::Proxy;
use super::connections::lifetime::Lifetimes;
use super::connections::ongoing::{LOST_SLOTS, REFUSALS};
use super::credentials::auth::RotatingAuth;
use super::credentials::aws::AwsSigner;
use super::credentials::secrets::NamedSecrets;
use super::credentials::sign::{AnySigner, RequestSignature, Signer};
use super::credentials::tokens::{CallToken, TokenAccepted, Tokens};
use super::hosts::AllowedHosts;
use super::http1::Http1;
use super::http2::Http2;
use super::request::RequestTemplate;
use super::transport::Transport;
use sluiced_core::judge::Silence;
use sluiced_net::connect::Secret;
use sluiced_net::dial::{
    Credentials, Misconfigured, timed_handshake, timed_handshake_through, tls,
};
use sluiced_ports::downstream::{Call, Downstream, Facts, Handshake, Judgement, UnfitReason};
use sluiced_ports::message::Message;
use sluiced_settings::types::{Auth, Http, HttpVersion};
use sluiced_telemetry::LogLimit;
use sluiced_telemetry::traces::RouteTraces;

/// An HTTP downstream.
pub struct HttpDownstream {
    template: RequestTemplate,
    /// Signs requests, if they are signed.
    signer: Option<AnySigner>,
    client: Arc<Client>,
    proxy: Option<Proxy>,
}

impl HttpDownstream {
    /// Compiles the templates and reads the certificates. Opens no connection. `keeps_answers`: the answer is
    /// part of each judgement.
    ///
    /// # Errors
    /// When a key of the configuration cannot be used.
    pub fn new(
        http: &Http,
        credentials: &Credentials,
        keeps_answers: bool,
        traces: Option<RouteTraces>,
    ) -> Result<Self, Misconfigured> {
        let auth = http
            .auth
            .as_ref()
            .map(|auth| Ok((auth, credentials.secret("auth")?)))
            .transpose()?;
        let template = RequestTemplate::new(http, auth)?;
        let signer = signer(http, auth)?;
        let signer_secrets = signer.as_ref().and_then(AnySigner::secrets);
        let names = signer_secrets
            .into_iter()
            .flatten()
            .chain(template.secrets())
            .cloned()
            .collect();
        let secrets = NamedSecrets::new(&names, &credentials.named)?;
        let proxy = Proxy::new(http, credentials.proxy.as_ref())?;
        let transport = transport(http, credentials, template.origin(), proxy.as_ref())?;
        let tokens = auth
            .map(|(auth, secret)| Tokens::for_auth(auth, secret, http, credentials))
            .transpose()?
            .flatten();
        Ok(Self {
            client: Arc::new(Client {
                transport,
                answers: AnswerReader::new(http, template.is_fixed(), keeps_answers)?,
                auth: auth.filter(|_| tokens.is_none()).map(|(auth, secret)| {
                    RotatingAuth::new(auth.clone(), secret.clone(), signer.clone())
                }),
                tokens,
                token_accepted: TokenAccepted::default(),
                secrets,
                timeout: http.timeout.get(),
                traces: traces.filter(|_| template.passes_trace()),
                warm_connections: usize::from(http.warm_connections),
                lost: Mutex::new(LOST_SLOTS),
                refused: Mutex::new(REFUSALS),
                logs: LogLimit::new(LOG_EVERY),
            }),
            template,
            signer,
            proxy,
        })
    }

    /// The request that a call would send. Calls nothing.
    ///
    /// # Errors
    /// When none can be made from the message.
    pub fn request(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<Request<Bytes>, UnfitReason> {
        Ok(self.prepare_request(message, facts)?.request)
    }

    /// What this answer to a call of the message would mean. Calls nothing.
    ///
    /// # Errors
    /// When no request can be made from the message.
    pub fn judged(
        &self,
        message: &Message,
        facts: Facts<'_>,
        answer: Response<Bytes>,
    ) -> Result<Judgement, UnfitReason> {
        let request = self.request(message, facts)?;
        let answers = &self.client.answers;
        Ok(answers.judge_whole(answer, &answers.call_context(message, facts, &request)))
    }

    /// What it would mean that a call has no answer. Calls nothing.
    #[must_use]
    pub fn unanswered(&self, silence: Silence) -> Judgement {
        let failure = match silence {
            Silence::Timeout => {
                CallFailure::maybe_delivered(format!("no answer within {:?}", self.client.timeout))
            }
            Silence::Connection => CallFailure::not_delivered("no connection"),
            Silence::Unreadable => CallFailure::maybe_delivered("the answer cannot be read"),
        };
        self.client.answers.judge_silence(silence, failure)
    }

    /// The request with the secrets and a signature of this moment, and the data to sign it again when it is sent.
    fn prepare_request(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<PreparedRequest, UnfitReason> {
        if let Some(auth) = &self.client.auth {
            auth.refresh_if_due();
        }
        let current = self.client.secrets.as_ref().map(NamedSecrets::current);
        let (secrets, version) = current.unzip();
        let mut prepared = PreparedRequest {
            request: self.template.request(message, facts, secrets.as_ref())?,
            signed: None,
            version,
        };
        if let Some(signer) = &self.signer {
            let signing = signer.signing(message, facts, secrets.as_ref())?;
            let tokens = self.client.tokens.as_ref();
            let at_hand = tokens.and_then(|tokens| tokens.at_hand());
            let token = at_hand.as_ref();
            let (at, version) = (SystemTime::now(), self.client.signs_as(token));
            signing.sign(
                &mut prepared.request,
                at,
                token.and_then(CallToken::credentials),
            )?;
            prepared.signed = Some(RequestSignature::new(at, version, signing));
        }
        Ok(prepared)
    }

    /// Whether calls go through a proxy.
    #[must_use]
    pub fn is_proxied(&self) -> bool {
        let (origin, proxy) = (self.origin(), self.proxy.as_ref());
        origin.is_some_and(|origin| proxy.is_some_and(|proxy| proxy.way_to(origin).is_some()))
    }

    /// Scheme and host of every call; none if they differ from message to message.
    #[must_use]
    pub fn origin(&self) -> Option<&Uri> {
        self.template.origin()
    }
}

/// What signs requests, if they are signed.
fn signer(http: &Http, auth: Option<(&Auth, &Secret)>) -> Result<Option<AnySigner>, Misconfigured> {
    Ok(match auth {
        Some((Auth::Hmac(hmac), secret)) => {
            let signer = Signer::new(hmac, secret.clone(), http)?;
            Some(AnySigner::Hmac(Arc::new(signer)))
        }
        Some((Auth::Aws(aws), secret)) => {
            let signer = AwsSigner::new(aws, secret.clone())?;
            Some(AnySigner::Aws(Arc::new(signer)))
        }
        _ => None,
    })
}

/// The connections to `origin`, or to the hosts of messages without one.
fn transport(
    http: &Http,
    credentials: &Credentials,
    origin: Option<&Uri>,
    proxy: Option<&Proxy>,
) -> Result<Transport, Misconfigured> {
    let is_tls = |origin: &Uri| origin.scheme() == Some(&Scheme::HTTPS);
    let lifetimes = Arc::new(Lifetimes::new(
        http.idle_timeout.get(),
        http.max_connection_age.get(),
        http.hosts_differ(),
    ));
    let tls = tls(
        http.ca_file.as_deref(),
        credentials.certificate.as_ref(),
        origin.is_none_or(is_tls),
    )?;
    let connect_timeout = http.connect_timeout.get();
    // Through a proxy only names are seen.
    let sees_addresses = http.hosts_differ() && proxy.is_none();
    let allowed = sees_addresses.then(|| AllowedHosts::new(&http.allowed_hosts));
    let network = network(tls, connect_timeout, proxy.cloned(), allowed, http.http);
    let origin = origin.cloned();
    Ok(match http.http {
        HttpVersion::One => {
            let lasts = Arc::clone(&lifetimes);
            let connector = WarmConnector::new(network, origin, connect_timeout, lasts);
            Transport::One(Box::new(Http1::new(connector, lifetimes)))
        }
        HttpVersion::Two => {
            let client = Http2::new(network, origin, connect_timeout, lifetimes);
            Transport::Two(Box::new(client))
        }
    })
}

impl Downstream for HttpDownstream {
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, UnfitReason> {
        let prepared = self.prepare_request(message, facts)?;
        self.client.transport.open_ahead(prepared.request.uri());
        let context = self
            .client
            .answers
            .call_context(message, facts, &prepared.request);
        Ok(Box::new(HttpCall {
            client: Arc::clone(&self.client),
            prepared,
            context,
        }))
    }

    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let client = &self.client;
            let warming = client.transport.warm(client.warm_connections, bound);
            let Some(tokens) = &client.tokens else {
                return warming.await;
            };
            let (warmed, token) = futures::join!(warming, timeout(bound, tokens.token()));
            let server = tokens.server();
            let late = |_| {
                Err(format!(
                    "{server} gave no token or credentials within {bound:?}"
                ))
            };
            token.unwrap_or_else(late).and(warmed)
        })
    }

    fn handshake(&self, bound: Duration) -> BoxFuture<'_, Option<Handshake>> {
        Box::pin(async move {
            let origin = self.origin()?;
            let (host, port) = place(origin)?;
            let Some(proxy) = self.proxy.as_ref().and_then(|proxy| proxy.way_to(origin)) else {
                return timed_handshake(host, port, bound).await;
            };
            let request = proxy.request(host, port);
            let (host, port) = place(&proxy.place)?;
            timed_handshake_through(host, port, request, bound).await
        })
    }
}

impl fmt::Debug for HttpDownstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDownstream")
            .field("method", self.template.method())
            .field("host", &self.origin().and_then(Uri::host))
            .finish_non_exhaustive()
    }
}
