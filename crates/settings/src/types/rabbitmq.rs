//! The broker of the queues.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use crate::forms::TEXT;
use crate::forms::urls::{AMQP_URL, MANAGEMENT_URL};
use crate::schema::Shape::{Length as Within, List};
use crate::schema::{SPAN, table};
use crate::text::Length;

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct RabbitMq {
        /// Where the broker is: amqp:// or amqps://. Several: a cluster; each attempt takes the next one.
        urls: Vec<SecretString> = List(&AMQP_URL), Default ["amqp://guest:guest@127.0.0.1:5672/%2f"];
        /// Replaces the password in every URL. Absent: the URLs are used as they are.
        password_file: Option<PathBuf> = TEXT, Optional "credential:rabbitmq";
        /// The management API, which `sluiced check --connect` reads to find policies that act on queues of sluiced.
        /// Nothing is changed: its user needs the tag `management` and any permission on the virtual host, such as
        /// '^$' '^$' '^$'. Without a password in the URL that of password_file counts.
        management: Option<SecretString> = MANAGEMENT_URL, Optional "http://monitor@127.0.0.1:15672";
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for brokers that ask for one (ssl_options.verify = verify_peer). Like its key
        /// it is read anew for each connection.
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:rabbitmq-key";
        /// How often each side sends a heartbeat, in whole seconds; a dead connection is noticed after two to three
        /// times this.
        heartbeat: Length = Within(Duration::from_secs(1)..=Duration::from_secs(3600)), Default "10s";
        /// How long one attempt to connect may take.
        connect_timeout: Length = SPAN, Default "10s";
        /// How long nothing may be written or confirmed before a copy (for a wait queue or the dead letters) is
        /// published again, which makes a duplicate if the first one did arrive. A slow network gets more time: that
        /// of the unconfirmed bytes at 64 KiB a second.
        confirm_timeout: Length = SPAN, Default "10s";
        /// The broker's own consumer_timeout: after this time it closes the channel of an unacknowledged delivery.
        /// A message waits in memory for half of it at most. If no queue takes its copy or its result, it waits for a
        /// quarter at most. Must not be above the broker's setting.
        ack_timeout: Length = SPAN, Default "30m";
    }
}
