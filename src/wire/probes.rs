//! What `sluiced check --connect` tries: each server by the very code that `run` uses, so that what
//! passes here works there. Nothing is consumed and nothing is sent.

use std::fmt::Display;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::{Queues, WireError, downstream, paced_limit, rabbit_options, redis_options};
use crate::cli::check::Probe;
use crate::limiter::redis::RedisPaceStore;
use crate::ports::clock::Clock;
use crate::ports::downstream::Downstream as _;
use crate::ports::link::Link;
use crate::ports::pace::PaceStore as _;
use crate::queue::events::Uncounted;
use crate::queue::rabbit::{RabbitQueue, RouteOptions};
use crate::settings::Loaded;
use crate::settings::types::{LimitBackend, QueueBackend, Route};

/// A goodbye to a broker takes no longer.
const GOODBYE: Duration = Duration::from_secs(2);

type Attempt = BoxFuture<'static, Result<String, String>>;

/// One probe for each server that the settings name. A URL or secret that cannot be used shows as
/// a failure. Must be called inside a tokio runtime.
#[must_use]
pub fn probes(loaded: &Loaded) -> Vec<Probe> {
    let settings = &loaded.settings;
    let mut all = Vec::new();
    if settings.backend.limits == LimitBackend::Redis {
        all.push(("redis".to_owned(), attempt(redis(loaded))));
    }
    match settings.backend.queue {
        QueueBackend::Rabbitmq => {
            for (name, route) in &settings.routes {
                let what = format!("rabbitmq, queue {} of route {name}", route.queue);
                all.push((what, attempt(rabbit(loaded, name, route))));
            }
        }
        QueueBackend::Embedded => {
            let input = settings.embedded.input.clone();
            all.push((format!("input {}", input.display()), file(input)));
        }
    }
    for (name, route) in &settings.routes {
        let what = format!("downstream of route {name}");
        all.push((what, attempt(http(loaded, name, route))));
    }
    all
}

fn attempt(made: Result<Attempt, impl Display>) -> Attempt {
    made.unwrap_or_else(|why| ready(Err(why.to_string())).boxed())
}

fn redis(loaded: &Loaded) -> Result<Attempt, WireError> {
    let options = redis_options(&loaded.settings, &loaded.secrets)?;
    let store =
        RedisPaceStore::connect(&options, Arc::new(())).map_err(|e| WireError::new("redis", e))?;
    Ok(async move {
        let answer = settled(store.link()).await;
        drop(store);
        answer.map(|()| "connected".to_owned())
    }
    .boxed())
}

fn rabbit(loaded: &Loaded, name: &str, route: &Route) -> Result<Attempt, WireError> {
    let settings = &loaded.settings;
    let options = rabbit_options(settings, &loaded.secrets)?;
    let queue = RabbitQueue::new(options, Clock::start(), Arc::new(Uncounted))
        .map_err(|e| WireError::new("rabbitmq", e))?;
    let (_, paced) = paced_limit(settings, name, route)?;
    let options = RouteOptions {
        // The work queue is looked at, not made: that is left to `run`.
        declare: false,
        ..Queues::route_options(name, route, paced.rate.0)
    };
    let declare = route.declare;
    let subscription = queue
        .subscribe(options)
        .map_err(|e| WireError::new(name, e))?;
    Ok(async move {
        let answer = settled(subscription.link()).await;
        let connected = queue.link().borrow().is_up();
        subscription.close(GOODBYE).await;
        match answer {
            Err(_) if connected && declare => Ok("connected; `run` declares the queue".to_owned()),
            answer => answer.map(|()| "connected, the queue is there".to_owned()),
        }
    }
    .boxed())
}

fn http(loaded: &Loaded, name: &str, route: &Route) -> Result<Attempt, WireError> {
    let downstream = downstream(name, route, &loaded.secrets)?;
    let bound = match &route.downstream {
        crate::settings::types::Downstream::Http(http) => http.connect_timeout.get(),
    };
    Ok(async move {
        let Some(origin) = downstream.origin().cloned() else {
            return Ok("not tried: its host differs from message to message".to_owned());
        };
        downstream.warm(bound).await?;
        Ok(format!("{origin} can be reached; no call was made"))
    }
    .boxed())
}

fn file(input: PathBuf) -> Attempt {
    async move {
        if input.as_os_str() == "-" {
            return Ok("stdin".to_owned());
        }
        let opened = tokio::fs::File::open(&input).await;
        opened.map_or_else(
            |error| Err(error.to_string()),
            |_| Ok("can be read".to_owned()),
        )
    }
    .boxed()
}

/// The first thing that is known about a link.
async fn settled(mut link: watch::Receiver<Link>) -> Result<(), String> {
    let known = link.wait_for(|link| *link != Link::Connecting).await;
    match known.as_deref() {
        Ok(Link::Up) => Ok(()),
        Ok(Link::Down(reason)) => Err(reason.to_string()),
        Ok(Link::Connecting) | Err(_) => Err("its supervisor ended".to_owned()),
    }
}
