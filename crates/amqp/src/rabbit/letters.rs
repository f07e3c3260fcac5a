//! The letters of a dead-letter queue: read and left in place, moved to a work queue, or dropped.
//!
//! Problem: a queue cannot be read without taking from it. So letters are fetched without an acknowledgement,
//! on a channel of their own. Letters that are not acknowledged return when that channel ends, in whatever
//! way it ends. A quorum queue would mix up their order then, because it treats each fetch as a consumer of
//! its own; so at a normal end they are given back one by one, in order. The queue puts them behind those
//! that were not fetched. A single letter returns to its place when the channel ends, so it is given back
//! that way. Only the letters that were there at the start are read: so a replay whose messages die again
//! ends.
//!
//! A letter that moves is published, confirmed, and only then acknowledged, batch by batch (`confirms`). A process
//! that is killed leaves one batch twice at most, and none is lost.
//!
//! A quorum queue takes 32 commands of a channel at a time. The channel holds the others back, mixes up
//! their order, and forgets them when it ends: acknowledged letters would still be dead letters. So at
//! most 16 acknowledgements are under way; the answer to a later fetch shows that they were taken. For
//! letters that are given back, the count of the queue shows it.
//!
//! A quorum queue counts how often a message was returned, and RabbitMQ 4 drops it after 20 returns
//! unless its queue has no limit (`topology`; a queue that an earlier sluiced declared has one). So a
//! letter that was left ten times is copied to the end of its own queue, confirmed, and then
//! acknowledged: its count starts again. If only some letters are read, or some are copied, their order
//! may change.
//!
//! The replicas watch how many dead letters there are, and report it if they are purged (`vanished`). Letters that are
//! read are not counted by the broker meanwhile, and may be gone afterwards. So a reader announces itself: it declares
//! a queue beside the dead letters that ends by itself (`is_read`). Without the right to declare it there is none.

mod moving;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::stream::FuturesOrdered;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use tokio::time::{Instant, sleep};

use super::RabbitError;
use super::confirms::{ConfirmChannel, WINDOW};
use super::connections::Connections;
use super::connections::live::LiveConnection;
use super::messages::convert::{Original, convert_unverified};
use super::options::RabbitOptions;
use sluiced_ports::message::{Message, header};

pub use moving::{Moved, Replay};

/// This many letters are asked for at a time.
const FETCH: u32 = 16;
/// This many acknowledgements, or letters that are given back, are under way at a time.
const COMMANDS: usize = 16;
/// The most letters that move together.
pub const BATCH: usize = 100;
/// The most bytes of letters that move together; a larger letter moves alone.
pub const BATCH_BYTES: usize = WINDOW;
/// How long letters that are given back may take to be in their queue.
const RETURN: Duration = Duration::from_secs(2);
/// How often it is checked whether they are.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a reader can be seen after it took letters: longer than the replicas need to count them twice.
const READER_STAYS: Duration = Duration::from_secs(60);
/// How often a reader announces itself.
const READER_EVERY: Duration = Duration::from_secs(20);
/// How long closing the connections may take.
const CLOSING: Duration = Duration::from_secs(1);

/// One letter, fetched and not acknowledged.
pub struct Letter {
    /// The letter's place, from 1.
    pub number: u64,
    pub message: Message,
    tag: u64,
    original: Original,
}

/// A dead-letter queue that is being read.
pub struct Letters {
    queue: String,
    confirm: Duration,
    connections: Connections,
    live: Arc<LiveConnection>,
    channel: Channel,
    /// On a connection of its own: an alarm of the broker stops connections that publish.
    confirms: Option<ConfirmChannel<u64>>,
    /// Work queues that were found.
    found: HashSet<String>,
    total: u32,
    unread: u32,
    read: u64,
    fetched: VecDeque<Letter>,
    /// The tags of letters that were fetched and not acknowledged, in the order of their queue.
    held: BTreeSet<u64>,
    /// To be given back as copies.
    returned_too_often: Vec<Letter>,
    gone: u32,
    /// Acknowledgements that the queue may not have taken yet.
    unsure: usize,
    /// When the reader was announced last.
    announced: Option<Instant>,
}

/// The queue that is there while letters are read.
fn reader_queue_of(queue: &str) -> String {
    format!("{queue}.read")
}

/// Whether letters of that queue were read within the last minute.
pub(in crate::rabbit) async fn is_read(
    live: &LiveConnection,
    queue: &str,
) -> Result<bool, RabbitError> {
    match live.look_for(&reader_queue_of(queue)).await {
        Ok(_) => Ok(true),
        Err(RabbitError::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Letter {
    /// Never the body: it may hold a one-time password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letter")
            .field("number", &self.number)
            .field("bytes", &self.message.body.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letters")
            .field("queue", &self.queue)
            .field("unread", &self.unread)
            .finish_non_exhaustive()
    }
}

impl Letters {
    /// Connects to the first broker that answers. `None` if there is no such queue.
    ///
    /// # Errors
    /// When no broker answers, or it refuses.
    pub async fn open(options: &RabbitOptions, queue: &str) -> Result<Option<Self>, RabbitError> {
        let connections = Connections::of_a_command(options)?;
        let live = connections.consuming.acquire_any().await?;
        let channel = live.open_channel().await?;
        let total = match live.find(&channel, queue).await {
            Ok(counts) => counts.messages,
            Err(RabbitError::Missing { .. }) => {
                connections.leave(Instant::now() + CLOSING).await;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Self {
            queue: queue.to_owned(),
            confirm: options.settings.confirm_timeout.get(),
            connections,
            live,
            channel,
            confirms: None,
            found: HashSet::new(),
            total,
            unread: total,
            read: 0,
            fetched: VecDeque::new(),
            held: BTreeSet::new(),
            returned_too_often: Vec::new(),
            gone: 0,
            unsure: 0,
            announced: None,
        }))
    }

    /// How many letters there were at the start.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// The next letter of those that were there at the start.
    ///
    /// # Errors
    /// When the broker is lost or refuses. Every letter that was not moved is back in the queue then.
    pub async fn next(&mut self) -> Result<Option<Letter>, RabbitError> {
        if self.fetched.is_empty() && self.unread > 0 {
            self.fetch().await?;
        }
        Ok(self.fetched.pop_front())
    }

    /// The first letter alone: no other is taken, not even for a moment.
    ///
    /// # Errors
    /// When the broker is lost or refuses.
    pub async fn first(&mut self) -> Result<Option<Letter>, RabbitError> {
        self.unread = 0;
        Ok(self.get(1).await?.into_iter().flatten().next())
    }

    async fn fetch(&mut self) -> Result<(), RabbitError> {
        let count = self.unread.min(FETCH);
        self.unread -= count;
        for letter in self.get(count).await? {
            let Some(letter) = letter else {
                // Another command holds the rest, or they were consumed.
                self.unread = 0;
                continue;
            };
            self.fetched.push_back(letter);
        }
        self.unsure = 0;
        Ok(())
    }

    async fn get(&mut self, count: u32) -> Result<Vec<Option<Letter>>, RabbitError> {
        self.announce_reader().await;
        let options = BasicGetOptions { no_ack: false };
        let mut asks: FuturesOrdered<_> = (0..count)
            .map(|_| self.channel.basic_get(self.queue.as_str().into(), options))
            .collect();
        let mut answers = Vec::new();
        // The bound is for each of them: large ones take a while on a slow way.
        while let Some(answer) = self.live.answer_to("basic.get", asks.try_next()).await? {
            answers.push(answer);
        }
        let letters = answers.into_iter().map(|answer| {
            let delivery = answer?.delivery;
            let tag = delivery.delivery_tag;
            self.held.insert(tag);
            let (mut message, original) = convert_unverified(delivery);
            let made = message.headers.get(header::MESSAGE_ID);
            message.made_id = made.and_then(|id| id.as_text()).map(str::to_owned);
            self.read += 1;
            Some(Letter {
                number: self.read,
                message,
                tag,
                original,
            })
        });
        Ok(letters.collect())
    }

    /// Declares the queue that tells the replicas that letters are being read. Without the right to declare it, they
    /// may report these letters as gone.
    async fn announce_reader(&mut self) {
        let is_fresh = self.announced.is_some_and(|at| at.elapsed() < READER_EVERY);
        // Other queues are only looked at.
        if is_fresh || !self.queue.ends_with(".dead") {
            return;
        }
        self.announced = Some(Instant::now());
        if let Err(error) = self
            .live
            .declare_short_lived(&reader_queue_of(&self.queue), READER_STAYS)
            .await
        {
            tracing::debug!(queue = self.queue, %error, "no sign that letters are read");
        }
    }

    /// Waits until the queue has taken every acknowledgement.
    async fn make_sure(&mut self) -> Result<(), RabbitError> {
        if self.unsure == 0 {
            return Ok(());
        }
        self.unsure = 0;
        let letter = self.get(1).await?.into_iter().flatten().next();
        match letter {
            Some(letter) if self.unread > 0 => {
                self.unread -= 1;
                self.fetched.push_back(letter);
            }
            // It came after the start, or no more are wanted.
            Some(_) => {}
            None => self.unread = 0,
        }
        Ok(())
    }

    /// Leaves a letter in place; one that was returned often is copied there.
    ///
    /// # Errors
    /// When letters that were returned often cannot be copied. They stay where they were.
    pub async fn leave(&mut self, letter: Letter) -> Result<(), RabbitError> {
        if !letter.original.was_returned_too_often() {
            return Ok(());
        }
        self.returned_too_often.push(letter);
        if self.returned_too_often.len() >= BATCH {
            self.renew().await?;
        }
        Ok(())
    }

    /// Removes a letter for good.
    ///
    /// # Errors
    /// When the broker is lost: it is not known then whether this letter is gone, and a few of those before it.
    pub async fn discard(&mut self, letter: Letter) -> Result<(), RabbitError> {
        self.ack(letter.tag).await?;
        self.gone += 1;
        Ok(())
    }

    /// Gives back all letters that were fetched and not moved. Returns how many letters there are then.
    ///
    /// # Errors
    /// When the broker is lost or refuses.
    pub async fn close(mut self) -> Result<u32, RabbitError> {
        self.unread = 0;
        // Those that cannot be copied are given back as they are.
        let mut copied = Ok(());
        for letter in std::mem::take(&mut self.fetched) {
            copied = copied.and(self.leave(letter).await);
        }
        copied = copied.and(self.renew().await);
        self.make_sure().await?;
        let counting = self.live.open_channel().await?;
        let mut count = self.live.find(&counting, &self.queue).await?.messages;
        let held: Vec<u64> = std::mem::take(&mut self.held).into_iter().collect();
        let alone = held.len() == 1;
        for tags in held.chunks(COMMANDS).filter(|_| !alone) {
            for tag in tags {
                self.give_back(*tag).await?;
            }
            let expected = count + u32::try_from(tags.len()).unwrap_or(u32::MAX);
            count = self.counted(&counting, expected).await?;
        }
        self.live.close(&self.channel, "read").await?;
        if alone {
            count = self.counted(&counting, count + 1).await?;
        }
        self.connections.leave(Instant::now() + CLOSING).await;
        copied.map(|()| count)
    }

    async fn give_back(&mut self, tag: u64) -> Result<(), RabbitError> {
        let requeue = BasicNackOptions {
            multiple: false,
            requeue: true,
        };
        let nack = self.channel.basic_nack(tag, requeue);
        self.live.answer_to("basic.nack", nack).await
    }

    /// How many letters there are as soon as there are this many, or after a while.
    async fn counted(&mut self, channel: &Channel, expected: u32) -> Result<u32, RabbitError> {
        let end = Instant::now() + RETURN;
        loop {
            let count = self.live.find(channel, &self.queue).await?.messages;
            if count >= expected || Instant::now() >= end {
                return Ok(count);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn ack(&mut self, tag: u64) -> Result<(), RabbitError> {
        let ack = self.channel.basic_ack(tag, BasicAckOptions::default());
        self.live.answer_to("basic.ack", ack).await?;
        self.held.remove(&tag);
        self.unsure += 1;
        if self.unsure >= COMMANDS {
            self.make_sure().await?;
        }
        Ok(())
    }
}
