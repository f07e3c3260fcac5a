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
            let max_delay = self.routes.get(main).and_then(|main| main.max_delay);
            let late = max_delay.map_or(String::new(), |most| {
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
        let with_standby_for = |main: Option<&str>| -> Vec<_> {
            others()
                .filter(|(_, other)| other.standby_for.as_deref() == main)
                .map(|(other, _)| other)
                .collect()
        };
        let consuming = with_standby_for(None);
        let standbys = with_standby_for(Some(name));
        let together = (!consuming.is_empty()).then(|| {
            format!(
                "consumes `{}` together with {}; each takes over what the other cannot send",
                route.queue,
                named(consuming)
            )
        });
        let standing_by = (!standbys.is_empty())
            .then(|| format!("what it cannot send moves to {}", named(standbys)));
        let parts: Vec<_> = together.into_iter().chain(standing_by).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn units(number: u32) -> String {
    format!("{number} unit{}", if number == 1 { "" } else { "s" })
}
