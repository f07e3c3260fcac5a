//! The store of the limits.

use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

use crate::forms::urls::REDIS_URL;
use crate::forms::{FLEET, PREFIX, TEXT};
use crate::schema::Shape::List;
use crate::schema::{SPAN, table, words};
use crate::text::Length;

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Redis {
        /// Where the limits are shared: redis:// or rediss:// (TLS).
        url: SecretString = REDIS_URL, Default "redis://127.0.0.1:6379/0";
        /// single: one server, or an address that always leads to the primary. sentinel: the Sentinels name the
        /// primary, and its successor after a failover:
        ///   mode = "sentinel"
        ///   urls = ["redis://sentinel-a:26379", "redis://sentinel-b:26379", "redis://sentinel-c:26379"]
        ///   sentinel_service = "mymaster"
        ///   sentinel_user = "sluiced"
        ///   sentinel_password_file = "credential:sentinel"
        /// cluster: each paced limit lies on one of the masters, all keyed limits together on one, and all masters are
        /// found from some:
        ///   mode = "cluster"
        ///   urls = ["redis://node-a:6379", "redis://node-b:6379", "redis://node-c:6379"]
        mode: RedisMode = RedisMode::SHAPE, Default "single";
        /// Several, for the modes sentinel and cluster: the Sentinels, whose /N is the database at the primary, or
        /// some nodes of the cluster. They differ in nothing but host and port.
        urls: Vec<SecretString> = List(&REDIS_URL), Default [];
        /// What the Sentinels call the group of servers: the word after `sentinel monitor`.
        sentinel_service: Option<String> = TEXT, Apart "mymaster";
        /// For the Sentinels, as user and password_file are for the servers.
        sentinel_user: Option<String> = TEXT, Apart "sluiced";
        /// The password of sentinel_user.
        sentinel_password_file: Option<PathBuf> = TEXT, Apart "credential:sentinel";
        /// Replaces the user in the URL. What a user needs (the last word for a cluster only), "sluiced" being the
        /// prefix below; `sluiced check --connect` says what is missing:
        ///   ACL SETUSER sluiced on >PASSWORD ~sluiced:* &sluiced:* +@connection +@hash +@keyspace +@pubsub +@sortedset +@string -@dangerous +evalsha +script|load +info +time +cluster|slots
        /// If it may read CONFIG too (+config|get), sluiced warns if nothing is kept on disk. At a Sentinel:
        ///   ACL SETUSER sluiced on >PASSWORD +@connection -@dangerous +sentinel|master
        user: Option<String> = TEXT, Optional "sluiced";
        /// Replaces the password in the URL. Absent: the URL is used as it is.
        password_file: Option<PathBuf> = TEXT, Optional "credential:redis";
        /// Certificates (PEM) to trust in addition to the system's.
        ca_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/ca.pem";
        /// Our own certificate (PEM), for servers that ask for one (tls-auth-clients).
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/client.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:redis-key";
        /// What every key starts with. Fleets with different prefixes share nothing.
        prefix: String = PREFIX, Default "sluiced";
        /// The fleet that the limits and routes of this file belong to. Under one prefix a name belongs to one fleet:
        /// another one that uses it does not run, unless both share it (shared, of a limit). Absent: the name of
        /// RabbitMQ's cluster with the virtual host, such as "rabbit@mq1:/", and the addresses of urls;
        /// "embedded" for backend.queue = "embedded".
        fleet: Option<String> = FLEET, Optional "rabbit@mq1:/";
        /// How long one attempt to connect may take.
        connect_timeout: Length = SPAN, Default "2s";
        /// How long Redis may take to answer. Longer: sluiced waits for a slow Redis. Shorter: slots in late replies
        /// are lost sooner. Without Redis nothing is sent.
        response_timeout: Length = SPAN, Default "500ms";
    }
}

words! {
    /// How Redis is run.
    pub enum RedisMode {
        /// One server, or an address that always leads to the primary.
        Single = "single",
        /// A primary with replicas, watched by Sentinels.
        Sentinel = "sentinel",
        Cluster = "cluster",
    }
}

impl Redis {
    /// Where to connect to: `urls` if there are any, else `url` alone.
    #[must_use]
    pub fn addresses(&self) -> &[SecretString] {
        if self.urls.is_empty() {
            std::slice::from_ref(&self.url)
        } else {
            &self.urls
        }
    }
}
