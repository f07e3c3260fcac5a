//! What the files say of each limit, for the tasks that keep replicas at what is in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::lanes;
use crate::core::schedule::Pace;
use crate::pipeline::{StandingSpec, Written};
use crate::ports::standing::StandingStore;
use crate::settings::types::{Limit, Settings};

/// The limits of this replica that can change while it runs.
#[derive(Debug)]
pub struct Standings {
    /// `None`: limits are kept in this process, and nobody else can reach them.
    store: Option<Arc<dyn StandingStore>>,
    replica: String,
    written: BTreeMap<String, watch::Sender<Written>>,
}

impl Standings {
    pub(super) fn new(settings: &Settings, store: Option<Arc<dyn StandingStore>>) -> Self {
        let sender = |limit: &Limit| watch::Sender::new(written(limit));
        let limits = settings.limits.iter();
        Self {
            store,
            replica: replica(),
            written: limits
                .map(|(name, limit)| (name.clone(), sender(limit)))
                .collect(),
        }
    }

    /// For the task of a limit.
    pub(super) fn spec(&self, limit: &str) -> Option<StandingSpec> {
        Some(StandingSpec {
            store: Arc::clone(self.store.as_ref()?),
            replica: self.replica.clone(),
            written: self.written.get(limit)?.subscribe(),
        })
    }

    /// The files were read again: what they say of the limits that run is a new word.
    pub fn reload(&self, settings: &Settings) {
        for (name, sender) in &self.written {
            if let Some(limit) = settings.limits.get(name) {
                sender.send_replace(written(limit));
            }
        }
    }

    /// Whether limits can change while this process runs.
    #[must_use]
    pub const fn are_live(&self) -> bool {
        self.store.is_some()
    }
}

fn written(limit: &Limit) -> Written {
    let own = limit.clone();
    Written {
        terms: limit.terms_line(),
        read: Arc::new(move |terms| paces(&own, terms)),
    }
}

/// The rows of the limit under other terms.
fn paces(limit: &Limit, terms: &str) -> Result<Vec<Pace>, String> {
    let own = rows(limit).len();
    let limit = limit.under(terms).map_err(|why| why.to_string())?;
    let paces = rows(&limit);
    if paces.len() == own {
        Ok(paces)
    } else {
        Err("it leaves nothing to keep in reserve".to_owned())
    }
}

fn rows(limit: &Limit) -> Vec<Pace> {
    let (main, reserve) = match limit.as_paced().map(lanes::paces) {
        Some((main, reserve)) => (Some(main), reserve),
        None => (None, None),
    };
    main.into_iter().chain(reserve).collect()
}

/// What this replica is called: its host and process.
fn replica() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}
