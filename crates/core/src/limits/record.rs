//! States as text, as the store keeps them.
//!
//! A character for the kind and the numbers of the state, with a space in between: short, because there may be a
//! million of them, and readable with `redis-cli`. A log has its last time and its units together, then its
//! first time in full, and only the differences of the others. A next return that lies ahead follows behind a bar,
//! the quota that the downstream reported behind another one, and units that calls used beyond their cost
//! behind a third.
//!
//! A text that cannot be read, or is of another kind, is no state.

use std::fmt::Write as _;

use super::concurrency::{CountedCall, CountedCalls};
use super::fixed_window::Windows;
use super::gcra::GcraLevel;
use super::once::OnceState;
use super::rule::{KindState, LimitState, NextReturn, Quota, Rule};
use super::sliding_log::Log;
use super::token_bucket::Tokens;
use super::{Owed, Ticket};
use crate::time::StoreTime;

/// A number below this is exact in a double.
const EXACT: u64 = 1 << 53;
/// More than any cost: many of them add up exactly.
const UNITS: u64 = 1 << 32;

/// The text of a state at `now`.
#[must_use]
pub fn write(state: &LimitState, now: StoreTime) -> String {
    let mut text = taken_text(&state.taken);
    let LimitState {
        next_return,
        quota,
        owed,
        ..
    } = state;
    let has_quota = quota.until > now.as_micros();
    let is_owed = owed.units > 0;
    if next_return.at > now.as_micros() {
        write!(text, "|{} {}", next_return.at, next_return.spacing).ok();
    } else if has_quota || is_owed {
        text.push_str("|0 0");
    }
    if has_quota {
        write!(text, "|{} {}", quota.units, quota.until).ok();
    } else if is_owed {
        text.push_str("|0 0");
    }
    if is_owed {
        write!(text, "|{} {}", owed.units, owed.from).ok();
    }
    text
}

fn taken_text(taken: &KindState) -> String {
    match taken {
        KindState::Gcra(s) => format!("g {} {} {}", s.at, s.parts, s.period),
        KindState::TokenBucket(s) => format!("t {} {} {}", s.tokens, s.last, s.rem),
        KindState::FixedWindow(s) => format!("w {} {} {}", s.start, s.last, s.used),
        KindState::SlidingLog(s) => {
            let last = s.entries.last().map_or(0, |(time, _)| *time);
            let total: u64 = s.entries.iter().map(|(_, units)| units).sum();
            let (mut log, mut before) = (format!("l {last} {total}"), 0);
            for (time, units) in &s.entries {
                push(&mut log, time - before);
                push(&mut log, *units);
                before = *time;
            }
            log
        }
        KindState::Concurrency(s) => {
            let mut calls = "c".to_owned();
            for call in &s.calls {
                push(&mut calls, call.ends);
                push(&mut calls, call.units);
                // Writing to a text cannot fail.
                write!(calls, " {:x}", call.ticket.0).ok();
            }
            calls
        }
        KindState::Once(OnceState::Free) => "o 0".to_owned(),
        KindState::Once(OnceState::Done { until }) => format!("o {until}"),
        KindState::Once(OnceState::Claimed {
            ticket,
            since,
            ends,
        }) => format!("o {since} {ends} {:x}", ticket.0),
    }
}

fn push(text: &mut String, number: u64) {
    write!(text, " {number}").ok();
}

/// The state that `text` holds, if it is one of a rule of this kind.
#[must_use]
pub fn read(text: &str, rule: &Rule) -> Option<LimitState> {
    let mut parts = text.splitn(4, '|');
    let first = parts.next()?;
    let [mut next_return, mut quota, mut owed] = [(0, 0); 3];
    for pair in [&mut next_return, &mut quota, &mut owed] {
        if let Some(part) = parts.next() {
            *pair = read_pair(part)?;
        }
    }
    let words: Vec<&str> = first.split(' ').collect();
    let (letter, figures) = words.split_first()?;
    let taken = match (rule, *letter) {
        (Rule::Gcra(_), "g") => KindState::Gcra(gcra_level(figures)?),
        (Rule::TokenBucket(_), "t") => KindState::TokenBucket(tokens(figures)?),
        (Rule::FixedWindow(_), "w") => KindState::FixedWindow(windows(figures)?),
        (Rule::SlidingLog(_), "l") => KindState::SlidingLog(log(figures)?),
        (Rule::Concurrency(_), "c") => KindState::Concurrency(calls(figures)?),
        (Rule::Once(_), "o") => KindState::Once(claim(figures)?),
        _ => return None,
    };
    Some(LimitState {
        taken,
        next_return: NextReturn {
            at: next_return.0,
            spacing: next_return.1,
        },
        quota: Quota {
            units: quota.0,
            until: quota.1,
        },
        owed: Owed {
            units: owed.0,
            from: owed.1,
        },
    })
}

fn read_pair(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(' ')?;
    Some((number(first)?, number(second)?))
}

fn gcra_level(words: &[&str]) -> Option<GcraLevel> {
    let [at, parts, period] = words else {
        return None;
    };
    let period = number(period).filter(|period| *period > 0)?;
    Some(GcraLevel {
        at: number(at)?,
        parts: number(parts)?,
        period,
    })
}

fn tokens(words: &[&str]) -> Option<Tokens> {
    let [tokens, last, rem] = words else {
        return None;
    };
    Some(Tokens {
        tokens: signed(tokens)?,
        last: number(last)?,
        rem: number(rem)?,
    })
}

fn windows(words: &[&str]) -> Option<Windows> {
    let [start, last, used] = words else {
        return None;
    };
    Some(Windows {
        start: number(start)?,
        last: number(last)?,
        used: units(used)?,
    })
}

fn log(words: &[&str]) -> Option<Log> {
    let ([last, total], words) = words.split_first_chunk()?;
    let (mut entries, mut time, mut sum) = (Vec::with_capacity(words.len() / 2), 0, 0);
    for pair in words.chunks(2) {
        let [later, count] = pair else { return None };
        time += number(later)?;
        sum += units(count)?;
        entries.push((time, units(count)?));
    }
    (time == number(last)? && sum == units(total)?).then_some(Log { entries })
}

fn calls(words: &[&str]) -> Option<CountedCalls> {
    let mut calls = Vec::with_capacity(words.len() / 3);
    for call in words.chunks(3) {
        let [ends, cost, ticket] = call else {
            return None;
        };
        calls.push(CountedCall {
            ticket: read_ticket(ticket)?,
            units: units(cost)?,
            ends: number(ends)?,
        });
    }
    Some(CountedCalls { calls })
}

fn claim(words: &[&str]) -> Option<OnceState> {
    match words {
        ["0"] => Some(OnceState::Free),
        [until] => Some(OnceState::Done {
            until: number(until)?,
        }),
        [since, ends, ticket] => Some(OnceState::Claimed {
            ticket: read_ticket(ticket)?,
            since: number(since)?,
            ends: number(ends)?,
        }),
        _ => None,
    }
}

fn read_ticket(text: &str) -> Option<Ticket> {
    u128::from_str_radix(hex(text)?, 16).ok().map(Ticket)
}

/// Digits only, and exact in a double.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = digits.then(|| text.parse::<u64>().ok())??;
    (value < EXACT).then_some(value)
}

fn units(text: &str) -> Option<u64> {
    number(text).filter(|units| *units < UNITS)
}

fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(digits) => number(digits).map(|value| -value.cast_signed()),
        None => number(text).map(u64::cast_signed),
    }
}

fn hex(text: &str) -> Option<&str> {
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    ((1..=32).contains(&text.len()) && text.bytes().all(digits)).then_some(text)
}
