//! Registers the names of the limits and routes of this replica for its fleet.
//!
//! `core::owner` says why, and the store decides. Until the names are registered this replica declares no policy and
//! decodes no message, so that it changes nothing of another fleet. If another fleet has a name, the process ends
//! (`cli::run`): going on would mix two fleets, and waiting would look like an outage. The registration is made again
//! every twenty seconds and whenever the store comes back, because a store that lost its state has lost the
//! registrations, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use sluiced_core::backoff::{Backoff, Failures};
use sluiced_core::owner::{self, Registration, STATE_FORMAT};
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::store::{FleetNames, RegistrationAction, Store};

/// Two registrations of a replica are this far apart.
const RENEWED: Duration = Duration::from_secs(20);
/// The waits after registrations that were not answered.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// A replica that stops takes its registration back within this.
const LEAVE_BOUND: Duration = Duration::from_secs(1);

/// Whether the names of this replica are those of its fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// The fleet has no name yet, or the store has not answered.
    Unknown,
    /// All names belong to this fleet.
    Registered,
    /// Another fleet has one of them: a sentence for the operator.
    Refused(Arc<str>),
}

impl RegistrationState {
    const fn is_registered(&self) -> bool {
        matches!(self, Self::Registered)
    }
}

/// `task`, begun once the names are registered.
pub(crate) fn once_registered<T: Future<Output = ()>>(
    ownership: &watch::Receiver<RegistrationState>,
    task: T,
) -> impl Future<Output = ()> + use<T> {
    let mut ownership = ownership.clone();
    async move {
        if ownership
            .wait_for(RegistrationState::is_registered)
            .await
            .is_err()
        {
            // The registration is not kept up any more: the process ends.
            std::future::pending().await
        }
        task.await;
    }
}

/// The names of a replica.
#[derive(Debug)]
pub struct RegistrationSpec {
    pub store: Arc<dyn Store>,
    /// What the store's keys start with.
    pub prefix: String,
    pub replica: String,
    /// The names of the fleet, once they are known.
    pub fleet: watch::Receiver<Option<FleetNames>>,
    /// The limits and routes, each with whether its file shares it.
    pub names: Vec<(String, bool)>,
}

impl RegistrationSpec {
    /// Registers the names again and again, and shows the result. Ends if the fleet never gets a name.
    async fn keep(mut self, shown: watch::Sender<RegistrationState>, ready: watch::Sender<Link>) {
        let Some(registration) = self.registration().await else {
            return;
        };
        let mut link = self.store.link();
        let mut failures = Failures::new(BACKOFF);
        loop {
            let wait = match self
                .store
                .register_names(RegistrationAction::Register, &self.replica, &registration)
                .await
            {
                Ok(foreign) if foreign.is_empty() => {
                    failures.succeeded();
                    ready.send_replace(Link::Up);
                    if !shown
                        .send_replace(RegistrationState::Registered)
                        .is_registered()
                    {
                        info!(
                            fleet = registration.shown(),
                            "the limits and routes in Redis are those of this fleet"
                        );
                    }
                    RENEWED
                }
                Ok(foreign) => {
                    let refusal: Arc<str> =
                        owner::in_words(registration.shown(), &self.prefix, &foreign).into();
                    ready.send_replace(Link::Down(Arc::clone(&refusal)));
                    shown.send_replace(RegistrationState::Refused(refusal));
                    RENEWED
                }
                Err(error) => {
                    debug!(%error, "the names of the fleet could not be registered");
                    // A registration that was made holds until it is refused.
                    if !shown.borrow().is_registered() {
                        ready.send_replace(Link::Down(error.to_string().into()));
                    }
                    failures.failed(clock::now(), rand::random())
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                Ok(()) = link.changed() => {}
            }
        }
    }

    /// What is registered, once the fleet has a name.
    async fn registration(&mut self) -> Option<Registration> {
        let named_fleet = self.fleet.wait_for(Option::is_some).await;
        let fleet = named_fleet.ok()?.as_deref()?.to_vec();
        let names = self.names.iter().cloned().collect();
        Some(Registration {
            format: STATE_FORMAT,
            fleet,
            names,
        })
    }
}

/// The registration of this replica, which is kept up until this is dropped.
#[derive(Debug)]
pub struct RegistrationHandle {
    ownership: watch::Receiver<RegistrationState>,
    /// `None`: the store is of this process alone.
    kept: Option<KeptRegistration>,
}

#[derive(Debug)]
struct KeptRegistration {
    task: AbortOnDropHandle<()>,
    link: watch::Receiver<Link>,
    store: Arc<dyn Store>,
    replica: String,
}

impl RegistrationHandle {
    /// Where no other process has the store.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            ownership: watch::channel(RegistrationState::Registered).1,
            kept: None,
        }
    }

    /// Starts to register. Must be called inside a tokio runtime.
    #[must_use]
    pub fn keep(owner: RegistrationSpec) -> Self {
        let (shown, ownership) = watch::channel(RegistrationState::Unknown);
        let (ready, link) = watch::channel(Link::Connecting);
        let (store, replica) = (Arc::clone(&owner.store), owner.replica.clone());
        Self {
            ownership,
            kept: Some(KeptRegistration {
                task: AbortOnDropHandle::new(tokio::spawn(owner.keep(shown, ready))),
                link,
                store,
                replica,
            }),
        }
    }

    /// For tasks that wait until the names are registered.
    #[must_use]
    pub fn ownership(&self) -> watch::Receiver<RegistrationState> {
        self.ownership.clone()
    }

    /// Whether the names are registered, for the readiness of the process; `None`: nothing must be registered.
    #[must_use]
    pub fn link(&self) -> Option<watch::Receiver<Link>> {
        Some(self.kept.as_ref()?.link.clone())
    }

    /// Waits until another fleet has a name of this replica, and returns the sentence about it.
    pub async fn refused(&mut self) -> Arc<str> {
        loop {
            if let RegistrationState::Refused(why) = &*self.ownership.borrow_and_update() {
                return Arc::clone(why);
            }
            if self.ownership.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The replica stops: it takes its registration back, so that another fleet may have the names at once.
    pub async fn leave(self) {
        let Some(KeptRegistration {
            task,
            store,
            replica,
            ..
        }) = self.kept
        else {
            return;
        };
        drop(task);
        if !self.ownership.borrow().is_registered() {
            return;
        }
        let nothing = Registration {
            format: STATE_FORMAT,
            fleet: Vec::new(),
            names: BTreeMap::new(),
        };
        let leaving = store.register_names(RegistrationAction::Leave, &replica, &nothing);
        if !matches!(tokio::time::timeout(LEAVE_BOUND, leaving).await, Ok(Ok(_))) {
            debug!("the registration of this replica ends later, by itself");
        }
    }
}
