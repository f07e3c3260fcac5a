//! The result of what a message centre delivers: a receipt, or a message from a phone. It has no message of its own:
//! the message of a receipt has ended before.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Results, result_headers};
use sluiced_ports::downstream::{Answer, Facts, Inbound, InboundEvent, InboundKind};
use sluiced_ports::message::{Message, Properties};
use sluiced_ports::queue::Publication;

impl Results {
    /// Whether the route publishes it. A receipt that cannot be read may be anything, so any route that takes what its
    /// centre delivers publishes it.
    pub(in crate::ends) fn takes(&self, what: &InboundKind) -> bool {
        match what {
            InboundKind::Receipt(receipt) => receipt.is_unread() || self.of_receipts,
            InboundKind::Inbound(_) => self.of_inbound,
        }
    }

    /// What is published of it.
    pub(in crate::ends) fn arrival(
        &self,
        route: &str,
        arrival: &InboundEvent,
    ) -> Option<Publication> {
        let (verdict, kind) = match arrival.what {
            InboundKind::Receipt(_) => ("receipt", "sluiced.receipt"),
            InboundKind::Inbound(_) => ("inbound", "sluiced.inbound"),
        };
        let answer_body = said(arrival);
        let answer = Answer {
            body: answer_body.to_string().into(),
            is_whole: true,
            ..Answer::default()
        };
        let message = Message::default();
        let facts = Facts {
            route,
            attempt: 1,
            may_repeat: false,
            max_body: self.max_body,
        };
        let context = self.templates.context_with(&message, facts, Some(&answer));
        let default = || {
            let settled = Timestamp::now().to_string();
            let body = json!({
                "route": route,
                "verdict": verdict,
                "settled": settled,
                "answer": { "body": answer_body },
            });
            body.to_string()
        };
        let (routing_key, body, content_type) = self.content(route, context.as_ref(), default)?;
        Some(Publication {
            routing_key,
            body: body.into(),
            properties: Properties {
                content_type,
                kind: Some(kind.to_owned()),
                ..Properties::default()
            },
            headers: result_headers(route, 1),
            yields_to_call_result: false,
        })
    }
}

/// `answer.body` of its result. A field that did not come is null.
fn said(arrival: &InboundEvent) -> Value {
    let mut answer_body = match &arrival.what {
        InboundKind::Receipt(receipt) => json!({
            "message_id": receipt.message_id,
            "state": receipt.state_name(),
            "error": receipt.error,
            "submitted": receipt.submitted,
            "done": receipt.done,
            "text": receipt.text,
        }),
        InboundKind::Inbound(Inbound {
            text,
            data_coding,
            segment,
        }) => json!({
            "text": text,
            "data_coding": data_coding,
            "segment": segment.map(|segment| {
                json!({ "reference": segment.reference, "number": segment.number, "of": segment.of })
            }),
        }),
    };
    answer_body["source"] = json!(arrival.source);
    answer_body["destination"] = json!(arrival.destination);
    answer_body
}
