//! How the replicas are: for the whole fleet one hash of their texts, and one of what they used.

use std::time::Duration;

use futures::FutureExt;
use redis::Script;

use super::scripts::{Arg, ScriptCall};
use super::store::RedisStore;
use crate::core::time::micros;
use crate::ports::pace::StoreFuture;
use crate::ports::status::{BAR, BEAT, Heard, PLACES, SHOWN, StatusStore, Told};

impl RedisStore {
    fn about_replicas<'a>(&self, script: &'a Script, args: Vec<Arg<'a>>) -> ScriptCall<'a> {
        let key = |name| format!("{}:{{fleet}}:{name}", self.scripts.prefix());
        ScriptCall::new(script, key("status"), vec![key("bars")], args)
    }
}

/// What `hear.lua` answers: (age in µs, text) of each replica, then (limit, place, units) of each bar.
type Answer = (Vec<(u64, String)>, Vec<(String, usize, f64)>);

impl StatusStore for RedisStore {
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
            let script = self.about_replicas(self.scripts.tell(), args);
            self.call(script).await
        }
        .boxed()
    }

    fn hear(&self) -> StoreFuture<'_, Heard> {
        async move {
            let args = [SHOWN, BEAT, BAR].map(|length| Arg::Number(micros(length)));
            let script = self.about_replicas(self.scripts.hear(), args.into());
            let (texts, bars): Answer = self.call(script).await?;
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
