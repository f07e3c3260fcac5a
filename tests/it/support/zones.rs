//! Time zones of tests, which must pass at every hour of the day.

/// A time zone in which it is `hour` o'clock now, from 0 to 23.
pub fn where_it_is(hour: i64) -> String {
    let now = jiff::Timestamp::now().as_second() / 3600 % 24;
    // Names of Etc have the opposite sign.
    let ahead = (hour - now + 36) % 24 - 12;
    format!("Etc/GMT{:+}", -ahead)
}
