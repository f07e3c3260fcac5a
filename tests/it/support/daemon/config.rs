//! The configuration of a daemon under test, as an operator would write it. Redis has five seconds to answer,
//! because a busy machine may stand still for longer than the half second of the defaults.

use std::net::SocketAddr;

use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `None`: the queue is embedded.
    pub rabbit: Option<String>,
    /// `None`: the limits are in memory.
    pub redis: Option<String>,
    /// Of the Redis keys.
    pub prefix: String,
    pub rate: String,
    pub headroom: &'static str,
    pub horizon: &'static str,
    pub routes: Vec<Route>,
    /// Further tables.
    pub tables: String,
}

/// A route, of the limit `provider` alone unless others are given.
#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    pub queue: String,
    /// The limits by name.
    pub limits: Vec<&'static str>,
    pub provider: SocketAddr,
    /// The value of the header `x-caller`, a template. Over SMPP: the `system_id`.
    pub caller: String,
    /// It is called over SMPP.
    pub smpp: bool,
    /// Further keys, of the route and of its downstream.
    pub keys: String,
    pub downstream: String,
    /// Tables below the route.
    pub tables: String,
}

impl Route {
    #[must_use]
    pub fn new(queue: &str, provider: SocketAddr) -> Self {
        Self {
            name: queue.to_owned(),
            queue: queue.to_owned(),
            limits: vec!["provider"],
            provider,
            caller: "daemon".to_owned(),
            smpp: false,
            keys: String::new(),
            downstream: String::new(),
            tables: String::new(),
        }
    }
}

impl Config {
    /// A fleet of its own on the servers that all tests share.
    #[must_use]
    pub fn shared(name: &str, rate: &str, routes: Vec<Route>) -> Self {
        Self {
            rabbit: Some(Rabbit::shared().url()),
            redis: Some(RedisServer::shared().url()),
            prefix: name.to_owned(),
            ..Self::embedded(rate, routes)
        }
    }

    /// One process, unless the tables configure another mode. They name the input.
    #[must_use]
    pub fn embedded(rate: &str, routes: Vec<Route>) -> Self {
        Self {
            rabbit: None,
            redis: None,
            prefix: String::new(),
            rate: rate.to_owned(),
            headroom: "50ms",
            horizon: "200ms",
            routes,
            tables: String::new(),
        }
    }

    #[must_use]
    pub fn text(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut text = String::new();
        match &self.rabbit {
            Some(url) => text += &format!("[rabbitmq]\nurls = [{}]\n", quoted(url)),
            None => text += "[backend]\nqueue = \"embedded\"\n",
        }
        match &self.redis {
            Some(url) => {
                text += &format!(
                    "[redis]\nurl = {}\nprefix = {}\nconnect_timeout = \"5s\"\nresponse_timeout = \"5s\"\n",
                    quoted(url),
                    quoted(&self.prefix)
                );
            }
            None if self.rabbit.is_none() => text += "limits = \"memory\"\n",
            None => text += "[backend]\nlimits = \"memory\"\n",
        }
        let paced = |route: &Route| route.limits.contains(&"provider");
        if self.routes.iter().any(paced) {
            text += &format!(
                "[limits.provider]\nkind = \"paced\"\nrate = \"{}\"\nheadroom = \"{}\"\nhorizon = \"{}\"\n",
                self.rate, self.headroom, self.horizon
            );
        }
        for route in &self.routes {
            let (name, queue) = (&route.name, &route.queue);
            let (limits, keys, to) = (&route.limits, &route.keys, route.provider);
            let caller = quoted(&route.caller);
            let called = match route.smpp {
                false => format!(
                    "kind = \"http\"\nurl = \"http://{to}/send\"\nheaders = {{ x-caller = {caller} }}\n"
                ),
                // The parameter is the one by which the provider knows a message.
                true => format!(
                    "kind = \"smpp\"\nurl = \"smpp://{to}\"\nsystem_id = {caller}\npassword = \"secret\"\n\
                     source = \"Test\"\ndestination = \"+4915112345678\"\n\
                     text = \"{{{{ body.text | default(body.id) }}}}\"\ntlvs = {{ 0x1403 = \"{{{{ body.id }}}}\" }}\n"
                ),
            };
            text += &format!(
                "[routes.{name}]\nqueue = \"{queue}\"\nlimits = {limits:?}\n{keys}\n\
                 [routes.{name}.downstream]\n{called}latency = \"20ms\"\n{}\n{}\n",
                route.downstream, route.tables
            );
        }
        if !self.tables.contains("[admin]") {
            text += "[admin]\nlisten = \"127.0.0.1:0\"\n";
        }
        text + &self.tables
    }
}
