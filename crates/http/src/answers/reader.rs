//! From an answer of HTTP to a judgement: what of it is read, how it is decoded, and what it means.
//!
//! No more than the first 64 KiB of an answer are read: reading on would cost more than a new connection. If
//! the configuration has texts or a template for the meaning of answers, they are applied to that, after its coding is
//! undone (`encoding`). If the answer breaks off before, or cannot be decoded, the missing part might mean something
//! else: it counts as no answer, unless its status or what came already means another try.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri};
use tokio::time::{Instant, timeout_at};

use super::body::{AnswerRead, read_out};
use super::encoding::decode;
use super::judge::{HttpJudge, HttpReply, TemplateFindings};
use super::redirect;
use crate::answer::CallFailure;
use crate::transport::AnswerBody;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::{Answer, Facts, Judgement, MAX_ANSWER, Status};
use sluiced_ports::message::Message;
use sluiced_settings::text::TemplateText;
use sluiced_settings::types::{Auth, Http};
use sluiced_template::{AnswerReading, AnswerTemplates};

/// A key by which the downstream recognizes repeats (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Reads the answer to a call, and makes a judgement of it.
pub(crate) struct AnswerReader {
    judge: HttpJudge,
    words: AnswerTemplates,
    /// Every call has the same URL.
    is_fixed: bool,
    keeps_answers: bool,
    /// The body of a refusal says whether it is about the credentials.
    reads_refusals: bool,
}

/// What the meaning of an answer depends on besides the answer.
pub(crate) struct CallContext {
    /// The URL that was called.
    uri: Uri,
    /// An earlier call of the message may have been taken, or the downstream recognizes repeats by a key.
    may_repeat: bool,
    /// The message, if templates need it.
    about: Option<Box<TemplateInputs>>,
}

struct TemplateInputs {
    message: Message,
    route: String,
    attempt: u32,
    max_body: u64,
}

/// What came of an answer.
pub(crate) struct ReceivedAnswer {
    head: Parts,
    read: AnswerRead,
    /// Why it cannot be read, if `read` says that.
    why: Option<String>,
    /// If it matters.
    body: Bytes,
}

impl ReceivedAnswer {
    /// The status, the headers, and the body if it matters.
    pub(crate) fn parts(&self) -> (StatusCode, &HeaderMap, &[u8]) {
        (self.head.status, &self.head.headers, &self.body)
    }

    /// Undoes the coding of a body of which `read` was received.
    fn decoded(mut head: Parts, body: Vec<u8>, read: AnswerRead) -> Self {
        let decoded = decode(&head.headers, body, read);
        // They are about the bytes on the wire.
        if head.headers.remove(CONTENT_ENCODING).is_some() {
            head.headers.remove(CONTENT_LENGTH);
        }
        Self {
            head,
            read: decoded.read,
            why: decoded.why,
            body: decoded.body.into(),
        }
    }
}

impl AnswerReader {
    pub(crate) fn new(
        http: &Http,
        is_fixed: bool,
        keeps_answers: bool,
    ) -> Result<Self, Misconfigured> {
        Ok(Self {
            judge: judge(http)?,
            words: words(http)?,
            is_fixed,
            keeps_answers,
            reads_refusals: match &http.auth {
                Some(Auth::Aws(aws)) => aws.credentials.are_fetched(),
                _ => false,
            },
        })
    }

    /// What the meaning of the answer to `request` will depend on.
    pub(crate) fn call_context(
        &self,
        message: &Message,
        facts: Facts<'_>,
        request: &Request<Bytes>,
    ) -> CallContext {
        let has_key = request.headers().contains_key(IDEMPOTENCY_KEY);
        let about = (!self.words.is_empty()).then(|| {
            Box::new(TemplateInputs {
                message: message.clone(),
                route: facts.route.to_owned(),
                attempt: facts.attempt,
                max_body: facts.max_body,
            })
        });
        CallContext {
            uri: request.uri().clone(),
            may_repeat: facts.may_repeat || has_key,
            about,
        }
    }

    /// Whether what an answer means depends on its body.
    fn depends_on_body(&self) -> bool {
        self.judge.has_texts() || self.words.decides()
    }

    /// Reads an answer. One that goes on after the deadline is cut off by dropping it.
    pub(crate) async fn receive(
        &self,
        answer: Response<AnswerBody>,
        deadline: Instant,
    ) -> ReceivedAnswer {
        let (head, body) = answer.into_parts();
        let refuses = matches!(
            head.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        );
        let is_wanted = self.keeps_answers
            || self.judge.has_texts()
            || !self.words.is_empty()
            || self.reads_refusals && refuses;
        let mut kept = is_wanted.then(Vec::new);
        let read = timeout_at(deadline, read_out(body, kept.as_mut()))
            .await
            .unwrap_or(AnswerRead::Cut(Silence::Timeout));
        let Some(kept) = kept else {
            return ReceivedAnswer {
                head,
                read,
                why: None,
                body: Bytes::new(),
            };
        };
        ReceivedAnswer::decoded(head, kept, read)
    }

    /// What an answer means that is already there.
    pub(crate) fn judge_whole(&self, answer: Response<Bytes>, context: &CallContext) -> Judgement {
        let (head, mut body) = answer.into_parts();
        let read = match body.len() > MAX_ANSWER {
            true => AnswerRead::Enough,
            false => AnswerRead::Whole,
        };
        body.truncate(MAX_ANSWER);
        self.judge_received(ReceivedAnswer::decoded(head, body.into(), read), context)
    }

    /// What an answer means.
    pub(crate) fn judge_received(
        &self,
        received: ReceivedAnswer,
        context: &CallContext,
    ) -> Judgement {
        let ReceivedAnswer {
            head,
            read,
            why,
            body,
        } = received;
        let status = head.status;
        let is_wanted = self.keeps_answers || context.about.is_some();
        let answer = is_wanted.then(|| Answer {
            status: status.as_u16().into(),
            headers: joined(&head.headers),
            body: body.clone(),
            is_whole: read == AnswerRead::Whole,
        });
        let template_findings = context.read_templates(&self.words, answer.as_ref());
        // The usual answer is judged without them.
        let headers_by_name = OnceCell::new();
        let reply = HttpReply {
            status: status.as_u16(),
            headers: &|name| {
                let headers = headers_by_name.get_or_init(|| joined(&head.headers));
                headers.get(name).map(String::as_str)
            },
            body: &body,
            body_is_incomplete: self.depends_on_body()
                && matches!(read, AnswerRead::Cut(_) | AnswerRead::Unreadable),
            may_repeat: context.may_repeat,
            found: TemplateFindings {
                outcome: template_findings.outcome,
                wait: template_findings.wait.as_deref(),
            },
        };
        let leads_to = redirect::leads_to(status, &head.headers, &context.uri, self.is_fixed);
        let detail = named(status)
            + &leads_to.unwrap_or_default()
            + &unread(read, why, template_findings.why);
        let Some(judged) = self.judge.judge_reply(reply, SystemTime::now()) else {
            let silence = match read {
                AnswerRead::Cut(silence) => silence,
                _ => Silence::Unreadable,
            };
            return self.judge_silence(silence, CallFailure::maybe_delivered(detail));
        };
        Judgement {
            outcome: judged.outcome,
            reply: Ok(Status::Http(status.as_u16())),
            detail,
            answer: answer.filter(|_| self.keeps_answers),
            maybe_delivered: true,
            cut_from: judged.cut_from,
            rest: None,
            renewed: false,
        }
    }

    /// The downstream said that it did not look at the call. The message is called again on another connection. If such
    /// refusals go on (`goes_on`), it is a "not now" like that of a status. No attempt is spent in either case.
    pub(crate) fn judge_refusal(&self, detail: String, goes_on: bool) -> Judgement {
        let again = Outcome::Held {
            wait: Duration::ZERO,
        };
        Judgement {
            outcome: if goes_on { self.judge.refusal() } else { again },
            ..self.judge_silence(Silence::Connection, CallFailure::not_delivered(detail))
        }
    }

    pub(crate) fn judge_silence(&self, silence: Silence, failure: CallFailure) -> Judgement {
        Judgement {
            outcome: self.judge.judge_silence(silence),
            reply: Err(silence),
            detail: failure.detail,
            answer: None,
            maybe_delivered: failure.maybe_delivered,
            cut_from: None,
            rest: None,
            renewed: false,
        }
    }
}

/// What answers mean.
fn judge(http: &Http) -> Result<HttpJudge, Misconfigured> {
    let (wait, most) = (http.throttle_wait.get(), http.max_throttle_wait.get());
    HttpJudge::new(http.outcomes.lists(), wait, most)
        .map_err(|error| Misconfigured::new("outcomes", error))
}

fn words(http: &Http) -> Result<AnswerTemplates, Misconfigured> {
    let [outcome, wait] =
        [&http.outcome, &http.wait].map(|text| text.as_ref().map(TemplateText::as_str));
    AnswerTemplates::new(outcome, wait).map_err(|wrong| Misconfigured::new(&wrong.key, wrong.wrong))
}

impl CallContext {
    /// What the templates say of the answer.
    fn read_templates(&self, words: &AnswerTemplates, answer: Option<&Answer>) -> AnswerReading {
        let (Some(about), Some(answer)) = (&self.about, answer) else {
            return AnswerReading::default();
        };
        let facts = Facts {
            route: &about.route,
            attempt: about.attempt,
            may_repeat: false,
            max_body: about.max_body,
        };
        words.read(&about.message, facts, answer)
    }
}

/// That an answer was not read to its end, or why it cannot be read: by its coding, or by a template.
fn unread(read: AnswerRead, of_coding: Option<String>, of_template: Option<String>) -> String {
    if read != AnswerRead::Whole && of_coding.is_none() {
        return " (the answer was not read to its end)".to_owned();
    }
    let why = of_coding.or(of_template);
    why.map_or_else(String::new, |why| {
        format!(" (the answer cannot be read: {why})")
    })
}

/// `503 Service Unavailable`.
fn named(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_str()),
        None => status.as_str().to_owned(),
    }
}

/// The headers of an answer by name. Values of one name are a list (RFC 9110, section 5.3); those that are no text are
/// left out.
fn joined(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        let all = joined.entry(name.as_str().to_owned()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(value);
    }
    joined
}
