//! The HTTP downstream: headers, outcomes, auth, times.

use std::collections::BTreeMap;

use http::HeaderName;

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::{Auth, Http, Outcomes};

/// Headers that follow from the body and the connection.
const OWN_HEADERS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

impl Checks<'_> {
    pub(super) fn http(&mut self, path: &KeyPath, http: &Http) {
        let [headers, auth, outcomes] = path.all(["headers", "auth", "outcomes"]);
        for name in http.headers.keys() {
            let at = headers.join(name);
            let lower = name.to_ascii_lowercase();
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                let message = "this is no name of a header; write letters, digits and `-`";
                self.error(at, message);
            } else if OWN_HEADERS.contains(&lower.as_str()) {
                self.error(at, "sluiced sets this header itself; take it out");
            } else if lower == "authorization" && http.auth.is_some() {
                let message = "auth sets this header already; take one of them out";
                self.error([at, auth.clone()], message);
            }
        }
        if let Some(written) = &http.auth {
            self.auth(&auth, written);
        }
        self.tls_files(path, [&http.ca_file, &http.cert_file, &http.key_file]);
        self.outcomes(&outcomes, &http.outcomes);
        self.http_times(path, http);
    }

    /// An answer means one thing.
    fn outcomes(&mut self, path: &KeyPath, outcomes: &Outcomes) {
        let lists = [
            ("accepted", &outcomes.accepted),
            ("throttled", &outcomes.throttled),
            ("transient", &outcomes.transient),
            ("permanent", &outcomes.permanent),
        ];
        let mut seen = BTreeMap::new();
        for (list, answers) in lists {
            for (i, answer) in answers.iter().enumerate() {
                if let Some(other) = seen.get(answer) {
                    let message =
                        format!("`{answer}` stands in `{other}` already; leave it in one list");
                    self.error(path.join(list).at(i), message);
                } else {
                    seen.insert(answer, list);
                }
            }
        }
    }

    fn auth(&mut self, path: &KeyPath, auth: &Auth) {
        let (name, value, file) = match auth {
            Auth::Basic(basic) => ("password", basic.password.is_some(), &basic.password_file),
            Auth::Bearer(bearer) => ("token", bearer.token.is_some(), &bearer.token_file),
        };
        let (at_value, at_file) = (path.join(name), path.join(&format!("{name}_file")));
        match (value, file) {
            (true, Some(_)) => {
                let message =
                    format!("`{name}` stands beside it; leave one of the two, better {name}_file");
                self.error([at_file, at_value], message);
            }
            (true, None) => {}
            (false, Some(file)) => self.secret_file(&at_file, Some(file)),
            (false, None) => {
                let message = format!("no {name}; write {name}_file or {name}");
                self.error([path.clone(), at_value, at_file], message);
            }
        }
    }

    fn http_times(&mut self, path: &KeyPath, http: &Http) {
        let timeout = ("timeout", http.timeout);
        let longest = ("max_throttle_wait", http.max_throttle_wait);
        for (name, time, (bound_name, bound)) in [
            ("latency", http.latency, timeout),
            ("connect_timeout", http.connect_timeout, timeout),
            ("throttle_wait", http.throttle_wait, longest),
        ] {
            let [own, other] = path.all([name, bound_name]);
            // A default gives way by itself; only what was written can be wrong.
            if self.is_written(&own) {
                let bound = (other, bound_name, bound.get());
                self.at_most((own, time.get()), bound, ["", ""]);
            }
        }
    }
}
