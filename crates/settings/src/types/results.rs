//! The results of a route: what is published about the ends of its messages.

use serde::Deserialize;

use crate::forms::templates::ANSWER_TEMPLATE;
use crate::forms::{EXCHANGE, TEXT};
use crate::schema::Shape::List;
use crate::schema::{table, words};
use crate::text::TemplateText;

/// What the names of queues that sluiced has beside a work queue go on with.
const OURS: [&str; 3] = [".wait.", ".parked.", ".dead"];

table! {
    /// The message that is published when a message of the route has come to its end.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Results {
        /// Where results are published: an exchange, which must exist. "": the default exchange, where the routing key
        /// is the name of a queue.
        exchange: String = EXCHANGE, Default "";
        /// A template, which may use answer.status, answer.headers and answer.body besides what templates know.
        /// "{{ properties.reply_to }}" answers the caller of an AMQP request. A result whose routing key is missing,
        /// empty or longer than 255 bytes is counted and dropped.
        routing_key: TemplateText = ANSWER_TEMPLATE, Required "sms.results";
        /// Which ends are published: accepted, dead; and of SMPP what the message centre delivers: receipt, about messages
        /// that it took, and inbound, messages from phones. Neither has a message of its own: routing_key and body may use
        /// nothing but route and answer. answer.body of a receipt has message_id, state, error, submitted, done, text,
        /// source and destination; of an inbound message text, data_coding, segment, source and destination. What is not
        /// published is counted.
        on: Vec<ResultOn> = List(&ResultOn::SHAPE), Default ["accepted", "dead"];
        /// A template like routing_key. Absent, or where it fails for a message: a JSON object with message_id,
        /// correlation_id, route, verdict, reason, detail, status, attempts, first_seen, settled and answer.
        body: Option<TemplateText> = ANSWER_TEMPLATE, Optional "{{ answer.body | tojson }}";
        /// Headers of the answer that the JSON object has.
        headers: Vec<String> = List(&TEXT), Default [];
        /// What happens to a result that no queue takes. retry: it is tried until one does, and its message is not
        /// settled before; what a message centre delivered stays there, and is delivered again. drop: it is counted and
        /// dropped, because the caller is gone. Absent: drop where routing_key uses reply_to, else retry.
        unroutable: Option<Unroutable> = Unroutable::SHAPE, Optional "retry";
    }
}

words! {
    /// An end of a message.
    pub enum ResultOn {
        Accepted = "accepted",
        Dead = "dead",
        /// A receipt of a message centre.
        Receipt = "receipt",
        /// A message from a phone.
        Inbound = "inbound",
    }
}

words! {
    /// What becomes of a result that no queue takes.
    pub enum Unroutable {
        Retry = "retry",
        Drop = "drop",
    }
}

impl Results {
    /// Whether something of what a message centre delivers is published.
    #[must_use]
    pub fn takes_deliveries(&self) -> bool {
        let takes = |on: &ResultOn| matches!(on, ResultOn::Receipt | ResultOn::Inbound);
        self.on.iter().any(takes)
    }

    /// What becomes of a result that no queue takes.
    #[must_use]
    pub fn unroutable(&self) -> Unroutable {
        let to_caller = self.routing_key.as_str().contains("reply_to");
        self.unroutable.unwrap_or(match to_caller {
            true => Unroutable::Drop,
            false => Unroutable::Retry,
        })
    }

    /// Whether a result with this routing key would come to the route's own queue, or to one that sluiced has
    /// beside it.
    #[must_use]
    pub fn comes_back(&self, routing_key: &str, queue: &str) -> bool {
        let rest = routing_key.strip_prefix(queue);
        let ours = rest
            .is_some_and(|rest| rest.is_empty() || OURS.iter().any(|ours| rest.starts_with(ours)));
        self.exchange.is_empty() && ours
    }

    /// The one queue of all results, if that is written.
    #[must_use]
    pub fn queue(&self) -> Option<&str> {
        let key = self.routing_key.as_str();
        (self.exchange.is_empty() && !key.contains("{{") && !key.contains("{%")).then_some(key)
    }
}
