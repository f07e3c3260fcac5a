//! A plan in words for people, and as JSON for programs (times in microseconds).

use std::time::Duration;

use serde_json::{Value, json};

use super::figures::Figures;
use super::findings::{Finding, FindingKind};
use super::limits::{KeyFigures, LimitFigures};
use crate::cli::text::{grouped, in_a_line, padded, plural, rough, wrapped};

/// Columns of a terminal.
const WIDTH: usize = 80;
/// This many characters of a key are shown.
pub(super) const KEY: usize = 60;

/// What a plan is about, for its first line.
#[derive(Debug)]
pub(super) struct PlanHead {
    pub(super) route: String,
    pub(super) length: String,
    /// When it begins, if that matters.
    pub(super) start: Option<String>,
    pub(super) replicas: u32,
    pub(super) prefetch: u16,
    pub(super) arrivals: String,
    pub(super) seed: u64,
}

/// Everything except the plots.
pub(super) fn words(
    head: &PlanHead,
    figures: &Figures,
    findings: &[Finding],
    ends: bool,
) -> String {
    let mut text = String::new();
    let replicas = counted(head.replicas.into(), "replica");
    let start = head.start.as_ref();
    let from_start = start.map_or_else(String::new, |start| format!(" from {start}"));
    let first = format!(
        "{}{from_start}, {replicas}, prefetch {}, seed {}",
        head.length, head.prefetch, head.seed
    );
    text += &wrapped(&format!("route {}: ", head.route), &first, WIDTH);
    text.push('\n');
    text += &in_columns(&rows(head, figures, ends));
    text.push('\n');
    text += &in_columns(&figures.limits.iter().map(used).collect::<Vec<_>>());
    text += &longest(&figures.longest);
    if !findings.is_empty() {
        text.push('\n');
    }
    for finding in findings {
        let mark = if finding.weight == FindingKind::Note {
            "- "
        } else {
            "! "
        };
        text += &wrapped(mark, &finding.text, WIDTH);
    }
    text
}

/// The last line: the verdict.
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

/// Rows of a table: all cells but the last are in columns, and the last is wrapped after them. Of three cells
/// the second is a number.
fn in_columns<const N: usize>(rows: &[[String; N]]) -> String {
    let leading: Vec<Vec<String>> = rows.iter().map(|row| row[..N - 1].to_vec()).collect();
    let padded_rows = padded(&leading, &[1]).into_iter().zip(rows);
    let lines = padded_rows.map(|(cells, row)| {
        let first = format!("  {}  ", cells.join("  "));
        wrapped(&first, &row[N - 1], WIDTH)
    });
    lines.collect()
}

/// A row of the table: what it is, a number, and more about it.
fn row(what: &str, number: String, rest: String) -> [String; 3] {
    [what.to_owned(), number, rest]
}

fn rows(head: &PlanHead, figures: &Figures, ends: bool) -> Vec<[String; 3]> {
    let number = |number: usize| grouped(number as u64);
    let oldest = match figures.waiting {
        0 => String::new(),
        _ => format!("the oldest for {}", time(figures.oldest)),
    };
    let mut rows = vec![
        row("arrive", number(figures.arrived), head.arrivals.clone()),
        row("delivered", number(figures.delivered), String::new()),
        row("still wait", number(figures.waiting), oldest),
    ];
    let outcomes = [
        ("never sent", figures.invalid),
        ("too old", figures.too_old),
        ("denied, dead", figures.denied),
    ];
    let counted = outcomes.into_iter().filter(|(_, count)| *count > 0);
    rows.extend(counted.map(|(what, count)| row(what, number(count), String::new())));
    let (most, at) = figures.most;
    rows.push(row(
        "most that wait",
        number(most),
        format!("at {}", time(at)),
    ));
    rows.push(backlog(figures, ends));
    if let Some([half, most, longest]) = figures.waits {
        let some = match figures.waiting {
            0 => "",
            _ => ", of those delivered",
        };
        let (most, longest) = (time(most), time(longest));
        let rest = format!("99 % within {most}, longest {longest}{some}");
        rows.push(row("wait, median", time(half), rest));
    }
    for (what, figure) in [
        ("denials", format!("{:.2}", figures.denials)),
        ("Redis calls", format!("{:.4}", figures.asks)),
    ] {
        rows.push(row(what, figure, "a message".to_owned()));
    }
    rows
}

/// When the backlog is gone, or why it is not.
fn backlog(figures: &Figures, ends: bool) -> [String; 3] {
    let (when, rest) = match (figures.overdue, figures.gone_at) {
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
    row("backlog is gone", when, rest)
}

/// The use of a limit, and how many keys it delayed.
fn used(limit: &LimitFigures) -> [String; 2] {
    let mut text = if limit.has_key {
        let busiest_key = limit.busiest.as_ref();
        let busiest = busiest_key.map_or_else(String::new, |(key, units)| {
            let key = in_a_line(key, KEY);
            format!(", the busiest ({key}) used {}", counted(*units, "unit"))
        });
        let rate = often(limit.per_second);
        let keys = grouped(limit.keys as u64);
        format!("{rate} for each of {keys} keys{busiest}")
    } else {
        let part = limit.share.map_or_else(String::new, |part| {
            format!("{:.1} % used of ", part * 100.0)
        });
        let (rate, units) = (often(limit.per_second), counted(limit.units, "unit"));
        format!("{part}{rate}, {units}")
    };
    if limit.denials > 0 {
        let held = match limit.has_key {
            true => format!(" of {}", counted(limit.held as u64, "key")),
            false => String::new(),
        };
        text += &format!("; {}{held}", counted(limit.denials, "denial"));
    }
    [format!("limits.{}", limit.name), text]
}

fn longest(keys: &[KeyFigures]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let rows = keys.iter().map(|key| {
        let waiting = match key.waiting {
            0 => String::new(),
            waiting => format!(", {} still wait", grouped(waiting as u64)),
        };
        let name = format!("{} {}", key.limit, key.key);
        let rest = format!("{}{waiting}", messages(key.messages));
        row(&in_a_line(&name, WIDTH / 2), time(key.longest_us), rest)
    });
    let table = in_columns(&rows.collect::<Vec<_>>());
    format!("\nlongest waits by key\n{table}")
}

pub(super) fn json(head: &PlanHead, figures: &Figures, findings: &[Finding], ends: bool) -> Value {
    let waits = figures.waits.map(
        |[half, most, longest]| json!({ "p50_us": half, "p99_us": most, "longest_us": longest }),
    );
    json!({
        "route": head.route,
        "start": head.start,
        "replicas": head.replicas,
        "prefetch": head.prefetch,
        "seed": head.seed,
        "ends": ends,
        "messages": {
            "arrived": figures.arrived,
            "delivered": figures.delivered,
            "waiting": figures.waiting,
            "overdue": figures.overdue,
            "never_sent": figures.invalid,
            "too_old": figures.too_old,
            "denied": figures.denied,
        },
        "backlog": {
            "most": figures.most.0,
            "most_at_us": figures.most.1,
            "gone_at_us": figures.gone_at.filter(|_| ends),
            "oldest_us": figures.oldest,
        },
        "wait": waits,
        "denials_per_message": figures.denials,
        "redis_calls_per_message": figures.asks,
        "limits": figures.limits.iter().map(of_limit).collect::<Vec<_>>(),
        "longest_waits": figures.longest,
        "findings": findings,
        "series": figures.series,
    })
}

fn of_limit(limit: &LimitFigures) -> Value {
    let busiest = limit.busiest.as_ref().filter(|_| limit.has_key);
    json!({
        "limit": limit.name,
        "kind": limit.kind,
        "per_second": limit.per_second,
        "units": limit.units,
        "wanted": limit.wanted,
        "share": limit.share,
        "denials": limit.denials,
        "keys": limit.has_key.then_some(limit.keys),
        "keys_held_up": limit.has_key.then_some(limit.held),
        "keys_beyond": limit.has_key.then_some(limit.beyond),
        "busiest": busiest.map(|(key, units)| json!({ "key": key, "units": units })),
    })
}

/// `1 message`, `2,000 messages`.
pub(super) fn counted(number: u64, what: &str) -> String {
    format!("{} {}", grouped(number), plural(number, what))
}

/// `1 message`, `2 messages`.
pub(super) fn messages(number: usize) -> String {
    counted(number as u64, "message")
}

/// Microseconds as a time: `2.5ms`, `250ms`, `12.3s`, `3m20s`.
pub(super) fn time(micros: u64) -> String {
    let seconds = micros as f64 / 1e6;
    match micros {
        0 => "0s".to_owned(),
        1..10_000 => format!("{:.1}ms", seconds * 1e3),
        10_000..1_000_000 => format!("{:.0}ms", seconds * 1e3),
        1_000_000..60_000_000 => format!("{seconds:.1}s"),
        _ => rough(Duration::from_micros(micros)),
    }
}

/// A number of three digits or so: `398`, `39.8`, `0.5`.
pub(super) fn short(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n >= 100.0 => grouped(n.round() as u64),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

/// This many a second, in the unit in which it is at least one.
pub(super) fn often(per_second: f64) -> String {
    let units = [(1.0, "a second"), (60.0, "a minute"), (3_600.0, "an hour")];
    let fits = units.into_iter().find(|(size, _)| per_second * size >= 1.0);
    let (size, unit) = fits.unwrap_or((86_400.0, "a day"));
    format!("{} {unit}", short(per_second * size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(time(2_500), "2.5ms");
        assert_eq!(time(250_000), "250ms");
        assert_eq!(time(12_345_678), "12.3s");
        assert_eq!(time(200_000_000), "3m20s");
        assert_eq!(often(398.01), "398 a second");
        assert_eq!(often(5.0 / 3_600.0), "5.00 an hour");
        assert_eq!(often(0.5), "30.0 a minute");
    }
}
