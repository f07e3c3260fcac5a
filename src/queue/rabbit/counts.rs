//! How many messages of a route are at the broker: ready, in wait queues, dead, parked.
//!
//! Problem: a backlog that grows and dead letters that pile up are the first things that an operator wants to
//! see, and the broker's own metrics do not show which queues belong to a route. So each replica asks the
//! broker every 10 seconds, by passive declarations, on a channel of its own.
//!
//! Parked messages are counted more often, because parking is bounded by their number for all replicas
//! together, and only the broker knows it. Messages that this replica parks are counted at once, so a single
//! replica keeps the bound; several replicas together may exceed it by the number that the others park in a
//! second.
//!
//! A route that does not park consumes messages that an earlier configuration left in parked queues, so that
//! none stays there ([`LeftBehind`]). Such queues may appear at any time: another replica with the other
//! configuration declares them, and ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::RabbitError;
use super::connections::Live;
use super::supervisor::Context;
use super::topology::Target;
use crate::core::backoff::Rung;
use crate::core::parking::Space;
use crate::ports::queue::Part;

/// How often the broker is asked.
const EVERY: Duration = Duration::from_secs(10);
/// After so many rounds a missing wait queue is looked for again: each look costs a channel.
const PATIENCE: u32 = 6;
/// How often the broker is asked while messages are parked …
const OFTEN: Duration = Duration::from_secs(1);
/// … and by what factor less often while none is: another replica may begin to park.
const SELDOM: u32 = 10;
/// How often a route that does not park looks for parked queues, in the end: a look for a missing queue
/// costs a channel, and a line in the broker's log. After a start it looks more often, because other
/// replicas that still park are likely to stop then.
const LOOK: Duration = Duration::from_secs(60);

/// The tasks that count for a session, and end with it.
#[derive(Debug)]
pub(super) struct Counting {
    /// Parked queues of a route that does not park, for the session to consume. The session knows which it
    /// has already.
    pub(super) left_behind: mpsc::UnboundedReceiver<Vec<Space>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Counting {
    /// Starts them. Must be called inside a tokio runtime.
    pub(super) fn start(context: &Arc<Context>, live: &Arc<Live>) -> Self {
        let broker = || Broker {
            context: Arc::clone(context),
            live: Arc::clone(live),
        };
        let (found, left_behind) = mpsc::unbounded_channel();
        let parked = if context.route.parks() {
            tokio::spawn(ParkedCounter(broker()).run())
        } else {
            let broker = broker();
            tokio::spawn(LeftBehind { broker, found }.run())
        };
        let others = tokio::spawn(broker().run());
        Self {
            left_behind,
            _tasks: [others, parked].map(AbortOnDropHandle::new),
        }
    }
}

/// Asks the broker for the counts of a route.
struct Broker {
    context: Arc<Context>,
    live: Arc<Live>,
}

/// A wait queue, and in how many rounds it is looked for.
type Wait = (Rung, u32);

impl Broker {
    async fn run(self) {
        let steps = self.context.ladder.rungs();
        let mut waits: Vec<Wait> = steps.map(|step| (step, 0)).collect();
        loop {
            // If more than this question failed, the session notices that by itself.
            if let Err(error) = self.count(&mut waits).await {
                let route = &self.context.route.name;
                tracing::debug!(%route, %error, "its messages are not counted");
            }
            sleep(EVERY).await;
        }
    }

    async fn count(&self, waits: &mut [Wait]) -> Result<(), RabbitError> {
        let mut channel = self.live.open_channel().await?;
        for (target, part) in [(Target::Work, Part::Ready), (Target::Dead, Part::Dead)] {
            let count = self.messages(&channel, target).await?;
            self.counted(part, count);
        }
        let mut waiting = 0;
        for (step, rounds) in waits {
            if *rounds > 0 {
                *rounds -= 1;
                continue;
            }
            match self.messages(&channel, Target::Wait(*step)).await {
                Ok(count) => waiting += count,
                Err(RabbitError::Missing { .. }) => {
                    *rounds = PATIENCE;
                    channel = self.live.open_channel().await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.counted(Part::Waiting, waiting);
        self.live.close(&channel, "counted").await
    }

    async fn messages(&self, channel: &Channel, target: Target) -> Result<u64, RabbitError> {
        let queue = target.queue(self.context.route.queue());
        Ok(self.live.find(channel, &queue).await?.messages.into())
    }

    fn counted(&self, part: Part, count: u64) {
        let Context { events, route, .. } = &*self.context;
        if route.counts {
            events.counted(&route.name, part, count);
        }
    }
}

/// Keeps the count up to date for as long as its session lives; unknown afterwards.
struct ParkedCounter(Broker);

impl ParkedCounter {
    async fn run(self) {
        let Self(broker) = &self;
        let parked = &broker.context.parked;
        loop {
            match self.count().await {
                Ok(count) => {
                    broker.counted(Part::Parked, count);
                    // What was added meanwhile is in the next count.
                    parked.send_replace(Some(count));
                }
                // If more than this question failed, the session notices that by itself.
                Err(error) => {
                    let route = &broker.context.route.name;
                    tracing::debug!(%route, %error, "parked messages are not counted");
                    parked.send_replace(None);
                }
            }
            for _ in 0..SELDOM {
                sleep(OFTEN).await;
                if *parked.borrow() != Some(0) {
                    break;
                }
            }
        }
    }

    async fn count(&self) -> Result<u64, RabbitError> {
        let live = &self.0.live;
        let channel = live.open_channel().await?;
        let mut count = 0;
        for space in Space::all() {
            count += self.0.messages(&channel, Target::Parked(space)).await?;
        }
        // Whether this is answered changes nothing.
        live.close(&channel, "counted").await.ok();
        Ok(count)
    }
}

impl Drop for ParkedCounter {
    fn drop(&mut self) {
        self.0.context.parked.send_replace(None);
    }
}

/// Looks for parked queues of a route that does not park, for as long as its session lives.
struct LeftBehind {
    broker: Broker,
    found: mpsc::UnboundedSender<Vec<Space>>,
}

impl LeftBehind {
    async fn run(self) {
        let (mut known, mut pause) = (BTreeSet::new(), EVERY);
        loop {
            // If more than this question failed, the session notices that by itself.
            if let Err(error) = self.look(&mut known).await {
                let route = &self.broker.context.route.name;
                tracing::debug!(%route, %error, "no look for parked messages");
            }
            // Once there are some, their messages are counted as often as those of all other queues.
            sleep(if known.is_empty() { pause } else { EVERY }).await;
            pause = LOOK.min(pause * 2);
        }
    }

    async fn look(&self, known: &mut BTreeSet<Space>) -> Result<(), RabbitError> {
        let Broker { context, live } = &self.broker;
        let route = &context.route;
        let found = live.left_behind(route).await?;
        let messages = found
            .iter()
            .map(|(_, counts)| u64::from(counts.messages))
            .sum();
        let spaces: BTreeSet<Space> = found.into_iter().map(|(space, _)| space).collect();
        if !spaces.is_subset(known) {
            tracing::info!(
                route = %route.name,
                queue = route.queue(),
                messages,
                "parked queues of an earlier configuration are consumed too; delete them when they are empty"
            );
        }
        *known = spaces;
        if !known.is_empty() {
            // Without its session this task ends too.
            drop(self.found.send(known.iter().copied().collect()));
            self.broker.counted(Part::Parked, messages);
        }
        Ok(())
    }
}
