//! The fixed sections: RabbitMQ, and what the backends require of the rest.

use std::path::Path;

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::Checks;
use crate::path::KeyPath;
use crate::types::{LimitBackend, QueueBackend, RedisMode};

impl Checks<'_> {
    pub(super) fn sections(&mut self) {
        let rabbit = &self.settings.rabbitmq;
        let section = KeyPath::of(&["rabbitmq"]);
        if rabbit.urls.is_empty() {
            let message = "no URL; write one, such as [\"amqp://guest:guest@127.0.0.1:5672/%2f\"]";
            self.error(section.join("urls"), message);
        }
        if self.settings.backend.queue == QueueBackend::Rabbitmq {
            let password = rabbit.password_file.as_deref();
            self.secret_file(&section.join("password_file"), password);
            let files = [&rabbit.ca_file, &rabbit.cert_file, &rabbit.key_file];
            self.tls_files(&section, files);
        }
        self.redis();
        self.backends();
    }

    fn backends(&mut self) {
        let backend = &self.settings.backend;
        let [queue, limits] = KeyPath::of(&["backend"]).all(["queue", "limits"]);
        if backend.queue == QueueBackend::Embedded {
            self.embedded(&queue);
        } else if backend.limits == LimitBackend::Memory {
            let message = "the limit holds for each replica alone; write \"redis\" to share it";
            self.warning([limits, queue], message);
        }
    }

    fn embedded(&mut self, queue: &KeyPath) {
        let embedded = &self.settings.embedded;
        let (input, leftover) = (&embedded.input, &embedded.leftover);
        let [at_input, at_leftover] = KeyPath::of(&["embedded"]).all(["input", "leftover"]);
        // A file, or something that reads like one: a named pipe, `/dev/stdin`.
        let is_readable = input.metadata().is_ok_and(|facts| !facts.is_dir());
        if input != Path::new("-") && !is_readable {
            let name = input.display();
            let message = format!("there is no file `{name}`; name one, or \"-\" for stdin");
            self.error([at_input.clone(), queue.clone()], message);
        }
        if leftover == input || leftover.as_os_str().is_empty() {
            let message =
                "name a file of its own for what was not delivered, such as \"leftover.ndjson\"";
            self.error([at_leftover, at_input], message);
        }
        let routes = self.settings.routes.len();
        if routes > 1 {
            let message = format!(
                "the embedded queue feeds exactly one route, and there are {routes}; leave one"
            );
            self.error([queue.clone(), KeyPath::of(&["routes"])], message);
        }
    }
}

impl Checks<'_> {
    pub(super) fn redis(&mut self) {
        self.redis_addresses();
        let redis = &self.settings.redis;
        let path = |i: usize| match redis.urls.is_empty() {
            true => at("url"),
            false => at("urls").at(i),
        };
        let parse = |(i, text): (usize, &SecretString)| {
            let url = Url::parse(text.expose_secret()).ok()?;
            Some((path(i), url))
        };
        let texts = redis.addresses().iter().enumerate();
        let urls: Vec<_> = texts.filter_map(parse).collect();
        self.redis_urls(&urls);
        self.redis_sentinel();
        self.redis_credentials(&urls);
        self.redis_files(&urls);
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

    /// Parts that no URL of the mode may have. Further servers are found by address alone, so everything
    /// else must be the same for all.
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
        if redis.mode != RedisMode::Sentinel {
            let keys = [
                "sentinel_service",
                "sentinel_user",
                "sentinel_password_file",
            ]
            .map(at);
            for key in keys {
                if self.is_written(&key) {
                    let message = "this is for mode = \"sentinel\"; write that, or take this out";
                    self.error([key, at("mode")], message);
                }
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
        let first = urls.first();
        let in_url = first.is_some_and(|(_, url)| url.password().is_some());
        let users = [
            ("", &redis.user, redis.password_file.is_some() || in_url),
            (
                "sentinel_",
                &redis.sentinel_user,
                redis.sentinel_password_file.is_some(),
            ),
        ];
        for (whose, user, password) in users {
            if user.is_some() && !password {
                let [user, key] = ["user", "password_file"].map(|key| format!("{whose}{key}"));
                let message = format!("a user needs a password; write {key}");
                self.error([at(&user), at(&key), at("url"), at("urls")], message);
            }
        }
    }

    fn redis_files(&mut self, urls: &[(KeyPath, Url)]) {
        let plain = urls.iter().any(|(_, url)| url.scheme() == "redis");
        for key in ["ca_file", "cert_file", "key_file"].map(at) {
            if plain && self.is_written(&key) {
                let message =
                    "certificates are for TLS; write rediss:// in the URL, or take this out";
                self.error([key, at("url"), at("urls")], message);
            }
        }
        let redis = &self.settings.redis;
        if self.settings.backend.limits == LimitBackend::Redis {
            let sentinel = redis.sentinel_password_file.as_deref();
            self.secret_file(&at("password_file"), redis.password_file.as_deref());
            self.secret_file(&at("sentinel_password_file"), sentinel);
            let files = [&redis.ca_file, &redis.cert_file, &redis.key_file];
            self.tls_files(&KeyPath::of(&["redis"]), files);
        }
    }
}

fn at(key: &str) -> KeyPath {
    KeyPath::of(&["redis", key])
}
