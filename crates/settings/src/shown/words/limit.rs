//! What a limit will do, in words.

use super::units;
use crate::fixed_or_template::Costing;
use crate::text::WindowRate;
use crate::types::{FixedWindow, Limit, OnUnknown};
use sluiced_core::headroom::Headroom;
use sluiced_core::limits::generation::LostWait;
use sluiced_core::limits::most_plausible;
use sluiced_core::rate::{Cost, Span};
use sluiced_template::says_none;

impl Limit {
    /// Sentences about it: what passes, how late a call may be, and what happens if the store that replicas
    /// share loses its state (`None` if each replica is alone).
    #[must_use]
    pub fn in_words(&self, store: Option<&str>) -> Vec<String> {
        let queues = match self.as_once().map(|once| once.shared) {
            None => "",
            Some(true) => "of all queues together ",
            Some(false) => "of each queue ",
        };
        let per_key = self
            .key()
            .map(|key| format!("for each `{}` {queues}", key.as_str()));
        let over = store.map_or("in this process", |_| "over all replicas");
        let passes = format!("{}, {}{over}", self.passes(), per_key.unwrap_or_default());
        let passed_over = self
            .key()
            .filter(|key| says_none(key.as_str()))
            .map(|_| "messages whose key is none are not counted by this limit".to_owned());
        let lost = store
            .filter(|_| self.as_paced().is_none())
            .map(|store| self.lost_words(store, self.lost_wait()));
        let shared = store.filter(|_| self.shared()).map(|store| {
            format!("it is shared with every other fleet of this {store} whose file says shared = true, too; write the same values there")
        });
        [
            Some(passes),
            shared,
            self.unknown_words(),
            self.reserve_words(),
            Some(self.late_words()),
        ]
        .into_iter()
        .flatten()
        .chain(passed_over)
        .chain(self.actual_words())
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
                let burst_words = if burst > 0 {
                    format!(", and up to {burst} more at once")
                } else {
                    String::new()
                };
                format!(
                    "{} evenly in {}{burst_words}",
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
            Self::Once(limit) => {
                let ttl = Span(limit.ttl.get());
                format!("one accepted message within {ttl}, and later ones are repeats")
            }
        }
    }

    fn actual_words(&self) -> Option<String> {
        let actual = self.actual()?.as_str();
        let estimate = match self.cost() {
            Costing::Fixed(cost) => units(cost.get()),
            Costing::Template(text) => format!("`{}`", text.as_str()),
        };
        let most = match self.max_actual() {
            Some(most) => most.to_string(),
            None => format!("{} times the estimate", most_plausible(Cost::ONE, None)),
        };
        Some(format!(
            "a message takes {estimate} as an estimate before its call; after its answer the count is corrected to what the call really used (`{actual}`), and what was used beyond the limit makes later messages wait; without such an answer, or with one that says more than {most}, the estimate stands"
        ))
    }

    fn unknown_words(&self) -> Option<String> {
        let once = self.as_once()?;
        let becomes = match once.on_unknown {
            OnUnknown::Resend => "is called, perhaps for the second time",
            OnUnknown::DeadLetter => {
                "is a dead letter with the reason unknown, perhaps without a call"
            }
        };
        Some(format!(
            "a repeat is done without a call; a message whose replica died during its call waits for {} and then {becomes}",
            Span(once.lease.get())
        ))
    }

    fn reserve_words(&self) -> Option<String> {
        let limit = self.as_paced()?;
        let (share, from) = (limit.reserve?, limit.reserve_priority);
        Some(format!(
            "{share} of it only for messages of priority {from} and above, which may take the rest, too"
        ))
    }

    fn late_words(&self) -> String {
        let is_paced = self.as_paced().is_some();
        let Headroom { late, way } = self.headroom();
        if let Some(bounds) = self.auto_bounds() {
            let from = match is_paced {
                true => "their slots",
                false => "they were allowed",
            };
            return format!(
                "headroom {} at first, then from {} to {}: it follows how late calls leave after {from}, and by how much the time to the downstream varies",
                Span(late + way),
                Span(bounds.least.all()),
                Span(bounds.most)
            );
        }
        let from = match is_paced {
            true => "its slot",
            false => "it was allowed",
        };
        format!(
            "a call may leave up to {} after {from}; the time of its way to the downstream may vary by {}",
            Span(late),
            Span(way)
        )
    }

    fn lost_words(&self, store: &str, wait: LostWait) -> String {
        if self.as_once().is_some() {
            return format!(
                "if {store} loses its state, it is forgotten what was accepted: a repeat is called once more"
            );
        }
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

fn in_any(number: u32, window: std::time::Duration) -> String {
    format!("at most {} in any {}", units(number), Span(window))
}

fn window_words(limit: &FixedWindow) -> String {
    let most = units(limit.rate.units().get());
    let span = Span(limit.rate.longest());
    let window = match (limit.rate, limit.aligned) {
        (WindowRate::Calendar { each, .. }, _) => format!("{each} of {}", limit.zone().name()),
        (WindowRate::Every(_), false) => format!("{span} from a first call on"),
        (WindowRate::Every(_), true) => format!("{span} of the clock"),
    };
    format!("at most {most} in each {window}, and up to twice as many around the end of one")
}
