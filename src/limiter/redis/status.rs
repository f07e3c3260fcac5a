//! How the replicas are: for the whole fleet one hash of their texts, and one of what they used.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::Script;

use super::scripts::{Arg, ScriptCall};
use super::store::RedisPaceStore;
use crate::core::time::micros;
use crate::ports::pace::StoreFuture;
use crate::ports::status::{BAR, BEAT, Heard, PLACES, SHOWN, StatusStore, Told};

/// The texts of all replicas in Redis.
#[derive(Debug)]
pub struct RedisStatus {
    store: Arc<RedisPaceStore>,
    tell: Script,
    hear: Script,
}

impl RedisStatus {
    /// Those that `store` keeps.
    #[must_use]
    pub fn new(store: Arc<RedisPaceStore>) -> Self {
        Self {
            store,
            tell: Script::new(include_str!("../../../lua/status.lua")),
            hear: Script::new(include_str!("../../../lua/hear.lua")),
        }
    }

    fn script<'a>(&self, script: &'a Script, args: Vec<Arg<'a>>) -> ScriptCall<'a> {
        let key = |name| format!("{}:{{fleet}}:{name}", self.store.scripts.prefix());
        ScriptCall::new(script, key("status"), vec![key("bars")], args)
    }
}

/// What `hear.lua` answers: (age in µs, text) of each replica, then (limit, place, units) of each bar.
type Answer = (Vec<(u64, String)>, Vec<(String, usize, f64)>);

impl StatusStore for RedisStatus {
    fn tell<'a>(&'a self, told: Told<'a>) -> StoreFuture<'a, ()> {
        async move {
            let mut args = vec![
                Arg::Text(told.replica),
                Arg::Text(told.text),
                Arg::Number(micros(SHOWN)),
                Arg::Number(micros(told.passed).max(1)),
                Arg::Number(micros(BAR)),
                Arg::Number(PLACES as u64),
            ];
            for (limit, units) in told.used {
                args.extend([Arg::Text(limit), Arg::Number(*units)]);
            }
            self.store.call(self.script(&self.tell, args)).await
        }
        .boxed()
    }

    fn hear(&self) -> StoreFuture<'_, Heard> {
        async move {
            let args = [SHOWN, BEAT, BAR].map(|length| Arg::Number(micros(length)));
            let script = self.script(&self.hear, args.into());
            let (texts, bars): Answer = self.store.call(script).await?;
            let texts = texts.into_iter();
            let mut heard = Heard {
                replicas: texts
                    .map(|(ago, text)| (Duration::from_micros(ago), text))
                    .collect(),
                ..Heard::default()
            };
            for (limit, ago, units) in bars {
                heard.note(&limit, ago, units);
            }
            Ok(heard)
        }
        .boxed()
    }
}
