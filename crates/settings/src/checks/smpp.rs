//! A downstream over SMPP: its password, certificates and times; whether its window keeps the rate busy and has room
//! for the longest message.

use std::collections::BTreeSet;

use super::{Bound, Checks};
use crate::fixed_or_template::Costing;
use crate::path::KeyPath;
use crate::types::{Downstream, Limit, Results, Route, Smpp, SmppBind, SmppEncoding};
use sluiced_core::rate::Span;
use sluiced_template::{About, NAMES, Templates};

/// A window must hold this many times the average number of messages in flight. Some answers take longer than
/// usual; with room only for the average, each of them costs a slot.
const WINDOW_MARGIN: f64 = 1.5;

impl Checks<'_> {
    pub(super) fn smpp(&mut self, path: &KeyPath, smpp: &Smpp) {
        self.one_secret(
            path,
            "password",
            smpp.password.is_some(),
            &smpp.password_file,
        );
        self.tls_files(path, [&smpp.ca_file, &smpp.cert_file, &smpp.key_file]);
        let [latency, timeout, coding, encoding] =
            path.all(["latency", "timeout", "data_coding", "encoding"]);
        if self.is_written(&latency) {
            let bound = Bound::plain(timeout, "timeout", smpp.timeout.get());
            self.at_most(latency, smpp.latency.get(), bound);
        }
        if smpp.data_coding.is_some() && smpp.encoding == SmppEncoding::Auto {
            let message = "one number cannot stand for two alphabets; write encoding = \"gsm7\", \"latin1\" or \"ucs2\" beside it, or take it out";
            self.error([coding, encoding], message);
        }
    }

    /// What a centre delivers needs a connection that takes it, and has no fields of a message.
    pub(super) fn deliveries(&mut self, path: &KeyPath, route: &Route, results: &Results) {
        let on = path.join("on");
        let publishes = results.takes_deliveries();
        let Downstream::Smpp(smpp) = &route.downstream else {
            if publishes {
                let message = "only a downstream of the kind smpp delivers receipts and messages from phones; take \"receipt\" and \"inbound\" out";
                self.error(on, message);
            }
            return;
        };
        if !publishes {
            return;
        }
        if smpp.bind != SmppBind::Transceiver {
            let message = "a centre delivers nothing to a transmitter; write bind = \"transceiver\" in its downstream";
            self.error(on, message);
        }
        let key = ("routing_key", Some(&results.routing_key));
        for (name, text) in [key, ("body", results.body.as_ref())] {
            let mut templates = Templates::about(About::Answer);
            let compiled = text.and_then(|text| templates.add(name, text.as_str()).ok());
            let of_message = NAMES.into_iter().filter(|variable| *variable != "route");
            let used = of_message
                .into_iter()
                .find(|variable| templates.uses(variable));
            if let Some(used) = used.filter(|_| compiled.is_some()) {
                let message = format!(
                    "what a centre delivers has no message, so `{used}` is not known of it; use only route and answer"
                );
                self.error(path.join(name), message);
            }
        }
    }

    /// A transceiver without a place for what its centre delivers.
    fn transceiver(&mut self, path: &KeyPath, route: &Route, smpp: &Smpp) {
        let results = route.results.as_ref();
        let takes = results.is_some_and(Results::takes_deliveries);
        if smpp.bind == SmppBind::Transceiver && !takes {
            let message = "nothing takes what the centre delivers; write results.on = [\"receipt\"] or [\"inbound\"] (and what else is to be published), or bind = \"transmitter\"";
            self.error(path.join("downstream").join("bind"), message);
        }
    }

    /// Whether the windows of one replica alone allow the whole rate.
    pub(super) fn window(&mut self, path: &KeyPath, route: &Route, smpp: &Smpp) {
        self.transceiver(path, route, smpp);
        let Some((limit, rate)) = self.pace_of(route) else {
            return;
        };
        self.segments(path, limit, smpp);
        self.longest(path, limit, smpp);
        let (binds, window) = (u32::from(smpp.binds.get()), u32::from(smpp.window.get()));
        let latency = smpp.latency.get();
        let busy = (rate.per_second() * latency.as_secs_f64() * WINDOW_MARGIN).ceil();
        let room = binds * window;
        if f64::from(room) < busy {
            let downstream = path.join("downstream");
            let [window, binds_at, latency_at] = downstream.all(["window", "binds", "latency"]);
            let right = (busy / f64::from(binds)).ceil();
            let message = format!(
                "{room} segments without an answer do not keep {rate} busy at a latency of {}: one replica alone needs {busy} or more, because some answers take longer; write {right}, or run more replicas",
                Span(latency)
            );
            let rate_at = KeyPath::of(&["limits", limit, "rate"]);
            self.warning([window, binds_at, latency_at, rate_at], message);
        }
    }

    /// A limit that counts segments has no other cost: what is counted is what is sent.
    fn segments(&mut self, path: &KeyPath, limit: &str, smpp: &Smpp) {
        let at = KeyPath::of(&["limits", limit, "cost"]);
        let Some(paced) = self.settings.limits.get(limit).and_then(Limit::as_paced) else {
            return;
        };
        let counts_segments = match &paced.cost {
            Costing::Template(text) => text.as_str().contains("sms_segments"),
            Costing::Fixed(_) => false,
        };
        if !self.is_written(&at) || !smpp.sends_segments() && !counts_segments {
            return;
        }
        let right = smpp.segments_cost();
        if let (Costing::Template(text), Some(right)) = (&paced.cost, &right)
            && counting(text.as_str()) == counting(right)
        {
            return;
        }
        let sends = match smpp.sends_segments() {
            true => format!(
                "`{path}` takes a slot for each segment that it sends, and this counts otherwise; take cost out"
            ),
            false => format!(
                "this counts other segments than those of the text of `{path}`; take cost out for one slot a message"
            ),
        };
        let message = match right {
            Some(right) => format!("{sends}, or write cost = '{right}'"),
            None => sends,
        };
        let keys =
            path.join("downstream")
                .all(["kind", "text", "encoding", "long", "transliterate"]);
        self.error([vec![at], keys.to_vec()].concat(), message);
    }

    /// Whether a window has room for the longest message that the limit lets pass.
    fn longest(&mut self, path: &KeyPath, limit: &str, smpp: &Smpp) {
        let paced = self.settings.limits.get(limit).and_then(Limit::as_paced);
        let (most, window) = (paced.map(|paced| paced.largest_cost().get()), smpp.window);
        let Some(most) = most.filter(|most| *most > u32::from(window.get())) else {
            return;
        };
        if smpp.sends_segments() {
            let message = format!(
                "a message of more than {window} segments is a dead letter, for they are sent together, and limits.{limit} lets up to {most} pass; write window = {most} or more, or max_cost = {window}"
            );
            let most_at = KeyPath::of(&["limits", limit, "max_cost"]);
            let window_at = path.join("downstream").join("window");
            self.warning([window_at, most_at], message);
        }
    }
}

/// Options of `sms_segments` that change nothing.
const DEFAULTS: [&str; 3] = [r#"encoding="auto""#, "reference=8", "transliterate=false"];

/// What a cost counts: the expression of its text, and the options that are no defaults. `None`: no segments.
fn counting(cost: &str) -> Option<(String, BTreeSet<String>)> {
    let bare: String = cost
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| if c == '\'' { '"' } else { c })
        .collect();
    let inner = bare.strip_prefix("{{")?.strip_suffix("}}")?;
    let (text, options) = inner.rsplit_once("|sms_segments")?;
    let list = match options {
        "" => "",
        options => options.strip_prefix('(')?.strip_suffix(')')?,
    };
    let that_count = list
        .split(',')
        .filter(|option| !option.is_empty() && !DEFAULTS.contains(option));
    Some((text.to_owned(), that_count.map(str::to_owned).collect()))
}
