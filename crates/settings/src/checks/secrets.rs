//! Secrets that templates name, and secrets that stand in a configuration which everybody can read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use secrecy::ExposeSecret as _;
use url::Url;

use super::Checks;
use crate::fault::Place;
use crate::path::KeyPath;
use crate::schema::hint;
use crate::types::{Auth, Downstream, Http};
use sluiced_template::secrets_in;

/// Permission bits of all other users: to read a file, and to come through a directory.
const READ_BY_OTHERS: u32 = 0o004;
const ENTERED_BY_OTHERS: u32 = 0o001;

impl Checks<'_> {
    pub(super) fn secrets(&mut self) {
        let settings = self.settings;
        for (name, file) in &settings.secrets {
            let path = KeyPath::of(&["secrets", name]);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let first = name.chars().next();
            if first.is_none_or(|c| c.is_ascii_digit()) || !name.chars().all(is_word) {
                let message = "templates cannot name this secret; write letters, digits and `_`";
                self.error(path, message);
            } else {
                self.secret_file(&path, Some(file));
            }
        }
        for (name, route) in &settings.routes {
            if let Downstream::Http(http) = &route.downstream {
                let path = KeyPath::of(&["routes", name, "downstream"]);
                self.named_secrets(&path, http);
            }
        }
        self.readable();
    }

    /// Templates name secrets that are there.
    fn named_secrets(&mut self, path: &KeyPath, http: &Http) {
        let secrets = &self.settings.secrets;
        for (steps, text) in http.of_call() {
            for name in secrets_in(text)
                .iter()
                .filter(|name| !secrets.contains_key(*name))
            {
                let at = steps
                    .iter()
                    .fold(path.clone(), |path, step| path.join(step));
                let instead = || format!("write {name} = \"credential:{name}\" there");
                let hint = hint(name, secrets.keys().map(String::as_str), instead);
                let message = format!("[secrets] has no `{name}`; {hint}");
                self.error([at, KeyPath::of(&["secrets"])], message);
            }
        }
    }

    /// A secret stands in a file that every user of the machine can read. Said once for each file.
    fn readable(&mut self) {
        let mut reported_files = Vec::new();
        for (path, instead) in self.written_secrets() {
            let Place::File { name, .. } = self.faults.layers.place(&path, false) else {
                continue;
            };
            if !is_read_by_all(Path::new(&name)) || reported_files.contains(&name) {
                continue;
            }
            let message = format!(
                "every user of this machine can read this file, and a secret stands in it here; write it into a file of its own, and that file's name as {instead}"
            );
            self.warning(path, message);
            reported_files.push(name);
        }
    }

    /// The keys that hold a secret itself, and what could stand there instead.
    fn written_secrets(&self) -> Vec<(KeyPath, &'static str)> {
        let settings = self.settings;
        let mut found = Vec::new();
        let at_rabbit = |i: usize| KeyPath::of(&["rabbitmq", "urls"]).at(i);
        let rabbit = settings.rabbitmq.urls.iter().enumerate();
        let rabbit_urls = rabbit.map(|(i, url)| (at_rabbit(i), url.expose_secret()));
        let at_redis = |i: usize| match settings.redis.urls.is_empty() {
            true => KeyPath::of(&["redis", "url"]),
            false => KeyPath::of(&["redis", "urls"]).at(i),
        };
        let redis = settings.redis.addresses().iter().enumerate();
        let redis_urls = redis.map(|(i, url)| (at_redis(i), url.expose_secret()));
        for (path, url) in rabbit_urls.chain(redis_urls) {
            if has_password(url) {
                found.push((path, "password_file"));
            }
        }
        for (name, route) in &settings.routes {
            let path = KeyPath::of(&["routes", name, "downstream"]);
            match &route.downstream {
                Downstream::Http(http) => found.extend(of_auth(&path, http.auth.as_ref())),
                Downstream::Smpp(smpp) if smpp.password.is_some() => {
                    found.push((path.join("password"), "password_file"));
                }
                Downstream::Smpp(_) => {}
            }
        }
        found
    }
}

/// Whether all users can read a file: it lets them, and so does each directory above it.
fn is_read_by_all(file: &Path) -> bool {
    let lets = |path: &Path, bit| {
        let facts = fs::metadata(path);
        facts.is_ok_and(|facts| facts.permissions().mode() & bit != 0)
    };
    let Ok(file) = file.canonicalize() else {
        return false;
    };
    let mut above = file.ancestors().skip(1);
    lets(&file, READ_BY_OTHERS) && above.all(|directory| lets(directory, ENTERED_BY_OTHERS))
}

fn of_auth(path: &KeyPath, auth: Option<&Auth>) -> Option<(KeyPath, &'static str)> {
    let auth_at = path.join("auth");
    match auth? {
        Auth::Basic(basic) if basic.password.is_some() => {
            Some((auth_at.join("password"), "password_file"))
        }
        Auth::Bearer(bearer) if bearer.token.is_some() => {
            Some((auth_at.join("token"), "token_file"))
        }
        Auth::Hmac(hmac) if hmac.secret.is_some() => Some((auth_at.join("secret"), "secret_file")),
        Auth::Oauth2(client) if client.client_secret.is_some() => {
            Some((auth_at.join("client_secret"), "client_secret_file"))
        }
        Auth::Basic(_) | Auth::Bearer(_) | Auth::Hmac(_) | Auth::Oauth2(_) => None,
        // Their secrets are never in the configuration.
        Auth::Jwt(_) | Auth::Aws(_) => None,
    }
}

/// Whether a URL has a password that is none of RabbitMQ's first user, which everybody knows.
fn has_password(url: &str) -> bool {
    let parsed = Url::parse(url).ok();
    let password = parsed.as_ref().and_then(Url::password);
    password.is_some_and(|password| password != "guest")
}
