//! What an operator should know in advance: what stands still, what grows, what does not end in time.
//!
//! Some of it is arithmetic over the limits and the drawn messages (a rate above a limit, a key with more
//! messages than its limit lets pass): true for any run of this plan, however long. The rest was seen in
//! the run.

use serde::Serialize;

use super::figures::Figures;
use super::limits::LimitFigures;
use super::words::{KEY, messages, often, short, time};
use crate::cli::text::{grouped, in_a_line};
use sluiced_core::time::micros;
use sluiced_core::zone::Zone;
use sluiced_settings::fixed_or_template::ZoneText;
use sluiced_settings::types::Route;
use sluiced_simulation::plan::Plan;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FindingKind {
    /// Such messages will never pass, or none passes in this time.
    StandsStill,
    /// The backlog grows for as long as messages come like this.
    Grows,
    /// The backlog is not gone within the time.
    Late,
    /// Worth knowing.
    Note,
}

/// Something to know.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) weight: FindingKind,
    pub(super) text: String,
}

/// The facts behind findings.
#[derive(Debug)]
pub(super) struct PlanFacts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) figures: &'a Figures,
    /// Messages a second that come all the time.
    pub(super) steady: f64,
    /// Why a message cannot be counted.
    pub(super) why_invalid: Option<&'a str>,
}

/// Everything, the worst first.
pub(super) fn findings(facts: &PlanFacts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(facts.invalid());
    found.extend(facts.never_open());
    for limit in &facts.figures.limits {
        found.extend(facts.too_much(limit));
        found.extend(facts.passed_by(limit));
    }
    found.extend(facts.held_too_few());
    if found
        .iter()
        .all(|finding| finding.weight == FindingKind::Note)
    {
        found.extend(facts.not_gone());
    }
    found.extend(facts.ends_closed());
    found.extend(facts.silent());
    found.extend(facts.tightest());
    found.extend(facts.dead());
    found.sort_by_key(|finding| finding.weight == FindingKind::Note);
    found
}

const fn finding(weight: FindingKind, text: String) -> Option<Finding> {
    Some(Finding { weight, text })
}

impl PlanFacts<'_> {
    fn seconds(&self) -> f64 {
        self.plan.length.as_secs_f64()
    }

    fn invalid(&self) -> Option<Finding> {
        let (invalid, all) = (self.figures.invalid, self.figures.arrived);
        if invalid == 0 {
            return None;
        }
        let why = self.why_invalid.unwrap_or("a limit cannot count it");
        let text = format!(
            "{why}. {} of {} can never be sent (`on_invalid` says what becomes of them).",
            grouped(invalid as u64),
            messages(all)
        );
        finding(FindingKind::StandsStill, text)
    }

    fn never_open(&self) -> Option<Finding> {
        let hours = self.plan.route.hours.as_ref()?;
        if self.figures.open > 0 {
            return None;
        }
        let opens = hours.zone().show(hours.opens(self.plan.start));
        let text = format!("The route is never open in this time: it opens at {opens}.");
        finding(FindingKind::StandsStill, text)
    }

    /// The messages want more of a limit than it lets pass in this time.
    fn too_much(&self, limit: &LimitFigures) -> Option<Finding> {
        let name = &limit.name;
        if limit.has_key {
            return self.too_much_of_a_key(limit);
        }
        if self.figures.open == 0 {
            return None;
        }
        let open = self.figures.open as f64 / 1e6;
        let fit = limit.burst + limit.per_second * open;
        let wanted = limit.wanted as f64;
        if wanted <= fit {
            return None;
        }
        let cost = wanted / self.plan.messages.len().max(1) as f64;
        let offered = self.steady * cost;
        // Closed hours reduce it in proportion.
        let passes = limit.per_second * open / self.seconds();
        if offered > passes {
            let growth = (offered - passes) / cost * 60.0;
            let units = if cost > 1.0 { " units" } else { "" };
            let text = format!(
                "limits.{name} lets {}{units} pass, and {} come: the backlog grows by {} messages a minute and never ends.",
                often(passes),
                often(offered),
                short(growth)
            );
            return finding(FindingKind::Grows, text);
        }
        let longer = (wanted - fit) / passes.max(1e-9) * 1e6;
        let text = format!(
            "limits.{name}: {} units are wanted in this time and {} can pass; it takes about {} more.",
            grouped(limit.wanted),
            grouped(fit as u64),
            time(longer as u64)
        );
        finding(FindingKind::Late, text)
    }

    /// More units of a key are wanted than can pass, where a limit counts by key.
    fn too_much_of_a_key(&self, limit: &LimitFigures) -> Option<Finding> {
        let name = &limit.name;
        let (worst, wanted) = limit.worst.as_ref().filter(|_| limit.beyond > 0)?;
        let (beyond, keys) = (grouped(limit.beyond as u64), grouped(limit.keys as u64));
        let fit = limit.burst + limit.per_second * self.seconds();
        let worst = in_a_line(worst, KEY);
        let text = format!(
            "limits.{name} lets {} pass for each key, and {beyond} of {keys} keys want more: \
             `{worst}` wants {} units in this time, of which about {} can pass.{}",
            often(limit.per_second),
            grouped(*wanted),
            grouped(fit as u64),
            if self.steady > 0.0 {
                " Their backlog grows for as long as messages come like this."
            } else {
                ""
            },
        );
        let weight = if self.steady > 0.0 {
            FindingKind::Grows
        } else {
            FindingKind::Late
        };
        finding(weight, text)
    }

    /// Small messages take units as they come free, before an expensive one fits.
    fn passed_by(&self, limit: &LimitFigures) -> Option<Finding> {
        let costly = limit
            .costly
            .filter(|costly| costly.wait > self.figures.grace.max(2 * costly.others))?;
        let text = format!(
            "limits.{}: a message of {} waited for {}, smaller ones for {} at the longest: they pass it for as long as \
             they come. A route and a limit of their own end that.",
            limit.name,
            costly.cost,
            time(costly.wait),
            time(costly.others)
        );
        finding(FindingKind::Note, text)
    }

    /// The replicas hold too few messages at a time for the rate.
    fn held_too_few(&self) -> Option<Finding> {
        let route = &self.plan.route;
        let (replicas, prefetch) = (self.plan.replicas, route.prefetch);
        let call = route.call.as_secs_f64();
        let passes = f64::from(replicas) * f64::from(prefetch) / call.max(0.001);
        let account = self.paced_messages();
        let grows = self.steady > passes;
        if !grows && account.is_none_or(|(_, account)| passes >= account) {
            return None;
        }
        let rest = match account {
            _ if grows => format!(": {} come, and the backlog never ends", often(self.steady)),
            Some((name, account)) => format!(", less than the {} of limits.{name}", often(account)),
            None => String::new(),
        };
        let text = format!(
            "Calls take {}, and {replicas} × prefetch {prefetch} messages are held at a time: {} pass{rest}. \
             A larger prefetch or more replicas help.",
            time(micros(route.call)),
            often(passes)
        );
        finding(
            if grows {
                FindingKind::Grows
            } else {
                FindingKind::Note
            },
            text,
        )
    }

    /// Messages a second that the paced limit lets pass.
    fn paced_messages(&self) -> Option<(&str, f64)> {
        let paced = self
            .figures
            .limits
            .iter()
            .find(|limit| limit.kind == "paced")?;
        Some((&paced.name, self.messages_of(paced)))
    }

    /// Messages a second that pass a limit over all of its keys.
    fn messages_of(&self, limit: &LimitFigures) -> f64 {
        let cost = limit.wanted as f64 / self.plan.messages.len().max(1) as f64;
        limit.per_second * limit.keys.max(1) as f64 / cost.max(1.0)
    }

    /// Messages that came long ago still wait, and no single limit explains that.
    fn not_gone(&self) -> Option<Finding> {
        let figures = self.figures;
        if figures.overdue == 0 {
            return None;
        }
        let half = self.seconds() / 2.0;
        let (now, before) = (figures.waiting as f64, figures.at_half as f64);
        let oldest = time(figures.oldest);
        let waiting = messages(figures.waiting);
        let head = format!("{waiting} still wait at the end, the oldest for {oldest}");
        // With closed hours, half of the time shows nothing about the end.
        let open = self.plan.route.hours.is_none();
        if open && now >= before * 0.98 && self.steady > 0.0 {
            let by = (now - before).max(0.0) / half * 60.0;
            let text = format!("{head}; the backlog grows by {} a minute.", short(by));
            return finding(FindingKind::Grows, text);
        }
        let rest = if open && now < before {
            let extra_time = now / ((before - now) / half) * 1e6;
            format!("; it would take about {} more", time(extra_time as u64))
        } else {
            String::new()
        };
        finding(FindingKind::Late, format!("{head}{rest}."))
    }

    /// Messages wait for the next opening.
    fn ends_closed(&self) -> Option<Finding> {
        if self.figures.open == 0 || !self.figures.waits_for_opening() {
            return None;
        }
        let waiting = messages(self.figures.waiting);
        let closed = time(self.figures.closed_at_end);
        let text = format!(
            "It ends in closed hours: {waiting} wait for the next opening, after {closed} without a call."
        );
        finding(FindingKind::Note, text)
    }

    /// Nothing was sent any more, though messages waited.
    fn silent(&self) -> Option<Finding> {
        let figures = self.figures;
        let length = micros(self.plan.length);
        let silence = length - figures.last_call.unwrap_or(0);
        let always_open = self.plan.route.hours.is_none();
        if figures.overdue == 0 || !always_open || silence <= figures.grace {
            return None;
        }
        let since = figures.last_call.map_or_else(
            || "Nothing is sent at all".to_owned(),
            |at| format!("Nothing is sent after {}", time(at)),
        );
        let waiting = messages(figures.waiting);
        finding(
            FindingKind::StandsStill,
            format!("{since}, though {waiting} wait."),
        )
    }

    /// A keyed limit that never lets the account's rate be used.
    fn tightest(&self) -> Option<Finding> {
        let (account_name, account) = self.paced_messages()?;
        let others = self
            .figures
            .limits
            .iter()
            .filter(|limit| limit.kind != "paced");
        let limits_and_rates = others.map(|limit| (limit, self.messages_of(limit)));
        let (limit, passes) = limits_and_rates.min_by(|a, b| a.1.total_cmp(&b.1))?;
        if passes >= account {
            return None;
        }
        let keys = if limit.has_key {
            format!(" over its {} keys", grouped(limit.keys as u64))
        } else {
            String::new()
        };
        let text = format!(
            "In the long run limits.{} lets {}{keys} pass, less than the {} of limits.{account_name}: \
             the account's rate is never used up.",
            limit.name,
            often(passes),
            often(account)
        );
        finding(FindingKind::Note, text)
    }

    fn dead(&self) -> Option<Finding> {
        let (old, denied) = (self.figures.too_old, self.figures.denied);
        let old = (old > 0).then(|| {
            format!(
                "{} were older than `max_age` before their turn came",
                messages(old)
            )
        });
        let denied = (denied > 0).then(|| {
            format!(
                "{} had to wait for longer than `max_hold` and were dead letters (`on_denied`)",
                messages(denied)
            )
        });
        let notes: Vec<String> = old.into_iter().chain(denied).collect();
        if notes.is_empty() {
            return None;
        }
        finding(FindingKind::Note, format!("{}.", notes.join("; ")))
    }
}

/// What is not in the plan, besides parts of the route itself.
#[derive(Debug)]
pub(super) struct PlanOmissions<'a> {
    /// Limits that other routes share, each with such a route.
    pub(super) others: Vec<(&'a str, &'a str)>,
    /// Other routes of the queue.
    pub(super) same_queue: Vec<&'a str>,
    /// Limits whose costs are a guess.
    pub(super) assumed: &'a [String],
    /// The `once` limits.
    pub(super) once: &'a [String],
    pub(super) tenants_known: bool,
}

impl PlanOmissions<'_> {
    /// Notes about the parts of the route that are not in the plan.
    pub(super) fn findings(&self, route: &Route) -> Vec<Finding> {
        let mut notes = Vec::new();
        let mut note = |text| notes.extend(finding(FindingKind::Note, text));
        for limit in self.assumed {
            note(format!(
                "Each message is taken to cost 1 of limits.{limit}, whose cost is a template: --cost {limit}=1-3 says otherwise."
            ));
        }
        for limit in self.once {
            note(format!(
                "limits.{limit} is not in this plan: no two of its messages are the same."
            ));
        }
        for (limit, other) in &self.others {
            note(format!(
                "limits.{limit} is shared with routes.{other}, whose messages are not in this plan."
            ));
        }
        for other in &self.same_queue {
            note(format!(
                "Its queue is shared with routes.{other}, which is not in this plan: all messages are taken to be sent by this route."
            ));
        }
        if matches!(route.timezone, Some(ZoneText::Template(_))) {
            note("The hours of each message's own time zone are not in this plan.".to_owned());
        }
        if route.priority.template().is_some() {
            note("All messages are taken to have the priority 0.".to_owned());
        }
        if route.fair_by.is_some() {
            note(if self.tenants_known {
                "Tenants share what the replicas hold; parking is not in this plan.".to_owned()
            } else {
                "All messages are taken to be of one tenant.".to_owned()
            });
        }
        notes
    }
}

/// The zone whose clock the route uses.
pub(super) fn zone(route: &Route) -> Zone {
    match &route.timezone {
        Some(ZoneText::Fixed(zone)) => zone.clone(),
        Some(ZoneText::Template(_)) | None => Zone::utc(),
    }
}
