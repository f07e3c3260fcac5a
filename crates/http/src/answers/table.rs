//! The whole table of what is done with which status, for an operator.
//!
//! It asks the judge about every status, so it cannot differ from what happens.

use sluiced_core::judge::{Meaning, Silence};
use sluiced_settings::types::Http;

use crate::answers::judge::{HttpJudge, default_meaning};

/// What is done with which answer of a downstream, for `sluiced check`. Empty if the lists are wrong, which is reported
/// as a fault of the configuration.
#[must_use]
pub fn answers_in_words(http: &Http) -> Vec<String> {
    let (wait, most) = (http.throttle_wait.get(), http.max_throttle_wait.get());
    let Ok(judge) = HttpJudge::new(http.outcomes.lists(), wait, most) else {
        return Vec::new();
    };
    let before = match (&http.outcome, judge.has_texts()) {
        (Some(_), true) => "after the template outcome and the texts, ",
        (Some(_), false) => "after the template outcome, ",
        (None, true) => "after the texts, ",
        (None, false) => "",
    };
    let head = format!("{before}answers mean by their status (* by default):");
    let table = judge.table().into_iter().map(|line| format!("  {line}"));
    std::iter::once(head).chain(table).collect()
}

/// What is done with one status.
struct StatusRow {
    status: u16,
    meaning: Meaning,
    /// If the answer says when to come back.
    asking: Meaning,
    /// If the call may be a repeat.
    repeated: Meaning,
    is_default: bool,
}

impl HttpJudge {
    /// A line for each meaning, with the statuses that have it: `throttled: 420*, 429*`. A `*` marks what no list of
    /// the configuration names.
    fn table(&self) -> Vec<String> {
        let rows: Vec<StatusRow> = (100..=599).map(|status| self.row(status)).collect();
        let lines = Meaning::ALL.iter().filter_map(|meaning| {
            let of = |has: fn(&StatusRow, Meaning) -> bool| {
                let of_meaning = rows.iter().filter(|row| has(row, *meaning));
                runs(of_meaning.map(|row| (row.status, row.is_default)))
            };
            let mut always = of(|row, meaning| row.meaning == meaning);
            always.extend(self.silences(*meaning));
            let asking = of(|row, meaning| row.meaning != meaning && row.asking == meaning);
            let repeated = of(|row, meaning| row.meaning != meaning && row.repeated == meaning);
            let parts: Vec<_> = [
                ("", always),
                ("if it says when to come back: ", asking),
                ("if the call may be a repeat: ", repeated),
            ]
            .into_iter()
            .filter(|(_, statuses)| !statuses.is_empty())
            .map(|(condition, statuses)| format!("{condition}{}", statuses.join(", ")))
            .collect();
            (!parts.is_empty()).then(|| format!("{}: {}", meaning.word(), parts.join("; ")))
        });
        lines.collect()
    }

    fn row(&self, status: u16) -> StatusRow {
        let listed = self.listed_meaning(status);
        let default =
            |asks, may_repeat| listed.unwrap_or_else(|| default_meaning(status, asks, may_repeat));
        StatusRow {
            status,
            meaning: default(false, false),
            asking: default(true, false),
            repeated: default(false, true),
            is_default: listed.is_none(),
        }
    }

    /// The ways in which there is no answer.
    fn silences(&self, meaning: Meaning) -> Vec<String> {
        let silences = [
            (Silence::Timeout, "timeout"),
            (Silence::Connection, "connection"),
            (Silence::Unreadable, "unreadable"),
        ];
        let words = silences.into_iter().filter_map(|(silence, word)| {
            let listed = self.listed_silence(silence);
            let is_this = listed.unwrap_or(Meaning::Transient) == meaning;
            is_this.then(|| format!("{word}{}", mark(listed.is_none())))
        });
        words.collect()
    }
}

/// Statuses in short: whole classes, and ranges.
fn runs(statuses: impl Iterator<Item = (u16, bool)>) -> Vec<String> {
    let mut runs: Vec<(u16, u16, bool)> = Vec::new();
    for (status, is_default) in statuses {
        match runs.last_mut() {
            Some((_, last, same))
                if *last + 1 == status && *same == is_default && !status.is_multiple_of(100) =>
            {
                *last = status;
            }
            _ => runs.push((status, status, is_default)),
        }
    }
    let text = |(first, last, is_default): (u16, u16, bool)| {
        let mark = mark(is_default);
        match last - first {
            0 => format!("{first}{mark}"),
            99 => format!("{}xx{mark}", first / 100),
            _ => format!("{first}-{last}{mark}"),
        }
    };
    runs.into_iter().map(text).collect()
}

const fn mark(is_default: bool) -> &'static str {
    if is_default { "*" } else { "" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use sluiced_core::judge::Lists;

    fn table(lists: Lists<'_>) -> Vec<String> {
        let wait = Duration::from_secs(1);
        HttpJudge::new(lists, wait, wait)
            .expect("good lists")
            .table()
    }

    #[test]
    fn every_status_is_in_it_and_the_defaults_are_marked() {
        assert_eq!(
            table(Lists::default()),
            [
                "accepted: 2xx*",
                "throttled: 420*, 429-430*; if it says when to come back: 403*, 477*, 503*, 529*",
                "transient: 401*, 403*, 407-408*, 421*, 423*, 425*, 5xx*, timeout*, connection*, unreadable*; \
                 if it says when to come back: 400*, 402*, 404-406*, 409-419*, 422*, 424*, 426-428*, 431-476*, 478-499*; \
                 if the call may be a repeat: 409*",
                "permanent: 1xx*, 3xx*, 400*, 402*, 404-406*, 409-419*, 422*, 424*, 426-428*, 431-499*",
            ]
        );
    }

    #[test]
    fn what_lists_name_has_no_mark() {
        let list = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let lists = Lists {
            accepted: &list(&["409"]),
            held: &list(&["423"]),
            throttled: &list(&["403"]),
            transient: &list(&["4xx"]),
            permanent: &list(&["timeout", "501"]),
            ..Lists::default()
        };
        assert_eq!(
            table(lists),
            [
                "accepted: 2xx*, 409",
                "throttled: 403; if it says when to come back: 503*, 529*",
                "held: 423",
                "transient: 400-402, 404-408, 410-422, 424-499, 500*, 502-599*, connection*, unreadable*",
                "permanent: 1xx*, 3xx*, 501, timeout",
            ]
        );
    }
}
