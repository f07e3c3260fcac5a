//! A subscription on a broker that fails.

use std::sync::Arc;
use std::time::Duration;

use sluiced_amqp::rabbit::{RabbitOptions, RabbitQueue, RouteOptions};
use sluiced_core::gate::Tap;
use sluiced_ports::link::Link;
use sluiced_ports::queue::Subscription;
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_settings::text::TemplateText;
use sluiced_settings::types::{QueueType, Route};
use tokio::sync::mpsc;

use crate::support::messages::{self, Counted, marks};
use crate::support::wait::within;

use super::{BOUND, PREFETCH};

/// A queue, and a subscription to it.
pub(crate) struct Bench {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) deliveries: mpsc::UnboundedReceiver<Delivery>,
    pub(crate) events: Arc<Counted>,
    pub(crate) queue: String,
    rabbit: Arc<RabbitQueue>,
}

impl Bench {
    /// Subscribes to a queue that need not exist, the tap open.
    pub(crate) fn start(options: RabbitOptions, queue_type: QueueType) -> Self {
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        Self::start_on(options, queue_type, queue, false)
    }

    /// To that queue, parking or not.
    pub(crate) fn start_on(
        options: RabbitOptions,
        queue_type: QueueType,
        queue: String,
        parks: bool,
    ) -> Self {
        Self::start_as(options, queue_type, queue, (parks, false), PREFETCH)
    }

    /// To that queue, with another prefetch.
    pub(crate) fn start_few(
        options: RabbitOptions,
        queue_type: QueueType,
        queue: String,
        prefetch: u16,
    ) -> Self {
        Self::start_as(options, queue_type, queue, (false, false), prefetch)
    }

    /// To that queue, which it declares, and parks.
    pub(crate) fn start_declared(
        options: RabbitOptions,
        queue_type: QueueType,
        queue: String,
    ) -> Self {
        Self::start_as(options, queue_type, queue, (true, true), PREFETCH)
    }

    fn start_as(
        options: RabbitOptions,
        queue_type: QueueType,
        queue: String,
        (parks, declare): (bool, bool),
        prefetch: u16,
    ) -> Self {
        let events = Arc::new(Counted::default());
        let rabbit = RabbitQueue::new(options, events.clone(), marks()).unwrap();
        let mut route = route(queue, queue_type, (parks, declare));
        route.prefetch = prefetch;
        Self::subscribe(Arc::new(rabbit), events, route)
    }

    /// A subscription to another queue, which does not park, on the same connections.
    pub(crate) fn beside(&self, queue: String) -> Self {
        let route = route(queue, QueueType::Classic, (false, false));
        Self::subscribe(Arc::clone(&self.rabbit), Arc::clone(&self.events), route)
    }

    fn subscribe(rabbit: Arc<RabbitQueue>, events: Arc<Counted>, route: RouteOptions) -> Self {
        let queue = route.settings.queue.clone();
        let subscription = rabbit.subscribe(route);
        subscription.set_tap(Tap::Open);
        Self {
            deliveries: subscription.deliveries().unwrap(),
            subscription,
            events,
            queue,
            rabbit,
        }
    }

    pub(crate) async fn next(&mut self) -> Delivery {
        messages::next(&mut self.deliveries, BOUND).await
    }

    /// The next one is the message with this number, and is done.
    pub(crate) async fn takes(&mut self, number: u64) {
        let delivery = self.next().await;
        assert_eq!(messages::number(&delivery.message().body), number);
        assert!(delivery.settle(Verdict::Done));
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Delivery> {
        messages::take(&mut self.deliveries, count, BOUND).await
    }

    pub(crate) async fn up(&self) {
        let mut link = self.subscription.link();
        within(BOUND, "link up", link.wait_for(Link::is_up))
            .await
            .expect("the subscription lives");
    }

    /// Waits until the link is down for a reason that contains `part`.
    pub(crate) async fn down(&self, part: &str) {
        let mut link = self.subscription.link();
        let says = |link: &Link| matches!(link, Link::Down(reason) if reason.contains(part));
        let down = tokio::time::timeout(BOUND, link.wait_for(says)).await;
        let down = down.map(|told| drop(told.expect("the subscription lives")));
        assert!(down.is_ok(), "not `{part}`: {:?}", *link.borrow());
    }
}

fn route(queue: String, queue_type: QueueType, (parks, declare): (bool, bool)) -> RouteOptions {
    RouteOptions {
        name: "sms".into(),
        results: None,
        counts: true,
        settings: Arc::new(Route {
            queue,
            declare,
            queue_type,
            fair_by: parks.then(|| TemplateText("{{ body.tenant }}".to_owned())),
            ..Route::example()
        }),
        prefetch: PREFETCH,
        longest_wait: Duration::from_secs(60),
    }
}
