//! Whether the long variants run: more seeds, more cases, longer fleets. `./test --soak` turns
//! them on.

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

/// `short`, and `long` in a long variant.
#[must_use]
pub fn at_length<T>(short: T, long: T) -> T {
    if soak() { long } else { short }
}
