//! The text of opening hours, and what is wrong with it.

use super::{DAY, Span, WEEK};

/// The days as they are written, with their full names.
const DAYS: [(&str, &str); 7] = [
    ("mon", "monday"),
    ("tue", "tuesday"),
    ("wed", "wednesday"),
    ("thu", "thursday"),
    ("fri", "friday"),
    ("sat", "saturday"),
    ("sun", "sunday"),
];

/// Why a text names no opening hours. The message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoursError {
    #[error("no range: it would never open; write one such as \"08:00-21:00\"")]
    NoRange,
    #[error("no day: it would never open; write days such as \"mon-fri\" or \"mon-sun\"")]
    NoDay,
    #[error("`{0}` is no range of times; write it as \"08:00-21:00\"")]
    Range(String),
    #[error("`{time}` in `{range}` is no time of day; write 00:00 to 24:00, such as \"08:30\"")]
    Time { range: String, time: String },
    #[error("`{0}` starts at the end of a day; write 00:00 for the start of the next")]
    StartsAtEnd(String),
    #[error("`{0}` starts and ends at the same time; write \"00:00-24:00\" for the whole day")]
    Empty(String),
    #[error("`{0}` is no day; write mon, tue, wed, thu, fri, sat or sun, or a range: \"mon-fri\"")]
    Day(String),
}

/// The spans of the week: sorted and merged.
pub(super) fn week<S: AsRef<str>>(ranges: &[S], days: &[S]) -> Result<Vec<Span>, HoursError> {
    if ranges.is_empty() {
        return Err(HoursError::NoRange);
    }
    let days = days_of(days)?;
    let mut spans = Vec::new();
    for text in ranges {
        let (start, end) = range(text.as_ref())?;
        for day in (0..).zip(days).filter_map(|(day, on)| on.then_some(day)) {
            let (start, end) = (day * DAY + start, day * DAY + end);
            spans.push((start, end.min(WEEK)));
            if end > WEEK {
                // From Sunday into Monday.
                spans.push((0, end - WEEK));
            }
        }
    }
    Ok(merge(spans))
}

fn merge(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// From the start of the day; the end lies in the next day if the range crosses midnight.
fn range(text: &str) -> Result<Span, HoursError> {
    let Some((start, end)) = text.split_once('-') else {
        return Err(HoursError::Range(text.to_owned()));
    };
    let time = |part: &str| {
        time_of_day(part.trim()).ok_or_else(|| HoursError::Time {
            range: text.to_owned(),
            time: part.trim().to_owned(),
        })
    };
    let (start, end) = (time(start)?, time(end)?);
    if start == DAY {
        Err(HoursError::StartsAtEnd(text.to_owned()))
    } else if start == end {
        Err(HoursError::Empty(text.to_owned()))
    } else if end < start {
        Ok((start, end + DAY))
    } else {
        Ok((start, end))
    }
}

/// `08:30`, `08:30:15` or `24:00`, in seconds since the start of the day.
fn time_of_day(text: &str) -> Option<u32> {
    let mut parts = text.split(':');
    let mut part = || {
        let part = parts.next()?;
        let digits = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse::<u32>().ok())?
    };
    let (hours, minutes) = (part()?, part()?);
    let seconds = match text.matches(':').count() {
        1 => 0,
        2 => part()?,
        _ => return None,
    };
    let time = hours * 3600 + minutes * 60 + seconds;
    (minutes < 60 && seconds < 60 && time <= DAY).then_some(time)
}

fn days_of<S: AsRef<str>>(texts: &[S]) -> Result<[bool; 7], HoursError> {
    let mut days = [false; 7];
    for entry in texts.iter().flat_map(|text| text.as_ref().split(',')) {
        let entry = entry.trim();
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let (first, last) = (day(first)?, day(last)?);
        // Over the weekend, if the last comes before the first: sat-mon.
        let length = (last + 7 - first) % 7;
        for step in 0..=length {
            if let Some(day) = days.get_mut((first + step) % 7) {
                *day = true;
            }
        }
    }
    if days.contains(&true) {
        Ok(days)
    } else {
        Err(HoursError::NoDay)
    }
}

fn day(text: &str) -> Result<usize, HoursError> {
    let word = text.trim().to_ascii_lowercase();
    DAYS.iter()
        .position(|(short, long)| word == *short || word == *long)
        .ok_or_else(|| HoursError::Day(text.trim().to_owned()))
}
