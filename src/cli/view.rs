//! How the fleet is, as lines for a terminal of any width.
//!
//! Problem: `sluiced status` prints them once and `sluiced top` draws them again and again, at 80 columns or
//! 200, with colours or without. So this is one pure function: the fleet in, lines that fit out.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::text::{counted, paused, printable, rough};
use crate::core::time::StoreTime;
use crate::status::{BARS, Fleet, PROBES_ONLY, Replica, Route};
use crate::telemetry::CHANGE;

const BARS_OF_TEXT: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const GREY: &str = "\x1b[90m";
const BOLD: &str = "\x1b[1m";

/// Lines of at most `width` columns.
#[must_use]
pub(super) fn view(fleet: &Fleet, width: usize, colour: bool) -> Vec<String> {
    let page = Page { width, colour };
    let mut lines = vec![page.title(fleet)];
    if !fleet.complete {
        let why = "the store of the limits does not answer: only this replica is shown";
        lines.push(page.paint(RED, page.cut(why)));
    }
    lines.push(String::new());
    page.limits(fleet, &mut lines);
    page.routes(fleet, &mut lines);
    page.replicas(fleet, &mut lines);
    page.events(fleet, &mut lines);
    lines
}

struct Page {
    width: usize,
    colour: bool,
}

impl Page {
    fn paint(&self, colour: &str, text: String) -> String {
        if self.colour {
            format!("{colour}{text}\x1b[0m")
        } else {
            text
        }
    }

    fn cut(&self, line: &str) -> String {
        // Names and reasons come from other replicas, and warnings quote brokers and downstreams.
        let line = printable(line.trim_end()).replace(['\n', '\t'], " ");
        line.chars().take(self.width).collect()
    }

    fn head(&self, line: &str, lines: &mut Vec<String>) {
        lines.push(self.paint(BOLD, self.cut(line)));
    }

    fn title(&self, fleet: &Fleet) -> String {
        let count = fleet.replicas.len();
        let ill = fleet.heard().filter(|r| !r.missing.is_empty()).count();
        let silent = count - fleet.heard().count();
        let not = [(ill, "not ready"), (silent, "not heard of")];
        let not = not.iter().filter(|(count, _)| *count > 0);
        let mut how: Vec<_> = not.map(|(count, how)| format!("{count} {how}")).collect();
        let colour = if how.is_empty() { GREEN } else { RED };
        if how.is_empty() {
            how.push("all ready".to_owned());
        }
        let (replicas, how) = (counted(count as u64, "replica"), how.join(", "));
        let text = format!("sluiced: {replicas}, {how}   {}", fleet.now);
        self.paint(colour, self.cut(&text))
    }

    fn limits(&self, fleet: &Fleet, lines: &mut Vec<String>) {
        self.head(
            "LIMIT             KIND            USED/s  ALLOWED   USE  STATE     LAST MINUTES",
            lines,
        );
        for limit in &fleet.limits {
            let name = limit["name"].as_str().unwrap_or_default();
            let (allowed, used) = fleet.rates(name);
            let (of, share) = if allowed > 0.0 {
                (number(allowed), format!("{:.0}%", 100.0 * used / allowed))
            } else {
                ("-".to_owned(), "-".to_owned())
            };
            let kind = limit["kind"].as_str().unwrap_or("?");
            let state = limit["state"].as_str().unwrap_or("?");
            let line = format!(
                "{name:<17} {kind:<14} {:>7} {of:>8} {share:>5}  {state:<8}  ",
                number(used)
            );
            let room = self.width.saturating_sub(line.chars().count()).min(BARS);
            let line = self.cut(&(line + &bars(&fleet.bars(name), allowed, room)));
            let bad = state == "paused" || state == "frozen";
            lines.push(if bad { self.paint(YELLOW, line) } else { line });
            if let Some(left) = fleet.left(name) {
                let said = format!("  the downstream said that {left:.0} are left");
                lines.push(self.cut(&said));
            }
            if let Some(why) = held_up(limit) {
                lines.push(self.paint(YELLOW, self.cut(&format!("  {why}"))));
            }
        }
        lines.push(String::new());
    }

    fn routes(&self, fleet: &Fleet, lines: &mut Vec<String>) {
        self.head(
            "ROUTE             TAP      DONE/s    READY  WAITING PARKED   HELD  CALLS   DEAD",
            lines,
        );
        let mut names: Vec<_> = fleet.heard().flat_map(|r| r.routes.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let route = fleet.route(name);
            let tap = if route.open { "open" } else { "closed" };
            let line = self.cut(&format!(
                "{name:<17} {tap:<7} {:>7} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6}",
                number(route.per_second),
                route.ready,
                route.waiting,
                route.parked,
                route.held,
                route.in_flight,
                route.dead
            ));
            let why = reasons(&route);
            let bad = !why.is_empty() || route.dead > 0;
            lines.push(if bad { self.paint(YELLOW, line) } else { line });
            for (colour, why) in why {
                let wrapped = self.wrapped(&why).into_iter();
                let indented = wrapped.map(|line| self.cut(&format!("  {line}")));
                lines.extend(indented.map(|line| self.paint(colour, line)));
            }
            if let Some(line) = self.delays(fleet, name, &route) {
                lines.push(line);
            }
            if !route.answers.is_empty() {
                let answers = route
                    .answers
                    .iter()
                    .map(|(answer, n)| format!("{answer}: {n}"));
                let answers: Vec<_> = answers.collect();
                lines.push(self.cut(&format!("  answers since start: {}", answers.join(", "))));
            }
        }
        lines.push(String::new());
    }

    /// How long messages waited, how many wait, and when they are gone.
    fn delays(&self, fleet: &Fleet, name: &str, route: &Route) -> Option<String> {
        let curve = fleet.curves.get(name)?;
        let worst = curve.delay.iter().flatten().copied().reduce(f64::max)?;
        let now = route.delay.map_or_else(|| "-".to_owned(), short);
        let backlog: Vec<_> = curve
            .backlog
            .iter()
            .map(|count| count.unwrap_or(0) as f64)
            .collect();
        let mut line = format!("  delay: {now} now, up to {} in ten minutes", short(worst));
        if backlog.iter().any(|count| *count > 0.0) {
            let newest = &backlog[backlog.len().saturating_sub(BARS / 2)..];
            line += &format!("   backlog: {}", bars(newest, 0.0, BARS / 2));
        }
        if let Some(gone) = route.lasts().and_then(|left| gone(&fleet.now, left)) {
            line += &format!("   gone at {gone} at this rate");
        }
        Some(self.cut(&line))
    }

    fn replicas(&self, fleet: &Fleet, lines: &mut Vec<String>) {
        self.head(
            "REPLICA                          VERSION        UP  STATE",
            lines,
        );
        for replica in &fleet.replicas {
            let Replica { name, version, .. } = replica;
            let up = rough(Duration::from_secs(replica.seconds));
            let missing = replica.missing.iter();
            let missing: Vec<_> = missing
                .map(|m| format!("{}: {}", m.name, m.reason))
                .collect();
            let (state, colour) = if replica.silent > 0 {
                let ago = rough(Duration::from_secs(replica.silent));
                (format!("not heard of for {ago}"), GREY)
            } else if missing.is_empty() {
                ("ready".to_owned(), "")
            } else {
                (missing.join("; "), RED)
            };
            let line = self.cut(&format!("{name:<32} {version:<8} {up:>8}  {state}"));
            lines.push(if colour.is_empty() {
                line
            } else {
                self.paint(colour, line)
            });
        }
        lines.push(String::new());
    }

    fn events(&self, fleet: &Fleet, lines: &mut Vec<String>) {
        let all = fleet.events();
        if all.is_empty() {
            return;
        }
        self.head("LAST EVENTS", lines);
        for (replica, line) in all.into_iter().take(10) {
            let at = of_day(&line.at, &fleet.now);
            let text = format!("{at} {:<5} {replica}  {}", line.level, line.text);
            let wrapped = self.wrapped(&text).into_iter();
            lines.extend(wrapped.map(|text| match &*line.level {
                "ERROR" => self.paint(RED, text),
                CHANGE => text,
                _ => self.paint(YELLOW, text),
            }));
        }
    }

    /// A text that says why, in as many lines as it takes.
    fn wrapped(&self, text: &str) -> Vec<String> {
        let text = printable(text);
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= self.width => {
                    line.push(' ');
                    line.push_str(word);
                }
                Some(_) => lines.push(format!("    {word}")),
                None => lines.push(word.to_owned()),
            }
        }
        // A word may be wider than the screen.
        lines.iter().map(|line| self.cut(line)).collect()
    }
}

/// The time of a warning, without its date if that is today's.
fn of_day<'a>(at: &'a str, now: &str) -> &'a str {
    match (at.split_once('T'), now.split_once('T')) {
        (Some((day, time)), Some((today, _))) if day == today => time.trim_end_matches('Z'),
        _ => at,
    }
}

/// Why little or nothing of a route goes, or is not sure to keep its limits.
fn reasons(route: &Route) -> Vec<(&'static str, String)> {
    let mut why = Vec::new();
    if !route.stalled.is_empty() {
        why.push((RED, format!("stalled: {}", route.stalled)));
    }
    if !route.dying.is_empty() {
        why.push((
            RED,
            format!("stopped, one at a time is tried: {}", route.dying),
        ));
    }
    if !route.open {
        why.push((YELLOW, format!("closed: {}", route.why)));
    } else if route.away && route.away_why.is_empty() {
        why.push((YELLOW, PROBES_ONLY.to_owned()));
    } else if route.away {
        why.push((YELLOW, format!("{PROBES_ONLY}: {}", route.away_why)));
    }
    why.extend(route.late().map(|late| match route.taken.as_str() {
        "" => (YELLOW, late),
        taken => (YELLOW, format!("{late}; {taken}")),
    }));
    why.extend(route.thin().map(|thin| (YELLOW, thin)));
    why
}

/// Why nothing passes, or less than configured.
fn held_up(limit: &Value) -> Option<String> {
    let time = |name: &str| limit[name].as_u64().map(StoreTime::from_micros);
    let now = time("now_us")?;
    if let Some(until) = time("paused_until_us") {
        let by = limit["paused_by"].as_str().unwrap_or("?");
        return Some(paused(by, until.since(now)));
    }
    if let Some(until) = time("frozen_until_us") {
        let left = rough(until.since(now));
        return Some(format!("frozen by the downstream for another {left}"));
    }
    let adapted = limit["adapted"].as_str()?;
    Some(format!(
        "the downstream allows less than configured: {adapted}"
    ))
}

/// The last bars, of which a full one is the whole limit, or the largest if there is none.
fn bars(used: &[f64], allowed: f64, room: usize) -> String {
    let shown = &used[used.len().saturating_sub(room)..];
    let full = used.iter().copied().fold(allowed, f64::max);
    let bar = |used: &f64| match (used / full * 8.0).ceil() {
        eighths if eighths >= 1.0 => BARS_OF_TEXT[(eighths as usize).min(8) - 1],
        _ => ' ',
    };
    shown.iter().map(bar).collect()
}

/// A delay: tenths of a second where it is short.
fn short(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds:.1}s")
    } else {
        rough(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

/// The time of day after `left`, with its date if that is another one.
fn gone(now: &str, left: Duration) -> Option<String> {
    let now: Timestamp = now.parse().ok()?;
    let then = now.checked_add(left).ok()?.to_string();
    let (day, time) = then.split_once('T')?;
    let time = format!("{} UTC", time.get(..5)?);
    Some(match now.to_string().starts_with(day) {
        true => time,
        false => format!("{day} {time}"),
    })
}

fn number(n: f64) -> String {
    if n >= 1000.0 || n.fract() == 0.0 {
        format!("{n:.0}")
    } else {
        format!("{n:.1}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::status::{Curve, Missing, Use};
    use crate::telemetry::RecentLine;

    fn fleet() -> Fleet {
        let used = Use {
            per_second: 400.0,
            used: 268.0,
            ..Use::default()
        };
        let mut bars = vec![0.0; BARS - 5];
        bars.extend([200.0, 400.0, 400.0, 400.0, 4.0]);
        let route = Route {
            open: false,
            why: "the downstream is away".to_owned(),
            dead: 3,
            stalled: "no call for 6 s".to_owned(),
            ready: 12_000,
            way_spread: 0.012,
            way_kept: 0.001_25,
            per_second: 100.0,
            delay: Some(0.25),
            oldest: 95.0,
            max_delay: 30.0,
            taken: "of the routes that share limit account, bulk makes 95 % of the calls"
                .to_owned(),
            ..Route::default()
        };
        let curve = Curve {
            delay: vec![None, Some(130.0), Some(0.25)],
            backlog: vec![None, Some(6_000), Some(12_000)],
        };
        let died = Route {
            open: true,
            dying: "50 messages died in a row, invalid: no field `to`".to_owned(),
            away: true,
            away_why: "503 Service Unavailable".to_owned(),
            ..Route::default()
        };
        let replica = Replica {
            name: "host:1".to_owned(),
            version: "0.1.0".to_owned(),
            seconds: 200,
            missing: vec![Missing {
                name: "downstream of sms".to_owned(),
                reason: "away".to_owned(),
                seconds: 4,
            }],
            routes: BTreeMap::from([("sms".to_owned(), route), ("mail".to_owned(), died)]),
            limits: BTreeMap::from([("account".to_owned(), used)]),
            events: vec![RecentLine {
                at: "2026-01-01T00:03:00Z".to_owned(),
                level: "WARN".to_owned(),
                text: "too\nlate\u{1b}[2J ".repeat(20),
            }],
            ..Replica::default()
        };
        Fleet {
            complete: true,
            now: "2026-01-01T00:04:00Z".to_owned(),
            used: BTreeMap::from([("account".to_owned(), bars)]),
            curves: BTreeMap::from([("sms".to_owned(), curve)]),
            replicas: vec![
                replica,
                Replica {
                    name: "host:2".to_owned(),
                    silent: 75,
                    ..Replica::default()
                },
            ],
            limits: vec![
                json!({"name": "account", "kind": "paced", "state": "paused", "now_us": 0, "paused_until_us": 90_000_000, "paused_by": "anna@ops"}),
            ],
            ..Fleet::default()
        }
    }

    #[test]
    fn everything_fits_the_width() {
        for width in [0, 20, 80, 200] {
            for line in view(&fleet(), width, false) {
                assert!(line.chars().count() <= width, "{width}: {line}");
                assert!(!line.contains(char::is_control), "{line:?}");
            }
        }
    }

    #[test]
    fn a_backlog_is_gone_at_a_time_of_day() {
        let gone = |left| gone("2026-01-01T23:04:00Z", Duration::from_secs(left));
        assert_eq!(gone(120).as_deref(), Some("23:06 UTC"));
        assert_eq!(gone(3_600).as_deref(), Some("2026-01-02 00:04 UTC"));
        assert_eq!(gone(u64::MAX), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let text = view(&fleet(), 120, false).join("\n");
        for said in [
            "2 replicas, 1 not ready, 1 not heard of",
            "not heard of for 1m15s",
            "paused by anna@ops for another 1m30s",
            "closed: the downstream is away",
            "stalled: no call for 6 s",
            "stopped, one at a time is tried: 50 messages died in a row, invalid: no field `to`",
            "only single probes are sent: 503 Service Unavailable",
            "the way to the downstream varies by 12 ms, and the headroom keeps 1.3 ms for that",
            "downstream of sms: away",
            "the oldest message waits for 95 s, longer than max_delay (30 s); of the routes that share limit account, bulk",
            "  delay: 0.2s now, up to 2m10s in ten minutes   backlog:  ▄█   gone at 00:06 UTC at this rate",
            "268      400   67%",
            "▄███▁",
            "00:03:00 WARN host:1 too late",
            "\n    late",
        ] {
            assert!(text.contains(said), "no `{said}` in\n{text}");
        }
        assert!(view(&fleet(), 120, true).join("\n").contains(RED));
    }
}
