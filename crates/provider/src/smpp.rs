//! The provider's SMPP side: a message centre that stamps each `submit_sm`, answers according to its
//! behaviour and its script, and sends receipts if these were requested.
//!
//! Each `submit_sm` is a call of one unit. Tests use optional parameters of their own where HTTP has headers:
//! the message's id ([`ID`]) and a key ([`KEY`]); the caller is the `system_id`. A message of several
//! segments is taken once all of its segments are, in one call or in several, on any connection.
//!
//! **When did it arrive?** Calls are pipelined here. If one read has more than one message, the kernel's
//! stamp is that of the last of them, and the others came at some time before. They have no time, as if their
//! connection had ended: a judge that dated them by the last would report calls as too close together without
//! reason.

use sluiced_ports::clock;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::connection::LastArrival;
use super::endpoint::Endpoint;
use super::ledger::{Arrival, CallRecord};
use super::script::{Act, ResponsePlan};
use sluiced_pdu::{
    Address, Bind, BindAs, Command, CommandStatus, Frame, Message, Tlv, frame, plain, response, tag,
};

/// The parameter with the id of a message.
const ID: u16 = 0x1403;
/// The parameter with the key of a call.
const KEY: u16 = 0x1404;
/// Responses that wait to be written; a client's window is far below it.
const MAX_RESPONSES: usize = 100_000;
/// A receipt comes this long after the response.
const RECEIPT_AFTER: Duration = Duration::from_millis(50);

/// What is done next on a connection.
enum ConnectionAction {
    Write(Vec<u8>),
    /// Close without an answer.
    Close,
}

/// Serves a client until it ends. `received` was read before.
pub(super) async fn serve(
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    received: Vec<u8>,
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
) {
    let (mut input, mut output) = tokio::io::split(socket);
    let (sender, mut actions) = mpsc::channel(MAX_RESPONSES);
    let mut unbind = endpoint.unbind.subscribe();
    let mut deliveries = endpoint.deliveries.subscribe();
    let mut centre = Centre {
        endpoint,
        arrival,
        sender,
        received,
        system_id: None,
        takes_receipts: false,
        count: 0,
    };
    let mut chunk = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            read = input.read(&mut chunk) => match read {
                Ok(count) if count > 0 && centre.parse_received(&chunk[..count]) => {}
                _ => return,
            },
            action = actions.recv() => match action {
                Some(ConnectionAction::Write(pdu)) if output.write_all(&pdu).await.is_ok() => {}
                _ => return,
            },
            Ok(pdu) = deliveries.recv() => {
                if centre.takes_receipts && !centre.write(pdu) {
                    return;
                }
            }
            Ok(()) = unbind.changed() => {
                let pdu = plain(Command::UNBIND, CommandStatus::OK, 1);
                if output.write_all(&pdu).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// One connection of the centre.
struct Centre {
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
    sender: mpsc::Sender<ConnectionAction>,
    received: Vec<u8>,
    system_id: Option<Box<str>>,
    takes_receipts: bool,
    count: u64,
}

/// A `submit_sm` that was read.
struct SubmitSm {
    sequence: u32,
    message: Message,
}

impl SubmitSm {
    /// The number of its segment, and how many there are.
    fn part(&self) -> (u8, u8) {
        let text = &self.message.text;
        match text.first() {
            Some(header) if self.message.has_header() => {
                let end = usize::from(*header);
                match (text.get(end), text.get(end.wrapping_sub(1))) {
                    (Some(number), Some(all)) => (*number, *all),
                    _ => (1, 1),
                }
            }
            _ => (1, 1),
        }
    }

    fn text(&self, tag: u16) -> Option<Box<str>> {
        let value = self.message.tlv(tag)?;
        Some(String::from_utf8_lossy(value).into())
    }
}

impl Centre {
    /// Handles every PDU that is complete with these bytes; false: the connection ends.
    fn parse_received(&mut self, bytes: &[u8]) -> bool {
        self.received.extend_from_slice(bytes);
        let received = std::mem::take(&mut self.received);
        let (mut rest, mut submitted) = (received.as_slice(), Vec::new());
        loop {
            let next = match frame(rest) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(_) => return false,
            };
            rest = &rest[next.length()..];
            match next.command {
                Command::SUBMIT_SM if self.system_id.is_some() => {
                    let Ok(message) = Message::read(next.body) else {
                        return false;
                    };
                    let sequence = next.sequence;
                    submitted.push(SubmitSm { sequence, message });
                }
                _ if self.handle_other(&next) => {}
                _ => return false,
            }
        }
        self.received = rest.to_vec();
        self.take_submissions(submitted);
        true
    }

    /// Handles a PDU that is no message; false: the connection ends.
    fn handle_other(&mut self, pdu: &Frame<'_>) -> bool {
        let bare_answer = |status| plain(pdu.command.response(), status, pdu.sequence);
        let answer = match pdu.command {
            Command::BIND_TRANSMITTER | Command::BIND_TRANSCEIVER => {
                let Ok(bind) = Bind::read(pdu) else {
                    return false;
                };
                let status = match bind.password {
                    "wrong" => CommandStatus::INVALID_PASSWORD,
                    _ => CommandStatus::OK,
                };
                if status == CommandStatus::OK {
                    self.system_id = Some(bind.system_id.into());
                    self.takes_receipts = bind.bind_as == BindAs::Transceiver;
                }
                response(pdu.command, status, pdu.sequence, "provider")
            }
            Command::ENQUIRE_LINK => bare_answer(CommandStatus::OK),
            Command::UNBIND => {
                // Written before the connection ends.
                return self.write(bare_answer(CommandStatus::OK))
                    && self.send(ConnectionAction::Close);
            }
            other if other.is_response() => {
                let delivered = [Command::DELIVER_SM, Command::DATA_SM].map(Command::response);
                if delivered.contains(&other) {
                    self.endpoint.note_receipt_answer(pdu.sequence, pdu.status);
                }
                return other != Command::UNBIND.response();
            }
            _ => plain(
                Command::GENERIC_NACK,
                CommandStatus::INVALID_COMMAND,
                pdu.sequence,
            ),
        };
        self.write(answer)
    }

    /// The messages of one read.
    fn take_submissions(&mut self, all: Vec<SubmitSm>) {
        // The last message begins with its first segment, if that came in this read.
        let last = all.iter().rposition(|submitted| submitted.part().0 == 1);
        for (number, submitted) in all.into_iter().enumerate() {
            let is_last = last.is_none_or(|last| number >= last);
            let arrived_at = self.arrival.get().filter(|_| is_last);
            self.endpoint
                .ledger()
                .note_arrival(arrived_at.map(|at| Arrival {
                    at,
                    units: 1,
                    key: submitted.text(KEY),
                }));
            let counted_at = arrived_at.unwrap_or_else(clock::now);
            let plan = self.endpoint.plan_answer(counted_at);
            self.enter(&submitted, &plan);
            self.answer(submitted, plan);
        }
    }

    /// Enters a message once all of its segments were taken, or the last one came.
    fn enter(&self, submitted: &SubmitSm, plan: &ResponsePlan) {
        let (number, all) = submitted.part();
        let id = submitted.text(ID);
        let is_whole = match all {
            1 => plan.accepted,
            _ => {
                plan.accepted
                    && self
                        .endpoint
                        .take_segment(id.as_deref().unwrap_or_default(), number, all)
            }
        };
        if is_whole || number == all {
            self.endpoint.ledger().note_call(CallRecord {
                id,
                caller: self.system_id.clone(),
                accepted: is_whole,
            });
        }
    }

    fn answer(&mut self, submitted: SubmitSm, plan: ResponsePlan) {
        self.count += 1;
        let caller = self.system_id.as_deref().unwrap_or_default();
        let message_id = format!("{caller}-{}", self.count);
        let status = status(&plan);
        let wants_receipt = self.takes_receipts && submitted.message.registered_delivery & 1 != 0;
        let receipt = (wants_receipt && status == CommandStatus::OK)
            .then(|| receipt(&submitted, &message_id, self.endpoint.next_receipt()));
        let answer = response(Command::SUBMIT_SM, status, submitted.sequence, &message_id);
        let next = match plan.act {
            Act::Answer => ConnectionAction::Write(answer),
            Act::Close => ConnectionAction::Close,
            Act::Hang => return,
        };
        if plan.delay.is_zero() && receipt.is_none() {
            self.send(next);
            return;
        }
        let sender = self.sender.clone();
        tokio::spawn(async move {
            sleep(plan.delay).await;
            if sender.send(next).await.is_ok()
                && let Some(receipt) = receipt
            {
                sleep(RECEIPT_AFTER).await;
                // A connection that has ended takes no receipt.
                drop(sender.send(ConnectionAction::Write(receipt)).await);
            }
        });
    }

    fn write(&self, pdu: Vec<u8>) -> bool {
        self.send(ConnectionAction::Write(pdu))
    }

    fn send(&self, action: ConnectionAction) -> bool {
        self.sender.try_send(action).is_ok()
    }
}

fn status(plan: &ResponsePlan) -> CommandStatus {
    match (plan.smpp, plan.status.as_u16()) {
        (Some(status), _) => CommandStatus(status),
        (None, 200..300) => CommandStatus::OK,
        (None, 429) => CommandStatus::THROTTLED,
        (None, 400..500) => CommandStatus(0x0b),
        (None, _) => CommandStatus::SYSTEM_ERROR,
    }
}

/// The centre's receipt for a message that it has delivered.
fn receipt(submitted: &SubmitSm, message_id: &str, sequence: u32) -> Vec<u8> {
    let text = format!(
        "id:{message_id} sub:001 dlvrd:001 submit date:2601010000 done date:2601010001 stat:DELIVRD err:000 text:"
    );
    let receipt = Message {
        source: submitted.message.destination.clone(),
        destination: Address {
            digits: submitted.message.source.digits.clone(),
            ..submitted.message.source
        },
        // A receipt (section 5.2.12).
        esm_class: 0x04,
        text: text.into_bytes(),
        tlvs: vec![Tlv {
            tag: tag::RECEIPTED_MESSAGE_ID,
            value: [message_id.as_bytes(), &[0]].concat(),
        }],
        ..Message::default()
    };
    // Its fields are those of a message that was read, and a short text.
    receipt
        .write(Command::DELIVER_SM, sequence)
        .unwrap_or_default()
}
