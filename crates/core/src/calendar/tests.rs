//! Where windows of the calendar begin and end, also where clocks change.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;
/// From 1970 on, all of these change their offset at whole minutes only.
const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Havana",
    "America/Scoresbysund",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Asia/Shanghai",
    "Asia/Amman",
    "Asia/Gaza",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Pacific/Chatham",
];
const UNITS: [CalendarUnit; 6] = [
    CalendarUnit::Second,
    CalendarUnit::Minute,
    CalendarUnit::Hour,
    CalendarUnit::Day,
    CalendarUnit::Week,
    CalendarUnit::Month,
];

struct Window {
    start: StoreTime,
    /// The first moment after it.
    end: StoreTime,
}

impl Calendar {
    /// The window that `at` lies in.
    fn window(&self, at: StoreTime) -> Window {
        let bounds = self.windows_from(at, 1);
        Window {
            start: bounds[0],
            end: bounds[1],
        }
    }
}

fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
    Calendar::new(unit, Zone::named(zone).unwrap())
}

fn at(text: &str) -> StoreTime {
    let second = text.parse::<jiff::Timestamp>().unwrap().as_second();
    store_time(second)
}

fn hours(windows: &[StoreTime]) -> Vec<f64> {
    let length = |pair: &[StoreTime]| pair[1].since(pair[0]).as_secs_f64() / 3600.0;
    windows.windows(2).map(length).collect()
}

#[test]
fn a_unit_is_the_word_of_a_rate() {
    for unit in UNITS {
        assert_eq!(unit.word().parse(), Ok(unit));
    }
    let error = "fortnight".parse::<CalendarUnit>().unwrap_err().to_string();
    assert!(error.contains("`fortnight`") && error.contains("day, week and month"));
}

#[test]
fn a_day_in_berlin_has_23_or_25_hours_when_the_clocks_change() {
    let days = calendar(CalendarUnit::Day, "Europe/Berlin");
    let spring = days.windows_from(at("2026-03-28T12:00:00Z"), 3);
    assert_eq!(spring[0], at("2026-03-27T23:00:00Z"));
    assert_eq!(hours(&spring), [24.0, 23.0, 24.0]);
    let autumn = days.windows_from(at("2026-10-24T12:00:00Z"), 3);
    assert_eq!(hours(&autumn), [24.0, 25.0, 24.0]);
}

#[test]
fn an_hour_is_an_hour_when_the_clocks_change() {
    let of_day = calendar(CalendarUnit::Hour, "Europe/Berlin");
    for day in ["2026-03-28T22:30:00Z", "2026-10-24T22:30:00Z"] {
        assert_eq!(hours(&of_day.windows_from(at(day), 6)), [1.0; 6]);
    }
    // Half an hour forward at 02:00, half an hour back at 02:00: no clock struck in between.
    let lord_howe = calendar(CalendarUnit::Hour, "Australia/Lord_Howe");
    let spring = lord_howe.windows_from(at("2026-10-03T13:45:00Z"), 4);
    assert_eq!(hours(&spring), [1.0, 1.5, 1.0, 1.0]);
    let autumn = lord_howe.windows_from(at("2026-04-04T13:15:00Z"), 4);
    assert_eq!(hours(&autumn), [1.0, 1.5, 1.0, 1.0]);
}

#[test]
fn an_hour_in_kathmandu_begins_at_a_quarter() {
    let window = calendar(CalendarUnit::Hour, "Asia/Kathmandu").window(at("2026-01-01T00:20:00Z"));
    assert_eq!(window.start, at("2026-01-01T00:15:00Z"));
    assert_eq!(window.end, at("2026-01-01T01:15:00Z"));
}

#[test]
fn a_day_without_a_midnight_begins_when_the_jump_ends() {
    // Clocks went from 00:00 to 01:00 on 2018-11-04.
    let days = calendar(CalendarUnit::Day, "America/Sao_Paulo");
    let windows = days.windows_from(at("2018-11-03T15:00:00Z"), 2);
    assert_eq!(windows[1], at("2018-11-04T03:00:00Z"));
    assert_eq!(hours(&windows), [24.0, 23.0]);
    // And back from 00:00 to 23:00 on 2018-02-18: the Saturday has 25 hours.
    let windows = days.windows_from(at("2018-02-17T15:00:00Z"), 2);
    assert_eq!(hours(&windows), [25.0, 24.0]);
}

#[test]
fn a_day_that_was_skipped_is_no_window() {
    // Apia had no 2011-12-30.
    let days = calendar(CalendarUnit::Day, "Pacific/Apia");
    let windows = days.windows_from(at("2011-12-29T20:00:00Z"), 3);
    assert_eq!(hours(&windows), [24.0; 3]);
    assert_eq!(windows[1], at("2011-12-30T10:00:00Z"));
}

#[test]
fn a_clock_that_goes_back_over_midnight_does_not_begin_the_day_again() {
    // St John's went from 00:01 on 2010-11-07 back to 23:01: the Sunday had begun.
    let days = calendar(CalendarUnit::Day, "America/St_Johns");
    let windows = days.windows_from(at("2010-11-07T02:45:00Z"), 1);
    assert_eq!(windows[0], at("2010-11-07T02:30:00Z"));
    assert_eq!(hours(&windows), [25.0]);
}

#[test]
fn a_week_begins_on_monday_and_a_month_on_its_first() {
    let window = calendar(CalendarUnit::Week, "Asia/Shanghai").window(at("2026-11-22T10:00:00Z"));
    assert_eq!(window.start, at("2026-11-15T16:00:00Z"));
    assert_eq!(window.end, at("2026-11-22T16:00:00Z"));
    let months = calendar(CalendarUnit::Month, "Europe/Berlin");
    let windows = months.windows_from(at("2024-02-29T12:00:00Z"), 2);
    assert_eq!(windows[0], at("2024-01-31T23:00:00Z"));
    assert_eq!(windows[1], at("2024-02-29T23:00:00Z"));
    assert_eq!(windows[2], at("2024-03-31T22:00:00Z"));
}

#[test]
fn the_ends_of_time_have_windows_too() {
    for unit in UNITS {
        for zone in ["UTC", "Pacific/Apia", "Asia/Kathmandu"] {
            let calendar = calendar(unit, zone);
            let first = calendar.window(StoreTime::from_micros(0));
            assert!(first.end > first.start);
            let last = calendar.window(StoreTime::from_micros(u64::MAX));
            assert!(last.end > last.start);
        }
    }
}

/// From reading the local clock minute after minute: the boundaries of days, weeks and months
/// between two moments. A window begins when the greatest date seen so far enters a new one.
fn dates_read(calendar: &Calendar, from: i64, to: i64) -> Vec<i64> {
    let label = |date: Date| match calendar.unit {
        CalendarUnit::Month => (i64::from(date.year()), i64::from(date.month())),
        CalendarUnit::Week => {
            let week = date.iso_week_date();
            (i64::from(week.year()), i64::from(week.week()))
        }
        _ => (i64::from(date.year()), i64::from(date.day_of_year())),
    };
    let mut seen = None;
    let mut found = Vec::new();
    for second in (from - 2 * DAY..to).step_by(60) {
        let read = Some(label(calendar.zone.reading(second).date()));
        if read > seen {
            if seen.is_some() && second >= from {
                found.push(second);
            }
            seen = read;
        }
    }
    found
}

/// The boundaries of minutes and hours, read from the local clock: when the local clock shows nothing below them.
fn strikes_read(calendar: &Calendar, from: i64, to: i64) -> Vec<i64> {
    let strikes = |second: &i64| {
        let read = calendar.zone.reading(*second);
        read.second() == 0 && (calendar.unit == CalendarUnit::Minute || read.minute() == 0)
    };
    (from..to).step_by(60).filter(strikes).collect()
}

/// A moment near one of the zone's changes, or anywhere.
fn moment(zone: &Zone, seed: u64, near: bool, offset: i64) -> i64 {
    let anywhere = i64::try_from(seed % 2_500_000_000).unwrap() + 40 * DAY;
    let change = zone.change_after(anywhere).unwrap_or(anywhere);
    if near { change + offset } else { anywhere }
}

proptest! {
    #[test]
    fn windows_follow_each_other_and_hold_the_moment(
        zone in 0..ZONES.len(), unit in 0..UNITS.len(), seed: u64, near: bool,
        offset in -2 * DAY..2 * DAY, micros in 0_u64..1_000_000,
    ) {
        let calendar = calendar(UNITS[unit], ZONES[zone]);
        let second = moment(&calendar.zone, seed, near, offset);
        let at = StoreTime::from_micros(u64::try_from(second).unwrap() * 1_000_000 + micros);
        let bounds = calendar.windows_from(at, 40);
        prop_assert_eq!(bounds.len(), 41);
        prop_assert!(bounds[0] <= at && at < bounds[1]);
        prop_assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        // From any moment of a window the boundaries are the same.
        for pair in bounds.windows(2).take(30) {
            let last = StoreTime::from_micros(pair[1].as_micros() - 1);
            for inside in [pair[0], last] {
                let window = calendar.window(inside);
                prop_assert_eq!([window.start, window.end], [pair[0], pair[1]]);
            }
        }
    }

    #[test]
    fn boundaries_are_those_that_a_reader_of_the_clock_finds(
        zone in 0..ZONES.len(), unit in 1..UNITS.len(), seed: u64, near: bool,
        offset in -2 * DAY..2 * DAY,
    ) {
        let calendar = calendar(UNITS[unit], ZONES[zone]);
        let at = moment(&calendar.zone, seed, near, offset) / 60 * 60;
        let (days, count) = match calendar.unit {
            CalendarUnit::Month => (35, 2),
            CalendarUnit::Week => (8, 2),
            CalendarUnit::Day => (3, 3),
            _ => (1, 8),
        };
        let (from, to) = (at - days * DAY, at + days * DAY);
        let read = match calendar.unit {
            CalendarUnit::Minute | CalendarUnit::Hour => strikes_read(&calendar, from, to),
            _ => dates_read(&calendar, from, to),
        };
        let first = read.iter().rposition(|bound| *bound <= at).unwrap();
        let ours = calendar.windows_from(store_time(at), count);
        let read: Vec<_> = read[first..].iter().map(|bound| store_time(*bound)).collect();
        let shared = read.len().min(ours.len());
        prop_assert!(shared >= 2);
        prop_assert_eq!(&ours[..shared], &read[..shared]);
    }

    #[test]
    fn any_zone_of_the_database_has_contiguous_days(seed: u64, pick: prop::sample::Index) {
        let known = jiff::tz::TimeZoneDatabase::bundled();
        let names: Vec<_> = known.available().collect();
        let days = calendar(CalendarUnit::Day, pick.get(&names).as_str());
        let at = StoreTime::from_micros(seed % (1 << 53));
        let bounds = days.windows_from(at, 400);
        prop_assert!(bounds[0] <= at && at < bounds[1]);
        prop_assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(hours(&bounds).iter().all(|hours| *hours > 12.0 && *hours < 49.0));
    }
}
