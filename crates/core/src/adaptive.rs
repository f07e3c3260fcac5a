//! The rate of a limit whose downstream allows less than the configuration says.
//!
//! Problem: where 300 a second are allowed and 400 are configured, a downstream that refuses the account freezes the
//! limit for all replicas, again and again, and half of what is allowed goes unused. So the shared rate follows the
//! downstream: such a freeze lowers it by a tenth, or back to the rate that was kept before; after a quiet time it
//! rises again, half of the way to the rate that was too much. A rise that fails costs a freeze, and makes the quiet
//! time four times as long, so a higher rate is seldom tried. Once a rate is kept that was too much before, the quiet
//! time is short again. The rate stays between a floor and the configured rate.
//!
//! Each replica decides by itself, from the current rates, which all of them see. A new rate is an
//! update of the policy; if several replicas make the same update, one succeeds.

use std::time::Duration;

use super::time::Mono;

/// The first quiet time before the rate rises.
const QUIET: Duration = Duration::from_secs(10);
/// The longest.
const QUIET_MAX: Duration = Duration::from_secs(300);
/// An update that was not made within this time is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// The bounds of the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRule {
    /// Units of a window, as configured.
    pub units: u32,
    /// No fewer.
    pub floor: u32,
    /// After a change the downstream still counts calls of the rate before: its window, and a little.
    pub settle: Duration,
}

/// What a replica knows of a limit's true rate.
#[derive(Clone, Debug)]
pub struct Adaptive {
    rule: AdaptiveRule,
    /// Units of a window, as the current policy says.
    current: u32,
    /// A rate that was kept before the last rise.
    kept_rate: Option<u32>,
    /// A rate that was too much.
    too_high_rate: Option<u32>,
    throttled: bool,
    /// The last change was a rise.
    rose: bool,
    changed: Mono,
    quiet: Duration,
    asked: Option<Mono>,
}

impl Adaptive {
    /// Starts at a rate that is the current one since `now`.
    #[must_use]
    pub fn new(rule: AdaptiveRule, current: u32, now: Mono) -> Self {
        Self {
            rule,
            current,
            kept_rate: None,
            too_high_rate: None,
            throttled: false,
            rose: false,
            changed: now,
            quiet: QUIET,
            asked: None,
        }
    }

    /// The bounds of the rate.
    #[must_use]
    pub const fn rule(&self) -> &AdaptiveRule {
        &self.rule
    }

    /// The downstream said "not now".
    pub fn note_throttled(&mut self, now: Mono) {
        // Soon after a fall, a refusal is still about the higher rate before it, and does not count. Soon after a rise
        // it counts, because the rate before the rise was kept.
        if self.rose || now.since(self.changed) >= self.rule.settle {
            self.throttled = true;
        }
    }

    /// The rate was replaced.
    pub fn note_current(&mut self, units: u32, now: Mono) {
        if units < self.current {
            self.too_high_rate = Some(self.current);
            self.kept_rate = self.kept_rate.filter(|rate| *rate < units);
            if self.rose {
                self.quiet = (self.quiet * 4).min(QUIET_MAX);
            }
        } else if units > self.current {
            // A rise follows a quiet time: the rate was kept, and no rate is known to be too much.
            if self.too_high_rate.is_none() {
                self.quiet = QUIET;
            }
            self.kept_rate = Some(self.current);
            self.too_high_rate = self.too_high_rate.filter(|rate| *rate > units);
        } else {
            return;
        }
        self.rose = units > self.current;
        (self.current, self.changed) = (units, now);
        (self.throttled, self.asked) = (false, None);
    }

    /// The rate that should replace it, if it is time for one.
    pub fn wanted(&mut self, now: Mono) -> Option<u32> {
        if self.asked.is_some_and(|at| now.since(at) < ASK_AGAIN) {
            return None;
        }
        let step = if self.throttled {
            self.lower()
        } else if now.since(self.changed) >= self.quiet {
            self.higher()
        } else {
            return None;
        };
        let wanted = step.clamp(self.rule.floor, self.rule.units);
        let changes = wanted != self.current;
        self.asked = changes.then_some(now);
        // At the floor it cannot fall any further.
        self.throttled &= changes;
        changes.then_some(wanted)
    }

    fn lower(&self) -> u32 {
        let tenth = (self.current / 10).max(1);
        let kept = self.kept_rate.filter(|rate| *rate < self.current);
        kept.unwrap_or(self.current - tenth.min(self.current))
    }

    fn higher(&self) -> u32 {
        // Nearer than this there is no point in halving.
        let step = (self.rule.units / 100).max(1);
        let gap = self
            .too_high_rate
            .unwrap_or(self.rule.units)
            .saturating_sub(self.current);
        self.current + (gap / 2).max(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// A fleet of three replicas on a virtual clock.
    struct World {
        replicas: Vec<Adaptive>,
        in_force: u32,
        now: u64,
    }

    impl World {
        fn new() -> Self {
            let rule = AdaptiveRule {
                units: 400,
                floor: 40,
                settle: Duration::from_millis(1_500),
            };
            let begun = Mono::from_micros(SECOND);
            Self {
                replicas: vec![Adaptive::new(rule, 400, begun); 3],
                in_force: 400,
                now: SECOND,
            }
        }

        fn run(&mut self, allowed: u32, seconds: u64) -> (u64, u64) {
            let (mut delivered, mut refused) = (0, 0);
            for _ in 0..seconds {
                self.now += SECOND;
                let now = Mono::from_micros(self.now);
                delivered += u64::from(self.in_force.min(allowed));
                if self.in_force > allowed {
                    refused += 1;
                    // One of the replicas is the first to exceed the rate.
                    let unlucky = (self.now / SECOND) as usize % 3;
                    self.replicas[unlucky].note_throttled(now);
                }
                for replica in 0..3 {
                    if let Some(wanted) = self.replicas[replica].wanted(now) {
                        self.in_force = wanted;
                        for each in &mut self.replicas {
                            each.note_current(wanted, now);
                        }
                    }
                }
            }
            (delivered, refused)
        }
    }

    #[test]
    fn it_finds_the_true_rate_quickly_and_seldom_tries_for_more() {
        let mut world = World::new();
        world.run(300, 10);
        assert!((250..=300).contains(&world.in_force), "{}", world.in_force);
        let (delivered, refused) = world.run(300, 600);
        assert!(delivered >= 285 * 600, "{delivered}");
        assert!(refused <= 8, "{refused} of 600 seconds");
    }

    #[test]
    fn a_rise_that_fails_at_once_is_taken_back_at_once() {
        let rule = *World::new().replicas[0].rule();
        let now = Mono::from_micros(SECOND);
        let mut adaptive = Adaptive::new(rule, 300, now);
        adaptive.note_current(320, now);
        adaptive.note_throttled(now + Duration::from_millis(300));
        assert_eq!(adaptive.wanted(now + Duration::from_millis(300)), Some(300));
        // A refusal after the fall is still about the earlier rate.
        adaptive.note_current(300, now + Duration::from_millis(400));
        adaptive.note_throttled(now + Duration::from_millis(500));
        assert_eq!(adaptive.wanted(now + Duration::from_millis(500)), None);
    }

    #[test]
    fn it_comes_back_in_steps_when_more_is_allowed() {
        let mut world = World::new();
        world.run(300, 120);
        world.run(400, 900);
        assert_eq!(world.in_force, 400);
    }

    #[test]
    fn it_keeps_a_floor() {
        let mut world = World::new();
        world.run(1, 300);
        assert!(
            world.in_force >= 40 && world.in_force <= 60,
            "{}",
            world.in_force
        );
    }

    #[test]
    fn an_allowed_rate_is_left_alone() {
        let mut world = World::new();
        assert_eq!(world.run(400, 1_000), (400_000, 0));
    }

    #[test]
    fn whatever_is_in_force_it_stays_in_its_range() {
        let rule = AdaptiveRule {
            units: 7,
            floor: 3,
            settle: Duration::ZERO,
        };
        for current in 0..=9 {
            let mut adaptive = Adaptive::new(rule, current, Mono::from_micros(1));
            let later = Mono::from_micros(1_000 * SECOND);
            if let Some(wanted) = adaptive.wanted(later) {
                assert!((3..=7).contains(&wanted), "{current}: {wanted}");
            }
            adaptive.note_throttled(later);
            let much_later = later + Duration::from_secs(5);
            if let Some(wanted) = adaptive.wanted(much_later) {
                assert!((3..=7).contains(&wanted), "{current}: {wanted}");
            }
        }
    }
}
