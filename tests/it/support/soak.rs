//! Whether the long variants run: more seeds, more cases, longer fleets. `./test --soak` says so.

use std::time::Duration;

/// The one place that reads it.
#[must_use]
pub fn soak() -> bool {
    std::env::var_os("SOAK").is_some()
}

/// `count`, and ten times as much in a long variant.
#[must_use]
pub fn longer<T: std::ops::Mul<Output = T> + From<u8>>(count: T) -> T {
    count * T::from(if soak() { 10 } else { 1 })
}

/// For how long faults happen at random: `SOAK_SECONDS`, else an hour in the long variant.
#[must_use]
pub fn at_random() -> Duration {
    let usual = if soak() { 3_600 } else { 12 };
    Duration::from_secs(number("SOAK_SECONDS").unwrap_or(usual))
}

/// Which faults happen: `SOAK_SEED`, else others each time.
#[must_use]
pub fn seed() -> u64 {
    number("SOAK_SEED").unwrap_or_else(rand::random)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a whole number"))
}
