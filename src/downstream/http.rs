//! Calls over HTTP/1.1, with warm connections.
//!
//! One timeout covers a call from the first poll of `send` to the end of the answer. The status
//! code decides: once it is there, an answer that breaks off, takes too long or is too large does
//! not change the outcome (a repeat would be a duplicate), it only costs the connection. The body
//! of the answer is read up to a bound, so that the connection can be used again.
//!
//! No more than the first 64 KiB of an answer are read: reading on would cost more than a new connection. If
//! the configuration has texts or a template for the meaning of answers, they are applied to that, after its coding is
//! undone (`encoding`). If the answer breaks off before, or cannot be decoded, the missing part might mean something
//! else: it counts as no answer, unless its status or what came already means another try.
//!
//! Answers that other clients take are taken: a space before the colon of a header, a header on several lines, a line
//! that is no header, many headers. The message may have been taken, and a repeat would be a duplicate.
//!
//! Redirects are not followed: a 3xx is judged like any code, and permanent by default; its reason says where it leads
//! (`redirect`). No proxy is
//! used, whatever the environment says. In both cases the call would not be the one that the limit
//! counted.
//!
//! A call that cannot be written before its gate closes is not written at all (`gate`).
//!
//! **Can the client send twice?** It repeats a request by itself in one case: a connection of the
//! pool died while the request waited for it. hyper hands back such a request only from the queue,
//! as long as the connection's task has not taken it. Once taken it is never handed back, whether a
//! byte was written or not. So a repeat by the client is always the first write, and repeats stay
//! switched on (`retry_canceled_requests`): each repeat uses up one dead connection of the pool,
//! and the timeout bounds them all. A connection that dies after the request was taken ends the
//! call. The route decides whether that call is repeated, and `maybe_delivered` shows whether a
//! repeat may be a duplicate.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http::uri::Scheme;
use http::{HeaderName, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::auth::{Credentials, Misconfigured, RotatingAuth};
use super::connect::{WarmConnector, place, tls, way};
use super::encoding::decode;
use super::gate::{AnswerRead, Failure, Writing, find, joined, read_out, text};
use super::redirect;
use super::request::RequestTemplate;
use super::sign::{Signer, Signing};
use crate::core::judge::{Code, Judge, Read, Reply, Silence, Status};
use crate::ports::downstream::{
    Answer, Call, Downstream, Facts, Gate, Handshake, Judgement, TooLate, Undecodable,
};
use crate::ports::message::Message;
use crate::settings::text::TemplateText;
use crate::settings::types::{Auth, Http};
use crate::telemetry::traces::RouteTraces;
use crate::template::{AnswerWords, Heard};

/// A key by which the downstream recognizes repeats (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// So many headers an answer may have.
const MAX_ANSWER_HEADERS: usize = 256;
/// The largest header of an answer.
const MAX_ANSWER_HEAD: usize = 64 * 1024;

/// An HTTP downstream.
pub struct HttpDownstream {
    template: RequestTemplate,
    /// Signs requests, if they are signed.
    signer: Option<Arc<Signer>>,
    caller: Arc<Caller>,
    connector: WarmConnector,
    warm_connections: usize,
}

/// What a call needs after it was prepared.
struct Caller {
    client: Client<WarmConnector, Full<Bytes>>,
    judge: Judge<Code>,
    words: AnswerWords,
    auth: Option<RotatingAuth>,
    timeout: Duration,
    /// Every call has the same URL.
    is_fixed: bool,
    keeps_answers: bool,
    traces: Option<RouteTraces>,
}

struct HttpCall {
    caller: Arc<Caller>,
    request: Request<Bytes>,
    signing: Option<Signing>,
    asks: Asks,
}

/// What the meaning of an answer depends on besides the answer.
struct Asks {
    /// The URL that was called.
    uri: Uri,
    /// An earlier call of the message may have been taken, or the downstream recognizes repeats by a key.
    may_repeat: bool,
    /// The message, if templates need it.
    about: Option<Box<AskedAbout>>,
}

struct AskedAbout {
    message: Message,
    route: String,
    attempt: u32,
}

/// What came of an answer.
struct Received {
    head: Parts,
    read: AnswerRead,
    /// Why it cannot be read, if `read` says that.
    why: Option<String>,
    /// If it matters.
    body: Bytes,
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
        let auth = http.auth.as_ref();
        let auth = auth.map(|auth| Ok((auth, credentials.secret("auth")?)));
        let auth = auth.transpose()?;
        let template = RequestTemplate::new(http, auth)?;
        let signer = match auth {
            Some((Auth::Hmac(hmac), secret)) => {
                let signer = Signer::new(hmac, secret.clone(), http)?;
                Some(Arc::new(signer))
            }
            _ => None,
        };
        let origin = template.origin().cloned();
        let may_be_tls = origin
            .as_ref()
            .is_none_or(|origin| origin.scheme() == Some(&Scheme::HTTPS));
        let connector = WarmConnector::new(
            tls(
                http.ca_file.as_deref(),
                credentials.certificate.as_ref(),
                may_be_tls,
            )?,
            origin,
            http.connect_timeout.get(),
            http.idle_timeout.get(),
        );
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(http.idle_timeout.get())
            .pool_max_idle_per_host(usize::MAX)
            .http1_max_buf_size(MAX_ANSWER_HEAD)
            .http1_max_headers(MAX_ANSWER_HEADERS)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_ignore_invalid_headers_in_responses(true)
            .retry_canceled_requests(true)
            .build(connector.clone());
        Ok(Self {
            caller: Arc::new(Caller {
                client,
                judge: judge(http)?,
                words: words(http)?,
                auth: auth.map(|(auth, secret)| {
                    RotatingAuth::new(auth.clone(), secret.clone(), signer.clone())
                }),
                timeout: http.timeout.get(),
                is_fixed: template.is_fixed(),
                keeps_answers,
                traces: traces.filter(|_| template.passes_trace()),
            }),
            template,
            signer,
            connector,
            warm_connections: usize::from(http.warm_connections),
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
    ) -> Result<Request<Bytes>, Undecodable> {
        Ok(self.signed(message, facts)?.0)
    }

    /// The request with a signature of this moment, and the data to sign it again when it is sent.
    fn signed(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<(Request<Bytes>, Option<Signing>), Undecodable> {
        let mut request = self.template.request(message, facts)?;
        let signer = self.signer.as_ref();
        let signing = signer.map(|signer| signer.signing(message, facts));
        let signing = signing.transpose()?;
        if let Some(signing) = &signing {
            signing.sign(&mut request, SystemTime::now())?;
        }
        Ok((request, signing))
    }

    /// Scheme and host of every call; none if they differ from message to message.
    #[must_use]
    pub fn origin(&self) -> Option<&Uri> {
        self.template.origin()
    }
}

/// What answers mean.
fn judge(http: &Http) -> Result<Judge<Code>, Misconfigured> {
    let (wait, most) = (http.throttle_wait.get(), http.max_throttle_wait.get());
    Judge::new(http.outcomes.lists(), wait, most)
        .map_err(|error| Misconfigured::new("outcomes", error))
}

fn words(http: &Http) -> Result<AnswerWords, Misconfigured> {
    let [outcome, wait] =
        [&http.outcome, &http.wait].map(|text| text.as_ref().map(TemplateText::as_str));
    AnswerWords::new(outcome, wait).map_err(|wrong| Misconfigured::new(&wrong.key, wrong.wrong))
}

impl Downstream for HttpDownstream {
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, Undecodable> {
        let (request, signing) = self.signed(message, facts)?;
        let has_key = request.headers().contains_key(IDEMPOTENCY_KEY);
        let about = (!self.caller.words.is_empty()).then(|| {
            Box::new(AskedAbout {
                message: message.clone(),
                route: facts.route.to_owned(),
                attempt: facts.attempt,
            })
        });
        let asks = Asks {
            uri: request.uri().clone(),
            may_repeat: facts.attempt > 1 || message.redelivered || has_key,
            about,
        };
        Ok(Box::new(HttpCall {
            caller: Arc::clone(&self.caller),
            request,
            signing,
            asks,
        }))
    }

    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.connector.warm(self.warm_connections, bound))
    }

    fn handshake(&self, bound: Duration) -> BoxFuture<'_, Option<Handshake>> {
        Box::pin(async move {
            let (host, port) = place(self.origin()?)?;
            way(host, port, bound).await
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

impl Call for HttpCall {
    fn send(self: Box<Self>, gate: Gate) -> BoxFuture<'static, Result<Judgement, TooLate>> {
        let Self {
            caller,
            mut request,
            signing,
            asks,
        } = *self;
        Box::pin(async move {
            let signed = signing.map(|signing| signing.sign(&mut request, SystemTime::now()));
            if let Some(Err(why)) = signed {
                // Only the time and the secret differ from the first signature, which succeeded.
                warn!(%why, "a call cannot be signed again; it has the signature of when it was prepared");
            }
            let traces = caller.traces.as_ref();
            let span = traces.map(|traces| traces.begin(&mut request));
            let sent = caller.call(request, &asks, gate).await;
            if let Some(span) = span {
                span.end(&sent);
            }
            sent
        })
    }
}

impl Caller {
    async fn call(
        &self,
        request: Request<Bytes>,
        asks: &Asks,
        gate: Gate,
    ) -> Result<Judgement, TooLate> {
        let deadline = Instant::now() + self.timeout;
        let mut request = request.map(Full::new);
        if let Some(auth) = &self.auth {
            auth.renew(request.headers_mut());
        }
        let mut writing = Writing::new(gate, capture_connection(&mut request));
        let mut calling = self.client.request(request);
        let answer = poll_fn(|cx| {
            let polled = calling.poll_unpin(cx);
            writing.arm();
            polled
        });
        let answer = timeout_at(deadline, answer).await;
        Ok(match answer {
            Ok(Ok(answer)) => {
                if let Some(auth) = &self.auth {
                    auth.answered(answer.status());
                }
                let received = self.receive(answer, deadline).await;
                self.answered(received, asks)
            }
            Ok(Err(error)) if find::<TooLate>(&error).is_some() => return Err(TooLate),
            Ok(Err(error)) => self.broken(&error, writing.maybe_begun()),
            Err(_) => self.late(writing.maybe_begun()),
        })
    }

    /// Whether what an answer means depends on its body.
    fn reads(&self) -> bool {
        self.judge.reads() || self.words.decides()
    }

    /// Reads an answer. One that goes on after the deadline is cut off by dropping it.
    async fn receive(&self, answer: Response<Incoming>, deadline: Instant) -> Received {
        let (mut head, body) = answer.into_parts();
        let is_wanted = self.keeps_answers || self.judge.reads() || !self.words.is_empty();
        let mut kept = is_wanted.then(Vec::new);
        let read = timeout_at(deadline, read_out(body, kept.as_mut())).await;
        let read = read.unwrap_or(AnswerRead::Cut(Silence::Timeout));
        let Some(kept) = kept else {
            return Received {
                head,
                read,
                why: None,
                body: Bytes::new(),
            };
        };
        let decoded = decode(&head.headers, kept, read);
        // They are about the bytes on the wire.
        if head.headers.remove(CONTENT_ENCODING).is_some() {
            head.headers.remove(CONTENT_LENGTH);
        }
        Received {
            head,
            read: decoded.read,
            why: decoded.why,
            body: decoded.body.into(),
        }
    }

    fn answered(&self, received: Received, asks: &Asks) -> Judgement {
        let Received {
            head,
            read,
            why,
            body,
        } = received;
        let status = head.status;
        let is_wanted = self.keeps_answers || asks.about.is_some();
        let answer = is_wanted.then(|| Answer {
            status: status.as_u16().into(),
            headers: joined(&head.headers),
            body: body.clone(),
            is_whole: read == AnswerRead::Whole,
        });
        let heard = asks.hear(&self.words, answer.as_ref());
        let reply = Reply {
            status: status.as_u16(),
            headers: &|name| text(&head.headers, name),
            body: &body,
            lacks: self.reads() && matches!(read, AnswerRead::Cut(_) | AnswerRead::Unreadable),
            may_repeat: asks.may_repeat,
            read: Read {
                outcome: heard.outcome,
                wait: heard.wait.as_deref(),
            },
        };
        // The clock matters only if the answer has no `Date`.
        let now = match status.is_success() && body.is_empty() {
            true => SystemTime::UNIX_EPOCH,
            false => SystemTime::now(),
        };
        let leads_to = redirect::leads_to(status, &head.headers, &asks.uri, self.is_fixed);
        let mut detail = named(status) + &leads_to.unwrap_or_default();
        if read != AnswerRead::Whole && why.is_none() {
            detail.push_str(" (the answer was not read to its end)");
        } else if let Some(why) = why.or(heard.why) {
            detail.push_str(&format!(" (the answer cannot be read: {why})"));
        }
        let Some(judged) = self.judge.reply(reply, now) else {
            let silence = match read {
                AnswerRead::Cut(silence) => silence,
                _ => Silence::Unreadable,
            };
            return self.silent(silence, Failure::unsure(detail));
        };
        Judgement {
            outcome: judged.outcome,
            reply: Ok(Status::Http(status.as_u16())),
            detail,
            answer: answer.filter(|_| self.keeps_answers),
            maybe_delivered: true,
            cut_from: judged.cut_from,
        }
    }

    fn broken(&self, error: &Error, begun: bool) -> Judgement {
        self.silent(Silence::Connection, Failure::of(error, begun))
    }

    fn late(&self, begun: bool) -> Judgement {
        let waited = self.timeout;
        if begun {
            let failure = Failure::unsure(format!("no answer within {waited:?}"));
            self.silent(Silence::Timeout, failure)
        } else {
            let failure = Failure::sure(format!("no connection within {waited:?}"));
            self.silent(Silence::Connection, failure)
        }
    }

    fn silent(&self, silence: Silence, failure: Failure) -> Judgement {
        Judgement {
            outcome: self.judge.silence(silence),
            reply: Err(silence),
            detail: failure.detail,
            answer: None,
            maybe_delivered: failure.maybe_delivered,
            cut_from: None,
        }
    }
}

impl Asks {
    /// What the templates say of the answer.
    fn hear(&self, words: &AnswerWords, answer: Option<&Answer>) -> Heard {
        let (Some(about), Some(answer)) = (&self.about, answer) else {
            return Heard::default();
        };
        let facts = Facts {
            route: &about.route,
            attempt: about.attempt,
        };
        words.read(&about.message, facts, answer)
    }
}

/// `503 Service Unavailable`.
fn named(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_str()),
        None => status.as_str().to_owned(),
    }
}
