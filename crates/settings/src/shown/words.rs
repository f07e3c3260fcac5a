//! What a limit and a route will do, in words, for `sluiced check`.

mod limit;
mod route;

use crate::types::{Route, Settings};
use sluiced_core::rate::Span;

impl Settings {
    /// How a route shares its queue with other routes, if there are any.
    #[must_use]
    pub fn sharing_words(&self, name: &str, route: &Route) -> Option<String> {
        if let Some(main) = &route.standby_for {
            let late = self.routes.get(main).and_then(|main| main.max_delay);
            let late = late.map_or(String::new(), |most| {
                format!(
                    ", and for some while that route is late by more than {}",
                    Span(most.get())
                )
            });
            return Some(format!(
                "consumes nothing itself: it calls for messages that routes.{main} cannot send{late}"
            ));
        }
        let others = || {
            self.of_queue(&route.queue)
                .filter(|(other, _)| *other != name)
        };
        let named = |routes: Vec<&str>| {
            let names = routes.iter().map(|name| format!("routes.{name}"));
            names.collect::<Vec<_>>().join(" and ")
        };
        let consuming = others().filter(|(_, other)| other.standby_for.is_none());
        let consuming: Vec<_> = consuming.map(|(other, _)| other).collect();
        let standbys = others().filter(|(_, other)| other.standby_for.as_deref() == Some(name));
        let standbys: Vec<_> = standbys.map(|(other, _)| other).collect();
        let together = (!consuming.is_empty()).then(|| {
            let others = named(consuming);
            format!(
                "consumes `{}` together with {others}; each takes over what the other cannot send",
                route.queue
            )
        });
        let standing_by = (!standbys.is_empty())
            .then(|| format!("what it cannot send moves to {}", named(standbys)));
        let both: Vec<_> = together.into_iter().chain(standing_by).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }
}

fn units(number: u32) -> String {
    format!("{number} unit{}", if number == 1 { "" } else { "s" })
}
