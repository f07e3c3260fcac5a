//! A downstream over SMPP: its password, certificates and times; whether its window keeps the rate busy.

use super::Checks;
use crate::core::rate::Span;
use crate::settings::fault::KeyPath;
use crate::settings::types::{Route, Smpp, SmppEncoding};

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
            let bound = (timeout, "timeout", smpp.timeout.get());
            self.at_most((latency, smpp.latency.get()), bound, ["", ""]);
        }
        if smpp.data_coding.is_some() && smpp.encoding == SmppEncoding::Auto {
            let message = "one number cannot stand for two alphabets; write encoding = \"gsm7\" or \"ucs2\" beside it, or take it out";
            self.error([coding, encoding], message);
        }
    }

    /// Whether one replica alone can use the rate up with its windows.
    pub(super) fn window(&mut self, path: &KeyPath, route: &Route, smpp: &Smpp) {
        let Some((limit, rate)) = self.pace_of(route) else {
            return;
        };
        let (binds, window) = (u32::from(smpp.binds.get()), u32::from(smpp.window.get()));
        let latency = smpp.latency.get();
        let busy = (rate.per_second() * latency.as_secs_f64()).ceil();
        let room = binds * window;
        if f64::from(room) < busy {
            let downstream = path.join("downstream");
            let [window, binds_at, latency_at] = downstream.all(["window", "binds", "latency"]);
            let right = (busy / f64::from(binds)).ceil();
            let latency = Span(latency);
            let message = format!(
                "{room} segments without an answer do not keep {rate} busy at a latency of {latency}: one replica alone needs {busy} or more; write {right}, or run more replicas"
            );
            let rate_at = KeyPath::of(&["limits", limit, "rate"]);
            self.warning([window, binds_at, latency_at, rate_at], message);
        }
    }
}
