//! One call, from its slot to the judgement of its answer.
//!
//! One timeout covers a call from the first poll of `send` to the end of the answer. The status
//! code decides: once it is there, an answer that breaks off, takes too long or is too large does
//! not change the outcome (a repeat would be a duplicate), it only costs the connection, unless the
//! configuration judges bodies (`answers`). The body of the answer is read up to a bound, so that the
//! connection can be used again.
//!
//! How the request is written, and not too late, is the matter of its `transport`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use http::header::AUTHORIZATION;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::answer::{CallFailure, HttpAnswer, NoAnswer};
use super::answers::reader::{AnswerReader, CallContext, ReceivedAnswer};
use super::connections::ongoing::Ongoing;
use super::credentials::auth::RotatingAuth;
use super::credentials::reading::SecretVersion;
use super::credentials::secrets::NamedSecrets;
use super::credentials::sign::RequestSignature;
use super::credentials::tokens::{CallToken, TokenAccepted, Tokens};
use super::transport::Transport;
use sluiced_core::judge::Silence;
use sluiced_ports::clock;
use sluiced_ports::downstream::{Call, Judgement, LeaveBy, NotSent};
use sluiced_ports::lock;
use sluiced_telemetry::LogLimit;
use sluiced_telemetry::traces::RouteTraces;

/// The same warning is logged once in this time.
pub(super) const LOG_EVERY: Duration = Duration::from_secs(60);

/// What a call needs after it was prepared.
pub(super) struct Client {
    pub(super) transport: Transport,
    pub(super) answers: AnswerReader,
    pub(super) auth: Option<RotatingAuth>,
    pub(super) tokens: Option<Arc<Tokens>>,
    pub(super) token_accepted: TokenAccepted,
    pub(super) secrets: Option<NamedSecrets>,
    pub(super) timeout: Duration,
    pub(super) traces: Option<RouteTraces>,
    pub(super) warm_connections: usize,
    pub(super) lost: Mutex<Ongoing>,
    pub(super) refused: Mutex<Ongoing>,
    pub(super) logs: LogLimit,
}

/// A call that was prepared.
pub(super) struct HttpCall {
    pub(super) client: Arc<Client>,
    pub(super) prepared: PreparedRequest,
    pub(super) context: CallContext,
}

/// A request that was made, and what is needed when it is sent.
pub(super) struct PreparedRequest {
    pub(super) request: Request<Bytes>,
    pub(super) signed: Option<RequestSignature>,
    /// With which secrets it was made; `None`: it has none.
    pub(super) version: Option<SecretVersion>,
}

/// Why a call has no token.
enum NoToken {
    /// It did not come before the call had to leave.
    NotInTime,
    /// The server that gives tokens did not give one, for this reason.
    Failed(String),
}

impl Call for HttpCall {
    fn send(self: Box<Self>, leave_by: LeaveBy) -> BoxFuture<'static, Result<Judgement, NotSent>> {
        let Self {
            client,
            prepared,
            context,
        } = *self;
        let PreparedRequest {
            mut request,
            signed,
            version,
        } = prepared;
        Box::pin(async move {
            let before = client.secret_versions();
            if let (Some(secrets), Some(version)) = (&client.secrets, version)
                && !secrets.is_current(version)
            {
                return Err(NotSent::NotReady);
            }
            let traces = client.traces.as_ref();
            let span = traces.map(|traces| traces.begin(&mut request));
            let sent = client
                .call(request, signed, &context, leave_by, before)
                .await;
            if let Some(span) = span {
                span.end(&sent);
            }
            sent
        })
    }
}

/// Which secrets a call has: a version for each time that they were replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SecretVersions {
    /// Of the credentials.
    auth: u64,
    /// Of the secrets that templates name.
    named: u64,
}

impl Client {
    async fn call(
        &self,
        mut request: Request<Bytes>,
        signed: Option<RequestSignature>,
        context: &CallContext,
        leave_by: LeaveBy,
        before: SecretVersions,
    ) -> Result<Judgement, NotSent> {
        let began = Instant::now();
        if let Some(auth) = &self.auth {
            auth.renew(request.headers_mut());
        }
        let fetched = match self.token(leave_by).await {
            Ok(fetched) => fetched,
            Err(NoToken::NotInTime) => return Err(NotSent::NotReady),
            Err(NoToken::Failed(why)) => {
                return Ok(self
                    .answers
                    .judge_silence(Silence::Connection, CallFailure::not_delivered(why)));
            }
        };
        let token = fetched.as_ref();
        if let Some(header) = token.and_then(CallToken::header) {
            request.headers_mut().insert(AUTHORIZATION, header.clone());
        }
        if let Some(signed) = signed {
            request = signed.renew(request, self.signs_as(token), token).await?;
        }
        let heard = self.transport.call(request, leave_by, began, self.timeout);
        match heard.await {
            Ok(HttpAnswer { answer, then_idle }) => {
                lock(&self.refused).end();
                let received = self.answers.receive(answer, began + self.timeout).await;
                if let Some((call_check, idle)) = then_idle {
                    call_check.begin_idle(idle);
                }
                let is_replaced = self.note_answer(&received, token).await;
                let mut judgement = self.answers.judge_received(received, context);
                let renewed = is_replaced || self.secret_versions() != before;
                judgement.renewed = judgement.refuses_credentials() && renewed;
                Ok(judgement)
            }
            Err(NoAnswer::TooLate { waited }) => {
                let Some(waited) = waited else {
                    return Err(NotSent::TooLate);
                };
                self.lost_slot(waited);
                Err(NotSent::NotReady)
            }
            Err(NoAnswer::Refused(detail)) => {
                let goes_on = lock(&self.refused).note(clock::now());
                Ok(self.answers.judge_refusal(detail, goes_on))
            }
            Err(NoAnswer::Silent(silence, failure)) => {
                Ok(self.answers.judge_silence(silence, failure))
            }
        }
    }

    /// The versions of the secrets that a call has now.
    fn secret_versions(&self) -> SecretVersions {
        SecretVersions {
            auth: self.auth.as_ref().map_or(0, RotatingAuth::version),
            named: self.secrets.as_ref().map_or(0, NamedSecrets::version),
        }
    }

    /// The number of the credentials that sign a request now. A signature under another number is not sent.
    pub(super) fn signs_as(&self, token: Option<&CallToken>) -> u64 {
        token.map_or_else(|| self.secret_versions().auth, |token| token.number)
    }

    /// The token of a server that gives one for calls, as soon as it is there. `None`: calls need none.
    async fn token(&self, leave_by: LeaveBy) -> Result<Option<CallToken>, NoToken> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        let wait = leave_by.left().min(self.timeout);
        match timeout(wait, tokens.token()).await {
            Ok(Ok(token)) => Ok(Some(token)),
            Ok(Err(why)) => Err(NoToken::Failed(why)),
            Err(_) => Err(NoToken::NotInTime),
        }
    }

    /// Reads secrets again, or asks for another token, if an answer refused them. Returns whether the token of that
    /// call is replaced.
    async fn note_answer(&self, received: &ReceivedAnswer, token: Option<&CallToken>) -> bool {
        let (status, ..) = received.parts();
        let auth = async {
            if let Some(auth) = &self.auth {
                auth.note_answer(status).await;
            }
        };
        let secrets = async {
            if let Some(secrets) = &self.secrets {
                secrets.note_answer(status).await;
            }
        };
        futures::join!(auth, secrets);
        let tokens = self.tokens.as_ref().zip(token);
        tokens.is_some_and(|(tokens, token)| {
            tokens.note_answer(received.parts(), token.number, &self.token_accepted)
        })
    }

    /// A slot passed while its connection was opened, which took this long.
    fn lost_slot(&self, took: Duration) {
        let now = clock::now();
        if lock(&self.lost).note(now)
            && let Some(more) = self.logs.event(now)
        {
            let millis = took.as_millis();
            warn!(
                "calls lose their slots because no connection to the downstream is open: opening one takes {millis} ms; raise warm_connections (now {}){more}",
                self.warm_connections
            );
        }
    }
}
