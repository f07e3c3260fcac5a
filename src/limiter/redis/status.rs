//! How the replicas are: one hash for the fleet.

use std::sync::Arc;

use futures::FutureExt;
use redis::Script;

use super::scripts::{Arg, ScriptCall};
use super::store::RedisPaceStore;
use crate::core::time::micros;
use crate::ports::pace::StoreFuture;
use crate::ports::status::{SHOWN, StatusStore};

/// The texts of all replicas in Redis.
#[derive(Debug)]
pub struct RedisStatus {
    store: Arc<RedisPaceStore>,
    script: Script,
}

impl RedisStatus {
    /// Those that `store` keeps.
    #[must_use]
    pub fn new(store: Arc<RedisPaceStore>) -> Self {
        Self {
            store,
            script: Script::new(include_str!("../../../lua/status.lua")),
        }
    }
}

impl StatusStore for RedisStatus {
    fn exchange<'a>(&'a self, replica: &'a str, text: &'a str) -> StoreFuture<'a, Vec<String>> {
        async move {
            let args = vec![
                Arg::Text(replica),
                Arg::Text(text),
                Arg::Number(micros(SHOWN)),
            ];
            let key = format!("{}:{{fleet}}:status", self.store.scripts.prefix());
            let call = ScriptCall::new(&self.script, key, Vec::new(), args);
            self.store.call(call).await
        }
        .boxed()
    }
}
