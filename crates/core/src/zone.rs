//! Time zones for calendar windows and opening hours.
//!
//! The rules come from the database that is compiled in, never from the host. Otherwise replicas on
//! hosts with different `tzdata` would count in different windows, a container without it would not
//! start, and decisions would read files. So a change of the rules needs a release of sluiced.
//!
//! Points in time are whole seconds since the Unix epoch here: offsets have whole seconds, so
//! nothing changes within one.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};

use super::time::StoreTime;

/// The last second that is used (in the year 2255): where [`StoreTime`] ends. Later times count
/// as that second, so that the calendar always has an answer.
const LAST: i64 = (1_i64 << 53) / 1_000_000;
/// How similar a known name must be to be suggested for an unknown one.
const ALIKE: f64 = 0.85;
/// How many are suggested at most.
const OFFERS: usize = 3;

/// A time zone of the IANA database.
#[derive(Clone)]
pub struct Zone {
    zone: TimeZone,
    name: String,
}

/// A name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no time zone; {}", offer(.near))]
pub struct UnknownZone {
    /// The unknown name.
    pub name: String,
    /// The names that are most like it, the best first; may be empty.
    pub near: Vec<String>,
}

fn offer(near: &[String]) -> String {
    match near.split_last() {
        None => "it needs a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\"".into(),
        Some((only, [])) => format!("did you mean \"{only}\"?"),
        Some((last, rest)) => format!("did you mean \"{}\" or \"{last}\"?", rest.join("\", \"")),
    }
}

impl Zone {
    /// The zone of that name, in any case: `Europe/Berlin`, `UTC`, `Etc/GMT+3`.
    ///
    /// # Errors
    /// When there is none, with the names that are most like it.
    pub fn named(name: &str) -> Result<Self, UnknownZone> {
        let found = TimeZoneDatabase::bundled().get(name).ok();
        // The database also has a name for "unknown".
        let Some(zone) = found.filter(|zone| !zone.is_unknown()) else {
            return Err(UnknownZone {
                name: name.to_owned(),
                near: near(name),
            });
        };
        Ok(Self {
            name: zone.iana_name().unwrap_or(name).to_owned(),
            zone,
        })
    }

    /// Coordinated universal time.
    #[must_use]
    pub fn utc() -> Self {
        Self {
            zone: TimeZone::UTC,
            name: "UTC".to_owned(),
        }
    }

    /// The name of the zone in the database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a clock on the wall shows, for logs: `2026-03-29T08:00:00+02:00[Europe/Berlin]`.
    #[must_use]
    pub fn show(&self, at: StoreTime) -> String {
        timestamp(second(at))
            .to_zoned(self.zone.clone())
            .to_string()
    }

    /// The first moment at which a clock on the wall shows this, such as `2026-01-05T08:00`; right after the
    /// jump if it jumps over it. `None`: that is no date with a time, or out of range.
    #[must_use]
    pub fn moment(&self, reading: &str) -> Option<StoreTime> {
        let civil: DateTime = reading.parse().ok()?;
        let at = self.first_reading(civil)?;
        (0..=LAST).contains(&at).then(|| store_time(at))
    }

    /// What a clock on the wall shows.
    pub(super) fn reading(&self, at: i64) -> DateTime {
        self.zone.to_datetime(timestamp(at))
    }

    /// The seconds by which the local clock is ahead of UTC.
    pub(super) fn offset(&self, at: i64) -> i64 {
        i64::from(self.zone.to_offset(timestamp(at)).seconds())
    }

    /// When the offset may change next, after `at`.
    pub(super) fn change_after(&self, at: i64) -> Option<i64> {
        let next = self.zone.following(timestamp(at)).next()?;
        Some(next.timestamp().as_second())
    }

    /// Since when the offset at `at` holds, as far as is known.
    pub(super) fn change_until(&self, at: i64) -> Option<i64> {
        let last = self.zone.preceding(timestamp(at + 1)).next()?;
        Some(last.timestamp().as_second())
    }

    /// The first moment at which the local clock shows `civil` or, where it jumps over it, more.
    /// `None` beyond the years of the calendar.
    pub(super) fn first_reading(&self, civil: DateTime) -> Option<i64> {
        let at = match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok()?,
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok()?,
            AmbiguousOffset::Gap { after, .. } => {
                // With the later offset it would have been before the jump.
                let before = after.to_timestamp(civil).ok()?;
                self.zone
                    .following(before)
                    .map(|change| change.timestamp())
                    .find(|at| self.zone.to_datetime(*at) >= civil)?
            }
        };
        Some(at.as_second())
    }
}

/// The second that a time lies in.
pub(super) fn second(at: StoreTime) -> i64 {
    i64::try_from(at.as_micros() / 1_000_000).map_or(LAST, |second| second.min(LAST))
}

/// The start of a second; the epoch's if it lies before.
pub(super) fn store_time(second: i64) -> StoreTime {
    let second = u64::try_from(second).unwrap_or(0);
    StoreTime::from_micros(second.saturating_mul(1_000_000))
}

fn timestamp(second: i64) -> Timestamp {
    // Out of range only far beyond the times that `second` allows.
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

/// The known names that are most like `name`: as a whole, or by their last part (`Berlin`).
fn near(name: &str) -> Vec<String> {
    let wanted = name.to_lowercase().replace(' ', "_");
    let alike = |zone_name: &str| {
        let zone_name = zone_name.to_lowercase();
        let place = zone_name.rsplit('/').next().unwrap_or(&zone_name);
        strsim::jaro_winkler(&zone_name, &wanted).max(strsim::jaro_winkler(place, &wanted))
    };
    let mut found: Vec<(f64, String)> = TimeZoneDatabase::bundled()
        .available()
        .map(|zone| (alike(zone.as_str()), zone.as_str().to_owned()))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.truncate(OFFERS);
    found.into_iter().map(|(_, name)| name).collect()
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::named(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_in_any_case_and_keeps_its_own_name() {
        assert_eq!(
            Zone::named("europe/berlin").unwrap().name(),
            "Europe/Berlin"
        );
        assert_eq!(Zone::named("utc").unwrap(), Zone::utc());
    }

    #[test]
    fn a_typo_is_answered_with_what_was_meant() {
        for (typo, meant) in [
            ("Europe/Berln", "Europe/Berlin"),
            ("Berlin", "Europe/Berlin"),
            ("Asia/Shangai", "Asia/Shanghai"),
            ("America/New York", "America/New_York"),
            ("Sao_Paolo", "America/Sao_Paulo"),
        ] {
            let error = Zone::named(typo).unwrap_err();
            assert_eq!(
                error.near.first().map(String::as_str),
                Some(meant),
                "{error}"
            );
            assert!(error.to_string().contains(typo), "{error}");
        }
        for name in ["", "Q", "Etc/Unknown", "../../etc/passwd", "EST5EDT,M3"] {
            let error = Zone::named(name).unwrap_err();
            assert_eq!(error.name, name);
        }
    }

    #[test]
    fn a_reading_that_does_not_exist_is_the_end_of_its_gap() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let civil = jiff::civil::date(2026, 3, 29).at(2, 30, 0, 0);
        let at = berlin.first_reading(civil).unwrap();
        assert_eq!(
            berlin.show(store_time(at)),
            "2026-03-29T03:00:00+02:00[Europe/Berlin]"
        );
        // In 1919 Toronto jumped from 23:30 to 00:30: that day began in the gap.
        let toronto = Zone::named("America/Toronto").unwrap();
        let at = toronto.first_reading(jiff::civil::date(1919, 3, 31).at(0, 0, 0, 0));
        let shown = toronto.reading(at.unwrap());
        assert_eq!(shown, jiff::civil::date(1919, 3, 31).at(0, 30, 0, 0));
    }

    #[test]
    fn a_reading_that_comes_twice_counts_the_first_time() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let civil = jiff::civil::date(2026, 10, 25).at(2, 30, 0, 0);
        let at = berlin.first_reading(civil).unwrap();
        assert_eq!(
            berlin.show(store_time(at)),
            "2026-10-25T02:30:00+02:00[Europe/Berlin]"
        );
    }
}
