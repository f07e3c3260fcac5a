//! How a connection comes to be: finding the server, and learning what it is and what we may do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;
use tracing::warn;

use super::{Live, Locator, Server};
use crate::limiter::redis::access::Peer;
use crate::limiter::redis::connection::Address;
use crate::limiter::redis::facts::{field, is_replica, misfit, risks, save_points};
use crate::limiter::redis::fault::{refused, unreachable};
use crate::limiter::redis::rights;
use crate::ports::store::StoreError;
use crate::settings::types::RedisMode;

/// How connections are called in `CLIENT LIST`.
const CLIENT_NAME: &str = "sluiced";

/// A connection that was just made, with what its server says of itself.
pub(in crate::limiter::redis) struct Opened {
    pub(in crate::limiter::redis) at: Address,
    pub(in crate::limiter::redis) connection: MultiplexedConnection,
    pub(in crate::limiter::redis) info: String,
    /// What works, but not well.
    pub(in crate::limiter::redis) risks: Vec<String>,
    pub(in crate::limiter::redis) missing: rights::MissingRights,
}

impl Server {
    pub(super) async fn establish(&self, id: u64) -> Result<Live, StoreError> {
        let opened = self.open().await?;
        if !opened.missing.needed.is_empty() {
            return Err(refused(&rights::told(&opened.missing.needed, &self.access)));
        }
        let run = field(&opened.info, "run_id")
            .ok_or_else(|| refused("INFO names no run_id, by which a restart is noticed"))?;
        if !self.warned.swap(true, Ordering::Relaxed) {
            let server = &opened.at;
            for risk in &opened.risks {
                warn!(%server, "{risk}");
            }
            if !opened.missing.wished.is_empty() {
                let missing = rights::told(&opened.missing.wished, &self.access);
                warn!(%server, "replicas learn of each other's news late: {missing}");
            }
        }
        Ok(Live {
            id,
            at: opened.at,
            run: Arc::from(run),
            connection: opened.connection,
            timeouts: Arc::default(),
            proven: Arc::default(),
        })
    }

    /// Finds the server, connects, and learns what it is and what we may do there.
    pub(in crate::limiter::redis) async fn open(&self) -> Result<Opened, StoreError> {
        let at = match &self.place {
            Locator::At(at) => at.clone(),
            Locator::Elected(sentinels) => sentinels.primary().await?,
        };
        let client = self.access.client(Peer::Redis, &at)?;
        let opening = async {
            let mut connection = self.access.connection(&client).await?;
            // Unlike INFO, PING is refused while the data set is loading.
            () = redis::cmd("PING").query_async(&mut connection).await?;
            let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
            Ok((connection, info))
        };
        let bound = self.access.connect_timeout;
        let opened = timeout(bound, opening).await;
        let (mut connection, info) = self.explain(opened, bound)?;
        self.is_fit(&at, &info)?;
        let asking = async {
            let missing = rights::missing(&mut connection, &self.access).await?;
            // Both may be forbidden: no matter.
            let name = redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).clone();
            drop(name.query_async::<()>(&mut connection).await);
            let save = match self.access.keyed {
                true => save_points(&mut connection).await,
                false => None,
            };
            Ok((missing, risks(&info, save.as_deref())))
        };
        let asked = timeout(bound, asking).await;
        let (missing, risks) = self.explain(asked, bound)?;
        Ok(Opened {
            at,
            connection,
            info,
            risks,
            missing,
        })
    }

    fn is_fit(&self, at: &Address, info: &str) -> Result<(), StoreError> {
        if let Some(reason) = misfit(info, self.access.mode) {
            return Err(refused(&format!("{at}: {reason}")));
        }
        if self.access.mode == RedisMode::Sentinel && is_replica(info) {
            let reason = format!("{at}, which the Sentinels name, is a replica still");
            return Err(unreachable(&reason));
        }
        Ok(())
    }

    /// As `Access::answer`, with what to do about a permission that is missing.
    fn explain<T>(
        &self,
        asked: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
        waited: Duration,
    ) -> Result<T, StoreError> {
        if let Ok(Err(error)) = &asked
            && let Some(reason) = rights::explained(error, &self.access)
        {
            return Err(refused(&reason));
        }
        self.access.answer(asked, waited)
    }
}
