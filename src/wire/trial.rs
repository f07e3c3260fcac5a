//! What a route makes of a message, without queues, slots or calls: for `sluiced try`.
//!
//! Problem: an operator who asks why a message waits must not need the token of the downstream for it. So
//! a secret that is not at hand is left out, and the request says that there would be one.

use std::fmt;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};

use super::pacers::{paced_limit, route_labels};
use super::probes::without_secrets;
use super::{WireError, options};
use crate::core::hours::OpeningHours;
use crate::downstream::HttpDownstream;
use crate::ports::downstream::{Facts, Undecodable};
use crate::ports::label::{Label, Labels as _};
use crate::ports::message::Message;
use crate::settings::Loaded;
use crate::settings::types::{Downstream, Route};
use crate::template::RouteLabels;

/// A route that is tried.
pub struct Trial {
    name: String,
    labels: RouteLabels,
    downstream: HttpDownstream,
    /// Whether the request would be authorized by a secret that is not at hand.
    lacks_auth: bool,
    /// When it may send; `None`: always.
    pub hours: Option<OpeningHours>,
    /// The paced limit among its limits.
    pub paced: Option<String>,
}

impl Trial {
    /// Of a route of the configuration.
    ///
    /// # Errors
    /// When a template or an option cannot be used.
    pub fn new(loaded: &Loaded, name: &str, route: &Route) -> Result<Self, WireError> {
        let hours = route.opening_hours();
        let bare = without_secrets(route, &loaded.secrets);
        let Downstream::Http(http) = &route.downstream;
        let Downstream::Http(bare_http) = &bare.downstream;
        Ok(Self {
            lacks_auth: http.auth.is_some() && bare_http.auth.is_none(),
            labels: route_labels(&loaded.settings, name, route)?,
            downstream: options::downstream(name, &bare, &loaded.secrets, None)?,
            hours: hours.map_err(|e| WireError::new(format!("routes.{name}.open"), e))?,
            paced: paced_limit(&loaded.settings, route).map(|(limit, _)| limit.to_owned()),
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

    /// The request of its first call.
    ///
    /// # Errors
    /// When none can be made of it.
    pub fn request(&self, message: &Message) -> Result<Request<Bytes>, Undecodable> {
        let mut request = self.downstream.request(message, self.facts())?;
        if self.lacks_auth {
            let mut unknown = HeaderValue::from_static("unknown");
            unknown.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, unknown);
        }
        Ok(request)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt: 1,
        }
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial")
            .field("route", &self.name)
            .finish_non_exhaustive()
    }
}
