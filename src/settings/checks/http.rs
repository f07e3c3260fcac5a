//! The HTTP downstream: URL, method, headers, templates, outcomes, auth.

use http::{HeaderName, HeaderValue, Method};
use url::Url;

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::types::{Auth, Http, Outcomes};

/// Headers that follow from the body and the connection.
const OWN_HEADERS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

impl Checks<'_, '_> {
    pub(super) fn http(&mut self, path: &KeyPath, http: &Http) {
        self.url(&path.join("url"), &http.url);
        self.method(&path.join("method"), &http.method);
        self.headers(path, http);
        if let Some(body) = &http.body {
            self.hidden_template(&path.join("body"), body);
        }
        if let Some(auth) = &http.auth {
            self.auth(&path.join("auth"), auth);
        }
        self.ca_file(&path.join("ca_file"), http.ca_file.as_deref());
        self.outcomes(&path.join("outcomes"), &http.outcomes);
        self.http_times(path, http);
    }

    fn url(&mut self, path: &KeyPath, text: &str) {
        let at = std::slice::from_ref(path);
        let example = "write one such as \"http://127.0.0.1:8080/send\"";
        let lower = text.to_ascii_lowercase();
        if !lower.starts_with("http://") && !lower.starts_with("https://") {
            self.hidden_error(
                at,
                format!("this URL must start with http:// or https://; {example}"),
            );
            return;
        }
        self.hidden_template(path, text);
        if ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag)) {
            let authority = lower.split('/').nth(2).unwrap_or_default();
            if authority.contains('{') {
                // Else a message could choose who gets our credentials.
                self.hidden_error(at, "the host must not come from a template; write it out");
            }
            return;
        }
        match Url::parse(text) {
            Err(reason) => self.hidden_error(at, format!("this is no URL ({reason}); {example}")),
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                let auth =
                    "credentials in this URL are not used; write them as a table auth beside it";
                self.hidden_error(at, auth);
            }
            Ok(_) => {}
        }
    }

    fn method(&mut self, path: &KeyPath, method: &str) {
        let upper = method.to_ascii_uppercase();
        let fine = Method::from_bytes(method.as_bytes()).is_ok();
        if !fine || upper != method {
            let right = if Method::from_bytes(upper.as_bytes()).is_ok() {
                upper
            } else {
                "POST".to_owned()
            };
            let message = format!("`{method}` is no method; write \"{right}\"");
            self.error(std::slice::from_ref(path), message);
        }
    }

    fn headers(&mut self, path: &KeyPath, http: &Http) {
        let table = path.join("headers");
        for (name, value) in &http.headers {
            let at = table.join(name);
            let lower = name.to_ascii_lowercase();
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                let message = "this is no name of a header; write letters, digits and `-`";
                self.hidden_error(std::slice::from_ref(&at), message);
            } else if OWN_HEADERS.contains(&lower.as_str()) {
                let message = "sluiced sets this header itself; take it out";
                self.hidden_error(std::slice::from_ref(&at), message);
            } else if lower == "authorization" && http.auth.is_some() {
                let message = "auth sets this header already; take one of them out";
                self.hidden_error(&[at.clone(), path.join("auth")], message);
            }
            if HeaderValue::from_str(value).is_err() {
                let message = "a header's value must be visible ASCII on one line";
                self.hidden_error(std::slice::from_ref(&at), message);
            }
            self.hidden_template(&at, value);
        }
    }

    fn outcomes(&mut self, path: &KeyPath, outcomes: &Outcomes) {
        let lists = [
            ("accepted", &outcomes.accepted),
            ("throttled", &outcomes.throttled),
            ("transient", &outcomes.transient),
            ("permanent", &outcomes.permanent),
        ];
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (list, entries) in lists {
            for (i, entry) in entries.iter().enumerate() {
                let at = path.join(list).at(i);
                if !is_outcome(entry) {
                    let message = format!(
                        "`{entry}` is no answer; write a code (\"409\"), a class (\"2xx\" to \"5xx\"), \"timeout\" or \"connection\""
                    );
                    self.error(&[at], message);
                } else if let Some((other, _)) = seen.iter().find(|(_, known)| known == entry) {
                    let message =
                        format!("`{entry}` stands in `{other}` already; leave it in one list");
                    self.error(&[at], message);
                } else if list == "accepted" && matches!(entry.as_str(), "timeout" | "connection") {
                    let message = format!(
                        "`{entry}` is no answer, so nothing can have been accepted; take it out"
                    );
                    self.error(&[at], message);
                } else {
                    seen.push((list, entry));
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
        if value && file.is_some() {
            let message =
                format!("`{name}` stands beside it; leave one of the two, better {name}_file");
            self.error(&[at_file.clone(), at_value], message);
        } else if !value && file.is_none() {
            let message = format!("no {name}; write {name}_file or {name}");
            self.hidden_error(&[path.clone(), at_value, at_file.clone()], message);
        }
        if !value {
            self.secret_file(&at_file, file.as_deref());
        }
        if let Auth::Basic(basic) = auth
            && basic.user.contains(':')
        {
            // RFC 7617: the first colon ends the user.
            self.error(
                &[path.join("user")],
                "a user's name must not hold a colon; take it out",
            );
        }
    }

    fn http_times(&mut self, path: &KeyPath, http: &Http) {
        let pairs = [
            ("latency", http.latency, "timeout", http.timeout),
            (
                "connect_timeout",
                http.connect_timeout,
                "timeout",
                http.timeout,
            ),
            (
                "throttle_wait",
                http.throttle_wait,
                "max_throttle_wait",
                http.max_throttle_wait,
            ),
        ];
        for (name, value, bound_name, bound) in pairs {
            // A default gives way by itself; only what was written can be wrong.
            let own = path.join(name);
            if value <= bound || !self.is_written(&own) {
                continue;
            }
            let message = format!(
                "{} is longer than {bound_name} of {}; write {} or less",
                Span(value.get()),
                Span(bound.get()),
                Span(bound.get())
            );
            let paths = [own, path.join(bound_name)];
            self.error(&paths, message);
        }
    }
}

fn is_outcome(entry: &str) -> bool {
    let code = |text: &str| {
        let code = text.parse::<u16>();
        text.len() == 3 && code.is_ok_and(|code| (100..=599).contains(&code))
    };
    matches!(
        entry,
        "timeout" | "connection" | "2xx" | "3xx" | "4xx" | "5xx"
    ) || code(entry)
}
