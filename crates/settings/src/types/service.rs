//! The process itself: its listener, its log, how it stops, and what it works with.

use std::path::PathBuf;

use serde::Deserialize;

use crate::forms::{HOST_NAME, INSTANCE, LISTEN, LOG_LEVEL, TEXT};
use crate::schema::Shape::List;
use crate::schema::{SPAN, table, words};
use crate::text::Length;

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Admin {
        /// Address of the status page (/), /metrics, /healthz and /readyz. Empty: no listener.
        listen: String = LISTEN, Default "127.0.0.1:9464";
        /// Names under which these pages and the status page may be asked, besides addresses, localhost and the name
        /// in listen; without a port. Others are refused, because a web page could have them (DNS rebinding).
        hosts: Vec<String> = List(&HOST_NAME), Default [];
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Log {
        /// A level (error, warn, info, debug, trace, off), or levels by module: "info,sluiced_amqp=debug".
        /// `sluiced run --log-level` overrides it.
        level: String = LOG_LEVEL, Default "info";
        /// human, json, or auto: human on a terminal, JSON otherwise.
        format: LogFormat = LogFormat::SHAPE, Default "auto";
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Service {
        /// How long calls that were started may take to finish after SIGTERM. No call may have a longer timeout.
        /// The supervisor (TimeoutStopSec, terminationGracePeriodSeconds) should wait 10 s longer than this.
        grace: Length = SPAN, Default "20s";
        /// The name of this replica, on the status page, in the log and in `sluiced limits`. No two replicas may have the
        /// same: name them by the variable SLUICED__SERVICE__INSTANCE, not in a file that they share. The units for
        /// systemd set it to host and unit. Absent: host and process.
        instance: Option<String> = INSTANCE, Optional "web-1:sluiced";
    }
}

table! {
    /// Where queues and limits live.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Backend {
        /// rabbitmq, or embedded: a file or stdin of this process, for a run without a broker.
        queue: QueueBackend = QueueBackend::SHAPE, Default "rabbitmq";
        /// redis, or memory: the limit then holds for this process alone.
        limits: LimitBackend = LimitBackend::SHAPE, Default "redis";
    }
}

table! {
    /// The queue in this process, for `backend.queue = "embedded"`.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Embedded {
        /// For backend.queue = "embedded": newline-delimited JSON, one message a line; "-" is stdin.
        input: PathBuf = TEXT, Default "-";
        /// The file for messages that were not delivered, with the reason. The progress of a list in a file is
        /// written beside it (.checkpoint): another run of the same list goes on from there; `run --fresh` starts
        /// over.
        leftover: PathBuf = TEXT, Default "leftover.ndjson";
    }
}

words! {
    pub enum LogFormat {
        /// Human on a terminal, JSON otherwise.
        Auto = "auto",
        Human = "human",
        Json = "json",
    }
}

words! {
    pub enum QueueBackend {
        Rabbitmq = "rabbitmq",
        /// A file or stdin of newline-delimited JSON; the run ends when all is settled.
        Embedded = "embedded",
    }
}

words! {
    pub enum LimitBackend {
        Redis = "redis",
        /// This process alone.
        Memory = "memory",
    }
}
