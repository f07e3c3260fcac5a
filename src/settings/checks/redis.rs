//! The section `[redis]`: which keys go with which mode, and URLs that must agree.

use secrecy::ExposeSecret as _;
use url::Url;

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::{LimitBackend, RedisMode};

impl Checks<'_, '_> {
    pub(super) fn redis(&mut self) {
        let redis = &self.settings.redis;
        let fine = |c: char| c.is_ascii_graphic() && c != '{' && c != '}';
        if redis.prefix.is_empty() || !redis.prefix.chars().all(fine) {
            // Braces would move the hash tag that keeps the keys of one script on one node.
            self.error(
                &[at("prefix")],
                "a prefix needs visible ASCII characters and no braces; write one such as \"sluiced\"",
            );
        }
        self.redis_addresses();
        let urls = self.redis_urls();
        self.redis_sentinel(&urls);
        if redis.mode == RedisMode::Cluster {
            self.redis_databases(&urls);
        }
        self.redis_likeness(&urls);
        self.redis_credentials(&urls);
        self.redis_certificates(&urls);
    }

    /// `url` for one server, `urls` for Sentinels and clusters; a cluster's one seed may be a `url`.
    fn redis_addresses(&mut self) {
        let redis = &self.settings.redis;
        let (url, urls, mode) = (at("url"), at("urls"), at("mode"));
        let (one, many) = (self.is_written(&url), !redis.urls.is_empty());
        match (redis.mode, one, many) {
            (RedisMode::Single, _, true) => self.hidden_error(
                &[urls, mode],
                "several URLs are for mode = \"sentinel\" or \"cluster\"; write url for one server",
            ),
            (RedisMode::Sentinel | RedisMode::Cluster, true, true) => self.hidden_error(
                &[url, urls, mode],
                "`urls` stands beside it; leave one of the two, better urls",
            ),
            (RedisMode::Sentinel, false, false) => self.error(
                &[mode, urls],
                "no address of a Sentinel; write urls = [\"redis://HOST:26379\", …]",
            ),
            (RedisMode::Cluster, false, false) => self.error(
                &[mode, urls],
                "no address of a node; write urls = [\"redis://HOST:6379\", …] with some of them",
            ),
            _ => {}
        }
    }

    /// The URLs that can be read, each with its place; about the others a fault is told.
    fn redis_urls(&mut self) -> Vec<(KeyPath, Url)> {
        let redis = &self.settings.redis;
        let several = !redis.urls.is_empty();
        let mut good = Vec::new();
        for (i, text) in redis.addresses().iter().enumerate() {
            let path = if several { at("urls").at(i) } else { at("url") };
            let text = text.expose_secret();
            let schemes = ["redis", "rediss"];
            self.broker_url(&path, text, &schemes, "redis://host:6379/0");
            if let Ok(url) = Url::parse(text)
                && schemes.contains(&url.scheme())
            {
                good.push((path, url));
            }
        }
        good
    }

    fn redis_sentinel(&mut self, urls: &[(KeyPath, Url)]) {
        let redis = &self.settings.redis;
        if redis.mode != RedisMode::Sentinel {
            for key in [
                "sentinel_service",
                "sentinel_user",
                "sentinel_password_file",
            ] {
                if self.is_written(&at(key)) {
                    self.error(
                        &[at(key), at("mode")],
                        "this is for mode = \"sentinel\"; write that, or take this out",
                    );
                }
            }
            return;
        }
        if redis.sentinel_service.as_deref().is_none_or(str::is_empty) {
            self.error(
                &[at("mode"), at("sentinel_service")],
                "no name of the group; write sentinel_service, the word after `sentinel monitor`, often \"mymaster\"",
            );
        }
        for (path, url) in urls {
            if has_credentials(url) {
                self.hidden_error(
                    std::slice::from_ref(path),
                    "credentials of a Sentinel's URL are not used; write user and password_file for Redis, sentinel_user and sentinel_password_file for the Sentinels",
                );
            }
        }
    }

    fn redis_databases(&mut self, urls: &[(KeyPath, Url)]) {
        for (path, url) in urls {
            if !matches!(url.path(), "" | "/" | "/0") {
                self.hidden_error(
                    &[path.clone(), at("mode")],
                    "a cluster has no databases; write the URL without one",
                );
            }
        }
    }

    /// Further servers are found by address alone: all else must be the same for all.
    fn redis_likeness(&mut self, urls: &[(KeyPath, Url)]) {
        let Some(((first_path, first), others)) = urls.split_first() else {
            return;
        };
        let facts = |url: &Url| {
            let password = url.password().map(str::to_owned);
            let database = url.path().trim_start_matches('/').to_owned();
            let database = if database == "0" {
                String::new()
            } else {
                database
            };
            (
                url.scheme().to_owned(),
                url.username().to_owned(),
                password,
                database,
            )
        };
        for (path, url) in others {
            if facts(url) != facts(first) {
                self.hidden_error(
                    &[path.clone(), first_path.clone()],
                    "this URL differs from the first one in more than host and port; write the same scheme, user, password and database in all",
                );
            }
        }
    }

    fn redis_credentials(&mut self, urls: &[(KeyPath, Url)]) {
        let redis = &self.settings.redis;
        let in_url = urls
            .first()
            .is_some_and(|(_, url)| url.password().is_some());
        if redis.user.is_some() && redis.password_file.is_none() && !in_url {
            self.error(
                &[at("user"), at("password_file"), at("url"), at("urls")],
                "a user needs a password; write password_file",
            );
        }
        if redis.sentinel_user.is_some() && redis.sentinel_password_file.is_none() {
            self.error(
                &[at("sentinel_user"), at("sentinel_password_file")],
                "a user needs a password; write sentinel_password_file",
            );
        }
        if self.settings.backend.limits == LimitBackend::Redis {
            self.secret_file(&at("password_file"), redis.password_file.as_deref());
            let sentinel = redis.sentinel_password_file.as_deref();
            self.secret_file(&at("sentinel_password_file"), sentinel);
        }
    }

    fn redis_certificates(&mut self, urls: &[(KeyPath, Url)]) {
        let redis = &self.settings.redis;
        let files = [
            ("ca_file", &redis.ca_file),
            ("cert_file", &redis.cert_file),
            ("key_file", &redis.key_file),
        ];
        let plain = urls.iter().any(|(_, url)| url.scheme() == "redis");
        for (key, _) in files.iter().filter(|(_, file)| plain && file.is_some()) {
            self.error(
                &[at(key), at("url"), at("urls")],
                "certificates are for TLS; write rediss:// in the URL, or take this out",
            );
        }
        match (&redis.cert_file, &redis.key_file) {
            (Some(_), None) => self.error(
                &[at("cert_file"), at("key_file")],
                "a certificate needs its key; write key_file",
            ),
            (None, Some(_)) => self.error(
                &[at("key_file"), at("cert_file")],
                "a key needs its certificate; write cert_file",
            ),
            _ => {}
        }
        if self.settings.backend.limits == LimitBackend::Redis {
            self.ca_file(&at("ca_file"), redis.ca_file.as_deref());
            self.ca_file(&at("cert_file"), redis.cert_file.as_deref());
            self.secret_file(&at("key_file"), redis.key_file.as_deref());
        }
    }
}

fn at(key: &str) -> KeyPath {
    KeyPath::of(&["redis", key])
}

fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}
