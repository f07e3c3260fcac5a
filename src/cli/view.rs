//! The state of the fleet, as lines for a terminal of any width.
//!
//! Problem: `sluiced status` prints them once and `sluiced top` draws them again and again, at 80 columns or
//! 200, with colours or without. So this is one pure function: the fleet in, lines that fit out.

use std::time::Duration;

use super::text::{counted, printable, rough, state_in_words};
use sluiced_status::{BARS, Fleet, LimitState, LimitStatus, MOVING, Replica, RouteState};
use sluiced_telemetry::CHANGE;

const BARS_OF_TEXT: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const GREY: &str = "\x1b[90m";
const BOLD: &str = "\x1b[1m";

/// Lines of at most `width` columns.
#[must_use]
pub(super) fn view(fleet: &Fleet, width: usize, colour: bool) -> Vec<String> {
    let page = TerminalPage { width, colour };
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

/// Why there is no answer: what answered may be any program.
pub(super) fn not_answered(why: &str, width: usize) -> Vec<String> {
    let page = TerminalPage {
        width,
        colour: false,
    };
    page.wrapped("", &format!("NOT ANSWERED: {why}"))
}

struct TerminalPage {
    width: usize,
    colour: bool,
}

impl TerminalPage {
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

    /// A name in the first column. A longer one has a line of its own: the columns after it would be off the screen.
    fn first<'a>(&self, name: &'a str, column: usize, lines: &mut Vec<String>) -> &'a str {
        if name.chars().count() <= column {
            return name;
        }
        lines.push(self.cut(name));
        ""
    }

    fn head(&self, line: &str, lines: &mut Vec<String>) {
        lines.push(self.paint(BOLD, self.cut(line)));
    }

    fn title(&self, fleet: &Fleet) -> String {
        let count = fleet.replicas.len();
        let ill = fleet
            .reporting_replicas()
            .filter(|r| !r.missing.is_empty())
            .count();
        let silent = count - fleet.reporting_replicas().count();
        let kinds = [(ill, "not ready"), (silent, "not heard of")];
        let bad = kinds.iter().filter(|(count, _)| *count > 0);
        let mut states: Vec<_> = bad.map(|(count, how)| format!("{count} {how}")).collect();
        let colour = if states.is_empty() { GREEN } else { RED };
        if states.is_empty() {
            states.push("all ready".to_owned());
        }
        let (replicas, how) = (counted(count as u64, "replica"), states.join(", "));
        let text = format!("sluiced: {replicas}, {how}   {}", fleet.now);
        self.paint(colour, self.cut(&text))
    }

    fn limits(&self, fleet: &Fleet, lines: &mut Vec<String>) {
        self.head(
            "LIMIT             KIND            USED/s  ALLOWED   USE  STATE     LAST MINUTES",
            lines,
        );
        for limit in &fleet.limits {
            let name = &*limit.name;
            let (allowed, used) = fleet.rates(name);
            let (of, share) = if allowed > 0.0 {
                (number(allowed), format!("{:.0}%", 100.0 * used / allowed))
            } else {
                ("-".to_owned(), "-".to_owned())
            };
            let (kind, state) = (&limit.kind, &limit.state);
            let first = self.first(name, 17, lines);
            let columns = format!(
                "{first:<17} {kind:<14} {:>7} {of:>8} {share:>5}  {state:<8}  ",
                number(used)
            );
            let room = self.width.saturating_sub(columns.chars().count()).min(BARS);
            let line = self.cut(&(columns + &bars(&fleet.bars(name), allowed, room)));
            let bad = limit.state() != LimitState::Open;
            lines.push(if bad { self.paint(YELLOW, line) } else { line });
            if let Some(units_left) = fleet.left(name) {
                let text = format!("  the downstream said that {units_left:.0} are left");
                lines.push(self.cut(&text));
            }
            if let Some((taken, used)) = fleet.actual(name) {
                let text =
                    format!("  since start: {taken} taken by estimate, {used} used by answers");
                lines.push(self.cut(&text));
            }
            if let Some(wait) = fleet.waits(name) {
                let wrapped = self.wrapped("  ", &wait.in_words()).into_iter();
                lines.extend(wrapped.map(|line| self.paint(YELLOW, line)));
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
        let mut names: Vec<_> = fleet
            .reporting_replicas()
            .flat_map(|r| r.routes.keys())
            .collect();
        names.sort();
        names.dedup();
        for name in names {
            let route = fleet.route(name);
            let tap = match (route.open, route.standby_for.is_none()) {
                _ if route.probing_reason().is_some() => "probes",
                (true, true) => "open",
                (true, false) => "standby",
                (false, _) => "closed",
            };
            let first = self.first(name, 17, lines);
            let line = self.cut(&format!(
                "{first:<17} {tap:<7} {:>7} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6}",
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
                let wrapped = self.wrapped("  ", &why).into_iter();
                lines.extend(wrapped.map(|line| self.paint(colour, line)));
            }
            if let Some(line) = self.delays(fleet, name, &route) {
                lines.push(line);
            }
            self.counts_since_start(&route, lines);
        }
        lines.push(String::new());
    }

    fn counts_since_start(&self, route: &RouteState, lines: &mut Vec<String>) {
        for (what, counts) in [("answers", &route.answers), ("results", &route.results)] {
            let labelled = counts.iter().map(|(label, n)| format!("{label}: {n}"));
            let entries: Vec<_> = labelled.collect();
            if !entries.is_empty() {
                lines.push(self.cut(&format!("  {what} since start: {}", entries.join(", "))));
            }
        }
        if route.repeats > 0 {
            let repeats = format!("  repeats without a call since start: {}", route.repeats);
            lines.push(self.cut(&repeats));
        }
    }

    /// How long messages waited, how many wait, and when they are gone.
    fn delays(&self, fleet: &Fleet, name: &str, route: &RouteState) -> Option<String> {
        let curve = fleet.curves.get(name)?;
        let worst_here = curve.delay.iter().flatten().copied().reduce(f64::max)?;
        // The curve is from one replica.
        let worst = worst_here.max(route.delay.unwrap_or_default());
        let now = route.delay.map_or_else(|| "-".to_owned(), short);
        let backlog: Vec<_> = curve
            .backlog
            .iter()
            .map(|count| count.unwrap_or(0) as f64)
            .collect();
        let mut line = format!("  delay: {now} now, up to {} in 10 min", short(worst));
        if let Some(gone) = fleet.gone.get(name) {
            line += &format!("   gone {gone} at this rate");
        }
        let head = "   backlog: ";
        // The oldest part of a curve that does not fit is left out.
        let room = self.width.saturating_sub(line.chars().count() + head.len());
        if room > 0 && backlog.iter().any(|count| *count > 0.0) {
            line += head;
            let newest = &backlog[backlog.len().saturating_sub(room.min(BARS / 2))..];
            line += &bars(newest, 0.0, BARS / 2);
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
            let (state, colour) = if replica.silent > 0 {
                let ago = rough(Duration::from_secs(replica.silent));
                (format!("not heard of for {ago}"), GREY)
            } else if replica.missing.is_empty() {
                ("ready".to_owned(), "")
            } else {
                ("not ready".to_owned(), RED)
            };
            let first = self.first(name, 32, lines);
            let line = self.cut(&format!("{first:<32} {version:<8} {up:>8}  {state}"));
            if colour.is_empty() {
                lines.push(line);
                continue;
            }
            lines.push(self.paint(colour, line));
            for missing in replica.missing.iter().filter(|_| replica.silent == 0) {
                let why = format!("{}: {}", missing.name, missing.reason);
                let wrapped = self.wrapped("  ", &why).into_iter();
                lines.extend(wrapped.map(|line| self.paint(colour, line)));
            }
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
            let wrapped = self.wrapped("", &text).into_iter();
            lines.extend(wrapped.map(|text| match &*line.level {
                "ERROR" => self.paint(RED, text),
                CHANGE => text,
                _ => self.paint(YELLOW, text),
            }));
        }
    }

    /// A reason, in as many lines as it takes, each after `indent`.
    fn wrapped(&self, indent: &str, text: &str) -> Vec<String> {
        let text = printable(text);
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= self.width => {
                    line.push(' ');
                    line.push_str(word);
                }
                Some(_) => lines.push(format!("{indent}    {word}")),
                None => lines.push(format!("{indent}{word}")),
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

/// Why a route sends little or nothing, or may not keep its limits.
fn reasons(route: &RouteState) -> Vec<(&'static str, String)> {
    let mut why = Vec::new();
    if let Some(stalled) = &route.stalled {
        why.push((RED, format!("stalled: {stalled}")));
    }
    if let Some(dying) = &route.dying {
        why.push((RED, format!("sets messages aside: {dying}")));
    }
    if let Some(probing) = route.probing_reason() {
        why.push((YELLOW, probing));
    } else if !route.open {
        let reason = route.why.as_ref().map(|why| format!(": {why}"));
        why.push((YELLOW, format!("closed{}", reason.unwrap_or_default())));
    }
    if route.moving {
        let text = match route.why.as_ref().filter(|_| route.open) {
            Some(reason) => format!("{MOVING}: {reason}"),
            None => MOVING.to_owned(),
        };
        why.push((YELLOW, text));
    }
    why.extend(route.delay_warning().map(|late| match &route.taken {
        None => (YELLOW, late),
        Some(taken) => (YELLOW, format!("{late}; {taken}")),
    }));
    why.extend(route.headroom_warning().map(|thin| (YELLOW, thin)));
    why.extend(route.loss_warning().map(|lost| (RED, lost)));
    why
}

/// Why nothing passes, or less than configured.
fn held_up(limit: &LimitStatus) -> Option<String> {
    let state = limit.state();
    if state != LimitState::Open {
        return Some(state_in_words(&state));
    }
    let adapted = limit.adapted.as_ref()?;
    Some(format!(
        "the downstream allows less than configured: {adapted}"
    ))
}

/// The last bars; a full one is the whole limit, or the largest bar if there is no limit.
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

fn number(n: f64) -> String {
    if n >= 1000.0 || n.fract() == 0.0 {
        format!("{n:.0}")
    } else {
        format!("{n:.1}")
    }
}

#[cfg(test)]
mod tests;
