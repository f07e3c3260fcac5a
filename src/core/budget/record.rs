//! States as text, as the store keeps them.
//!
//! A letter for the kind, the epoch, and the numbers of the state, with a space in between: short,
//! because there may be a million of them, and readable with `redis-cli`. A log writes its first
//! time in full and then only differences. A window that begins with a call writes the call that may have
//! been the last to begin it, or, with a 1 behind it, one that was made, unless that was granted at its start. Where places are booked that nobody has used yet, what was
//! used follows behind a bar, without letter and epoch, or nothing does; behind a `>` what was granted for
//! moments ahead, as in a log, if it is kept apart; and behind another bar the latest
//! moment ahead that was granted, if there is one. A plan is a `p` and its times and units as in a log, and
//! the time before which nothing is booked, if there is one. Gaps follow what they are in, each behind a semicolon:
//! when it is over, and the state before it, if any.
//!
//! What cannot be read, was written in another epoch or by another kind, or lies absurdly far ahead, is no
//! state.

use std::fmt::Write as _;

use super::admit::Epoch;
use super::ahead::{Ahead, Bookings, Gap};
use super::concurrency::{Call, Calls, Ticket};
use super::epoch::{Began, Era};
use super::fixed_window::{Begun, Used};
use super::gcra::Arrival;
use super::plan::{Plan, Planned};
use super::sliding_log::Log;
use super::token_bucket::Tokens;
use super::{Rule, State};
use crate::core::time::StoreTime;

/// Times further ahead than this (35 years) are no times of ours.
const ABSURD: u64 = 1 << 50;
/// A number below this is exact in a double.
const EXACT: u64 = 1 << 53;
/// More than any cost.
const UNITS: u64 = 1 << 32;

/// The text of a state.
#[must_use]
pub fn write(state: &State, epoch: Epoch) -> String {
    let epoch = epoch.0;
    match state {
        State::Ahead(ahead) => {
            let mut text = write(&ahead.booked.last, Epoch(epoch));
            push_gaps(&mut text, &ahead.booked.gaps);
            text.push('|');
            if let Some(used) = &ahead.used {
                text.push_str(&plain(&used.last));
                push_gaps(&mut text, &used.gaps);
                if !used.later.is_empty() {
                    text.push('>');
                    push_entries(&mut text, &used.later);
                }
            }
            if ahead.granted > 0 {
                // Writing to a text cannot fail.
                write!(text, "|{}", ahead.granted).ok();
            }
            text
        }
        State::Gcra(s) => format!("g{epoch} {} {}", s.tat, s.rem),
        State::TokenBucket(s) => format!("t{epoch} {} {} {}", s.tokens, s.last, s.rem),
        State::FixedWindow(s) => {
            let text = format!("w{epoch} {} {}", s.start, s.used);
            match s.begun {
                Begun::By(made) if made == s.start => text,
                Begun::By(made) => format!("{text} {made} 1"),
                Begun::Perhaps(last) => format!("{text} {last}"),
            }
        }
        State::SlidingLog(s) => {
            let mut text = format!("l{epoch}");
            push_entries(&mut text, &s.entries);
            text
        }
        State::Plan(s) => {
            let letter = match s.of {
                Planned::TokenBucket => 't',
                Planned::FirstCall => 'w',
                Planned::SlidingLog => 'l',
            };
            let mut text = format!("{letter}{epoch} p");
            push_entries(&mut text, &s.entries);
            if s.floor > 0 {
                push(&mut text, s.floor);
            }
            text
        }
        State::Concurrency(s) => {
            let mut text = format!("c{epoch}");
            for call in &s.calls {
                push(&mut text, call.ends);
                push(&mut text, call.cost);
                // Writing to a text cannot fail.
                write!(text, " {:x}", call.ticket.0).ok();
            }
            text
        }
    }
}

/// The numbers of a state, without letter and epoch.
fn plain(state: &State) -> String {
    let text = write(state, Epoch::default());
    let numbers = text.split_once(' ').map(|(_, numbers)| numbers);
    numbers.unwrap_or_default().to_owned()
}

fn push_gaps(text: &mut String, gaps: &[Gap]) {
    for gap in gaps {
        // Writing to a text cannot fail.
        write!(text, ";{}", gap.end).ok();
        if let Some(before) = &gap.before {
            text.push(' ');
            text.push_str(&plain(before));
        }
    }
}

/// The first time in full, the others by how much later they are.
fn push_entries(text: &mut String, entries: &[(u64, u64)]) {
    let mut before = 0;
    for (time, count) in entries {
        push(text, time - before);
        push(text, *count);
        before = *time;
    }
}

fn push(text: &mut String, number: u64) {
    write!(text, " {number}").ok();
}

const fn letter(rule: &Rule) -> char {
    match rule {
        Rule::Gcra(_) => 'g',
        Rule::TokenBucket(_) => 't',
        Rule::FixedWindow(_) => 'w',
        Rule::SlidingLog(_) => 'l',
        Rule::Concurrency(_) => 'c',
    }
}

/// The epoch in which a state was written, if it is one of a rule of this kind.
#[must_use]
pub fn written_in(text: &str, rule: &Rule) -> Option<Epoch> {
    let (epoch, _) = text.strip_prefix(letter(rule))?.split_once(' ')?;
    number(epoch).map(Epoch)
}

/// The state that `text` holds, if it was written in `epoch` for a rule of this kind.
#[must_use]
pub fn read(text: &str, rule: &Rule, epoch: Epoch, now: StoreTime) -> Option<State> {
    let start = format!("{}{} ", letter(rule), epoch.0);
    let text = text.strip_prefix(&*start)?;
    let mut parts = text.split('|');
    let booked = parts.next()?;
    let Some(taken) = parts.next() else {
        return numbers(booked, rule, now);
    };
    if matches!(rule, Rule::Concurrency(_)) {
        return None;
    }
    let used = match taken {
        "" => None,
        text => Some(used(text, rule, now)?),
    };
    let booked = match booked.strip_prefix('p') {
        Some(plan) => {
            let plan = planned(plan, rule, now)?;
            // Where the rule needs no plan, what was used counts.
            let needed = rule.planned().is_some();
            let plan = needed.then(|| State::Plan(plan).into());
            plan.or_else(|| used.clone())?
        }
        None => bookings(booked, rule, now)?,
    };
    let granted = match parts.next() {
        None => 0,
        Some(granted) => time(granted, now)?,
    };
    parts.next().is_none().then_some(())?;
    Some(State::Ahead(Box::new(Ahead {
        booked,
        used,
        granted,
    })))
}

fn bookings(text: &str, rule: &Rule, now: StoreTime) -> Option<Bookings> {
    let mut parts = text.split(';');
    let last = numbers(parts.next()?, rule, now)?;
    let gaps = parts.map(|text| gap(text, rule, now));
    let gaps = gaps.collect::<Option<_>>()?;
    let later = Vec::new();
    Some(Bookings { last, gaps, later })
}

/// What was used: bookings, or a state and what was granted ahead.
fn used(text: &str, rule: &Rule, now: StoreTime) -> Option<Bookings> {
    let Some((last, later)) = text.split_once('>') else {
        return bookings(text, rule, now);
    };
    let last = numbers(last, rule, now)?;
    matches!(last, State::TokenBucket(_) | State::FixedWindow(_)).then_some(())?;
    let words: Vec<&str> = later.strip_prefix(' ')?.split(' ').collect();
    let later = entries(&words, now)?;
    Some(Bookings {
        later,
        ..last.into()
    })
}

fn planned(text: &str, rule: &Rule, now: StoreTime) -> Option<Plan> {
    // Of the kind, for terms that needed a plan may have gone before others that need none.
    let of = match rule {
        Rule::TokenBucket(_) => Planned::TokenBucket,
        Rule::FixedWindow(_) => Planned::FirstCall,
        Rule::SlidingLog(_) => Planned::SlidingLog,
        Rule::Gcra(_) | Rule::Concurrency(_) => return None,
    };
    let words: Vec<&str> = text.split(' ').collect();
    // A space comes before each of them.
    let [first, words @ ..] = &*words else {
        return None;
    };
    let pairs = words.len() / 2 * 2;
    let floor = match &words[pairs..] {
        [floor] => time(floor, now)?,
        _ => 0,
    };
    let entries = entries(&words[..pairs], now)?;
    first.is_empty().then_some(Plan { of, entries, floor })
}

fn entries(words: &[&str], now: StoreTime) -> Option<Vec<(u64, u64)>> {
    let mut entries = Vec::with_capacity(words.len() / 2);
    let mut last = 0;
    for pair in words.chunks(2) {
        let [after, count] = pair else { return None };
        last += number(after)?;
        (last <= now.as_micros() + ABSURD).then_some(())?;
        entries.push((last, units(count)?));
    }
    Some(entries)
}

fn gap(text: &str, rule: &Rule, now: StoreTime) -> Option<Gap> {
    let (end, before) = match text.split_once(' ') {
        Some((end, before)) => (end, Some(numbers(before, rule, now)?)),
        None => (text, None),
    };
    let end = time(end, now)?;
    Some(Gap { before, end })
}

fn time(text: &str, now: StoreTime) -> Option<u64> {
    number(text).filter(|time| *time <= now.as_micros() + ABSURD)
}

fn numbers(text: &str, rule: &Rule, now: StoreTime) -> Option<State> {
    let words: Vec<&str> = text.split(' ').collect();
    let sane = |time: u64| (time <= now.as_micros() + ABSURD).then_some(time);
    Some(match (rule, &*words) {
        (Rule::Gcra(_), [tat, rem]) => State::Gcra(Arrival {
            tat: sane(number(tat)?)?,
            rem: number(rem)?,
        }),
        (Rule::TokenBucket(_), [tokens, last, rem]) => State::TokenBucket(Tokens {
            tokens: signed(tokens)?,
            last: sane(number(last)?)?,
            rem: number(rem)?,
        }),
        (Rule::FixedWindow(_), [start, used, rest @ ..]) => {
            let start = sane(number(start)?)?;
            let begun = match rest {
                [] => Begun::By(start),
                [last] => Begun::Perhaps(sane(number(last)?)?),
                [made, "1"] => Begun::By(sane(number(made)?)?),
                _ => return None,
            };
            let used = number(used)?;
            State::FixedWindow(Used { start, used, begun })
        }
        (Rule::SlidingLog(_), words) => State::SlidingLog(Log {
            entries: entries(words, now)?,
        }),
        (Rule::Concurrency(_), words) => {
            let mut calls = Vec::with_capacity(words.len() / 3);
            for call in words.chunks(3) {
                let [ends, cost, ticket] = call else {
                    return None;
                };
                calls.push(Call {
                    ticket: Ticket(u128::from_str_radix(hex(ticket)?, 16).ok()?),
                    cost: units(cost)?,
                    ends: sane(number(ends)?)?,
                });
            }
            State::Concurrency(Calls { calls })
        }
        _ => return None,
    })
}

/// Digits only, and exact in a double.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = digits.then(|| text.parse::<u64>().ok())??;
    (value < EXACT).then_some(value)
}

/// Few enough that many of them add up exactly.
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

/// The text of an era.
#[must_use]
pub fn write_era(era: &Era) -> String {
    let began = match era.began {
        Began::Whole => 'w',
        Began::Fresh => 'f',
        Began::Lost => 'l',
    };
    format!(
        "{began}{} {} {}",
        era.epoch.0,
        era.since.as_micros(),
        era.run
    )
}

/// The era that `text` holds.
#[must_use]
pub fn read_era(text: &str) -> Option<Era> {
    let (began, rest) = match text.split_at_checked(1)? {
        ("f", rest) => (Began::Fresh, rest),
        ("l", rest) => (Began::Lost, rest),
        _ => return None,
    };
    let mut words = rest.split(' ');
    let (epoch, since, run) = (words.next()?, words.next()?, words.next()?);
    words.next().is_none().then_some(())?;
    Some(Era {
        epoch: Epoch(number(epoch)?),
        since: StoreTime::from_micros(number(since)?),
        began,
        run: run.to_owned(),
    })
}
