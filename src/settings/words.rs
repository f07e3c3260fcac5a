//! What a limit will do, in words, for `sluiced check`.

use super::types::{FixedWindow, Limit, WindowStart};
use super::window::WindowRate;
use crate::core::limits::generation::LostWait;
use crate::core::rate::Span;

impl Limit {
    /// Sentences about it: what passes, how late a call may be, and what happens if the store that replicas
    /// share loses its state (`None` if each replica is alone).
    #[must_use]
    pub fn in_words(&self, store: Option<&str>) -> Vec<String> {
        let each = self
            .key()
            .map(|key| format!("for each `{}` ", key.as_str()));
        let over = store.map_or("in this process", |_| "over all replicas");
        let passes = format!("{}, {}{over}", self.passes(), each.unwrap_or_default());
        let lost = store.zip(self.counting());
        let lost = lost.map(|(store, counting)| self.lost_words(store, counting.lost_wait.0));
        [passes, self.late_words()]
            .into_iter()
            .chain(lost)
            .collect()
    }

    fn passes(&self) -> String {
        match self {
            Self::Paced(limit) => {
                let passes = in_any(limit.rate.0.units().get(), limit.rate.0.window());
                match limit.largest_cost().get() {
                    1 => passes,
                    most => format!(
                        "{passes} ({} of them unused, because a message may cost up to {most}: max_cost)",
                        most - 1
                    ),
                }
            }
            Self::SlidingLog(limit) => {
                in_any(limit.own.rate.0.units().get(), limit.own.rate.0.window())
            }
            Self::Gcra(limit) => {
                let (rate, burst) = (limit.own.rate.0, limit.own.burst);
                let more = if burst > 0 {
                    format!(", and up to {burst} more at once")
                } else {
                    String::new()
                };
                format!(
                    "{} evenly in {}{more}",
                    units(rate.units().get()),
                    Span(rate.window())
                )
            }
            Self::TokenBucket(limit) => {
                let bucket = &limit.own;
                let most = bucket.capacity.get().saturating_add(bucket.borrow);
                let (back, interval) = (bucket.refill, Span(bucket.interval.get()));
                format!(
                    "up to {} at once, and {back} more every {interval}",
                    units(most)
                )
            }
            Self::FixedWindow(limit) => window_words(&limit.own),
            Self::Concurrency(limit) => {
                format!("at most {} in flight at once", units(limit.own.limit.get()))
            }
        }
    }

    fn late_words(&self) -> String {
        let from = match self {
            Self::Paced(_) => "its slot",
            _ => "it was allowed",
        };
        let (late, way) = (self.late_limit(), self.headroom() - self.late_limit());
        format!(
            "a call may leave up to {} after {from}; {} is left for the way",
            Span(late),
            Span(way)
        )
    }

    fn lost_words(&self, store: &str, wait: LostWait) -> String {
        let memory = Span(self.memory());
        match wait {
            LostWait::For(wait) if wait < memory.0 => {
                let closed = if wait.is_zero() {
                    "calls go on at once".to_owned()
                } else {
                    format!("nothing passes for {}", Span(wait))
                };
                format!(
                    "if {store} loses its state, {closed}; what was used up to {memory} before is forgotten then, and up to twice the limit may pass"
                )
            }
            LostWait::For(_) | LostWait::Forever => format!(
                "if {store} loses its state, nothing passes until nothing that was used before can count: up to {memory}"
            ),
        }
    }
}

fn units(number: u32) -> String {
    format!("{number} unit{}", if number == 1 { "" } else { "s" })
}

fn in_any(number: u32, window: std::time::Duration) -> String {
    format!("at most {} in any {}", units(number), Span(window))
}

fn window_words(limit: &FixedWindow) -> String {
    let most = units(limit.rate.units().get());
    match (limit.rate, limit.starts()) {
        (WindowRate::Calendar { each, .. }, WindowStart::Calendar(calendar)) => {
            format!("at most {most} each {each} of {}", calendar.zone.name())
        }
        (rate, WindowStart::FirstCall) => {
            format!(
                "at most {most} in each {} from a first call on",
                Span(rate.longest())
            )
        }
        (rate, _) => format!(
            "at most {most} in each {} of the clock",
            Span(rate.longest())
        ),
    }
}
