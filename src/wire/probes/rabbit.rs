//! What `sluiced check --connect` asks RabbitMQ: whether one can log in, and how the queues of the routes are.

use std::sync::Arc;

use futures::FutureExt as _;
use secrecy::ExposeSecret as _;

use super::Probe;
use crate::wire::{Trial, WireError, options, reach};
use sluiced_amqp::rabbit::letters::Letters;
use sluiced_amqp::rabbit::management;
use sluiced_amqp::rabbit::probe::{self, QueueState};
use sluiced_amqp::rabbit::{RabbitError, RabbitOptions, RouteOptions};
use sluiced_ports::message::Message;
use sluiced_settings::Loaded;
use sluiced_settings::types::QueueType;

const CLASSIC_QUEUE: &str = "; warning: it is a classic queue: after a crash of the broker what was acknowledged in its last second comes again, and is called again; a quorum queue brings back only what was not acknowledged";
const CLASSIC_WAIT_QUEUE: &str = "; warning: queue_type = \"classic\": a classic wait queue drops what a full work queue refuses, and what moves while the broker dies; quorum keeps it";
const NOT_DECLARED: &str = "; not declared by sluiced: if it is a quorum queue with an x-delivery-limit, that must be at least 20, which is what RabbitMQ 4 sets by default";

/// Adds a probe for each node, for the management API, and for each queue.
pub(super) fn probes(loaded: &Loaded, strict: bool, probes: &mut Vec<Probe>) {
    let (options, hosts) = match options_and_hosts(loaded) {
        Ok((options, hosts)) => (Arc::new(options), hosts),
        Err(why) => {
            probes.push(("rabbitmq".to_owned(), std::future::ready(Err(why)).boxed()));
            return;
        }
    };
    for (index, host) in hosts.into_iter().enumerate() {
        let probe = log_in(Arc::clone(&options), index);
        probes.push((format!("rabbitmq {host}"), probe.boxed()));
    }
    let configured = loaded.settings.routes.iter();
    let routes: Vec<_> = configured
        .map(|(name, route)| options::route(&loaded.settings, name, Arc::new(route.clone())))
        .collect();
    let grant: Arc<str> = probe::grant_command(&options, &routes).into();
    if options.settings.management.is_some() {
        let probe = ask_management(Arc::clone(&options), routes.clone());
        probes.push(("rabbitmq.management".to_owned(), probe.boxed()));
    }
    for (name, route) in loaded.settings.routes.keys().zip(routes) {
        let (options, grant) = (Arc::clone(&options), Arc::clone(&grant));
        let trial = Trial::new(loaded, name, &loaded.settings.routes[name]);
        let probe = async move {
            let queue_facts = probe_queue(&options, &route, &grant).await?;
            match first_message(&options, &route, trial).await {
                Err(dies) if strict => Err(queue_facts + &dies),
                Ok(fate) | Err(fate) => Ok(queue_facts + &fate),
            }
        };
        probes.push((format!("routes.{name}.queue"), probe.boxed()));
    }
}

fn options_and_hosts(loaded: &Loaded) -> Result<(RabbitOptions, Vec<String>), String> {
    let options = options::rabbit(loaded).map_err(|e| e.why)?;
    let hosts = probe::hosts(&options).map_err(|e| e.to_string())?;
    Ok((options, hosts))
}

async fn log_in(options: Arc<RabbitOptions>, index: usize) -> Result<String, String> {
    match probe::broker(&options, index).await {
        Ok(()) => Ok("connected and logged in".to_owned()),
        Err(error) => {
            let url = options.settings.urls[index].expose_secret();
            Err(reach::explain(error.to_string(), url).await)
        }
    }
}

async fn ask_management(
    options: Arc<RabbitOptions>,
    routes: Vec<RouteOptions>,
) -> Result<String, String> {
    let warnings = management::policies(&options, &routes)
        .await
        .map_err(|error| error.to_string())?;
    Ok(format!(
        "policies and queues were read{}",
        as_warnings(&warnings)
    ))
}

/// Each text behind the text before it.
fn as_warnings(all: &[String]) -> String {
    let warnings = all.iter().map(|why| format!("; warning: {why}"));
    warnings.collect()
}

async fn probe_queue(
    options: &RabbitOptions,
    route: &RouteOptions,
    grant: &str,
) -> Result<String, String> {
    let queue = &route.settings.queue;
    match probe::queue(options, route).await {
        Ok(QueueState::Found {
            messages,
            consumers,
            classic,
            left_behind,
            warnings,
        }) => {
            let mut facts =
                format!("queue `{queue}`: ready messages {messages}, consumers {consumers}");
            if let Some(parked) = left_behind {
                facts += &format!(
                    "; warning: {parked} messages stand parked in {queue}.parked.*, from when fair_by was set: they are consumed too; delete these queues when they are empty"
                );
            }
            facts += &as_warnings(&warnings);
            if classic {
                facts += CLASSIC_QUEUE;
            }
            if route.settings.queue_type == QueueType::Classic {
                facts += CLASSIC_WAIT_QUEUE;
            }
            if !route.settings.declare {
                facts += NOT_DECLARED;
            }
            Ok(facts)
        }
        Ok(QueueState::Hidden { warnings }) => Ok(format!(
            "queue `{queue}` can be consumed; warning: the user may not look at it (RabbitMQ 4.2.6 and 4.3.0 ask for the right to configure): messages at the broker are not counted{}",
            as_warnings(&warnings)
        )),
        Ok(QueueState::WouldBeDeclared) => Ok(format!(
            "queue `{queue}` does not exist and would be declared"
        )),
        Err(error @ RabbitError::Forbidden { .. }) => {
            Err(format!("{error}; `{grant}` grants what all routes need"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// What would happen to the first waiting message; an error if it would be a dead letter. The message is given back at
/// once. A quorum queue counts that as a return, as with `sluiced try --peek`; before there are too many returns, a
/// replica copies the message.
async fn first_message(
    options: &RabbitOptions,
    route: &RouteOptions,
    trial: Result<Trial, WireError>,
) -> Result<String, String> {
    let message = match peek(options, &route.settings.queue).await {
        Ok(Some(message)) => message,
        Ok(None) => return Ok(String::new()),
        Err(error) => return Ok(format!("; no message was looked at: {error}")),
    };
    let usable = trial.map_err(|error| error.why).and_then(|trial| {
        let too_large = |why| format!("it is too large: {why}");
        trial.check_size(&message).map_err(too_large)?;
        let inputs = trial.limit_inputs_at(&message, 1);
        let invalid = |why| format!("a limit cannot count it: {why}");
        inputs.map_err(invalid)?;
        let undecodable = |why| format!("no request can be made of it: {why}");
        trial.request(&message).map_err(undecodable)
    });
    let back = "; it was given back, which a quorum queue counts as a return";
    match usable {
        Ok(_) => Ok(format!(
            "; the first message that waits can be decoded and rendered{back}"
        )),
        Err(why) => Err(format!(
            "; warning: the first message that waits would be a dead letter: {why}{back}"
        )),
    }
}

/// Reads the first ready message of a queue and gives it back. A message that was returned often is put at the end of
/// the queue as a copy, before the broker would drop it.
async fn peek(options: &RabbitOptions, queue: &str) -> Result<Option<Message>, RabbitError> {
    let Some(mut letters) = Letters::open(options, queue).await? else {
        return Ok(None);
    };
    let Some(first) = letters.first().await? else {
        return letters.close().await.map(|_| None);
    };
    let message = first.message.clone();
    letters.leave(first).await?;
    letters.close().await?;
    Ok(Some(message))
}
