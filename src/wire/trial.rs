//! What a route makes of a message, without queues, slots or calls: for `sluiced try`.
//!
//! Problem: an operator who asks why a message waits must not need the token of the downstream for it. So
//! a secret that is not at hand is left out, and the request says that there would be one.

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};

use super::planned::Planned;
use super::probes::without_secrets;
use super::{WireError, options};
use crate::downstream::HttpDownstream;
use crate::ports::downstream::Undecodable;
use crate::ports::message::Message;
use crate::settings::Loaded;
use crate::settings::types::{Downstream, Route};

/// A route that is tried.
#[derive(Debug)]
pub struct Trial {
    pub route: Planned,
    downstream: HttpDownstream,
    /// Whether the request would be authorized by a secret that is not at hand.
    lacks_auth: bool,
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
            lacks_auth: http.auth.is_some() && bare_http.auth.is_none(),
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
        if self.lacks_auth {
            let mut unknown = HeaderValue::from_static("unknown");
            unknown.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, unknown);
        }
        Ok(request)
    }
}
