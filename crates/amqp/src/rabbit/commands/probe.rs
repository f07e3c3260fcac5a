//! Tries a broker and a route's queues without changing anything, for `sluiced check --connect`.
//!
//! Problem: RabbitMQ has no question "may I?". It checks rights first and arguments second, and only then
//! acts. So each right is tried with an argument that no broker accepts: without the right the answer is
//! 403, with it 406, and nothing was consumed (`topology`) or declared. An existing queue of ours is declared as `run`
//! would declare it, which changes nothing or shows that its settings differ.

use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::options::{ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::AMQPValue;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;
use url::Url;

use crate::rabbit::RabbitError;
use crate::rabbit::confirms::{CopyMessage, publish_confirmed};
use crate::rabbit::connections::Connections;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::options::{RabbitOptions, RouteOptions, addresses, virtual_host};
use crate::rabbit::topology::queue_check::QueueCheck;
use crate::rabbit::topology::{DURABLE, QueueCounts, Target, type_arguments};
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::store::FleetNames;
use sluiced_settings::types::QueueType;

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(1);

/// The state of a route's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The queue is there.
    Found {
        /// Ready for delivery; unacknowledged ones are not among them.
        messages: u32,
        consumers: u32,
        /// The queue is a classic one, as far as the broker shows that.
        classic: bool,
        /// Messages in the parked queues beside it, if the route does not park and there are any.
        left_behind: Option<u32>,
        /// What an operator should know of the queues of ours.
        warnings: Vec<String>,
    },
    /// The user may consume it, and may not look at it (RabbitMQ 4.2.6 and 4.3.0 ask for the right to configure it).
    Hidden {
        /// What an operator should know of the queues of ours.
        warnings: Vec<String>,
    },
    /// The queue is missing, and the daemon would declare it.
    WouldBeDeclared,
}

/// The hosts of the URLs, in their order: names for probes.
///
/// # Errors
/// When a URL cannot be used.
pub fn hosts(options: &RabbitOptions) -> Result<Vec<String>, RabbitError> {
    Ok(addresses(options)?
        .into_iter()
        .map(|address| address.host)
        .collect())
}

/// Makes the connections of a replica to the broker at `options.settings.urls[index]`, and logs in. Each may take the
/// connect timeout.
///
/// # Errors
/// When it does not answer or refuses.
pub async fn broker(options: &RabbitOptions, index: usize) -> Result<(), RabbitError> {
    let mut options = options.clone();
    options.settings.urls = options
        .settings
        .urls
        .into_iter()
        .skip(index)
        .take(1)
        .collect();
    let connections = Connections::of_a_command(&options)?;
    // `run` needs all three at a time, and a user or a virtual host may have a limit of them. RabbitMQ counts a
    // connection a moment after it was opened, so they are opened one after the other.
    let opening = async {
        connections.consuming.acquire().await?;
        connections.publishing.acquire().await?;
        connections.counting.acquire().await.map(drop)
    };
    let opened = opening.await;
    connections.leave(Instant::now() + CLOSING).await;
    opened
}

/// What a fleet of this RabbitMQ is called if no name is written: see `RabbitQueue::fleet`. Each URL may take the
/// connect timeout.
///
/// # Errors
/// When no broker answers.
pub async fn fleet(options: &RabbitOptions) -> Result<FleetNames, RabbitError> {
    let connections = Connections::of_a_command(options)?;
    connections.consuming.acquire_any().await?;
    let fleet = connections.consuming.fleet().borrow().clone();
    connections.leave(Instant::now() + CLOSING).await;
    fleet.ok_or_else(|| RabbitError::Lost {
        reason: "the connection ended".to_owned(),
    })
}

/// Looks for a route's queue and for parked queues that it left behind, and tries what the user may do, at the
/// first broker that answers; declares nothing. Each URL may take the connect timeout, and so may each question.
///
/// # Errors
/// When no broker answers, a right is missing, a queue of ours has other settings, or the work queue is
/// missing and `route.settings.declare` is not set.
pub async fn queue(
    options: &RabbitOptions,
    route: &RouteOptions,
) -> Result<QueueState, RabbitError> {
    let connections = Connections::of_a_command(options)?;
    let live = connections.consuming.acquire_any().await?;
    let state = look(&live, route).await;
    connections.leave(Instant::now() + CLOSING).await;
    state
}

async fn look(live: &LiveConnection, route: &RouteOptions) -> Result<QueueState, RabbitError> {
    let channel = live.open_channel().await?;
    let found = live.find(&channel, route.queue()).await;
    let warnings = match &found {
        Err(RabbitError::Missing { .. }) if !route.settings.declare => Vec::new(),
        Err(RabbitError::Refused { .. }) => tried(live, route, true).await?,
        found => tried(live, route, found.is_ok()).await?,
    };
    match found {
        Ok(QueueCounts {
            messages,
            consumers,
        }) => {
            let left_behind = match route.parks() {
                true => Vec::new(),
                false => live.find_left_behind(route).await?,
            };
            let classic = is_classic(live, route.queue()).await;
            let parked = left_behind.iter().map(|(_, counts)| counts.messages).sum();
            Ok(QueueState::Found {
                messages,
                consumers,
                classic,
                left_behind: (!left_behind.is_empty()).then_some(parked),
                warnings,
            })
        }
        Err(RabbitError::Refused { .. }) => Ok(QueueState::Hidden { warnings }),
        Err(RabbitError::Missing { .. }) if route.settings.declare => {
            Ok(QueueState::WouldBeDeclared)
        }
        Err(RabbitError::Missing { queue }) => Err(RabbitError::Undeclared { queue }),
        Err(error) => Err(error),
    }
}

/// Tries the rights to a route's queues, and the settings of those of ours that are there; `found`: the work
/// queue is there. Returns what an operator should know of them.
async fn tried(
    live: &LiveConnection,
    route: &RouteOptions,
    found: bool,
) -> Result<Vec<String>, RabbitError> {
    if found {
        let may_consume = live.may_consume(route.queue()).await;
        may_consume.map_err(RabbitError::into_missing_right)?;
    }
    results_have_a_place(live, route).await?;
    let work = route.settings.declare.then_some(Target::Work);
    let (mut others, mut not_compared) = (Vec::new(), Vec::new());
    for target in work.into_iter().chain(Target::ours(route)) {
        let queue = target.queue(route.queue());
        match may_use(live, route, target, &queue).await? {
            Some(QueueCheck::NotCompared) => not_compared.push(queue),
            Some(QueueCheck::Other(reason)) => {
                others.push(format!(
                    "queue `{queue}` has other settings, and is used as it is: {reason}"
                ));
            }
            _ => {}
        }
    }
    if route.parks() && !may_look_at_parked(live, route).await? {
        others.push(format!(
            "the user may not look at {}.parked.*: no message is parked, so fair_by has no effect on the messages that a tenant has beyond the prefetch",
            route.queue()
        ));
    }
    // Queues that exist do not show whether copies may be published to new ones, which waits need.
    let nowhere = format!("{}.wait.none", route.queue());
    if not_compared.is_empty() {
        let wait = Target::Wait(route.ladder().rung(Duration::ZERO));
        declare_nothing(live, route, wait, &nowhere).await?;
    } else {
        may_publish(live, nowhere).await?;
        others.push(format!(
            "the user may not declare {}: they are used as they are, and could not be compared",
            not_compared.join(", ")
        ));
    }
    Ok(others)
}

/// Parking needs the number of parked messages, which only a look at each parked queue shows.
async fn may_look_at_parked(
    live: &LiveConnection,
    route: &RouteOptions,
) -> Result<bool, RabbitError> {
    for parked_queue in ParkedQueue::all() {
        let queue = Target::Parked(parked_queue).queue(route.queue());
        match live.look_for(&queue).await {
            Ok(_) | Err(RabbitError::Missing { .. }) => {}
            Err(RabbitError::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Needs the right to write to the default exchange: the broker returns what no queue takes.
async fn may_publish(live: &LiveConnection, nowhere: String) -> Result<(), RabbitError> {
    let channel = live.open_channel().await?;
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    live.answer_to("confirm.select", select).await?;
    let copy = CopyMessage {
        exchange: String::new(),
        routing_key: nowhere,
        properties: BasicProperties::default(),
        body: Bytes::new(),
    };
    let publishing = publish_confirmed(channel, copy, || {});
    let published = live.answer_to("basic.publish", publishing).await;
    refused(published.map(drop))
}

/// Results need their exchange, or the one queue that they all go to. Only then can be checked whether they may be
/// published.
async fn results_have_a_place(
    live: &LiveConnection,
    route: &RouteOptions,
) -> Result<(), RabbitError> {
    let exchange = live.find_exchange(route.exchange()).await;
    exchange.map_err(RabbitError::into_missing_right)?;
    let results = route.settings.results.as_ref();
    let Some(queue) = results.and_then(|results| results.queue()) else {
        return Ok(());
    };
    let channel = live.open_channel().await?;
    match live.find(&channel, queue).await {
        Ok(_) => {
            live.close(&channel, "found").await.ok();
            Ok(())
        }
        Err(RabbitError::Missing { queue }) => Err(RabbitError::NoResultQueue { queue }),
        // Whether it is there shows with the first result.
        Err(RabbitError::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a queue that is there is a classic one. A declaration of another type changes nothing, and the broker
/// names the first argument that differs: where that is another one, or the user may not declare the queue, the
/// answer is no.
async fn is_classic(live: &LiveConnection, queue: &str) -> bool {
    let Ok(channel) = live.open_channel().await else {
        return false;
    };
    let quorum = type_arguments(QueueType::Quorum);
    let declared = live.declare(&channel, queue, DURABLE, quorum).await;
    matches!(declared, Err(RabbitError::Mismatch { reason, .. }) if reason.contains("x-queue-type"))
}

/// What a queue is that is there; of one that is missing, whether the user may declare it.
async fn may_use(
    live: &LiveConnection,
    route: &RouteOptions,
    target: Target,
    queue: &str,
) -> Result<Option<QueueCheck>, RabbitError> {
    match live.look_for(queue).await {
        Err(RabbitError::Missing { .. }) => {
            declare_nothing(live, route, target, queue).await?;
            Ok(None)
        }
        // Some versions ask for a right to look.
        Ok(_) | Err(RabbitError::Refused { .. }) => {
            let checked = live.make_usable(route, target).await;
            checked.map(Some).map_err(RabbitError::into_missing_right)
        }
        Err(error) => Err(error),
    }
}

/// Needs the right to configure, and for a wait queue those to read it and to write to the default exchange; and that
/// the virtual host may have one more queue. RabbitMQ 4 asks for that after it has looked at the arguments and before
/// the type of the queue looks at its properties (`rabbit_queue_type:declare`); RabbitMQ 3 asks for it first. A quorum
/// queue that is exclusive is made by no version, so nothing is left behind.
async fn declare_nothing(
    live: &LiveConnection,
    route: &RouteOptions,
    target: Target,
    queue: &str,
) -> Result<(), RabbitError> {
    let channel = live.open_channel().await?;
    let mut arguments = target.arguments(route);
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("quorum".into()),
    );
    let impossible = QueueDeclareOptions {
        exclusive: true,
        ..DURABLE
    };
    let declared = live.declare(&channel, queue, impossible, arguments).await;
    refused(declared.map(drop))
}

/// Reads the answer to an impossible operation: an error only if the right is missing.
fn refused(answer: Result<(), RabbitError>) -> Result<(), RabbitError> {
    match answer {
        Err(
            error @ (RabbitError::Refused { .. }
            | RabbitError::QueueLimit { .. }
            | RabbitError::Timeout { .. }),
        ) => Err(error.into_missing_right()),
        _ => Ok(()),
    }
}

/// The command that grants what `run` needs for all these routes.
#[must_use]
pub fn grant_command(options: &RabbitOptions, routes: &[RouteOptions]) -> String {
    let url = options
        .settings
        .urls
        .first()
        .and_then(|url| Url::parse(url.expose_secret()).ok());
    let user = match &url {
        Some(url) if !url.username().is_empty() => url.username(),
        _ => "guest",
    };
    // Within the quotes of a shell.
    let vhost = virtual_host(options).replace('\'', r"'\''");
    let either = |routes: &mut dyn Iterator<Item = &RouteOptions>| {
        let names: Vec<_> = routes.map(|route| literal(route.queue())).collect();
        names.join("|")
    };
    let all = either(&mut routes.iter());
    let declared = either(&mut routes.iter().filter(|route| route.settings.declare));
    let mut configure = format!(r"^({all})\.(wait|parked|dead)");
    if !declared.is_empty() {
        configure += &format!("|^({declared})$");
    }
    format!(
        r"rabbitmqctl set_permissions -p '{vhost}' '{user}' '{configure}' '^amq\.default$' '^({all})(\.|$)'"
    )
}

/// A pattern that matches only this name.
fn literal(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let escaped = name.chars().map(|c| {
        if plain(c) {
            c.to_string()
        } else {
            format!("\\{c}")
        }
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sluiced_settings::types::Route;

    #[test]
    fn the_command_names_the_queues_of_all_routes() {
        let route = |queue: &str, declare| RouteOptions {
            name: queue.into(),
            results: None,
            counts: true,
            settings: Arc::new(Route {
                queue: queue.to_owned(),
                declare,
                ..Route::example()
            }),
            prefetch: 1,
            longest_wait: Duration::ZERO,
        };
        let options = |url: &str| RabbitOptions::single(url.into());
        assert_eq!(
            grant_command(
                &options("amqp://app:secret@broker/%2fx"),
                &[route("sms.eu", false), route("mail", true)]
            ),
            r"rabbitmqctl set_permissions -p '/x' 'app' '^(sms\.eu|mail)\.(wait|parked|dead)|^(mail)$' '^amq\.default$' '^(sms\.eu|mail)(\.|$)'"
        );
        let command = grant_command(&options("amqp://broker"), &[route("sms", false)]);
        assert!(command.contains("-p '/' 'guest' '^(sms)"), "{command}");
    }
}
