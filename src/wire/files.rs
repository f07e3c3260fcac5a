//! The limits of this replica's files, for the tasks that keep them at their current policies: the text of a policy
//! becomes the plain values by which the pipeline works, and a changed value becomes a text.

use sluiced_core::limits::Rule;
use sluiced_core::pacing::RowPaces;
use sluiced_core::rate::Rate;
use sluiced_pipeline::{Change, CurrentLimit, FileLimit, LimitFacts, RateBounds};
use sluiced_settings::types::{Limit, Paced};

/// A paced limit of a file. The pipeline uses the paces of its rows.
#[derive(Debug)]
pub(super) struct PacedFile(pub(super) Limit);

/// A keyed limit of a file. The pipeline uses its rule.
#[derive(Debug)]
pub(super) struct KeyedFile(pub(super) Limit);

impl FileLimit<RowPaces> for PacedFile {
    fn policy(&self) -> String {
        self.0.policy_line()
    }

    fn under(&self, policy: &str) -> Result<CurrentLimit<RowPaces>, String> {
        let limit = under(&self.0, policy)?;
        let used = paces(&limit)?;
        // As many rows as the file gives it.
        if used.reserve.is_some() != paces(&self.0)?.reserve.is_some() {
            return Err("it leaves nothing to keep in reserve".to_owned());
        }
        let facts = facts(limit);
        Ok(CurrentLimit { used, facts })
    }
}

impl FileLimit<Rule> for KeyedFile {
    fn policy(&self) -> String {
        self.0.policy_line()
    }

    fn under(&self, policy: &str) -> Result<CurrentLimit<Rule>, String> {
        let limit = under(&self.0, policy)?;
        let rule = limit.rule().map_err(|why| why.to_string())?;
        let used = rule.ok_or_else(|| "it is paced".to_owned())?;
        let facts = facts(limit);
        Ok(CurrentLimit { used, facts })
    }
}

fn paces(limit: &Limit) -> Result<RowPaces, String> {
    let paced = limit.as_paced();
    let paces = paced.map(Paced::paces);
    paces.ok_or_else(|| "it is not paced".to_owned())
}

fn under(file: &Limit, policy: &str) -> Result<Limit, String> {
    file.with_policy(policy).map_err(|why| why.to_string())
}

fn facts(limit: Limit) -> LimitFacts {
    LimitFacts {
        is_paced: limit.as_paced().is_some(),
        window: limit.window(),
        headroom: limit.headroom(),
        auto_bounds: limit.auto_bounds(),
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
