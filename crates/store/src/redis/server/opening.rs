//! How a server is found and connected, and what is asked of it before it is used: what this opens, `run` works with.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::RedisResult;
use tokio::time::timeout;
use tracing::warn;

use super::{Locator, RedisConnection, Server};
use crate::redis::access::Peer;
use crate::redis::address::Address;
use crate::redis::info::{ServerRun, is_replica, misfit, risks, save_points};
use crate::redis::needs::{is_lack, lacking};
use crate::redis::stream::DrivenConnection;
use crate::redis::{refused, unreachable};
use sluiced_ports::store::StoreError;
use sluiced_settings::types::RedisMode;

/// The name of connections in `CLIENT LIST`.
const CLIENT_NAME: &str = "sluiced";

/// A new connection, with what its server reports about itself.
pub(in crate::redis) struct NewConnection {
    pub(in crate::redis) at: Address,
    pub(in crate::redis) connection: DrivenConnection,
    pub(in crate::redis) info: String,
    run: ServerRun,
    /// What works, but not well.
    pub(in crate::redis) risks: Vec<String>,
}

impl Server {
    pub(super) async fn establish(&self, id: u64) -> Result<RedisConnection, StoreError> {
        let opened = self.open().await?;
        if !self.warned.swap(true, Ordering::Relaxed) {
            let server = &opened.at;
            for risk in &opened.risks {
                warn!(%server, "{risk}");
            }
        }
        Ok(RedisConnection {
            id,
            at: opened.at,
            run: Arc::new(opened.run),
            connection: opened.connection,
            timeouts: Arc::default(),
            proven: Arc::default(),
        })
    }

    /// Finds the server, connects, and asks for all that is needed: what this returns, `run` works with.
    pub(in crate::redis) async fn open(&self) -> Result<NewConnection, StoreError> {
        let at = match &self.place {
            Locator::At(at) => at.clone(),
            Locator::Elected(sentinels) => sentinels.primary().await?,
        };
        let opening = async {
            let mut connection = self.access.connection(Peer::Redis, &at).await?;
            // Unlike INFO, PING is refused while the data set is loading.
            () = redis::cmd("PING").query_async(&mut connection).await?;
            let info: RedisResult<String> = redis::cmd("INFO").query_async(&mut connection).await;
            Ok((connection, info))
        };
        let bound = self.access.connect_timeout();
        let opened = timeout(bound, opening).await;
        let (mut connection, info) = self.access.explain(opened, bound)?;
        let info = match info {
            // This server has no INFO: `ServerRun::read` refuses it with the reason.
            Err(error) if is_lack(&error) => String::new(),
            info => self.access.explain(Ok(info), bound)?,
        };
        self.is_fit(&at, &info)?;
        let run = ServerRun::read(&info).map_err(|why| refused(&format!("{at}: {why}")))?;
        let asking = async {
            let lacks = lacking(&mut connection, &self.access).await?;
            // Both may be forbidden, which does not matter.
            let name = redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).clone();
            drop(name.query_async::<()>(&mut connection).await);
            let save = match self.access.options.keyed {
                true => save_points(&mut connection).await,
                false => None,
            };
            Ok((lacks, risks(&info, save.as_deref())))
        };
        let asked = timeout(bound, asking).await;
        let (lacks, mut risks) = self.access.explain(asked, bound)?;
        if let Some(needed) = lacks.needed {
            return Err(refused(&needed));
        }
        risks.extend(lacks.optional);
        Ok(NewConnection {
            at,
            connection,
            info,
            run,
            risks,
        })
    }

    fn is_fit(&self, at: &Address, info: &str) -> Result<(), StoreError> {
        if let Some(reason) = misfit(info, self.access.mode()) {
            return Err(refused(&format!("{at}: {reason}")));
        }
        match self.access.mode() {
            RedisMode::Sentinel if is_replica(info) => {
                let reason = format!("{at}, which the Sentinels name, is a replica still");
                Err(unreachable(&reason))
            }
            RedisMode::Single if is_replica(info) => {
                let reason = format!("{at} is a replica, and limits need the primary");
                Err(unreachable(&reason))
            }
            _ => Ok(()),
        }
    }
}
