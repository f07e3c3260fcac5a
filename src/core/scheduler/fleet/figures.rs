//! What a run came to.

use std::collections::BTreeMap;

use super::Fleet;

impl Fleet {
    /// Looks of a message: the mean, and the 99th and 99.9th percentile.
    pub(crate) fn looks(&self) -> (f64, u32, u32) {
        let mut all: Vec<u32> = self.looks.values().copied().collect();
        all.sort_unstable();
        let sum: u32 = all.iter().sum();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
        (f64::from(sum) / all.len() as f64, at(0.99), at(0.999))
    }

    /// From the first call to the last.
    pub(crate) fn seconds(&self) -> f64 {
        (self.sent[self.sent.len() - 1].at - self.sent[0].at) as f64 / 1e6
    }

    /// Trips through wait queues: the mean, and the most.
    pub(crate) fn trips(&self) -> (f64, u32) {
        let sum: u32 = self.trips.values().sum();
        let most = self.trips.values().copied().max().unwrap_or(0);
        (f64::from(sum) / self.setting.keys.len() as f64, most)
    }

    /// No window over the limit, whichever limit and key.
    pub(crate) fn none_over(&self, units: &[(usize, u64)]) {
        for (index, (units, window)) in units.iter().enumerate() {
            let mut by: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for sent in &self.sent {
                by.entry(sent.keys[index]).or_default().push(sent.at);
            }
            for (key, times) in by {
                for some in times.windows(units + 1) {
                    let span = some[*units] - some[0];
                    assert!(span >= *window, "{index} {key}: {} in {span} us", units + 1);
                }
            }
        }
    }
}
