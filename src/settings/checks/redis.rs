//! The section `[redis]`: which keys go with which mode, and URLs that must agree.

use std::path::Path;

use secrecy::ExposeSecret as _;
use url::Url;

use super::Checks;
use crate::settings::path::KeyPath;
use crate::settings::types::{LimitBackend, RedisMode};

impl Checks<'_, '_> {
    pub(super) fn redis(&mut self) {
        self.redis_addresses();
        let redis = &self.settings.redis;
        let path = |i: usize| match redis.urls.is_empty() {
            true => at("url"),
            false => at("urls").at(i),
        };
        let urls = redis.addresses().iter().enumerate();
        let urls = urls.filter_map(|(i, text)| {
            let url = Url::parse(text.expose_secret()).ok()?;
            Some((path(i), url))
        });
        let urls: Vec<_> = urls.collect();
        self.redis_urls(&urls);
        self.redis_sentinel();
        self.redis_credentials(&urls);
        self.redis_certificates(&urls);
    }

    /// `url` for one server, `urls` for Sentinels and clusters; a cluster's one seed may be a `url`.
    fn redis_addresses(&mut self) {
        let redis = &self.settings.redis;
        let (url, urls, mode) = (at("url"), at("urls"), at("mode"));
        let (one, many) = (self.is_written(&url), !redis.urls.is_empty());
        match (redis.mode, one, many) {
            (RedisMode::Single, _, true) => self.error(
                [urls, mode],
                "several URLs are for mode = \"sentinel\" or \"cluster\"; write url for one server",
            ),
            (RedisMode::Sentinel | RedisMode::Cluster, true, true) => self.error(
                [url, urls, mode],
                "`urls` stands beside it; leave one of the two, better urls",
            ),
            (RedisMode::Sentinel, false, false) => self.error(
                [mode, urls],
                "no address of a Sentinel; write urls = [\"redis://HOST:26379\", …]",
            ),
            (RedisMode::Cluster, false, false) => self.error(
                [mode, urls],
                "no address of a node; write urls = [\"redis://HOST:6379\", …] with some of them",
            ),
            _ => {}
        }
    }

    /// What no URL of the mode may have. And further servers are found by address alone: all else must be
    /// the same for all.
    fn redis_urls(&mut self, urls: &[(KeyPath, Url)]) {
        let mode = self.settings.redis.mode;
        let database = |url: &Url| match url.path().trim_start_matches('/') {
            "0" => String::new(),
            other => other.to_owned(),
        };
        for (path, url) in urls {
            let has_credentials = !url.username().is_empty() || url.password().is_some();
            if mode == RedisMode::Sentinel && has_credentials {
                let message = "credentials of a Sentinel's URL are not used; write user and password_file for Redis, sentinel_user and sentinel_password_file for the Sentinels";
                self.error(path, message);
            }
            if mode == RedisMode::Cluster && !database(url).is_empty() {
                let message = "a cluster has no databases; write the URL without one";
                self.error([path.clone(), at("mode")], message);
            }
        }
        let facts = |url: &Url| {
            let [scheme, user] = [url.scheme(), url.username()].map(str::to_owned);
            (
                scheme,
                user,
                url.password().map(str::to_owned),
                database(url),
            )
        };
        let Some(((first_path, first), others)) = urls.split_first() else {
            return;
        };
        for (path, _) in others.iter().filter(|(_, url)| facts(url) != facts(first)) {
            self.error(
                [path.clone(), first_path.clone()],
                "this URL differs from the first one in more than host and port; write the same scheme, user, password and database in all",
            );
        }
    }

    fn redis_sentinel(&mut self) {
        let redis = &self.settings.redis;
        let keys = KeyPath::of(&["redis"]).all([
            "sentinel_service",
            "sentinel_user",
            "sentinel_password_file",
        ]);
        if redis.mode != RedisMode::Sentinel {
            for key in keys
                .into_iter()
                .filter(|key| self.is_written(key))
                .collect::<Vec<_>>()
            {
                let message = "this is for mode = \"sentinel\"; write that, or take this out";
                self.error([key, at("mode")], message);
            }
        } else if redis.sentinel_service.as_deref().is_none_or(str::is_empty) {
            self.error(
                [at("mode"), at("sentinel_service")],
                "no name of the group; write sentinel_service, the word after `sentinel monitor`, often \"mymaster\"",
            );
        }
    }

    fn redis_credentials(&mut self, urls: &[(KeyPath, Url)]) {
        let redis = &self.settings.redis;
        let in_url = urls
            .first()
            .is_some_and(|(_, url)| url.password().is_some());
        let users = [
            (
                "user",
                &redis.user,
                "password_file",
                &redis.password_file,
                in_url,
            ),
            (
                "sentinel_user",
                &redis.sentinel_user,
                "sentinel_password_file",
                &redis.sentinel_password_file,
                false,
            ),
        ];
        for (user, name, key, file, in_url) in users {
            if name.is_some() && file.is_none() && !in_url {
                let message = format!("a user needs a password; write {key}");
                self.error([at(user), at(key), at("url"), at("urls")], message);
            }
            self.redis_file(key, file.as_deref(), Self::secret_file);
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
            let message = "certificates are for TLS; write rediss:// in the URL, or take this out";
            self.error([at(key), at("url"), at("urls")], message);
        }
        self.redis_file("ca_file", redis.ca_file.as_deref(), Self::ca_file);
        if self.settings.backend.limits == LimitBackend::Redis {
            let section = KeyPath::of(&["redis"]);
            self.certificate(
                &section,
                redis.cert_file.as_deref(),
                redis.key_file.as_deref(),
            );
        }
    }

    /// Looks at a file, if Redis is used at all.
    fn redis_file(
        &mut self,
        key: &str,
        file: Option<&Path>,
        look: fn(&mut Self, &KeyPath, Option<&Path>),
    ) {
        if self.settings.backend.limits == LimitBackend::Redis {
            look(self, &at(key), file);
        }
    }
}

fn at(key: &str) -> KeyPath {
    KeyPath::of(&["redis", key])
}
