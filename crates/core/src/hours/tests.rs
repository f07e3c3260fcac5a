//! When a route is open, also over midnight and where clocks change.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Havana",
    "Asia/Kathmandu",
    "Asia/Shanghai",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Africa/Casablanca",
];

impl OpeningHours {
    /// Whether it is open at `at`.
    fn is_open(&self, at: StoreTime) -> bool {
        self.reads_open(second(at))
    }

    /// The first moment from `at` on at which it is closed: `at` itself if it is; `None` if it
    /// never closes.
    fn closes(&self, at: StoreTime) -> Option<StoreTime> {
        let stretch = self.stretch(at);
        if stretch.open {
            stretch.until
        } else {
            Some(at)
        }
    }
}

fn parse(ranges: &[&str], days: &str, zone: &Zone) -> Result<OpeningHours, HoursError> {
    let ranges: Result<Vec<_>, _> = ranges.iter().map(|text| text.parse()).collect();
    OpeningHours::new(&ranges?, days.parse()?, zone.clone())
}

fn hours(ranges: &[&str], days: &str, zone: &str) -> OpeningHours {
    parse(ranges, days, &Zone::named(zone).unwrap()).unwrap()
}

fn wrong(ranges: &[&str], days: &str) -> HoursError {
    parse(ranges, days, &Zone::utc()).unwrap_err()
}

fn at(text: &str) -> StoreTime {
    store_time(text.parse::<jiff::Timestamp>().unwrap().as_second())
}

#[test]
fn a_closed_night_waits_for_the_morning() {
    let shop = hours(&["08:00-21:00"], "mon-fri", "Europe/Berlin");
    let friday = at("2026-11-20T15:00:00Z");
    assert!(shop.is_open(friday));
    assert_eq!(shop.opens(friday), friday);
    assert_eq!(shop.closes(friday), Some(at("2026-11-20T20:00:00Z")));
    // The end is not part of the range; the start is.
    let closing = at("2026-11-20T20:00:00Z");
    assert!(!shop.is_open(closing) && shop.closes(closing) == Some(closing));
    assert!(shop.is_open(closing - Duration::from_micros(1)));
    let monday = at("2026-11-23T07:00:00Z");
    assert_eq!(shop.opens(closing), monday);
    assert!(shop.is_open(monday));
    assert!(!shop.is_open(monday - Duration::from_micros(1)));
}

#[test]
fn a_range_over_midnight_belongs_to_the_day_it_begins_on() {
    let night = hours(&["22:00-06:00"], "sun", "UTC");
    assert!(night.is_open(at("2026-11-22T23:00:00Z")));
    let end = Some(at("2026-11-23T06:00:00Z"));
    assert_eq!(night.closes(at("2026-11-22T23:00:00Z")), end);
    assert_eq!(night.closes(at("2026-11-23T01:00:00Z")), end);
    assert!(!night.is_open(at("2026-11-22T05:00:00Z")));
}

#[test]
fn ranges_that_touch_are_one() {
    let day = hours(&["12:00-24:00", "08:00-12:30"], "mon,sat-sun", "UTC");
    let saturday = at("2026-11-21T09:00:00Z");
    assert_eq!(day.closes(saturday), Some(at("2026-11-22T00:00:00Z")));
    let always = hours(&["00:00-12:00", "12:00-24:00"], "mon-sun", "UTC");
    assert_eq!(always.closes(saturday), None);
    let stretch = always.stretch(saturday);
    assert!(stretch.open && stretch.until.is_none());
}

#[test]
fn a_start_that_does_not_exist_is_the_end_of_the_jump() {
    // 02:00 to 03:00 is missing on 2026-03-29.
    let berlin = hours(&["02:30-04:00"], "mon-sun", "Europe/Berlin");
    assert_eq!(
        berlin.opens(at("2026-03-28T23:00:00Z")),
        at("2026-03-29T01:00:00Z")
    );
    // A range that lies in the jump does not open that day.
    let berlin = hours(&["02:10-02:50"], "mon-sun", "Europe/Berlin");
    assert_eq!(
        berlin.opens(at("2026-03-28T23:00:00Z")),
        at("2026-03-30T00:10:00Z")
    );
    // Midnight did not exist in São Paulo on 2018-11-04.
    let paulo = hours(&["00:00-06:00"], "sun", "America/Sao_Paulo");
    assert_eq!(
        paulo.opens(at("2018-11-03T15:00:00Z")),
        at("2018-11-04T03:00:00Z")
    );
}

#[test]
fn what_comes_twice_is_open_twice() {
    let berlin = hours(&["01:00-02:30"], "mon-sun", "Europe/Berlin");
    // 02:30 by summer time, 02:00 by winter time, 02:30 by winter time.
    let first = at("2026-10-25T00:30:00Z");
    assert_eq!(berlin.closes(at("2026-10-24T23:30:00Z")), Some(first));
    let second = at("2026-10-25T01:00:00Z");
    assert_eq!(berlin.opens(first), second);
    assert_eq!(berlin.closes(second), Some(at("2026-10-25T01:30:00Z")));
}

#[test]
fn seconds_are_allowed() {
    let shop = hours(&["8:00:30 - 24:00"], "Saturday", "UTC");
    assert_eq!(
        shop.opens(at("2026-11-21T00:00:00Z")),
        at("2026-11-21T08:00:30Z")
    );
}

#[test]
fn faults_are_told_apart_and_say_what_would_be_right() {
    let days = "mon-fri";
    assert_eq!(wrong(&[], days), HoursError::NoRange);
    for text in ["08:00", "", "always", "08:00–21:00"] {
        assert_eq!(wrong(&[text], days), HoursError::Range(text.to_owned()));
    }
    for (range, time) in [
        ("8-21:00", "8"),
        ("08:00-25:00", "25:00"),
        ("08:60-21:00", "08:60"),
        ("24:01-24:00", "24:01"),
        ("08:00-24:00:01", "24:00:01"),
        ("08:00-", ""),
        ("08:00-10:00-12:00", "10:00-12:00"),
        ("-8:00-12:00", ""),
        ("08:00:00:00-12:00", "08:00:00:00"),
        ("+8:00-12:00", "+8:00"),
        ("08:0-12:00", "08:0"),
        ("008:00-12:00", "008:00"),
        (":30-12:00", ":30"),
    ] {
        let fault = wrong(&[range], days);
        let expected = HoursError::Time {
            range: range.to_owned(),
            time: time.to_owned(),
        };
        assert_eq!(fault, expected);
        assert!(fault.to_string().contains("08:30"));
    }
    let fault = wrong(&["24:00-08:00"], days);
    assert_eq!(fault, HoursError::StartsAtEnd("24:00-08:00".to_owned()));
    let fault = wrong(&["08:00-08:00"], days);
    assert_eq!(fault, HoursError::Empty("08:00-08:00".to_owned()));
    for (text, day) in [("mo", "mo"), ("mon-fry", "fry"), ("mon,", ""), ("", "")] {
        let fault = wrong(&["08:00-21:00"], text);
        assert_eq!(fault, HoursError::Day(day.to_owned()));
    }
}

/// The answer of a person with the list of hours and a clock on the wall.
fn by_the_clock(ranges: &[(u32, u32)], days: [bool; 7], zone: &Zone, at: i64) -> bool {
    let read = zone.reading(at);
    let minute =
        u32::from(read.hour().unsigned_abs()) * 60 + u32::from(read.minute().unsigned_abs());
    let today = usize::from(read.date().weekday().to_monday_zero_offset().unsigned_abs());
    let yesterday = (today + 6) % 7;
    ranges.iter().any(|&(start, end)| {
        if start < end {
            days[today] && (start..end).contains(&minute)
        } else {
            days[today] && minute >= start || days[yesterday] && minute < end
        }
    })
}

fn text((start, end): (u32, u32)) -> String {
    let time = |minute| format!("{:02}:{:02}", minute / 60, minute % 60);
    format!("{}-{}", time(start), time(end))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn it_is_what_the_clock_on_the_wall_says_minute_by_minute(
        zone in 0..ZONES.len(), seed in 0_i64..2_000_000_000, back in 0_i64..3 * 86_400,
        ranges in prop::collection::vec((0_u32..1440, 0_u32..=1440), 1..4),
        days in prop::array::uniform7(any::<bool>()),
    ) {
        let zone = Zone::named(ZONES[zone]).unwrap();
        let mut ranges = ranges;
        ranges.retain(|(start, end)| start != end);
        prop_assume!(!ranges.is_empty() && days.contains(&true));
        let texts: Vec<String> = ranges.iter().copied().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let names: Vec<&str> = days.iter().zip(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
            .filter(|(on, _)| **on).map(|(_, name)| name)
            .collect();
        let hours = parse(&texts, &names.join(","), &zone).unwrap();
        let from = (zone.change_after(seed).unwrap_or(seed) - back).max(86_400) / 60 * 60;
        let truth: Vec<bool> = (from..from + 10 * 86_400).step_by(60)
            .map(|at| by_the_clock(&ranges, days, &zone, at))
            .collect();
        // From change to change, it must switch exactly where the truth switches.
        let minute = |index: usize| store_time(from) + Duration::from_secs(60) * u32::try_from(index).unwrap();
        let mut index = 0;
        while index < truth.len() {
            let stretch = hours.stretch(minute(index));
            prop_assert_eq!(stretch.open, truth[index], "{}", zone.show(minute(index)));
            let flips = truth[index..].iter().position(|open| *open != truth[index]);
            let Some(flips) = flips else {
                let end = minute(truth.len());
                prop_assert!(stretch.until.is_none_or(|until| until >= end));
                break;
            };
            prop_assert_eq!(stretch.until, Some(minute(index + flips)), "{}", zone.show(minute(index)));
            // From anywhere within it is the same.
            let inside = minute(index + flips / 2) + Duration::from_micros(17);
            prop_assert_eq!(hours.stretch(inside), stretch);
            index += flips;
        }
    }
}

#[test]
fn it_is_known_since_when_it_is_open() {
    let shop = hours(&["08:00-12:00", "14:00-18:00"], "mon-fri", "Europe/Berlin");
    let opened = |time: &str| shop.opened(at(time));
    assert_eq!(
        opened("2026-11-20T09:30:00Z"),
        Some(at("2026-11-20T07:00:00Z"))
    );
    assert_eq!(
        opened("2026-11-20T07:00:00Z"),
        Some(at("2026-11-20T07:00:00Z"))
    );
    assert_eq!(opened("2026-11-20T12:00:00Z"), None, "noon");
    assert_eq!(
        opened("2026-11-20T13:00:01Z"),
        Some(at("2026-11-20T13:00:00Z"))
    );
    assert_eq!(opened("2026-11-21T09:00:00Z"), None, "a saturday");
    let week = hours(&["00:00-24:00"], "mon-sat", "UTC");
    assert_eq!(
        week.opened(at("2026-11-21T23:00:00Z")),
        Some(at("2026-11-16T00:00:00Z"))
    );
    let always = hours(&["00:00-24:00"], "mon-sun", "UTC");
    assert_eq!(always.opened(at("2026-11-20T09:30:00Z")), None);
}
