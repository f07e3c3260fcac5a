//! What the replicas reported, in this process.

use std::collections::BTreeMap;

use futures::FutureExt;

use super::MemoryStore;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::store::{
    BAR, FleetReports, PLACES, REPORT_EVERY, SHOWN, StatusReport, StatusStore, StoreFuture,
};

/// What the replicas reported.
#[derive(Debug, Default)]
pub(super) struct ReportedStates {
    replicas: BTreeMap<String, (StoreTime, String)>,
    /// Units by number of the bar and limit.
    bars: BTreeMap<(u64, String), f64>,
}

impl ReportedStates {
    fn report_status(&mut self, report: StatusReport<'_>, now: StoreTime) {
        if report.text.is_empty() {
            self.replicas.remove(report.replica);
        } else {
            let text = (now, report.text.to_owned());
            self.replicas.insert(report.replica.to_owned(), text);
        }
        let (now, width) = (now.as_micros(), micros(BAR));
        let passed = micros(report.passed).max(1);
        let (began, last) = (now.saturating_sub(passed), now / width);
        let earliest = last.saturating_sub(PLACES as u64 - 1);
        self.bars.retain(|(bar, _), _| *bar >= earliest);
        for bar in earliest.max(began / width)..=last {
            let (from, to) = (began.max(bar * width), now.min((bar + 1) * width));
            let share = to.saturating_sub(from) as f64 / passed as f64;
            for (limit, units) in report.used {
                let sum = self.bars.entry((bar, limit.clone())).or_default();
                *sum += *units as f64 * share;
            }
        }
    }

    fn reports(&self, now: StoreTime) -> FleetReports {
        let reports = self.replicas.values();
        let aged = reports.map(|(report, text)| (now.since(*report), text.clone()));
        let mut heard = FleetReports {
            replicas: aged.filter(|(ago, _)| *ago <= SHOWN).collect(),
            ..FleetReports::default()
        };
        let ended = now.as_micros().saturating_sub(micros(REPORT_EVERY)) / micros(BAR);
        for ((bar, limit), units) in self.bars.range(..(ended, String::new())) {
            heard.note(limit, (ended - 1 - bar) as usize, *units);
        }
        heard
    }
}

impl StatusStore for MemoryStore {
    fn report_status<'a>(&'a self, report: StatusReport<'a>) -> StoreFuture<'a, ()> {
        async move {
            self.decide(&self.status, |status, now| {
                status.report_status(report, now)
            });
            Ok(())
        }
        .boxed()
    }

    fn read_reports(&self) -> StoreFuture<'_, FleetReports> {
        async move { Ok(self.decide(&self.status, |status, now| status.reports(now))) }.boxed()
    }
}
