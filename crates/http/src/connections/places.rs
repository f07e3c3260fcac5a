//! The places that calls lead to, each with what is kept for it: one, or the hosts of messages that were called last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use http::Uri;

use sluiced_core::time::Mono;
use sluiced_ports::lock;

/// This many hosts from messages are kept.
const MANY: usize = 256;

/// What is kept for each place. Clones share it.
#[derive(Debug)]
pub(crate) enum Places<T> {
    /// Scheme and authority.
    One(Uri, Arc<T>),
    /// From messages.
    Many(Arc<Mutex<HostPlaces<T>>>),
}

/// By scheme and authority, with the time of the last call.
type HostPlaces<T> = HashMap<Uri, (Mono, Arc<T>)>;

impl<T> Clone for Places<T> {
    fn clone(&self) -> Self {
        match self {
            Self::One(origin, kept) => Self::One(origin.clone(), Arc::clone(kept)),
            Self::Many(hosts) => Self::Many(Arc::clone(hosts)),
        }
    }
}

impl<T> Places<T> {
    /// The one place, or those of messages without one.
    pub(crate) fn new(origin: Option<Uri>, new: impl FnOnce(Uri) -> T) -> Self {
        match origin {
            Some(origin) => Self::One(origin.clone(), Arc::new(new(origin))),
            None => Self::Many(Arc::default()),
        }
    }

    /// The one place, if there is only one.
    pub(crate) fn only(&self) -> Option<&Arc<T>> {
        match self {
            Self::One(_, kept) => Some(kept),
            Self::Many(_) => None,
        }
    }

    /// What is kept for the place that a URL leads to. Of many places the one that was called longest ago is forgotten.
    pub(crate) fn find_or_make(
        &self,
        to: &Uri,
        now: Mono,
        new: impl FnOnce(Uri) -> T,
    ) -> Option<Arc<T>> {
        let hosts = match self {
            Self::One(origin, kept) => {
                let leads = origin.scheme() == to.scheme() && origin.authority() == to.authority();
                return leads.then(|| Arc::clone(kept));
            }
            Self::Many(hosts) => hosts,
        };
        let origin = Uri::builder()
            .scheme(to.scheme()?.clone())
            .authority(to.authority()?.clone())
            .path_and_query("/")
            .build()
            .ok()?;
        let mut places = lock(hosts);
        if !places.contains_key(&origin) && places.len() >= MANY {
            let oldest = places
                .iter()
                .min_by_key(|(_, (called, _))| *called)
                .map(|(origin, _)| origin.clone());
            oldest.and_then(|oldest| places.remove(&oldest));
        }
        let new = || (now, Arc::new(new(origin.clone())));
        let (called, kept) = places.entry(origin.clone()).or_insert_with(new);
        *called = now;
        Some(Arc::clone(kept))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(..) => 1,
            Self::Many(places) => lock(places).len(),
        }
    }
}
