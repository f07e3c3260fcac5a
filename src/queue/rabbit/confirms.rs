//! Publish, and wait for the confirm: for copies that a verdict makes (`publisher`) and for letters that move
//! (`letters`).
//!
//! Copies are under way together, as many as [`MOST`] messages and [`WINDOW`] bytes allow. Each is decided by
//! itself, as soon as its own confirm shows what became of it.
//!
//! **Time.** A slow way to the broker is no fault: what counts is the time in which nothing was confirmed and
//! nothing was written. To it comes the time that the bytes under way take at [`SLOWEST`], because they may
//! lie in buffers on the way. All channels of a connection share its way, so the bytes and the writes of all of
//! them count.
//!
//! **Returns.** The broker returns a copy whose queue is gone and then confirms it. lapin keeps returned
//! messages in their order and attaches the first of them to whichever confirm comes next. So a confirm may
//! carry the return of another copy, which is known by its number (`header::COPY`). A confirm that carries
//! none shows that no return was left: that of its own copy would be attached to one that came before. A
//! confirm that carries one decides nothing for its own copy until all confirms are in.
//!
//! **The end of a channel.** lapin sends `channel.close` ahead of copies that are not written yet, and the
//! broker answers a copy on a closed channel by closing the connection of all routes. So a channel is closed
//! only when all was written. If nothing was written for so long, the connection is useless to all routes,
//! and is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::time::{Instant, sleep_until, timeout};

use super::connections::Live;
use super::convert::copy_number;
use super::error::RabbitError;
use super::topology::{answered, open_channel};

/// Copies that are under way at a time at most …
const MOST: usize = 512;
/// … and their bytes; one that is larger goes alone.
pub(super) const WINDOW: usize = 1 << 20;
/// The slowest way that is waited for, in bytes a second.
const SLOWEST: f64 = 65_536.0;
/// How long the end of a channel may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// A copy to publish.
#[derive(Debug)]
pub(super) struct Copy {
    /// No other copy of this channel has it; its properties carry it too.
    pub(super) number: u64,
    pub(super) queue: String,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

/// What became of a copy: it is in its queue, or was not taken.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) number: u64,
    pub(super) result: Result<(), RabbitError>,
}

/// A copy that is not decided.
#[derive(Debug)]
struct Pending {
    queue: String,
    bytes: usize,
}

type Answer = (u64, lapin::Result<Confirmation>);

/// A channel on which copies are published and confirmed.
#[derive(Debug)]
pub(super) struct ConfirmChannel {
    pub(super) live: Arc<Live>,
    channel: Channel,
    confirm: Duration,
    answers: FuturesUnordered<BoxFuture<'static, Answer>>,
    under_way: BTreeMap<u64, Pending>,
    /// The bytes of those.
    bytes: usize,
    /// Copies that came back.
    returned: BTreeSet<u64>,
    /// Copies whose confirm carried a return: their own may come with another confirm.
    doubtful: Vec<u64>,
    /// The channel is over.
    fault: Option<RabbitError>,
    /// A copy was not taken. A channel can go on to refuse for a queue that would take copies again, so it
    /// takes no more.
    spent: bool,
    /// How many copies were handed to the connection, and how many of those it has written.
    sent: usize,
    written: Arc<AtomicUsize>,
    /// When something was confirmed last, or seen to be written, and how many copies the connection had written
    /// then.
    progress: (Instant, usize),
}

impl ConfirmChannel {
    /// `operation` bounds each question; `confirm` the time without progress.
    pub(super) async fn open(
        live: Arc<Live>,
        operation: Duration,
        confirm: Duration,
    ) -> Result<Self, RabbitError> {
        if live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        let channel = open_channel(&live.connection, operation).await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        answered("confirm.select", operation, select).await?;
        let progress = (Instant::now(), live.copies.written());
        Ok(Self {
            live,
            channel,
            confirm,
            answers: FuturesUnordered::new(),
            under_way: BTreeMap::new(),
            bytes: 0,
            returned: BTreeSet::new(),
            doubtful: Vec::new(),
            fault: None,
            spent: false,
            sent: 0,
            written: Arc::default(),
            progress,
        })
    }

    /// Whether new copies may still be published on it, once there is room.
    pub(super) fn is_open(&self) -> bool {
        !self.spent
            && self.fault.is_none()
            && self.live.is_up()
            && self.channel.status().connected()
    }

    /// Whether no copy is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether a copy of so many bytes may be published now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.is_idle() || (self.under_way.len() < MOST && self.bytes + bytes <= WINDOW)
    }

    /// Publishes a copy, behind those before it.
    pub(super) fn publish(&mut self, copy: Copy) {
        if self.is_idle() {
            self.progress = (Instant::now(), self.live.copies.written());
        }
        let bytes = copy.body.len();
        let pending = Pending {
            queue: copy.queue.clone(),
            bytes,
        };
        self.under_way.insert(copy.number, pending);
        self.bytes += bytes;
        self.live.copies.begun(bytes);
        self.sent += 1;
        let (channel, live) = (self.channel.clone(), Arc::clone(&self.live));
        let written = Arc::clone(&self.written);
        self.answers.push(
            async move {
                let number = copy.number;
                let written = || {
                    written.fetch_add(1, Ordering::Relaxed);
                    live.copies.wrote();
                };
                (number, published(channel, copy, written).await)
            }
            .boxed(),
        );
    }

    /// Waits until copies are decided. Nothing is lost if this is cancelled.
    ///
    /// # Errors
    /// `Blocked` when the broker takes nothing at present: those under way are still waited for. After any other
    /// error the channel is over, and what became of those under way is not known.
    pub(super) async fn next(&mut self) -> Result<Vec<Decided>, RabbitError> {
        loop {
            if let Some(fault) = &self.fault {
                return Err(fault.clone());
            }
            let late = self.progress.0 + self.patience();
            tokio::select! {
                Some(first) = self.answers.next() => {
                    // All that are there: a return may have come with any of them.
                    let mut answers = vec![first];
                    while let Some(Some(answer)) = self.answers.next().now_or_never() {
                        answers.push(answer);
                    }
                    self.progress = (Instant::now(), self.live.copies.written());
                    let decided = self.judge(answers);
                    if !decided.is_empty() {
                        return Ok(decided);
                    }
                }
                () = sleep_until(late) => self.late()?,
            }
        }
    }

    /// How long nothing may be confirmed or written.
    fn patience(&self) -> Duration {
        self.confirm + Duration::from_secs_f64(self.live.copies.bytes() as f64 / SLOWEST)
    }

    /// Nothing was confirmed for so long.
    fn late(&mut self) -> Result<(), RabbitError> {
        let written = self.live.copies.written();
        let before = std::mem::replace(&mut self.progress, (Instant::now(), written)).1;
        if self.live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        if written > before {
            return Ok(());
        }
        Err(RabbitError::Timeout {
            what: "a publish with its confirm",
            waited: self.confirm,
        })
    }

    fn judge(&mut self, answers: Vec<Answer>) -> Vec<Decided> {
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for (number, answer) in answers {
            let confirmation = match answer {
                Ok(confirmation) => confirmation,
                Err(error) => {
                    self.fault = Some(self.lost(&error));
                    continue;
                }
            };
            match &confirmation {
                Confirmation::Ack(None) => taken.push(number),
                Confirmation::Ack(Some(_)) => self.doubtful.push(number),
                _ => refused.push(number),
            }
            match confirmation.take_message().map(|back| number_of(&back)) {
                None => {}
                Some(Ok(number)) => drop(self.returned.insert(number)),
                Some(Err(error)) => self.fault = Some(error),
            }
        }
        if self.answers.is_empty() && self.fault.is_none() {
            taken.append(&mut self.doubtful);
        }
        self.spent |= !self.returned.is_empty() || !refused.is_empty();
        let (back, taken): (Vec<u64>, Vec<u64>) = taken
            .into_iter()
            .partition(|number| self.returned.contains(number));
        let taken = taken.into_iter().map(|number| (number, true));
        let not_taken = back.into_iter().chain(refused);
        let all = taken.chain(not_taken.map(|number| (number, false)));
        all.filter_map(|(number, is_taken)| self.decide(number, is_taken))
            .collect()
    }

    fn decide(&mut self, number: u64, is_taken: bool) -> Option<Decided> {
        let Pending { queue, bytes } = self.under_way.remove(&number)?;
        self.bytes -= bytes;
        self.live.copies.ended(bytes);
        let result = match is_taken {
            true => Ok(()),
            false => Err(RabbitError::NotTaken { queue }),
        };
        Some(Decided { number, result })
    }

    fn lost(&self, error: &lapin::Error) -> RabbitError {
        if self.live.is_up() {
            RabbitError::from_lapin(error)
        } else {
            self.live.fault()
        }
    }

    /// Ends it. The broker may not answer, then it ends by itself.
    pub(super) async fn close(self) {
        if !self.channel.status().connected() {
            return;
        }
        if self.written.load(Ordering::Relaxed) < self.sent {
            tracing::debug!("nothing is written any more: the connection is cut");
            self.live.cut();
            return;
        }
        let closing = self.channel.close(200, "copies were not confirmed".into());
        match timeout(GOODBYE, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "closing a channel failed"),
            Err(_) => tracing::debug!("closing a channel takes too long"),
        }
    }
}

impl Drop for ConfirmChannel {
    /// A session ends with copies that are not written: the channel stays until they are.
    fn drop(&mut self) {
        self.live.copies.ended(self.bytes);
        let unwritten = self.written.load(Ordering::Relaxed) < self.sent;
        if unwritten && self.channel.status().connected() {
            let answers = std::mem::take(&mut self.answers);
            tokio::spawn(timeout(self.patience(), answers.for_each(async |_| {})));
        }
    }
}

async fn published(
    channel: Channel,
    copy: Copy,
    written: impl FnOnce(),
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions {
        // The broker must return a copy whose queue is gone.
        mandatory: true,
        immediate: false,
    };
    let Copy {
        queue,
        properties,
        body,
        ..
    } = copy;
    let publishing = channel.basic_publish("".into(), queue.into(), options, &body, properties);
    let confirm = publishing.await?;
    written();
    confirm.await
}

fn number_of(back: &BasicReturnMessage) -> Result<u64, RabbitError> {
    copy_number(&back.properties).ok_or_else(|| RabbitError::Lost {
        reason: "the broker returned a copy without its number".to_owned(),
    })
}
