//! What the centre sends in a session: answers go to the calls that wait for them, requests are answered.
//!
//! A centre that is silent is asked whether it is there (`enquire_link`). One that wants to end a session
//! (`unbind`) gets no new message, and is answered when it has answered those that it has: it may close the
//! connection as soon as it is answered, and then it is unknown whether messages without an answer were
//! taken.
//!
//! Only a `submit_sm_resp` or a `generic_nack` answers a `submit_sm`. A response to another command is none, even if it
//! has the number of a message: that message then has no answer.
//!
//! What the centre delivers (`delivery`) is answered once it is safe. Where it cannot be taken now, it stays with the
//! centre (`ESME_RX_T_APPN`), which delivers it again, or to another client. It is never refused because of what it
//! says: a centre delivers in order, and the receipts behind a refused delivery would not come.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, ReadHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::centre::BindSettings;
use super::delivery::inbound_event;
use super::session::{SegmentReply, Session};
use crate::judge::SubmitReply;
use sluiced_net::connect::ServerStream;
use sluiced_pdu::{Command, CommandStatus, Frame, frame, plain, response, response_id};
use sluiced_ports::downstream::InboundEvent;

/// How long to wait for the answer to an unbind.
pub(super) const UNBINDING: Duration = Duration::from_secs(1);

/// Reads what the centre sends in a session.
pub(super) struct SessionReader<'a> {
    session: &'a Arc<Session>,
    settings: BindSettings,
    arrivals: Option<&'a mpsc::Sender<InboundEvent>>,
    input: ReadHalf<ServerStream>,
    received: Vec<u8>,
    /// The centre was asked whether it is there.
    asked: bool,
    /// The centre wants to end the session: the number of its `unbind`.
    unbind: Option<u32>,
}

impl<'a> SessionReader<'a> {
    pub(super) const fn new(
        session: &'a Arc<Session>,
        settings: BindSettings,
        arrivals: Option<&'a mpsc::Sender<InboundEvent>>,
        input: ReadHalf<ServerStream>,
    ) -> Self {
        Self {
            session,
            settings,
            arrivals,
            input,
            received: Vec::new(),
            asked: false,
            unbind: None,
        }
    }

    /// Reads until the connection ends; returns why it did.
    pub(super) async fn run(mut self, stop: &CancellationToken) -> String {
        let mut chunk = vec![0; 8 * 1024];
        loop {
            if let Err(why) = self.parse_received() {
                return why;
            }
            if let Some(sequence) = self.unbind.filter(|_| self.session.is_idle()) {
                return self.answer_unbind(sequence);
            }
            let patience = match self.asked || self.unbind.is_some() {
                true => self.settings.timeout,
                false => self.settings.enquire_link,
            };
            tokio::select! {
                read = self.input.read(&mut chunk) => match read {
                    Ok(0) => return "the centre closed the connection".to_owned(),
                    Ok(count) => {
                        self.asked = false;
                        self.received.extend_from_slice(&chunk[..count]);
                    }
                    Err(error) => return format!("connection lost: {error}"),
                },
                broken = self.session.write_unwritten() => return broken,
                () = sleep(patience) => {
                    if let Some(why) = self.enquire() {
                        return why;
                    }
                }
                () = stop.cancelled() => {
                    self.finish_unbind(&mut chunk).await;
                    return "it was stopped".to_owned();
                }
            }
        }
    }

    /// The centre was silent for too long: asks whether it is there. Returns why the session ends instead, if it does.
    fn enquire(&mut self) -> Option<String> {
        if let Some(sequence) = self.unbind {
            return Some(self.answer_unbind(sequence));
        }
        if self.asked {
            let bound = self.settings.timeout;
            return Some(format!("no answer to enquire_link within {bound:?}"));
        }
        self.asked = true;
        self.session.ask(Command::ENQUIRE_LINK);
        None
    }

    /// `Links::stop` has sent the unbind; PDUs that were begun are written.
    async fn finish_unbind(&mut self, chunk: &mut [u8]) {
        let ending = async {
            tokio::select! {
                _ = self.input.read(chunk) => {}
                _ = self.session.write_unwritten() => {}
            }
        };
        drop(timeout(UNBINDING, ending).await);
    }

    /// Answers the `unbind` of the centre.
    fn answer_unbind(&self, sequence: u32) -> String {
        let answer = plain(Command::UNBIND.response(), CommandStatus::OK, sequence);
        self.session.write_control(&answer);
        "the centre ended the session".to_owned()
    }

    /// Handles every complete PDU.
    fn parse_received(&mut self) -> Result<(), String> {
        let received = std::mem::take(&mut self.received);
        let mut unread = received.as_slice();
        loop {
            let next = frame(unread).map_err(|wrong| format!("the centre sent {wrong}"))?;
            let Some(next) = next else { break };
            self.take(&next)?;
            unread = &unread[next.length()..];
        }
        self.received = unread.to_vec();
        Ok(())
    }

    /// Hands over what the centre delivers. `None`: it stays with the centre, because this connection is for sending
    /// only, or there is no room for it.
    fn deliver(&self, pdu: &Frame<'_>) -> Option<oneshot::Receiver<bool>> {
        let arrivals = self.arrivals?;
        let (sender, confirmed) = oneshot::channel();
        let arrival = inbound_event(pdu.command, pdu.body, sender);
        arrivals.try_send(arrival).is_ok().then_some(confirmed)
    }

    fn take(&mut self, pdu: &Frame<'_>) -> Result<(), String> {
        const ANSWER: Command = Command::SUBMIT_SM.response();
        const UNBOUND: Command = Command::UNBIND.response();
        let (session, sequence) = (self.session, pdu.sequence);
        let ours = |command: Command, status| plain(command, status, sequence);
        match pdu.command {
            ANSWER => session.hand_over(
                sequence,
                SegmentReply {
                    heard: SubmitReply::Response(pdu.status),
                    message_id: response_id(pdu.body),
                },
            ),
            Command::GENERIC_NACK => session.hand_over(
                sequence,
                SegmentReply {
                    heard: SubmitReply::Nack(pdu.status),
                    message_id: String::new(),
                },
            ),
            UNBOUND => return Err("the centre ended the session".to_owned()),
            Command::ENQUIRE_LINK => {
                session.write_control(&ours(Command::ENQUIRE_LINK.response(), CommandStatus::OK));
            }
            Command::UNBIND => {
                session.shut();
                self.unbind = Some(sequence);
            }
            // It has no response (section 4.12.1).
            Command::ALERT_NOTIFICATION => {}
            command @ (Command::DELIVER_SM | Command::DATA_SM) => {
                let taken = self.deliver(pdu);
                let (session, bound) = (Arc::clone(session), self.settings.timeout);
                // Bounded by the places for arrivals, and by the timeout.
                tokio::spawn(async move {
                    let is_safe = match taken {
                        Some(confirmed) => matches!(timeout(bound, confirmed).await, Ok(Ok(true))),
                        None => false,
                    };
                    let status = match is_safe {
                        true => CommandStatus::OK,
                        false => CommandStatus::TRY_LATER,
                    };
                    session.write_control(&response(command, status, sequence, ""));
                });
            }
            other if other.is_response() => {}
            _ => {
                session.write_control(&ours(Command::GENERIC_NACK, CommandStatus::INVALID_COMMAND))
            }
        }
        Ok(())
    }
}
