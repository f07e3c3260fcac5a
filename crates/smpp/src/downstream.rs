//! Calls over SMPP: what is prepared, sent and answered, put together behind `ports::downstream`.
//!
//! **Segments.** A message of several segments takes as many units of its limits, and all of its segments are
//! written together at its slot, which is the last of those units. So no window holds more than was taken for
//! it: the units lie before that moment, unused. The message has one outcome: see `judge`. If some segments
//! were accepted and others were not, the judgement has the [`Rest`]: the next call sends only that, with the same
//! reference.
//!
//! **Is a repeat a duplicate?** Not if no connection was bound, none had room, or it was too late: nothing was written
//! then. In every other case without an answer the centre may have the message. An answer that cannot be used is none:
//! acceptance is only a `submit_sm_resp` whose status means that. Its message id may be missing.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderMap;
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use url::Url;

use super::centre::{BindSettings, Centre};
use super::judge::{SmppJudge, SubmitReply};
use super::link::Links;
use super::session::{SegmentReply, WriteOutcome};
use super::submission::{Submission, SubmitTemplate};
use sluiced_core::judge::{Lists, Outcome, Silence};
use sluiced_net::connect::Resolver;
use sluiced_net::dial::{Credentials, Misconfigured, timed_handshake, tls};
use sluiced_pdu::{BindAs, CommandStatus};
use sluiced_ports::downstream::{
    Answer, Call, Downstream, Facts, Handshake, InboundEvent, Judgement, LeaveBy, NotSent, Rest,
    UnfitReason,
};
use sluiced_ports::message::Message;
use sluiced_settings::types::{Smpp, SmppBind};
use sluiced_telemetry::traces::{self, RouteTraces};

/// The usual ports, without and with TLS.
const PORTS: [u16; 2] = [2775, 3550];

/// A message centre.
pub struct SmppDownstream {
    template: SubmitTemplate,
    client: Arc<Client>,
    port: u16,
}

/// What a call needs after it was prepared.
struct Client {
    links: Arc<Links>,
    judge: SmppJudge,
    host: String,
    timeout: Duration,
    keeps_answers: bool,
    traces: Option<RouteTraces>,
}

struct SmppCall {
    client: Arc<Client>,
    remaining_parts: Rest,
    /// The headers of the message's trace; empty where calls are no spans.
    trace: HeaderMap,
}

impl SmppDownstream {
    /// Compiles the templates and reads the certificates. Opens no connection. `keeps_answers`: the answer is part of
    /// each judgement. `arrivals` takes what the centre delivers; `None`: the centre keeps it.
    ///
    /// # Errors
    /// When a key of the configuration cannot be used.
    pub fn new(
        smpp: &Smpp,
        credentials: &Credentials,
        keeps_answers: bool,
        traces: Option<RouteTraces>,
        arrivals: Option<mpsc::Sender<InboundEvent>>,
    ) -> Result<Self, Misconfigured> {
        let url = Url::parse(&smpp.url).map_err(|why| Misconfigured::new("url", why))?;
        let is_tls = url.scheme() == "smpps";
        // An address of the sixth version stands in brackets.
        let host = url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let port = url.port().unwrap_or(PORTS[usize::from(is_tls)]);
        let tls = match is_tls {
            false => None,
            true => {
                let ours = credentials.certificate.as_ref();
                let config = tls(smpp.ca_file.as_deref(), ours, true)?;
                ServerName::try_from(host.as_str())
                    .map_err(|_| Misconfigured::new("url", "its host is no name of a server"))?;
                Some(Arc::new(config))
            }
        };
        let centre = Centre {
            resolver: Resolver::new(),
            host: host.clone(),
            port,
            tls,
            connect_timeout: smpp.connect_timeout.get(),
            bind_as: match smpp.bind {
                SmppBind::Transmitter => BindAs::Transmitter,
                SmppBind::Transceiver => BindAs::Transceiver,
            },
            system_id: smpp.system_id.clone(),
            password: credentials.secret("password")?.clone(),
            system_type: smpp.system_type.clone(),
        };
        let settings = BindSettings {
            binds: smpp.binds.get().into(),
            window: smpp.window.get().into(),
            enquire_link: smpp.enquire_link.get(),
            timeout: smpp.timeout.get(),
        };
        Ok(Self {
            template: SubmitTemplate::new(smpp)?,
            client: Arc::new(Client {
                links: Links::new(centre, settings, arrivals),
                judge: judge(smpp)?,
                host,
                timeout: smpp.timeout.get(),
                keeps_answers,
                traces,
            }),
            port,
        })
    }

    /// What a call would send. Calls nothing.
    ///
    /// # Errors
    /// When nothing can be made from the message.
    pub fn submission(
        &self,
        message: &Message,
        facts: Facts<'_>,
    ) -> Result<Submission, UnfitReason> {
        let submission = self.template.submission(message, facts)?;
        submission.pdus()?;
        Ok(submission)
    }

    /// What it would mean that every part of the message is answered with this status, and a made-up id. Calls nothing.
    ///
    /// # Errors
    /// When nothing can be made from the message.
    pub fn judged(
        &self,
        message: &Message,
        facts: Facts<'_>,
        status: CommandStatus,
    ) -> Result<Judgement, UnfitReason> {
        let remaining_parts = Rest::all(self.submission(message, facts)?.pdus()?);
        let replies = (1..=remaining_parts.left.len())
            .map(|number| SegmentReply {
                heard: SubmitReply::Response(status),
                message_id: format!("id-{number}"),
            })
            .collect();
        Ok(self.client.judge_replies(remaining_parts, replies))
    }

    /// What it would mean that no part of the message is answered. Calls nothing.
    ///
    /// # Errors
    /// When nothing can be made from the message.
    pub fn unanswered(
        &self,
        message: &Message,
        facts: Facts<'_>,
        silence: Silence,
    ) -> Result<Judgement, UnfitReason> {
        let remaining_parts = Rest::all(self.submission(message, facts)?.pdus()?);
        if silence == Silence::Connection {
            let why = "no connection".to_owned();
            return Ok(self.client.judge_silence(remaining_parts, why, false));
        }
        let nothing = |_: &Vec<u8>| SegmentReply {
            heard: SubmitReply::Nothing(silence),
            message_id: String::new(),
        };
        let replies = remaining_parts.left.iter().map(nothing).collect();
        Ok(self.client.judge_replies(remaining_parts, replies))
    }

    /// The centre, for a person: `smpp.example.com:2775`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.client.host, self.port)
    }
}

/// What answers mean.
fn judge(smpp: &Smpp) -> Result<SmppJudge, Misconfigured> {
    let outcomes = &smpp.outcomes;
    let lists = Lists {
        accepted: &outcomes.accepted,
        throttled: &outcomes.throttled,
        held: &outcomes.held,
        transient: &outcomes.transient,
        permanent: &outcomes.permanent,
        ..Lists::default()
    };
    SmppJudge::new(lists, smpp.throttle_wait.get())
        .map_err(|error| Misconfigured::new("outcomes", error))
}

impl Downstream for SmppDownstream {
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, UnfitReason> {
        let submission = self.template.submission(message, facts)?;
        self.go_on(message, facts, Rest::all(submission.pdus()?))
    }

    fn go_on(
        &self,
        message: &Message,
        _: Facts<'_>,
        remaining_parts: Rest,
    ) -> Result<Box<dyn Call>, UnfitReason> {
        Ok(Box::new(SmppCall {
            client: Arc::clone(&self.client),
            remaining_parts,
            trace: match self.client.traces {
                Some(_) => traces::headers_of(message),
                None => HeaderMap::new(),
            },
        }))
    }

    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.client.links.start();
            self.client.links.wait_for_binds(bound).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.client.links.close())
    }

    fn handshake(&self, bound: Duration) -> BoxFuture<'_, Option<Handshake>> {
        Box::pin(timed_handshake(&self.client.host, self.port, bound))
    }
}

impl Drop for SmppDownstream {
    fn drop(&mut self) {
        self.client.links.stop();
    }
}

impl fmt::Debug for SmppDownstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmppDownstream")
            .field("host", &self.client.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Call for SmppCall {
    fn send(self: Box<Self>, leave_by: LeaveBy) -> BoxFuture<'static, Result<Judgement, NotSent>> {
        let Self {
            client,
            remaining_parts,
            trace,
        } = *self;
        Box::pin(async move {
            let traces = client.traces.as_ref();
            let span = traces.map(|traces| traces.begin_submit(&trace, &client.host));
            let sent = client.call(remaining_parts, leave_by).await;
            if let Some(span) = span {
                span.end(&sent);
            }
            sent
        })
    }
}

impl Client {
    async fn call(
        &self,
        mut remaining_parts: Rest,
        leave_by: LeaveBy,
    ) -> Result<Judgement, NotSent> {
        let deadline = Instant::now() + self.timeout;
        self.links.start();
        let outstanding = loop {
            // Registered before the check, so that no notice of room is missed.
            let mut room = pin!(self.links.room.notified());
            room.as_mut().enable();
            match self.links.write(&mut remaining_parts.left, leave_by) {
                Ok(WriteOutcome::Begun(outstanding)) => break outstanding,
                Ok(WriteOutcome::TooLate) => return Err(NotSent::TooLate),
                Ok(WriteOutcome::Broken) => {
                    let why = "connection lost while the request was written".to_owned();
                    return Ok(self.judge_silence(remaining_parts, why, true));
                }
                Ok(WriteOutcome::Full) => {}
                Err(why) => return Ok(self.judge_silence(remaining_parts, why, false)),
            }
            let time_left = deadline.saturating_duration_since(Instant::now());
            if time_left.is_zero() {
                let why = format!("no room in the window within {:?}", self.timeout);
                return Ok(self.judge_silence(remaining_parts, why, false));
            }
            if leave_by.has_passed() {
                return Err(NotSent::NotReady);
            }
            // What is left of a slot is short; the time is checked again after it.
            drop(timeout(leave_by.left().min(time_left), room).await);
        };
        Ok(self.judge_replies(remaining_parts, outstanding.answers(deadline).await))
    }

    /// The judgement of a call of which nothing was written, or of which it is not known how much was written.
    fn judge_silence(
        &self,
        remaining_parts: Rest,
        why: String,
        maybe_delivered: bool,
    ) -> Judgement {
        let taken = remaining_parts.taken.iter().flatten().count();
        Judgement {
            outcome: self.judge.silence(Silence::Connection),
            reply: Err(Silence::Connection),
            detail: match taken {
                0 => why,
                taken => format!(
                    "{taken} of {} segments taken; {why}",
                    remaining_parts.taken.len()
                ),
            },
            answer: None,
            maybe_delivered,
            cut_from: None,
            rest: Some(remaining_parts).filter(Rest::is_in_between),
            renewed: false,
        }
    }

    /// The answers to the segments of a message that were sent.
    fn judge_replies(&self, remaining_parts: Rest, replies: Vec<SegmentReply>) -> Judgement {
        let heard: Vec<SubmitReply> = replies.iter().map(|reply| reply.heard).collect();
        let Some((outcome, reply)) = self.judge.judge_message(&heard) else {
            return self.judge_silence(
                remaining_parts,
                "there was nothing to send".to_owned(),
                false,
            );
        };
        let sent: Vec<usize> = remaining_parts
            .taken
            .iter()
            .enumerate()
            .filter_map(|(at, id)| id.is_none().then_some(at))
            .collect();
        let id = |response: SegmentReply| {
            let (outcome, _) = self.judge.judge_response(response.heard);
            (outcome == Outcome::Accepted).then_some(response.message_id)
        };
        let still_remaining = remaining_parts.after(replies.into_iter().map(id));
        let answer = reply.ok().filter(|_| self.keeps_answers);
        Judgement {
            outcome,
            reply,
            detail: self.detail(&still_remaining, sent.into_iter().zip(heard)),
            answer: answer.map(|status| Answer {
                status: status.number(),
                body: body(&still_remaining).into(),
                is_whole: true,
                ..Answer::default()
            }),
            maybe_delivered: true,
            cut_from: None,
            rest: Some(still_remaining).filter(Rest::is_in_between),
            renewed: false,
        }
    }

    /// The answers of the centre, in a few words. `heard` has the places of the segments that were sent.
    fn detail(
        &self,
        remaining_parts: &Rest,
        heard: impl Iterator<Item = (usize, SubmitReply)>,
    ) -> String {
        let reply_words = |heard| match heard {
            SubmitReply::Response(status) => status.to_string(),
            SubmitReply::Nack(CommandStatus::OK) => {
                "generic_nack with status 0, which accepts nothing".to_owned()
            }
            SubmitReply::Nack(status) => format!("generic_nack {status}"),
            SubmitReply::Nothing(Silence::Timeout) => {
                format!("no answer within {:?}", self.timeout)
            }
            SubmitReply::Nothing(Silence::Connection | Silence::Unreadable) => {
                "connection lost before the answer".to_owned()
            }
        };
        let all = remaining_parts.taken.len();
        if all == 1 {
            return heard.map(|(_, heard)| reply_words(heard)).collect();
        }
        let missing = heard
            .filter(|(place, _)| remaining_parts.taken[*place].is_none())
            .map(|(place, heard)| format!("segment {}: {}", place + 1, reply_words(heard)));
        let taken = remaining_parts.taken.iter().flatten().count();
        let mut texts = vec![format!("{taken} of {all} segments taken")];
        texts.extend(missing.take(3));
        texts.join("; ")
    }
}

/// What results and the journal see as the body of the answer.
fn body(remaining_parts: &Rest) -> String {
    let taken_ids = remaining_parts.taken.iter().flatten();
    let ids: Vec<&String> = taken_ids.filter(|id| !id.is_empty()).collect();
    json!({ "message_id": ids.first(), "message_ids": ids }).to_string()
}
