//! A plan in words, for people.

use std::fmt::Write as _;

use super::figures::Figures;
use super::findings::{Finding, Weight};
use super::limits::{KeyFigures, LimitFigures};
use super::numbers::{count, messages, often, time, wrapped};

/// Columns of a terminal.
pub(super) const WIDTH: usize = 80;

/// What a plan is about, for its first line.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) route: String,
    pub(super) length: String,
    /// When it begins, if that matters.
    pub(super) start: Option<String>,
    pub(super) replicas: u32,
    pub(super) prefetch: u16,
    pub(super) arrivals: String,
    pub(super) seed: u64,
}

/// All of it but the plots.
pub(super) fn words(head: &Head, figures: &Figures, findings: &[Finding], ends: bool) -> String {
    let mut text = String::new();
    let replicas = if head.replicas == 1 {
        "replica"
    } else {
        "replicas"
    };
    let start = head.start.as_ref();
    let start = start.map_or_else(String::new, |start| format!(" from {start}"));
    let first = format!(
        "{}{start}, {} {replicas}, prefetch {}, seed {}",
        head.length, head.replicas, head.prefetch, head.seed
    );
    text += &wrapped(&format!("route {}: ", head.route), &first, WIDTH);
    text.push('\n');
    text += &table(&rows(head, figures, ends));
    text.push('\n');
    text += &limits(figures);
    text += &longest(&figures.longest);
    if !findings.is_empty() {
        text.push('\n');
    }
    for finding in findings {
        let mark = if finding.weight == Weight::Note {
            "- "
        } else {
            "! "
        };
        text += &wrapped(mark, &finding.text, WIDTH);
    }
    text
}

/// The last line: how it went.
pub(super) fn verdict(ends: bool, figures: &Figures) -> String {
    match (ends, figures.gone_at) {
        (true, _) if figures.waits_for_opening() => {
            "GOOD: what still waits came in closed hours\n".to_owned()
        }
        (false, _) => "NOT GOOD: see the lines with !\n".to_owned(),
        (true, Some(at)) => format!("GOOD: the backlog is gone after {}\n", time(at)),
        (true, None) => format!(
            "GOOD: no message waits for longer than {}\n",
            time(figures.waits.map_or(0, |[.., longest]| longest))
        ),
    }
}

fn rows(head: &Head, figures: &Figures, ends: bool) -> Vec<(&'static str, String, String)> {
    let number = |number: usize| count(number as u64);
    let mut rows = vec![
        ("arrive", number(figures.arrived), head.arrivals.clone()),
        ("delivered", number(figures.delivered), String::new()),
    ];
    let oldest = match figures.waiting {
        0 => String::new(),
        _ => format!("the oldest for {}", time(figures.oldest)),
    };
    rows.push(("still wait", number(figures.waiting), oldest));
    for (what, number) in [
        ("never sent", figures.invalid),
        ("too old", figures.too_old),
        ("denied, dead", figures.denied),
    ] {
        if number > 0 {
            rows.push((what, count(number as u64), String::new()));
        }
    }
    let (most, at) = figures.most;
    rows.push(("most that wait", number(most), format!("at {}", time(at))));
    let gone = match (figures.overdue, figures.gone_at) {
        (0, _) if figures.waits_for_opening() => {
            ("no".to_owned(), "it ends in closed hours".to_owned())
        }
        (0, _) if !ends && figures.waiting > 0 => ("no".to_owned(), String::new()),
        (0, Some(at)) => (time(at), String::new()),
        (0, None) => (
            "never there".to_owned(),
            format!("nothing waits for longer than {}", time(figures.grace)),
        ),
        (more, _) => (
            "no".to_owned(),
            format!("{} should be gone by now", messages(more)),
        ),
    };
    rows.push(("backlog is gone", gone.0, gone.1));
    if let Some([half, most, longest]) = figures.waits {
        let some = if figures.waiting > 0 {
            ", of those delivered"
        } else {
            ""
        };
        let rest = format!(
            "99 % within {}, longest {}{some}",
            time(most),
            time(longest)
        );
        rows.push(("wait, median", time(half), rest));
    }
    let denials = format!("{:.2}", figures.denials);
    rows.push(("denials", denials, "a message".to_owned()));
    let asks = format!("{:.4}", figures.asks);
    rows.push(("Redis calls", asks, "a message".to_owned()));
    rows
}

fn table(rows: &[(&'static str, String, String)]) -> String {
    let width = rows
        .iter()
        .map(|(_, number, _)| number.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (what, number, rest) in rows {
        let line = format!("  {what:<16} {number:>width$}");
        // Writing to a text cannot fail.
        if rest.is_empty() {
            writeln!(text, "{line}").ok();
        } else {
            text += &wrapped(&format!("{line}  "), rest, WIDTH);
        }
    }
    text
}

fn limits(figures: &Figures) -> String {
    let name = |limit: &LimitFigures| limit.name.chars().count();
    let width = figures.limits.iter().map(name).max().unwrap_or(0);
    let mut text = String::new();
    for limit in &figures.limits {
        let first = format!("  limits.{:<width$}  ", limit.name);
        text += &wrapped(&first, &used(limit), WIDTH);
    }
    text
}

/// What was used of a limit, and how many keys it held up.
fn used(limit: &LimitFigures) -> String {
    let mut text = if limit.has_key {
        let busiest = limit.busiest.as_ref();
        let busiest = busiest.map_or_else(String::new, |(key, units)| {
            format!(", the busiest ({key}) used {}", units_of(*units))
        });
        let rate = often(limit.per_second);
        format!(
            "{rate} for each of {} keys{busiest}",
            count(limit.keys as u64)
        )
    } else {
        let part = limit.share.map_or_else(String::new, |part| {
            format!("{:.1} % used of ", part * 100.0)
        });
        let rate = often(limit.per_second);
        format!("{part}{rate}, {}", units_of(limit.units))
    };
    if limit.denials > 0 {
        let held = match limit.held {
            _ if !limit.has_key => String::new(),
            1 => " of 1 key".to_owned(),
            held => format!(" of {} keys", count(held as u64)),
        };
        let denials = limit.denials;
        let plural = if denials == 1 { "" } else { "s" };
        text += &format!("; {} denial{plural}{held}", count(denials));
    }
    text
}

fn units_of(units: u64) -> String {
    let plural = if units == 1 { "" } else { "s" };
    format!("{} unit{plural}", count(units))
}

fn longest(keys: &[KeyFigures]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let mut text = "\nlongest waits by key\n".to_owned();
    let name = |key: &KeyFigures| key.limit.chars().count() + key.key.chars().count() + 1;
    let width = keys.iter().map(name).max().unwrap_or(0).min(WIDTH / 2);
    for key in keys {
        let named = format!("{} {}", key.limit, key.key);
        let waiting = match key.waiting {
            0 => String::new(),
            waiting => format!(", {} still wait", count(waiting as u64)),
        };
        writeln!(
            text,
            "  {named:<width$}  {:>8}  {}{waiting}",
            time(key.wait),
            messages(key.messages)
        )
        .ok();
    }
    text
}
