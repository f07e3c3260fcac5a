//! What a route and its limits are to the core, without queues, stores or calls: for `sluiced plan` and
//! `sluiced try`.
//!
//! An operator who asks why a message waits must not need the token of the downstream for it. So a secret that is not
//! at hand is left out of a trial, and the request says that there would be one.

use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request};

use super::pacers::route_labels;
use super::probes::without_secrets;
use super::{WireError, options};
use crate::core::hours::OpeningHours;
use crate::core::limits::Rule;
use crate::core::schedule::Pace;
use crate::downstream::HttpDownstream;
use crate::ports::downstream::{Facts, Undecodable};
use crate::ports::limits::Label;
use crate::ports::message::Message;
use crate::settings::Loaded;
use crate::settings::types::{Auth, Downstream, Limit, Paced, Route, Settings};
use crate::template::RouteLabels;

/// A route that is planned or tried.
#[derive(Debug)]
pub struct Planned {
    name: String,
    labels: RouteLabels,
    /// In the order of the route.
    pub limits: Vec<PlannedLimit>,
    /// The pace of the paced limit, and that of its reserve.
    pub rows: Vec<Pace>,
    /// Which priorities may use the reserve.
    pub urgent_from: Option<u8>,
    pub prefetch: u16,
    /// When it may send; `None`: always.
    pub hours: Option<OpeningHours>,
    /// How long a call usually takes.
    pub call: Duration,
}

/// A limit of the route.
#[derive(Clone, Debug)]
pub struct PlannedLimit {
    pub name: String,
    pub limit: Limit,
    /// `None`: it is paced.
    pub rule: Option<Rule>,
}

impl Planned {
    /// A route of the configuration.
    ///
    /// # Errors
    /// When a template cannot be used, which a checked configuration excludes.
    pub fn new(settings: &Settings, name: &str, route: &Route) -> Result<Self, WireError> {
        let wrong = |e| WireError::new(format!("routes.{name}.open"), e);
        let mut limits = Vec::new();
        for limit_name in &route.limits {
            let Some(limit) = settings.limits.get(limit_name) else {
                continue;
            };
            let rule = limit.rule();
            limits.push(PlannedLimit {
                name: limit_name.clone(),
                limit: limit.clone(),
                rule: rule.map_err(|e| WireError::new(format!("limits.{limit_name}"), e))?,
            });
        }
        let paced = settings.paced_limit(route).map(|(_, paced)| paced);
        let rows = paced
            .map(Paced::paces)
            .map(|(main, reserve)| [Some(main), reserve]);
        Ok(Self {
            labels: route_labels(settings, name, route)?,
            limits,
            rows: rows.into_iter().flatten().flatten().collect(),
            urgent_from: paced.and_then(Paced::urgent_from),
            prefetch: settings.prefetch(route),
            hours: route.opening_hours().map_err(wrong)?,
            call: route.call_latency(),
            name: name.to_owned(),
        })
    }

    /// What the message takes of each limit, in the order of the route.
    ///
    /// # Errors
    /// When a limit cannot count it.
    pub fn label(&self, message: &Message) -> Result<Label, Undecodable> {
        self.labels.of(message, self.facts())
    }

    /// Of its first call.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt: 1,
        }
    }
}

/// A route that is tried.
#[derive(Debug)]
pub struct Trial {
    pub route: Planned,
    downstream: HttpDownstream,
    /// The headers that would be made with a secret that is not at hand.
    lacks: Vec<HeaderName>,
}

impl Trial {
    /// Of a route of the configuration.
    ///
    /// # Errors
    /// When a template or an option cannot be used.
    pub fn new(loaded: &Loaded, name: &str, route: &Route) -> Result<Self, WireError> {
        let bare = without_secrets(route, &loaded.secrets);
        let Downstream::Http(http) = &route.downstream;
        let Downstream::Http(bare_http) = &bare.downstream;
        Ok(Self {
            lacks: match (&http.auth, &bare_http.auth) {
                (Some(auth), None) => authorizing(auth),
                _ => Vec::new(),
            },
            downstream: options::downstream(name, &bare, &loaded.secrets, None)?,
            route: Planned::new(&loaded.settings, name, route)?,
        })
    }

    /// The request of its first call.
    ///
    /// # Errors
    /// When none can be made of it.
    pub fn request(&self, message: &Message) -> Result<Request<Bytes>, Undecodable> {
        let mut request = self.downstream.request(message, self.route.facts())?;
        for name in &self.lacks {
            let mut unknown = HeaderValue::from_static("unknown");
            unknown.set_sensitive(true);
            request.headers_mut().insert(name.clone(), unknown);
        }
        Ok(request)
    }
}

/// The headers that carry credentials or a signature.
fn authorizing(auth: &Auth) -> Vec<HeaderName> {
    match auth {
        Auth::Basic(_) | Auth::Bearer(_) => vec![AUTHORIZATION],
        Auth::Hmac(hmac) => hmac
            .headers
            .keys()
            .filter_map(|name| name.parse().ok())
            .collect(),
    }
}
