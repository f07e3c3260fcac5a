//! The tenant with most calls.
//!
//! Problem: while messages wait for too long, an operator wants to know which messages are sent instead. There may be a
//! million tenants. So only a few are counted at a time, those that come often (Misra and Gries): each that makes more
//! than one in seventeen of the calls is among them. All counts are halved twice a minute, so that older calls count
//! little.

use std::time::Duration;

use crate::time::Mono;

/// This many are counted at a time.
const COUNTED: usize = 16;
/// How often the counts are halved.
const HALVED: Duration = Duration::from_secs(30);

/// The calls by tenant.
#[derive(Clone, Debug, Default)]
pub struct BusiestTenants {
    counts: Vec<(u64, u32)>,
    total: u32,
    halved: Option<Mono>,
}

impl BusiestTenants {
    /// A call of this tenant was made.
    pub fn note_call(&mut self, tenant: u64, now: Mono) {
        self.age(now);
        self.total = self.total.saturating_add(1);
        if let Some((_, count)) = self
            .counts
            .iter_mut()
            .find(|(counted, _)| *counted == tenant)
        {
            *count = count.saturating_add(1);
        } else if self.counts.len() < COUNTED {
            self.counts.push((tenant, 1));
        } else {
            // It cancels one call of each of the others.
            self.retain(|count| count - 1);
        }
    }

    /// The tenant with the most calls, and at least which share of all they are; `None`: there were none.
    pub fn most(&mut self, now: Mono) -> Option<(u64, f64)> {
        self.age(now);
        let (tenant, count) = self.counts.iter().max_by_key(|(_, count)| *count)?;
        Some((
            *tenant,
            f64::from(*count) / f64::from(self.total.max(*count)),
        ))
    }

    fn age(&mut self, now: Mono) {
        let since = *self.halved.get_or_insert(now);
        let times = now.since(since).as_secs() / HALVED.as_secs();
        if times > 0 {
            let shift = times.min(31) as u32;
            self.halved = Some(now);
            self.total >>= shift;
            self.retain(|count| count >> shift);
        }
    }

    fn retain(&mut self, change: impl Fn(u32) -> u32) {
        self.counts.retain_mut(|(_, count)| {
            *count = change(*count);
            *count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_one_that_takes_most_is_found_among_any_number() {
        let mut busiest = BusiestTenants::default();
        assert_eq!(busiest.most(at(0)), None);
        for n in 0..10_000 {
            let tenant = if n % 4 == 0 { 7 } else { 1_000 + n };
            busiest.note_call(tenant, at(0));
        }
        let (tenant, share) = busiest.most(at(0)).expect("there were calls");
        assert_eq!(tenant, 7);
        assert!(share > 0.15 && share <= 0.25, "{share}");
        assert!(busiest.counts.len() <= COUNTED);
    }

    #[test]
    fn what_is_long_ago_counts_little() {
        let mut busiest = BusiestTenants::default();
        (0..1_000).for_each(|_| busiest.note_call(1, at(0)));
        for second in 0..120 {
            (0..5).for_each(|_| busiest.note_call(2, at(second)));
        }
        assert_eq!(busiest.most(at(120)).map(|(tenant, _)| tenant), Some(2));
        assert_eq!(busiest.most(at(7_200)), None);
    }
}
