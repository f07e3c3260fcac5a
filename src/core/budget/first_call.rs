//! Windows that begin with a call, and how far each of them can be trusted.
//!
//! **They are the downstream's secret**: they begin with a call that it has
//! seen, and a grant is no call yet. Its message may find no slot, or its replica may die. If it is not
//! the first one that was sent, the downstream's window ends later than ours, and a whole limit behind
//! ours would be too much for it. So until somebody tells that a call was made ([`Begun`]), any of
//! those granted may have been the first: the window goes on for its whole length behind the last of
//! them, and no more than the limit passes until then. Once it is told, the window ends with the
//! downstream's.
//!
//! What is granted for moments ahead is kept beside the window ([`super::later`]). Each of those calls may
//! begin a window of its own, so no period of a window's length holds more of them than the limit; and as long
//! as the present window may last, they are a part of that one, too. What is only booked is planned
//! ([`super::plan`]): it grants nothing.

use super::Fit;
use super::fixed_window::{Begun, FixedWindow, Used, Window};
use super::plan::Pattern;

impl FixedWindow {
    /// How windows of the first call are planned: as if any of them could begin at any time.
    pub(super) const fn pattern(&self) -> Option<Pattern> {
        if self.is_of_the_clock() {
            return None;
        }
        Some(Pattern::rough(self.limit, self.length))
    }

    /// What was taken of a window of the first call, as units that stop counting when it is over.
    pub(super) fn taken(&self, s: Used) -> Vec<(u64, u64)> {
        let (Begun::By(at) | Begun::Perhaps(at)) = s.begun;
        let taken = (at, s.used);
        if s.used == 0 { Vec::new() } else { vec![taken] }
    }

    /// The window of the first call that `at` lies in; it begins then, if there is none. One of which
    /// all was given back begins with the next call.
    pub(super) fn first_call(&self, s: Option<Used>, at: u64) -> Window {
        let known = s.filter(|s| s.used > 0 && at < self.first_call_end(*s));
        let s = known.unwrap_or_else(|| Used::of(at, 0));
        let end = self.first_call_end(s);
        let closes = match s.begun {
            Begun::By(_) => s.start + self.length - self.guard,
            // Whoever is granted something makes it longer.
            Begun::Perhaps(_) => end,
        };
        Window {
            start: s.start,
            closes,
            end,
            used: s.used,
        }
    }

    /// When a downstream's window is over that began with any of the calls that may have been the first.
    pub(super) const fn first_call_end(&self, s: Used) -> u64 {
        let (Begun::By(at) | Begun::Perhaps(at)) = s.begun;
        at + self.length
    }

    /// When the window began that a call is granted in, as of `at`. `s`: the window that it is a part of, if
    /// there is one.
    pub(super) fn begun_with(&self, s: Option<Used>, at: u64) -> Begun {
        match s.map(|s| (s, s.begun)) {
            // At its end the downstream may have begun another one.
            Some((s, Begun::By(made))) if at < s.start + self.length - self.guard => {
                Begun::By(made)
            }
            Some((_, Begun::Perhaps(last))) => Begun::Perhaps(last.max(at)),
            Some(_) | None => Begun::Perhaps(at),
        }
    }

    /// When units fit beside a window and what was granted for moments ahead.
    pub(super) fn earliest_beside(
        &self,
        s: Option<Used>,
        later: &[(u64, u64)],
        from: u64,
        cost: u64,
    ) -> Option<Fit> {
        if cost > self.limit {
            return None;
        }
        let pattern = Pattern::exact(self.limit, self.length);
        let mut at = from.max(s.map_or(0, |s| s.start));
        loop {
            at = pattern.earliest(later, at, cost);
            let Some(window) = s
                .map(|s| self.first_call(Some(s), at))
                .filter(|w| w.used > 0)
            else {
                return Some(Fit::firm(at));
            };
            let inside = later.iter().filter(|(time, _)| *time < window.end);
            let used = window.used + inside.map(|(_, units)| units).sum::<u64>();
            if at < window.closes && used + cost <= self.limit {
                return Some(Fit::firm(at));
            }
            at = window.end;
        }
    }

    /// Whether a call that was granted as of `at` may be a part of this window or of the next one, at `now`.
    /// Until that is clear it is told apart from both.
    pub(super) fn is_between(&self, s: Used, at: u64, now: u64) -> bool {
        let window = self.first_call(Some(s), at);
        window.used > 0 && at >= window.closes && now < window.end
    }

    /// Whether it matters that a call is told to be made that was granted last.
    pub(super) const fn is_in_doubt(&self, s: Used) -> bool {
        match s.begun {
            Begun::By(_) => false,
            Begun::Perhaps(last) => s.used < self.limit || last > s.start,
        }
    }

    /// The window after a call was made that had been granted as of `at`; `None` if that tells nothing.
    /// Calls may have been granted since when the downstream's window could be over already: then it
    /// stays in doubt.
    pub(super) fn made(&self, s: Used, at: u64) -> Option<Used> {
        let closes = s.start + self.length - self.guard;
        let begun = match s.begun {
            _ if self.is_of_the_clock() || s.used == 0 || at < s.start => false,
            Begun::Perhaps(last) => at <= last && last < closes,
            Begun::By(made) => at < made,
        };
        begun.then_some(Used {
            begun: Begun::By(at),
            ..s
        })
    }
}
