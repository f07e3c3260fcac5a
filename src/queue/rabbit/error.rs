//! Why RabbitMQ cannot be used, as an operator should read it.

use std::time::Duration;

/// What went wrong between a route and its broker. Never carries a password.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RabbitError {
    /// A URL of the configuration cannot be used.
    #[error("rabbitmq.urls[{index}] is not an AMQP URL: {reason}")]
    Url { index: usize, reason: String },
    /// No URL at all.
    #[error("rabbitmq.urls is empty")]
    NoUrl,
    /// A queue name that AMQP cannot carry, with the suffixes of wait queues.
    #[error("queue name `{queue}` is too long: {most} bytes at most")]
    Name { queue: String, most: usize },
    /// No connection.
    #[error("RabbitMQ at {host} cannot be reached: {reason}")]
    Unreachable { host: String, reason: String },
    /// The broker refuses us: credentials, virtual host, permissions.
    #[error("RabbitMQ refused: {reason}")]
    Refused { reason: String },
    /// The broker lets the user in, but not do what `run` needs.
    #[error("the user lacks a right that `run` needs: {reason}")]
    Forbidden { reason: String },
    /// A queue that should exist does not.
    #[error("queue `{queue}` does not exist")]
    Missing { queue: String },
    /// The work queue does not exist, and is not ours to declare.
    #[error("queue `{queue}` does not exist; create it, or write `declare = true` in its route")]
    Undeclared { queue: String },
    /// A queue exists, but not as sluiced needs it.
    #[error("queue `{queue}` exists with other settings: {reason}; delete it or rename it")]
    Mismatch { queue: String, reason: String },
    /// What is read from it stays there, and no message comes back alone.
    #[error(
        "queue `{queue}` is a stream, whose messages stay in it and would be sent again; write the name of a quorum or classic queue"
    )]
    Stream { queue: String },
    /// A connection or a channel that was in use ended.
    #[error("lost RabbitMQ: {reason}")]
    Lost { reason: String },
    /// The broker stopped answering.
    #[error("RabbitMQ did not answer {what} within {waited:?}")]
    Timeout {
        what: &'static str,
        waited: Duration,
    },
    /// A resource alarm of the broker stops publishing.
    #[error("RabbitMQ blocks publishing (a memory or disk alarm)")]
    Blocked,
    /// A copy was not confirmed: rejected by its queue, or its queue is gone.
    #[error("a copy for queue `{queue}` was not taken")]
    NotTaken { queue: String },
}

impl RabbitError {
    /// What was refused on a connection that is up.
    pub(super) fn of_right(self) -> Self {
        match self {
            Self::Refused { reason } => Self::Forbidden { reason },
            other => other,
        }
    }

    /// What a failed operation on a channel means.
    pub(super) fn from_lapin(error: &lapin::Error) -> Self {
        let reason = reason(error);
        match code(error) {
            // access-refused, not-allowed
            Some(403 | 530) => Self::Refused { reason },
            _ => Self::Lost { reason },
        }
    }

    /// What a failed operation on a queue means.
    pub(super) fn about_queue(queue: &str, error: &lapin::Error) -> Self {
        let queue = queue.to_owned();
        match code(error) {
            Some(404) => Self::Missing { queue },
            // precondition-failed; resource-locked: an exclusive queue of another client
            Some(405 | 406) => {
                let reason = reason(error);
                // What is refused is consumers with a priority.
                let kind = reason.rsplit_once(" of queue type ");
                if kind.is_some_and(|(_, kind)| kind.contains("stream")) {
                    return Self::Stream { queue };
                }
                Self::Mismatch { queue, reason }
            }
            _ => Self::from_lapin(error),
        }
    }

    /// What the end of a channel means that consumed a queue. It is never a mismatch: nothing was declared.
    pub(super) fn about_consumer(queue: &str, error: &lapin::Error) -> Self {
        match Self::about_queue(queue, error) {
            Self::Mismatch { reason, .. } => Self::Lost { reason },
            other => other,
        }
    }
}

/// The broker's reply code, if the error came from the broker.
fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's own text, if there is one.
pub(super) fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
