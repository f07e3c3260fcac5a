//! How many bytes of messages a channel may hold.
//!
//! Problem: a prefetch counts messages, and RabbitMQ has none that counts bytes. A route with a prefetch of 500 that
//! gets messages of 16 MiB would hold 8 GB: a few hostile ones end each replica for its memory, one after the other. So
//! the bodies of what is not settled are summed. A delivery that does not fit goes back to its queue at once, and the
//! consumers close until the sum allows more. Then they open with a prefetch for messages as large as that delivery.
//! They open with their usual prefetch only after [`CALM`] in which no large message came and none was held. They must
//! not do so more often: each time, all large messages within the prefetch may go back, and a quorum queue drops a
//! message that was given back too often. Messages of the usual size never come near the bound (see
//! [`ByteBudget::for_prefetch`]), so it costs them nothing.

use std::time::Duration;

use super::time::Mono;

/// How long few messages are consumed after the last large one was there.
pub const CALM: Duration = Duration::from_secs(2);

/// The least bound, in bytes. RabbitMQ takes messages of 16 MiB (since 4.0, by default), and some of them
/// are to fit.
const LEAST: u64 = 64 << 20;

/// How consumers are to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// With their own prefetch.
    Usual,
    /// For this many messages together.
    Reduced(u16),
}

/// Something did not fit, not long ago.
#[derive(Clone, Copy, Debug)]
struct ReducedPrefetch {
    until: Mono,
    /// The largest that did not fit, in bytes.
    largest: u64,
}

/// The bytes of the unsettled deliveries of one channel.
#[derive(Debug)]
pub struct ByteBudget {
    most: u64,
    /// If all messages had this many bytes at most, they would fit, whatever the prefetch lets come.
    usual: u64,
    held: u64,
    /// How many of the held messages are larger than usual.
    large: u64,
    /// Something did not fit since the consumers were opened.
    has_overflowed: bool,
    few: Option<ReducedPrefetch>,
}

impl ByteBudget {
    /// For a channel that consumes `prefetch` messages at a time, which usually have `max_body` bytes at most. The
    /// bound is twice their product: where the tap closes and opens, half of a prefetch is held beside a whole one.
    #[must_use]
    pub fn for_prefetch(prefetch: u64, max_body: u64) -> Self {
        let two_windows = prefetch.saturating_mul(max_body).saturating_mul(2);
        let most = two_windows.max(LEAST);
        Self {
            most,
            usual: most / prefetch.saturating_mul(2).max(1),
            held: 0,
            large: 0,
            has_overflowed: false,
            few: None,
        }
    }

    /// The bound, in bytes.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// A delivery of this many bytes came. `false`: it does not fit, and is to go back to its queue. One
    /// always fits: a message that is larger than the bound is held alone.
    #[must_use]
    pub fn take(&mut self, bytes: u64, now: Mono) -> bool {
        if self.held > 0 && bytes > self.most.saturating_sub(self.held) {
            let before = self.few.map_or(0, |few| few.largest);
            self.has_overflowed = true;
            self.few = Some(ReducedPrefetch {
                until: now + CALM,
                largest: before.max(bytes),
            });
            return false;
        }
        self.exceed(bytes);
        if let Some(few) = self.few.as_mut().filter(|_| bytes > self.usual) {
            few.until = now + CALM;
        }
        true
    }

    /// A delivery that did not fit is held all the same.
    pub fn exceed(&mut self, bytes: u64) {
        self.held = self.held.saturating_add(bytes);
        self.large += u64::from(bytes > self.usual);
    }

    /// A delivery that was taken is settled.
    pub fn settle(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        self.large = self.large.saturating_sub(u64::from(bytes > self.usual));
    }

    /// No large one was there for a while.
    fn is_calm(&self, now: Mono) -> bool {
        self.large == 0 && self.few.is_none_or(|few| few.until <= now)
    }

    /// Whether open consumers are to be closed: something did not fit, or they may open as usual again.
    #[must_use]
    pub fn must_close(&self, now: Mono) -> bool {
        self.has_overflowed || (self.few.is_some() && self.is_calm(now))
    }

    /// How consumers may be opened now; `None`: there is no room yet.
    pub fn open(&mut self, now: Mono) -> Option<Opening> {
        if self.is_calm(now) {
            self.few = None;
        }
        let free = self.most.saturating_sub(self.held);
        let opening = match self.few {
            None if self.held <= self.most / 2 => Opening::Usual,
            None => return None,
            Some(few) => match free / few.largest.max(1) {
                0 if self.held > 0 => return None,
                fit => Opening::Reduced(u16::try_from(fit.max(1)).unwrap_or(u16::MAX)),
            },
        };
        self.has_overflowed = false;
        Some(opening)
    }
}

#[cfg(test)]
mod tests;
