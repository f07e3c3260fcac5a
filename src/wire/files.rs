//! The limits of this replica's files, for the tasks that keep them at their current policies: the text of a policy
//! becomes the plain values by which the pipeline works, and a changed value becomes a text.

use super::stores::rows;
use sluiced_core::limits::Rule;
use sluiced_core::rate::Rate;
use sluiced_core::schedule::Pace;
use sluiced_pipeline::{Change, FileLimit, InForce, LimitFacts, RateBounds};
use sluiced_settings::types::{Limit, Paced};

/// A paced limit of a file. The pipeline uses the paces of its rows.
pub(super) struct PacedFile(pub(super) Limit);

/// A keyed limit of a file. The pipeline uses its rule.
pub(super) struct KeyedFile(pub(super) Limit);

impl FileLimit<Vec<Pace>> for PacedFile {
    fn policy(&self) -> String {
        self.0.policy_line()
    }

    fn under(&self, policy: &str) -> Result<InForce<Vec<Pace>>, String> {
        let limit = under(&self.0, policy)?;
        // As many rows as the file gives it.
        let (used, now) = (rows(limit.as_paced()), rows(self.0.as_paced()));
        if used.len() != now.len() {
            return Err("it leaves nothing to keep in reserve".to_owned());
        }
        let facts = facts(limit);
        Ok(InForce { used, facts })
    }
}

impl FileLimit<Rule> for KeyedFile {
    fn policy(&self) -> String {
        self.0.policy_line()
    }

    fn under(&self, policy: &str) -> Result<InForce<Rule>, String> {
        let limit = under(&self.0, policy)?;
        let rule = limit.rule().map_err(|why| why.to_string())?;
        let used = rule.ok_or_else(|| "it is paced".to_owned())?;
        let facts = facts(limit);
        Ok(InForce { used, facts })
    }
}

fn under(file: &Limit, policy: &str) -> Result<Limit, String> {
    file.with_policy(policy).map_err(|why| why.to_string())
}

fn facts(limit: Limit) -> LimitFacts {
    LimitFacts {
        is_paced: limit.as_paced().is_some(),
        window: limit.window(),
        headroom: limit.headroom(),
        follows: limit.follows(),
        adapts: limit.as_paced().and_then(adapts),
        per_second: limit.rate().map(|rate: Rate| rate.per_second()),
        changed: Box::new(move |change| {
            let changed = match change {
                Change::Headroom(headroom) => limit.clone().with_measured(headroom),
                Change::Units(units) => limit.with_units(units)?,
            };
            Some(changed.policy_line())
        }),
    }
}

fn adapts(paced: &Paced) -> Option<RateBounds> {
    paced.adaptive.then(|| RateBounds {
        most: paced.rate.0.units().get(),
        least: paced.floor(),
        units: paced.rate_in_force().units().get(),
    })
}
