//! Callers: programs that ask for a turn of limits, and make the call themselves.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::forms::TEXT;
use crate::schema::Shape::{List, Text, Whole};
use crate::schema::{Form, SPAN, table};
use crate::sockets::ListenOn;
use crate::text::Length;
use crate::types::Settings;

table! {
    /// One listener, and the limits that its callers pass.
    #[derive(Clone, Debug, Deserialize)]
    pub struct Callers {
        /// Where programs ask: a socket of this machine ("unix:/run/sluiced/callers.sock"), an address
        /// ("127.0.0.1:9470"; one that is not of loopback needs token_file, cert_file and key_file), or a socket that
        /// systemd opened under this FileDescriptorName ("systemd:callers").
        listen: ListenOn = Text(Form::of::<ListenOn>("^unix:/|^systemd:.|:[0-9]+$")), Required "unix:/run/sluiced/callers.sock";
        /// The limits by name, as those of a route: 1 to 8 of them, at most one of the kind paced, none of the kind once.
        /// A request names the keys of those that have one: a key of a limit is what the request says, whatever the
        /// template makes of messages.
        limits: Vec<String> = List(&TEXT), Required ["provider"];
        /// From 0 to 9, as that of a route: callers and routes of one paced limit go by it.
        priority: u8 = Whole(0..=9), Default 0;
        /// The longest `wait` that a request may ask for.
        max_wait: Length = SPAN, Default "30s";
        /// How many requests may wait at a time. One more is refused at once (503).
        max_waiting: u16 = Whole(1..=60_000), Default 10000;
        /// How long after its permit the call of a caller may reach the downstream: how long the program takes, and by
        /// how much its way varies. The headroom of the limits must keep it for the way: "auto" does. Callers that
        /// report how long they took (used_after_ms) raise it where they take longer, up to four times this.
        use_within: Length = SPAN, Default "2ms";
        /// With keyed limits: a permit that its caller does not end by DELETE ends after this. Until then it counts in
        /// limits of calls in flight, and can be given back.
        ends_after: Length = SPAN, Default "10s";
        /// The file with the token that each request carries: Authorization: Bearer TOKEN. Absent: the socket's
        /// permissions are what protects it.
        token_file: Option<PathBuf> = TEXT, Optional "credential:callers";
        /// The certificate of the listener (PEM), with its chain; with it callers speak TLS.
        cert_file: Option<PathBuf> = TEXT, Optional "/etc/sluiced/callers.pem";
        /// The key of cert_file (PEM).
        key_file: Option<PathBuf> = TEXT, Optional "credential:callers-key";
    }
}

impl Callers {
    /// What callers must know, in words. `counts`: a limit counts their permits after their turns.
    #[must_use]
    pub fn in_words(&self, counts: bool) -> Vec<String> {
        let mut words = vec![
            format!(
                "programs ask at {}, each for up to {}; {} of them may wait at a time",
                self.listen, self.max_wait, self.max_waiting
            ),
            format!(
                "their calls may reach the downstream up to {} after the permits; a later one may come too early for the next window",
                self.use_within
            ),
        ];
        if counts {
            words.push(format!(
                "a permit that is not ended counts in its limits for {}, and can be given back until then",
                self.ends_after
            ));
        }
        if self.token_file.is_none() {
            words.push("no token: whatever reaches the socket may use up the limits".to_owned());
        }
        words
    }
}

/// A route, or callers, as they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSummary {
    /// The queue, or where callers ask.
    pub source: String,
    pub standby_for: Option<String>,
    pub limits: Vec<String>,
}

impl Settings {
    /// All routes and callers, by the names under which they are shown and paused.
    #[must_use]
    pub fn shown(&self) -> BTreeMap<String, SourceSummary> {
        let routes = self.routes.iter().map(|(name, route)| {
            let shown = SourceSummary {
                source: route.queue.clone(),
                standby_for: route.standby_for.clone(),
                limits: route.limits.clone(),
            };
            (name.clone(), shown)
        });
        let callers = self.callers.iter().map(|(name, callers)| {
            let shown = SourceSummary {
                source: callers.listen.to_string(),
                standby_for: None,
                limits: callers.limits.clone(),
            };
            (callers_route(name), shown)
        });
        routes.chain(callers).collect()
    }

    /// Whether a limit of these callers counts a permit after its turn.
    #[must_use]
    pub fn counts_after(&self, callers: &Callers) -> bool {
        let mut limits = callers.limits.iter();
        limits.any(|name| {
            let limit = self.limits.get(name);
            limit.is_some_and(|limit| limit.as_paced().is_none())
        })
    }
}

/// The name under which callers are shown beside the routes: in metrics, on the status page, and for pauses.
#[must_use]
pub fn callers_route(name: &str) -> String {
    format!("callers.{name}")
}
