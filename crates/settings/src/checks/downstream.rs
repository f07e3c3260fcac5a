//! Downstreams: headers, credentials and signatures, what answers mean, times.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use super::{Bound, Checks};
use crate::path::KeyPath;
use crate::schema::hint;
use crate::types::{Auth, FRAMING, Http, Jwt, Limit, Outcomes, Quota, Route};
use sluiced_template::is_template;

/// Whether calls to that URL leave this host.
fn is_away(url: &str) -> bool {
    let host = url::Url::parse(url).ok();
    match host.as_ref().and_then(url::Url::host) {
        Some(url::Host::Domain(name)) => name != "localhost",
        Some(url::Host::Ipv4(address)) => !address.is_loopback(),
        Some(url::Host::Ipv6(address)) => !address.is_loopback(),
        None => false,
    }
}

impl<'a> Checks<'a> {
    pub(super) fn http(&mut self, path: &KeyPath, http: &Http) {
        let [headers, auth, outcomes] = path.all(["headers", "auth", "outcomes"]);
        for name in http.headers.keys() {
            let at = headers.join(name);
            let lower = name.to_ascii_lowercase();
            if http.auth.as_ref().is_some_and(|auth| auth.sets(&lower)) {
                let message = "auth sets this header already; take one of them out";
                self.error([at, auth.clone()], message);
            } else {
                self.header_name(at, name);
            }
        }
        if let Some(written) = &http.auth {
            self.auth(&auth, written);
        }
        self.proxy(path, http);
        self.hosts(path, http);
        self.tls_files(path, [&http.ca_file, &http.cert_file, &http.key_file]);
        self.outcomes(&outcomes, &http.outcomes);
        self.http_times(path, http);
    }

    /// A proxy's user and password belong together.
    fn proxy(&mut self, path: &KeyPath, http: &Http) {
        let [proxy, password] = path.all(["proxy", "proxy_password_file"]);
        let url = http
            .proxy
            .as_ref()
            .and_then(|url| url.parse::<url::Url>().ok());
        let has_user = url.is_some_and(|url| !url.username().is_empty());
        match (has_user, &http.proxy_password_file) {
            (true, None) => self.error(
                proxy,
                "the proxy's user has no password; write proxy_password_file",
            ),
            (false, Some(_)) => self.error(
                [password, proxy],
                "the password belongs to no user; write one into proxy, such as \"http://user@proxy.example:3128\"",
            ),
            (true, Some(file)) => self.secret_file(&password, Some(file)),
            (false, None) => {}
        }
        // Said once: it is the same for all routes.
        if http.proxy.is_none()
            && is_away(&http.url)
            && let Some(variable) = self.proxy.take()
        {
            let message = format!(
                "{variable} is set, and is not read; where calls need a proxy, write it as proxy = \"http://proxy.example:3128\", for all of them in [defaults.downstream]"
            );
            self.warning(path.join("url"), message);
        }
    }

    /// Which hosts a message may name, where it names one.
    fn hosts(&mut self, path: &KeyPath, http: &Http) {
        let [url, allowed, breaker] = path.all(["url", "allowed_hosts", "breaker"]);
        match (http.hosts_differ(), http.allowed_hosts.is_empty()) {
            (true, true) => {
                let message = "the host comes from a message, which could lead a call anywhere; write the hosts that it may name into allowed_hosts, such as [\"*.example.com\"]";
                return self.error([url, allowed], message);
            }
            (false, false) => {
                let message =
                    "the URL has a fixed host, and no message can name another one; take this out";
                return self.error([allowed, url], message);
            }
            (false, true) => return,
            (true, false) => {}
        }
        let is_any = |host: &String| host == "*" || host.starts_with("*:");
        if http.allowed_hosts.iter().any(is_any)
            && let Some(key) = http.shows_credentials()
        {
            let at = key.iter().fold(path.clone(), |path, step| path.join(step));
            let message = "any host that a message names would be shown these credentials; name the hosts in allowed_hosts instead of \"*\", or sign the calls (auth.kind = \"hmac\")";
            self.error([at, allowed.clone()], message);
        }
        if self.is_written(&breaker) {
            let message = "it has no effect where hosts differ: one that is away does not stop the others, and each message has its attempts";
            self.warning([breaker, url.clone()], message);
        }
        if http.proxy.is_some() && !http.no_proxy.is_empty() {
            let message = "behind a proxy no address is looked at, and these hosts would be called without it; take it out, or the proxy";
            let at = path.join("no_proxy");
            return self.error([at, path.join("proxy"), url], message);
        }
        if http.proxy.is_some() {
            let message = "the proxy looks these names up, so sluiced cannot see whether one leads to a private address; let the proxy refuse those";
            self.warning([path.join("proxy"), url], message);
        }
    }

    /// A header that may be set.
    fn header_name(&mut self, at: KeyPath, name: &str) {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            let message = "this is no name of a header; write letters, digits and `-`";
            self.error(at, message);
        } else if FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
            self.error(at, "this header belongs to the connection; take it out");
        }
    }

    /// `throttles` must name one of the route's limits, of a kind that can be closed for a time.
    pub(super) fn throttles(&mut self, path: &KeyPath, route: &Route) {
        let name = route.throttles().filter(|text| !is_template(text));
        let Some(name) = name else { return };
        let at = path.join("downstream").join("throttles");
        if self
            .limit_of(&at, path, route, name)
            .is_some_and(Limit::counts_calls)
        {
            let kind = KeyPath::of(&["limits", name, "kind"]);
            let message = format!(
                "`{name}` counts calls, and cannot be closed for a time; name a limit of another kind"
            );
            self.error([at, kind], message);
        }
    }

    /// A quota must name one of the route's limits, of a kind that counts units over time.
    pub(super) fn quotas(&mut self, path: &KeyPath, route: &Route) {
        let quotas = path.join("downstream").join("quota");
        for (name, quota) in route.quotas() {
            let at = quotas.join(name);
            if let Some(limit) = self.limit_of(&at, path, route, name)
                && limit.counts_calls()
            {
                let kind = KeyPath::of(&["limits", name, "kind"]);
                let counts = match limit {
                    Limit::Once(_) => "calls each message once",
                    _ => "counts calls in flight",
                };
                let message = format!(
                    "`{name}` {counts}, and a downstream says what is left of a count over time; name a limit of another kind"
                );
                self.error([at.clone(), kind], message);
            }
            self.quota(&at, quota);
        }
    }

    /// The limit that the key `at` names, which must be one of the route at `path`.
    fn limit_of(
        &mut self,
        at: &KeyPath,
        path: &KeyPath,
        route: &Route,
        name: &str,
    ) -> Option<&'a Limit> {
        if route.limits.iter().any(|limit| limit == name) {
            return self.settings.limits.get(name);
        }
        let known_names = route.limits.iter().map(String::as_str);
        let hint = hint(name, known_names, || "name one of its limits".to_owned());
        let message = format!("the route has no limit `{name}`; {hint}");
        self.error([at.clone(), path.join("limits")], message);
        None
    }

    /// Either the name of a format, or templates.
    fn quota(&mut self, at: &KeyPath, quota: &Quota) {
        let [format, remaining, reset] = at.all(["format", "remaining", "reset"]);
        match (quota.format, &quota.remaining, &quota.reset) {
            (None, None, _) => self.error(
                [at.clone(), remaining],
                "nothing says where answers have what is left; write format = \"ietf\", or remaining = \"{{ answer.headers['x-left'] }}\"",
            ),
            (Some(_), Some(_), _) => self.error(
                [remaining, format],
                "format names the headers already; take one of the two out",
            ),
            (Some(_), None, Some(_)) => self.error(
                [reset, format],
                "format names the header of the reset already; take reset out",
            ),
            (Some(_), None, None) | (None, Some(_), _) => {}
        }
    }

    /// An answer means one thing.
    fn outcomes(&mut self, path: &KeyPath, outcomes: &Outcomes) {
        let lists = [
            ("accepted", &outcomes.accepted),
            ("throttled", &outcomes.throttled),
            ("held", &outcomes.held),
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
        if let Auth::Hmac(hmac) = auth {
            let headers = path.join("headers");
            for name in hmac.headers.keys() {
                self.header_name(headers.join(name), name);
            }
            let mut texts = hmac.headers.values();
            if !texts.any(|text| text.contains("signature_")) {
                let message = "no header has the signature; write one such as x-signature = \"{{ signature_hex }}\"";
                self.error(headers, message);
            }
        }
        let (name, value, file) = match auth {
            Auth::Aws(aws) => return self.aws(path, aws),
            Auth::Jwt(jwt) => {
                self.jwt_times(path, jwt);
                return self.secret_file(&path.join("key_file"), Some(&jwt.key_file));
            }
            Auth::Basic(basic) => ("password", basic.password.is_some(), &basic.password_file),
            Auth::Bearer(bearer) => ("token", bearer.token.is_some(), &bearer.token_file),
            Auth::Hmac(hmac) => ("secret", hmac.secret.is_some(), &hmac.secret_file),
            Auth::Oauth2(client) => {
                let value = client.client_secret.is_some();
                ("client_secret", value, &client.client_secret_file)
            }
        };
        self.one_secret(path, name, value, file);
    }

    fn jwt_times(&mut self, path: &KeyPath, jwt: &Jwt) {
        let (least, most) = (Duration::from_secs(120), Duration::from_secs(24 * 3600));
        if !(least..=most).contains(&jwt.lifetime.get()) {
            let message = "a token is good for 2 minutes to a day; write one such as \"50m\"";
            self.error(path.join("lifetime"), message);
        }
        for name in ["iat", "exp"] {
            if jwt.claims.contains_key(name) {
                let message = format!("{name} is made for each token; take it away");
                self.error(path.join("claims").join(name), message);
            }
        }
    }

    /// A secret is in the configuration or in a file, not in both.
    pub(super) fn one_secret(
        &mut self,
        path: &KeyPath,
        name: &str,
        value: bool,
        file: &Option<PathBuf>,
    ) {
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
            let [own_path, other] = path.all([name, bound_name]);
            // A default does not count; only a written value can be wrong.
            if self.is_written(&own_path) {
                let bound = Bound::plain(other, bound_name, bound.get());
                self.at_most(own_path, time.get(), bound);
            }
        }
    }
}
