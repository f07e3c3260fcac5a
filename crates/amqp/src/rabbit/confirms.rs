//! Publish, and wait for the confirm: for copies that a verdict makes (`publisher`) and for letters that move
//! (`letters`).
//!
//! Copies are under way together, as many as [`MAX_UNCONFIRMED`] messages and [`WINDOW`] bytes allow. Each is decided
//! by itself, as soon as its own confirm shows its fate.
//!
//! **Time.** A slow connection is no fault: what counts is the time in which nothing was confirmed and nothing
//! was written. The time that the bytes under way take at [`SLOWEST`] is added, because they may lie in buffers.
//! All channels of a connection share it, so the bytes and the writes of all of them count.
//!
//! While some copies are confirmed, others may wait forever, if most nodes of their queue are away:
//! [`ConfirmChannel::silent`] shows these, and [`ConfirmChannel::give_up`] takes them out.
//!
//! **Returns.** The broker returns a copy whose queue is gone and then confirms it. lapin keeps returned
//! messages in their order and attaches the first of them to whichever confirm comes next. So a confirm may
//! carry the return of another copy, which is known by its number (`header::COPY`). A confirm without a
//! return shows that no return was left: a return of its own copy would be attached to an earlier confirm.
//! A confirm with a return decides nothing for its own copy until all confirms are in.
//!
//! **Size.** A copy that does not fit a frame is shortened (`convert::frame_size`): the broker ends a connection that
//! sends a larger frame.
//!
//! `copy` is one copy, and `ending` closes the channel.

mod copy;
mod ending;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use lapin::message::BasicReturnMessage;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Confirmation};
use tokio::time::{Instant, sleep_until};

use super::RabbitError;
use super::connections::live::LiveConnection;
use super::messages::convert::copies::{copy_number, with_number};
use super::messages::convert::frame_size::shorten_to_frame;

pub(super) use self::copy::{CopyMessage, publish_confirmed};

/// The most copies that are under way at a time.
const MAX_UNCONFIRMED: usize = 512;
/// The most bytes of copies that are under way at a time; a larger copy goes alone.
pub(in crate::rabbit) const WINDOW: usize = 1 << 20;
/// The slowest connection that is waited for, in bytes a second.
const SLOWEST: f64 = 65_536.0;

/// What became of a copy: it is in its queue, or was not taken.
#[derive(Debug)]
pub(in crate::rabbit) struct Decided<T> {
    /// What was handed over with it.
    pub(in crate::rabbit) of: T,
    pub(in crate::rabbit) result: Result<(), RabbitError>,
}

/// A copy that is not decided.
#[derive(Debug)]
struct Pending<T> {
    of: T,
    queue: String,
    bytes: usize,
    since: Instant,
}

/// What the broker answered to a copy.
#[derive(Clone, Copy, Debug)]
enum CopyFate {
    Taken,
    Returned,
    Rejected,
}

type NumberedConfirm = (u64, lapin::Result<Confirmation>);

/// A channel on which copies are published and confirmed, each with a `T` that is returned once it is
/// decided.
#[derive(Debug)]
pub(in crate::rabbit) struct ConfirmChannel<T> {
    pub(super) live: Arc<LiveConnection>,
    channel: Channel,
    /// The longest time without progress.
    confirm: Duration,
    answers: FuturesUnordered<BoxFuture<'static, NumberedConfirm>>,
    /// By number.
    under_way: BTreeMap<u64, Pending<T>>,
    /// The bytes of those.
    bytes: usize,
    /// Copies that came back.
    returned: BTreeSet<u64>,
    /// Copies whose confirm carried a return: their own may come with another confirm.
    doubtful: Vec<u64>,
    /// Why the channel has ended.
    fault: Option<RabbitError>,
    /// A copy was not taken. A channel may go on refusing for a queue that would take copies again, so it
    /// takes no more.
    spent: bool,
    /// How many copies were handed to the connection; that of the last one is its number.
    sent: u64,
    /// How many of those it has written.
    written: Arc<AtomicU64>,
    /// When something was confirmed last, or seen to be written, and how many copies the connection had written
    /// then.
    progress: (Instant, usize),
    /// When something was confirmed last.
    confirmed: Option<Instant>,
}

/// The channel to publish on: the one in `open` as long as it takes copies or some are under way on it, and else
/// a new one on the connection that `live` gets. `confirm`: the longest time without progress.
pub(in crate::rabbit) async fn usable_channel<T>(
    open: &mut Option<ConfirmChannel<T>>,
    live: impl Future<Output = Result<Arc<LiveConnection>, RabbitError>>,
    confirm: Duration,
) -> Result<&mut ConfirmChannel<T>, RabbitError> {
    let channel = match open.take() {
        Some(old) if old.is_open() || !old.is_idle() => old,
        old => {
            if let Some(old) = old {
                old.close().await;
            }
            ConfirmChannel::open(live.await?, confirm).await?
        }
    };
    Ok(open.insert(channel))
}

/// What becomes of copies that are under way; without any it waits forever.
pub(super) async fn next_decided<T>(
    open: &mut Option<ConfirmChannel<T>>,
) -> Result<Vec<Decided<T>>, RabbitError> {
    match open {
        Some(open) if !open.is_idle() => open.next().await,
        _ => std::future::pending().await,
    }
}

impl<T> ConfirmChannel<T> {
    async fn open(live: Arc<LiveConnection>, confirm: Duration) -> Result<Self, RabbitError> {
        if live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        let channel = live.open_channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        live.answer_to("confirm.select", select).await?;
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
            confirmed: None,
        })
    }

    /// Whether new copies may still be published on it, once there is room.
    fn is_open(&self) -> bool {
        !self.spent
            && self.fault.is_none()
            && self.live.is_up()
            && self.channel.status().connected()
    }

    /// Whether no copy is under way.
    pub(in crate::rabbit) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether a copy like that is under way.
    pub(in crate::rabbit) fn has(&self, like: impl Fn(&T) -> bool) -> bool {
        self.under_way.values().any(|pending| like(&pending.of))
    }

    /// How many copies are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether a copy of this many bytes may be published now.
    pub(in crate::rabbit) fn takes(&self, bytes: usize) -> bool {
        let has_room = self.under_way.len() < MAX_UNCONFIRMED && self.bytes + bytes <= WINDOW;
        self.is_open() && (self.is_idle() || has_room)
    }

    /// Publishes a copy, behind those before it: it is sent while [`Self::next`] is polled. Returns whether
    /// it lost headers.
    pub(in crate::rabbit) fn publish(&mut self, copy: CopyMessage, of: T) -> bool {
        if self.is_idle() {
            self.was_left_alone();
        }
        self.sent += 1;
        let number = self.sent;
        let properties = with_number(copy.properties, number);
        let frame_max = self.live.connection.configuration().frame_max() as usize;
        let short = shorten_to_frame(&properties, frame_max);
        let is_short = short.is_some();
        let bytes = copy.body.len();
        let pending = Pending {
            of,
            queue: copy.routing_key.clone(),
            bytes,
            since: Instant::now(),
        };
        let copy = CopyMessage {
            properties: short.unwrap_or(properties),
            ..copy
        };
        self.under_way.insert(number, pending);
        self.bytes += bytes;
        self.live.copies.begin(bytes);
        let (channel, live) = (self.channel.clone(), Arc::clone(&self.live));
        let written = Arc::clone(&self.written);
        self.answers.push(
            async move {
                let on_written = || {
                    written.fetch_add(1, Ordering::Relaxed);
                    live.copies.count_written();
                };
                (number, publish_confirmed(channel, copy, on_written).await)
            }
            .boxed(),
        );
        is_short
    }

    /// [`Self::next`] was not polled for a while, so nothing was written or confirmed: the time starts again.
    pub(super) fn was_left_alone(&mut self) {
        self.progress = (Instant::now(), self.live.copies.written());
    }

    /// Waits until copies are decided. Nothing is lost if this is cancelled.
    ///
    /// # Errors
    /// `Blocked` when the broker takes nothing at present: those under way are still waited for. After any
    /// other error the channel has ended, and the fate of those under way is not known.
    pub(in crate::rabbit) async fn next(&mut self) -> Result<Vec<Decided<T>>, RabbitError> {
        loop {
            if let Some(fault) = &self.fault {
                return Err(fault.clone());
            }
            let late = self.progress.0 + self.patience();
            tokio::select! {
                // Answers first: after this process stood still, both are ready.
                biased;
                Some(first) = self.answers.next() => {
                    // All that are ready: a return may have come with any of them.
                    let mut answers = vec![first];
                    while let Some(Some(answer)) = self.answers.next().now_or_never() {
                        answers.push(answer);
                    }
                    self.progress = (Instant::now(), self.live.copies.written());
                    self.confirmed = Some(self.progress.0);
                    let decided = self.judge(answers);
                    if !decided.is_empty() {
                        return Ok(decided);
                    }
                }
                () = sleep_until(late) => self.check_progress()?,
            }
        }
    }

    /// How long nothing may be confirmed or written.
    fn patience(&self) -> Duration {
        self.confirm + Duration::from_secs_f64(self.live.copies.bytes() as f64 / SLOWEST)
    }

    /// Nothing was confirmed for this long.
    fn check_progress(&mut self) -> Result<(), RabbitError> {
        let written = self.live.copies.written();
        let before = std::mem::replace(&mut self.progress, (Instant::now(), written)).1;
        if self.live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        // Writes count as progress only while copies of this channel are unwritten: later ones are of other
        // channels.
        if written > before && self.is_unwritten() {
            return Ok(());
        }
        Err(RabbitError::Timeout {
            what: "a publish with its confirm",
            waited: self.confirm,
        })
    }

    fn judge(&mut self, answers: Vec<NumberedConfirm>) -> Vec<Decided<T>> {
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
        let fates = [
            (taken, CopyFate::Taken),
            (back, CopyFate::Returned),
            (refused, CopyFate::Rejected),
        ];
        fates
            .into_iter()
            .flat_map(|(numbers, fate)| numbers.into_iter().map(move |number| (number, fate)))
            .filter_map(|(number, fate)| self.decide(number, fate))
            .collect()
    }

    fn decide(&mut self, number: u64, fate: CopyFate) -> Option<Decided<T>> {
        let Pending { of, queue, .. } = self.take_out(number)?;
        let result = match fate {
            CopyFate::Taken => Ok(()),
            CopyFate::Returned => Err(RabbitError::Returned { queue }),
            CopyFate::Rejected => Err(RabbitError::Rejected { queue }),
        };
        Some(Decided { of, result })
    }

    fn take_out(&mut self, number: u64) -> Option<Pending<T>> {
        let pending = self.under_way.remove(&number)?;
        self.bytes -= pending.bytes;
        self.live.copies.end(pending.bytes);
        Some(pending)
    }

    /// What has waited for longer than a confirm may take, though others were confirmed since.
    pub(super) fn silent(&self) -> Option<&T> {
        let (confirmed, patience) = (self.confirmed?, self.patience());
        let is_silent =
            |pending: &&Pending<T>| pending.since < confirmed && pending.since.elapsed() > patience;
        let silent = self.under_way.values().find(is_silent);
        silent
            .filter(|_| !self.live.is_blocked())
            .map(|pending| &pending.of)
    }

    /// Waits no longer for the copies that `is_over` names. Their confirms may still come, and are ignored.
    pub(super) fn give_up(&mut self, is_over: impl Fn(&T) -> bool) -> Vec<T> {
        let over: Vec<u64> = self
            .under_way
            .iter()
            .filter(|(_, pending)| is_over(&pending.of))
            .map(|(number, _)| *number)
            .collect();
        let out = over.into_iter().filter_map(|number| self.take_out(number));
        out.map(|pending| pending.of).collect()
    }

    fn lost(&self, error: &lapin::Error) -> RabbitError {
        if self.live.is_up() {
            RabbitError::from_lapin(error)
        } else {
            self.live.fault()
        }
    }

    /// Whether the connection has not written all copies.
    fn is_unwritten(&self) -> bool {
        self.written.load(Ordering::Relaxed) < self.sent
    }
}

fn number_of(back: &BasicReturnMessage) -> Result<u64, RabbitError> {
    copy_number(&back.properties).ok_or_else(|| RabbitError::Lost {
        reason: "the broker returned a copy without its number".to_owned(),
    })
}
