//! The addresses of a host, by its name.
//!
//! Problem: the system's lookup blocks a thread, for half a minute where DNS does not answer, and a timeout ends only
//! the waiting. A client that looks a name up for each attempt piles up threads until the system refuses more, and then
//! a runtime panics. So there is at most one lookup of a name under way; attempts that need the name meanwhile wait for
//! the same answer, each within its own bound. Lookups of other names wait for one of `MAX_CONCURRENT_LOOKUPS` places.
//! If no thread can be started, that is an error. Nothing is cached: the next lookup asks the system again.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::{fmt, io, thread};

use tokio::sync::{Semaphore, watch};

use sluiced_ports::lock;

/// Lookups of different names at a time. Names that are made from messages can be many, and those whose servers do not
/// answer keep their places for half a minute.
const MAX_CONCURRENT_LOOKUPS: usize = 64;

type Addresses = Option<Result<Vec<IpAddr>, Arc<io::Error>>>;
type Lookups = BTreeMap<String, watch::Receiver<Addresses>>;

/// Looks names up. Copies share what is under way.
#[derive(Clone)]
pub struct Resolver {
    lookup: fn(&str) -> io::Result<Vec<IpAddr>>,
    in_flight: Arc<Mutex<Lookups>>,
    places: Arc<Semaphore>,
}

impl Resolver {
    /// A resolver that asks the system.
    #[must_use]
    pub fn new() -> Self {
        Self::with(system)
    }

    fn with(lookup: fn(&str) -> io::Result<Vec<IpAddr>>) -> Self {
        Self {
            lookup,
            in_flight: Arc::default(),
            places: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)),
        }
    }

    /// The addresses of a host, by name or as an address. Has no bound in time: the caller has one.
    ///
    /// # Errors
    /// When the name is not known, or there is no thread for the lookup.
    pub async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let mut lookup = self.ask(host).await?;
        match lookup.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Ok(found))) => Ok(found.clone()),
            Ok(Some(Err(error))) => Err(io::Error::new(error.kind(), Arc::clone(error))),
            _ => Err(io::Error::other("the lookup broke off")),
        }
    }

    async fn ask(&self, host: &str) -> io::Result<watch::Receiver<Addresses>> {
        let pending = lock(&self.in_flight).get(host).cloned();
        if let Some(answer) = pending {
            return Ok(answer);
        }
        let place = Arc::clone(&self.places)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let mut in_flight = lock(&self.in_flight);
        // Another task asked while this one waited for its place.
        if let Some(answer) = in_flight.get(host) {
            return Ok(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        let (this, name) = (self.clone(), host.to_owned());
        thread::Builder::new()
            .name("resolve".to_owned())
            .spawn(move || {
                let found = (this.lookup)(&name).map_err(Arc::new);
                lock(&this.in_flight).remove(&name);
                sender.send_replace(Some(found));
                drop(place);
            })?;
        in_flight.insert(host.to_owned(), answer.clone());
        Ok(answer)
    }
}

fn system(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = (host, 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
